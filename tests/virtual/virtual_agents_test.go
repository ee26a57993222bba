//go:build go1.25

package virtual

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A diesThen is a context of the user whose Done ends the goroutine when the time has come.
type diesThen struct {
	context.Context
	then *atomic.Bool
}

func (p diesThen) Done() <-chan struct{} {
	if p.then.Load() {
		runtime.Goexit()
	}
	return p.Context.Done()
}

// Two Clients of nodes of a RedLock are closed while a guard of another hold there has a context with a fault. The
// RedLock is lost at once, long before its own next renewal: its nodes are not renewed any more.
func TestRedLockIsLostWhenClientsWithAFaultyGuardAreClosed(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		clients, l, guarded := guardedRedLock(ctx, v)
		faulty := diesThen{ctx, new(atomic.Bool)}
		parent, cancel := context.WithCancel(ctx)
		defer cancel()
		for _, c := range clients[1:] {
			other := c.NewLock("other")
			require.NoError(v, other.Lock(ctx))
			_, err := other.Guard(diesThen{parent, faulty.then})
			require.NoError(v, err)
		}
		faulty.then.Store(true)
		for _, c := range clients[1:] {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = c.Close()
			}()
			<-ended
		}
		faulty.then.Store(false)
		time.Sleep(time.Second)
		assert.Error(v, guarded.Err())
		_ = l.Unlock(ctx)
	})
}
