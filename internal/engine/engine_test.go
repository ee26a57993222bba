//go:build go1.25

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An attempt that is under way while the Client closes is rolled back.
func TestEngineCloseRollsBackAnAttemptUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = time.Second
		got := e.asking(1)
		time.Sleep(time.Millisecond)
		assert.NoError(t, e.Close())
		assert.ErrorIs(t, <-got, send.ErrClosed)
		e.assertFree("the lock is still held")
	})
}

// S1 under all faults together: with random owners, leases, latencies, lost answers and late requests, no two holds are
// valid at the same time, and nothing is left in the end.
func TestEngineExcludesUnderRandomFaults(t *testing.T) {
	for seed := range 40 {
		synctest.Test(t, func(t *testing.T) { excludesUnderRandomFaults(t, seed) })
	}
}

func excludesUnderRandomFaults(t *testing.T, seed int) {
	r := fakeredis.New()
	rng := newRand(seed)
	faulty := true
	r.Fault = func(string) fakeredis.Fault { // with r.mu held, which also guards rng here
		if !faulty {
			return fakeredis.Fault{}
		}
		switch rng.IntN(20) {
		case 0:
			return fakeredis.Fault{Err: io.EOF}
		case 1:
			return fakeredis.Fault{Block: io.EOF}
		case 2:
			return fakeredis.Fault{Late: time.Duration(rng.IntN(int(2 * time.Second)))}
		case 3:
			return fakeredis.Fault{Late: time.Duration(rng.IntN(int(40 * time.Second))), Err: io.EOF}
		}
		return fakeredis.Fault{Late: time.Duration(rng.IntN(int(20 * time.Millisecond)))}
	}
	var (
		mu     sync.Mutex // guards below
		inside = make(map[string]string)
		held   int
	)
	var wg sync.WaitGroup
	for c := range 3 {
		e := joinBubbleEngine(t, r, fmt.Sprint("client", c))
		for o := Owner(1); o <= 4; o++ {
			rng := newRand(seed*1000 + c*10 + int(o))
			wg.Go(func() {
				for range 20 {
					b := newFakeLock(r, "x")
					ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(30))*time.Second)
					req := Request{Wait: forever}
					switch rng.IntN(3) {
					case 0:
						req.Wait = time.Duration(rng.IntN(int(3 * time.Second)))
					case 1:
						req.Lease = time.Duration(1+rng.IntN(20)) * time.Second
					}
					ok, err := e.acquire(ctx, b, o, req)
					cancel()
					assert.False(t, ok && err != nil, "seed %d: %v", seed, err)
					if !ok {
						continue
					}
					guarded, err := e.Guard(context.Background(), b, o)
					if err == nil {
						me := fmt.Sprintf("client %d owner %d", c, o)
						mu.Lock()
						held++
						who := inside["x"]
						assert.Empty(t, who, "seed %d: %s holds the lock together with %s", seed, me, who)
						inside["x"] = me
						mu.Unlock()
						select {
						case <-guarded.Done():
						case <-time.After(time.Duration(rng.IntN(int(15 * time.Second)))):
						}
						mu.Lock()
						inside["x"] = ""
						mu.Unlock()
					}
					err = e.Release(context.Background(), b, o)
					assert.True(
						t,
						err == nil || errors.Is(err, ErrLockLost) || errors.Is(err, io.EOF) || errors.Is(err, send.ErrSilent),
						"seed %d",
						seed,
					)
				}
			})
		}
	}
	wg.Wait()
	mu.Lock()
	assert.GreaterOrEqual(t, held, 10, "seed %d: only %d holds", seed, held)
	mu.Unlock()
	r.Set(func() { faulty = false })
	time.Sleep(2 * time.Minute) // by then, abandoned records have expired
	h := r.Holder("x")
	assert.Empty(t, h, "seed %d: %s still holds the lock", seed, h)
}

// Close waits for callers with a request under way, so that the Redis client can be closed after it.
func TestEngineCloseWaitsForCallers(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = 500 * time.Millisecond
		got := e.asking(1)
		time.Sleep(100 * time.Millisecond)
		assert.NoError(t, e.Close())
		requests := len(e.redis.Requests)
		assert.ErrorIs(t, <-got, send.ErrClosed)
		time.Sleep(time.Hour)
		n := len(e.redis.Requests)
		assert.Equal(t, requests, n, "%d requests after Close, %q holds the lock", n-requests, e.redis.Holder("x"))
		e.assertFree("%d requests after Close, %q holds the lock", n-requests, e.redis.Holder("x"))
	})
}

// Renewals of a hold that get no answer, and a re-entry meanwhile, stop neither the watchdog nor other holds.
func TestEngineGoesOnWhileTwoRenewalsOfAHoldAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const short = 500 * time.Millisecond
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWatchdogTimeout(short))
		x, y := newFakeLock(e.redis, "x"), newFakeLock(e.redis, "y")
		e.lock(1)
		e.faults(fakeredis.Fault{Late: time.Second}, "renew")
		time.Sleep(3 * short / 5)
		require.Equal(t, lease.MostRenewals, e.redis.Count("renew"))
		e.lock(1)
		end := e.Probe().Look(x, 1).LeaseEnds
		time.Sleep(time.Until(end) - short/60 - short/3)
		ok, err := e.acquire(ctx, y, 2, Request{Wait: forever}) // its renewal is due just before the lease of x ends
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(time.Until(end))
		synctest.Wait()
		assert.Zero(t, holdCountOf(e.Engine, x, 1), "the hold that was not renewed in time is lost")
		assert.Equal(t, 1, holdCountOf(e.Engine, y, 2))
		_ = e.Release(ctx, x, 1)
		_ = e.Release(ctx, y, 2)
	})
}
