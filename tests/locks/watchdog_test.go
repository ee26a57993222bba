package locks

import (
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/require"
)

// A hook that panics in a renewal makes that renewal fail, and does not end the process.
func TestHookPanicBehindARenewal(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	rdb := testredis.Client(t, b.Addr)
	var held, panicked atomic.Bool
	rdb.AddHook(locktest.ProcessHook(func(send func() error) error {
		if held.Load() && panicked.CompareAndSwap(false, true) {
			panic("a hook")
		}
		return send()
	}))
	l := b.ClientOn(rdb, WithWatchdogTimeout(time.Second)).NewLock(b.LockName)
	b.Must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.Must(err)
	held.Store(true)
	locktest.Stays(b, "the lock is lost", guarded.Done(), 2*time.Second)
	require.True(t, panicked.Load())
	b.Must(l.Unlock(ctx))
}
