//go:build go1.25

package engine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// An error that ends a wait tells that another process holds the lock, and how much of its lease is left according to
// the last answer of Redis. A caller that waited behind another caller gets the same error.
func TestErrorThatEndsAWaitNamesTheHolderElsewhere(t *testing.T) {
	for name, fails := range map[string]func(ctx context.Context, e *bubbleEngine) (context.Context, func()){
		"ctx": func(ctx context.Context, _ *bubbleEngine) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel
		},
		"Close": func(ctx context.Context, e *bubbleEngine) (context.Context, func()) {
			return ctx, func() { _ = e.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBubbleEngine(t)
				e.redis.Records["x"] = &fakeredis.Record{Field: "other:1:1", Levels: 1, Expires: time.Now().Add(25 * time.Second)}
				errs := make(chan error, 2)
				ctx, end := fails(ctx, e)
				for o := range Owner(2) {
					go func() {
						_, err := e.lockWith(ctx, o+1, Request{Wait: forever})
						errs <- err
					}()
					synctest.Wait()
				}
				time.Sleep(4 * time.Second)
				asked := e.redis.Count("acquire")
				end()
				for range 2 {
					err := <-errs
					require.Error(t, err)
					assert.Contains(t, err.Error(), ": another process (or Client) holds it, and its lease expires in 21s")
					if name == "ctx" {
						assert.ErrorIs(t, err, context.Canceled)
					} else {
						assert.ErrorIs(t, err, send.ErrClosed)
					}
				}
				assert.Equal(t, asked, e.redis.Count("acquire"), "a request was sent for the error")
			})
		})
	}
}

// An error that ends a wait names no holder that this process does not know.
func TestErrorThatEndsAWaitSaysOnlyWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		e.redis.Latency = 2 * time.Second
		var errs [2]error
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(2-i)*time.Second)
				defer cancel()
				_, errs[i] = e.lockWith(ctx, Owner(i+1), Request{Wait: forever})
			})
			synctest.Wait()
		}
		all.Wait()
		assert.EqualError(t, errs[0], "context deadline exceeded")
		assert.EqualError(
			t,
			errs[1],
			"context deadline exceeded: goroutine 1 of this process is ahead in the queue, and Redis has not answered its "+
				"request",
		)
		time.Sleep(time.Minute)
	})
}
