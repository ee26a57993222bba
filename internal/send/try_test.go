//go:build go1.25

package send

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waitsForConnection is a call that waits for a connection until its context is canceled.
func waitsForConnection(ctx context.Context, _ Call) (any, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("dial: %w", ctx.Err())
}

func TestTryWithoutAConnectionEnds(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(waitsForConnection)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		a := b.Do(b.wait(ctx), request("x"), time.Now()) // retries for the retry budget
		require.ErrorContains(t, a.Err, "no connection")
		assert.NotErrorIs(t, a.Err, context.DeadlineExceeded, "the caller has no such limit")
		assert.True(t, b.unhealthy.Load())
		sent := b.fake.times()
		assert.GreaterOrEqual(t, sent[1].Sub(sent[0]), ResendTime)
	})
}

func TestTryHasTheValuesOfTheCallerAndALaterDeadline(t *testing.T) {
	in(t, func(b *bench) {
		var seen context.Context
		b.fake.setRun(func(ctx context.Context, c Call) (any, error) {
			seen = ctx
			return echo(c), ctx.Err()
		})
		start := time.Now()
		for deadline, want := range map[time.Duration]time.Duration{
			time.Hour:   ConnectTime + ConnectTime/4,
			time.Second: time.Second,
		} {
			ctx, cancel := context.WithTimeout(withValue, deadline)
			answers(t, "x", b.Do(b.wait(ctx), request("x"), time.Time{}))
			assert.Equal(t, "v", seen.Value(key{}))
			got, has := seen.Deadline()
			assert.True(t, has)
			assert.Equal(t, want, got.Sub(start))
			assert.Equal(t, context.Canceled, seen.Err(), "a hook may have bound something to it")
			cancel()
		}
	})
}

// Answers arrive while callers leave: each outcome is received exactly once.
func TestEachOutcomeIsReceivedOnce(t *testing.T) {
	in(t, func(b *bench) {
		const n = 500
		b.fake.setRun(after(time.Second/2, nil))
		var received, left, coming atomic.Int64
		late := new(orphans)
		var all sync.WaitGroup
		for range n {
			all.Add(1)
			go func() {
				defer all.Done()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
				defer cancel()
				r := request("x")
				r.OnOrphan = late
				a := b.Do(b.wait(ctx), r, time.Time{})
				coming.Add(int64(a.Orphans))
				if a.Err == nil {
					received.Add(1)
				} else {
					assert.True(t, a.Abandoned || a.Unknown == 1)
					left.Add(1)
				}
			}()
		}
		all.Wait()
		synctest.Wait()
		assert.EqualValues(t, n, received.Load()+left.Load())
		assert.EqualValues(t, left.Load(), len(late.all()))
		assert.EqualValues(t, coming.Load(), len(late.all()), "orphans that were counted")
	})
}

func TestHookThatEndsTheGoroutineIsAnError(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(func(context.Context, Call) (any, error) {
			time.Sleep(time.Second / 2)
			runtime.Goexit()
			return nil, nil
		})
		a := b.do(request("x"))
		assert.Equal(t, ErrHookExited, a.Err)
		assert.Equal(t, 1, a.Unknown)
		assert.Equal(t, 1, b.fake.tries())

		var late orphans
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second/4, cancel)
		r := request("x")
		r.OnOrphan = &late
		assert.Equal(t, context.Canceled, b.Do(b.wait(ctx), r, time.Time{}).Err)
		time.Sleep(time.Second)
		require.Len(t, late.all(), 1)
		assert.Equal(t, ErrHookExited, late.all()[0].err)
	})
}
