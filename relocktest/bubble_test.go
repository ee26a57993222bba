//go:build go1.25

package relocktest_test

import (
	"context"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relocktest"
)

// A service that works under a lock for an hour stops when the lock is lost, and when Redis is away for too long.
func TestBubbleLosesALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis, ctx := relocktest.NewBubble(t), t.Context()
		lock := redis.Client().NewLock("lock:report")
		for what, lose := range map[string]func(){
			"forgotten": func() { assert.True(t, redis.Forget("lock:report")) },
			"outage":    redis.Stop,
		} {
			err := lock.Do(ctx, func(ctx context.Context) error {
				time.Sleep(time.Hour) // renewed all the time
				must(t, ctx.Err())
				lose()
				start := time.Now()
				<-ctx.Done()
				assert.LessOrEqual(t, time.Since(start), 30*time.Second, what)
				return context.Cause(ctx)
			})
			assert.ErrorIs(t, err, relock.ErrLockLost, what)
			redis.Resume()
			time.Sleep(time.Minute)
		}
	})
}

// A waiter survives a short outage, and a crashed holder blocks others for its lease.
func TestBubbleOutageAndCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis, ctx := relocktest.NewBubble(t), t.Context()
		holder, waiter := redis.Client(), redis.Client()
		must(t, holder.NewLock("lock:orders:42").Lock(ctx))
		had := make(chan time.Time)
		go func() {
			assert.NoError(t, waiter.NewLock("lock:orders:42").Lock(relock.ContextWithOwner(ctx)))
			had <- time.Now()
		}()
		time.Sleep(time.Minute)
		redis.Stop()
		time.Sleep(5 * time.Second)
		redis.Resume()
		time.Sleep(time.Minute)
		crashed := time.Now()
		must(t, holder.Close()) // its leases are no longer renewed
		assert.WithinDuration(t, crashed.Add(30*time.Second), <-had, 15*time.Second)
	})
}

// A forced release by another Client is heard of at once, however young the hold is.
func TestForcedReleaseReachesEveryClientOfABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := relocktest.NewBubble(t)
		assert.Less(t, untilForced(t, redis.Client(), redis.Client()), 100*time.Millisecond)
		time.Sleep(time.Hour)
		holder := redis.Client()
		for range 3 { // also after older holds
			assert.Less(t, untilForced(t, holder, redis.Client()), 100*time.Millisecond)
			must(t, holder.NewLock("old").Do(t.Context(), func(context.Context) error {
				time.Sleep(time.Minute)
				return nil
			}))
			time.Sleep(time.Minute)
		}
	})
}

func TestBubbleStartsAgainAndAgain(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			assert.True(t, get(t, relocktest.NewBubble(t).Client().NewLock("x")))
		})
	}
}

// go-redis keeps timers of commands that waited for a connection, and a timer of one bubble must not be used in another
// one.
func TestBubbleHasConnectionsForManyCommandsAtOnce(t *testing.T) {
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			rdb := relocktest.NewBubble(t).Redis()
			var all sync.WaitGroup
			for range 100 {
				all.Add(1)
				go func() {
					defer all.Done()
					assert.NoError(t, rdb.Ping(t.Context()).Err())
				}()
			}
			all.Wait()
		})
	}
}

// A test that confuses the two kinds of Redis is told so, and does not hang.
func TestStartNamesNewBubbleInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			relocktest.New(f)
		}()
		<-ended
		assert.Contains(t, f.said, "NewBubble")
	})
}

// During an outage go-redis prints nothing in a bubble, and what it prints elsewhere is not lost.
func TestBubbleIsQuiet(t *testing.T) {
	printed := func(f func()) string {
		r, w, err := os.Pipe()
		must(t, err)
		stderr := os.Stderr
		os.Stderr = w
		logging.Enable() // its default logger prints to what is os.Stderr now
		relocktest.SetLogger()
		f()
		os.Stderr = stderr
		must(t, w.Close())
		text, err := io.ReadAll(r)
		must(t, err)
		return string(text)
	}
	refused := func(ctx context.Context, rdb *redis.Client) {
		assert.Error(t, rdb.Ping(ctx).Err())
		must(t, rdb.Close())
	}
	assert.Empty(t, printed(func() {
		synctest.Test(t, func(t *testing.T) {
			b := relocktest.NewBubble(t)
			b.Stop()
			refused(t.Context(), b.Redis())
		})
	}))
	assert.Contains(t, printed(func() {
		refused(t.Context(), redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1}))
	}), "failed to dial")
}
