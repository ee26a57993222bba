package locks

// Do and TryDo of a lock that is lost before its function is called, and the errors that they make of a loss.

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// An owner that holds the lock in an outer section, and has lost it, is told so by an inner Do, whose function is not
// called. TryDo reports that.
func TestTryDoReportsThatAnOuterLossKeptItFromItsFunction(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l := b.Client().NewLock(b.LockName)
	err := l.Do(ctx, func(outer context.Context) error {
		b.Must(locktest.Second(l.ForceUnlock(outer)))
		owner := context.WithoutCancel(outer)
		ran, err := l.TryDo(owner, locktest.Soon, func(context.Context) error { assert.Fail(t, "called"); return nil })
		assert.False(t, ran)
		assert.ErrorIs(t, err, ErrLockLost)
		return nil
	})
	b.MustBe(err, ErrLockLost)
	b.IsLocked(l, false)
}

// The error of a function that waits for another lock may match ErrBusy.
func TestErrorOfAnInnerLockIsNotThatOfDo(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l, inner := b.Client().NewLock(b.LockName), b.Client().NewLock(b.LockName+"-inner")
	held := b.Client().NewLock(b.LockName + "-inner")
	b.Must(held.Lock(ctx))
	fn := func(ctx context.Context) error {
		for { // the machine may be very busy
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			err := inner.Lock(short)
			cancel()
			if errors.Is(err, ErrBusy) {
				return err
			}
		}
	}
	ran, err := l.TryDo(ctx, locktest.Soon, fn)
	assert.True(t, ran)
	b.MustBe(err, ErrBusy)
	b.Must(held.Unlock(ctx))
}

// A contextThatEnds ends the goroutine that calls Done, as soon as the lock is held.
type contextThatEnds struct {
	context.Context
	held func() bool
}

func (c contextThatEnds) Done() <-chan struct{} {
	if c.held() {
		runtime.Goexit()
	}
	return c.Context.Done()
}

// A context that ends the goroutine when the lock was just acquired leaves no hold that is renewed for no owner.
func TestContextThatEndsTheGoroutineLeavesNoHold(t *testing.T) {
	nothing := func(context.Context) error { return nil }
	for name, call := range map[string]func(b *locktest.Bench, other *Client, ctx context.Context) error{
		"Do": func(b *locktest.Bench, _ *Client, ctx context.Context) error {
			return b.Client().NewLock(b.LockName).Do(ctx, nothing)
		},
		"TryDo": func(b *locktest.Bench, _ *Client, ctx context.Context) error {
			_, err := b.Client().NewLock(b.LockName).TryDo(ctx, locktest.Soon, nothing)
			return err
		},
		"Lead": func(b *locktest.Bench, _ *Client, ctx context.Context) error {
			return b.Client().NewElection(b.LockName).Lead(ctx, nothing)
		},
		"MultiLock": func(b *locktest.Bench, other *Client, ctx context.Context) error {
			c := b.Client()
			return c.NewMultiLock(c.NewLock(b.LockName), other.NewLock(b.LockName)).Lock(ctx)
		},
		"TryLock of a MultiLock": func(b *locktest.Bench, other *Client, ctx context.Context) error {
			c := b.Client()
			_, err := c.NewMultiLock(c.NewLock(b.LockName), other.NewLock(b.LockName)).TryLock(ctx, locktest.Soon, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, second := locktest.NewBench(t, testredis.Mini(t).Addr()), locktest.NewBench(t, testredis.Mini(t).Addr())
			other, name := second.Client(), b.LockName+"*"
			keys := func() int {
				return len(b.Rdb.Keys(ctx, name).Val()) + len(second.Rdb.Keys(ctx, name).Val())
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			ended := make(chan struct{})
			returned := false
			go func() {
				defer close(ended)
				_ = call(b, other, contextThatEnds{ctx, func() bool { return keys() > 0 }})
				returned = true
			}()
			locktest.Await(b, "the goroutine ends", ended)
			assert.False(t, returned, "the context has not ended the goroutine")
			testredis.Await(t, "the locks are free", locktest.Soon, func() bool { return keys() == 0 })
		})
	}
}
