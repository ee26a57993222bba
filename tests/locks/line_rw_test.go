package locks

// A plain lock and a read/write lock of the same name.
//
// Rules: they exclude each other, and each has a line of its own. A lock that one of them has left free is found by the
// waiters of the other one within the poll interval.

import (
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/require"
)

func TestLocksOfTwoTypesAndOneNameExcludeEachOther(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Opts = []Option{WithPollInterval(100 * time.Millisecond)}
		ctx, other := ContextWithOwner(ctx), ContextWithOwner(ctx)
		c := b.Client()
		for _, d := range []*Client{c, b.Client()} {
			for _, types := range [][2]Locker{
				{c.NewLock(b.LockName), d.NewRWLock(b.LockName).Write()},
				{c.NewLock(b.LockName), d.NewRWLock(b.LockName).Read()},
			} {
				for i, held := range types {
					b.Must(held.Lock(ctx))
					b.Tries(types[1-i], false)
					got := b.StartWaiter(other, types[1-i])
					b.Must(held.Unlock(ctx))
					b.Must(locktest.Await(b, "the waiter finds the free lock", got))
					b.Must(types[1-i].Unlock(other))
				}
			}
		}
		require.Empty(b, b.Holder())
	})
}
