//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// L6: several busy processes get about the same share of the lock.
func TestHandoverSharesTheLockBetweenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, workers, section = 4, 16, time.Millisecond
		r := &fakeRedis{records: make(map[string]*fakeRecord), latency: time.Millisecond}
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		var turns []int // the clients of the sections, in order
		var longest time.Duration
		for c := range clients {
			e := joinBubbleEngine(t, r, fmt.Sprint("client", c))
			for w := range workers {
				all.Go(func() {
					for ctx.Err() == nil {
						start := time.Now()
						if ok, _ := e.lockWith(ctx, owner(w+1), request{wait: forever}); !ok {
							return
						}
						longest = max(longest, time.Since(start))
						turns = append(turns, c)
						time.Sleep(section)
						e.unlock(owner(w + 1))
					}
				})
			}
		}
		const long = 10 * time.Second
		time.Sleep(long)
		cancel()
		all.Wait()

		var got [clients]int
		var tenures []int
		for i, c := range turns {
			got[c]++
			if i == 0 || turns[i-1] != c {
				tenures = append(tenures, c)
			}
		}
		t.Logf("%d sections, %v, in %d tenures, longest wait %v", len(turns), got, len(tenures), longest)
		least, most := slices.Min(got[:]), slices.Max(got[:])
		assert.GreaterOrEqual(t, 2*least, most, "the slowest client has %d sections, the fastest %d", least, most)
		part := float64(len(turns)) * float64(section) / float64(long)
		assert.GreaterOrEqual(t, part, 0.8, "the lock was used for %.2f of the time", part)
		assert.LessOrEqual(t, longest, 4*clients*workers*section, "the longest wait")
	})
}

// The process that hands a lock over is one holder to the other processes; these get the
// lock after the slice.
func TestHandoverLetsOtherProcessesIn(t *testing.T) {
	t.Parallel()
	for name, newLock := range map[string]lockMaker{
		"lock": newPlainLock, "fenced": newFencedLock, "write": newWriteLock, "multi": newSlotMultiLock,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			ctx, cancel := context.WithCancel(context.Background())
			l, other := newLock(b.client(), b.name), newLock(b.client(WithMaxWakeDelay(time.Hour)), b.name)
			var inside atomic.Int32
			section := func(l Locker, owner context.Context) bool {
				if err := l.Lock(owner); err != nil {
					return false
				}
				assert.Equal(t, int32(1), inside.Add(1), "owners inside")
				inside.Add(-1)
				assert.NoError(t, l.Unlock(owner))
				return true
			}
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for owner := WithOwner(ctx); section(l, owner); {
					}
				})
			}
			for range 50 {
				start := time.Now()
				assert.True(t, section(other, WithOwner(context.Background())), "the other process did not get the lock")
				assert.LessOrEqual(t, time.Since(start), soon, "wait of the other process")
			}
			cancel()
			all.Wait()
		})
	}
}

// L6: a waiter that may not subscribe gets a lock that another process keeps busy, whether or not that
// process may publish.
func TestWaiterThatMayNotSubscribeGetsABusyLock(t *testing.T) {
	t.Parallel()
	for _, busy := range []string{"default", "nochannels"} {
		t.Run("busy as "+busy, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			b.must(b.rdb.Do(context.Background(), "acl", "setuser", "nochannels", "on", "nopass", "~*", "resetchannels", "+@all").Err())
			as := func(user string) func(*redis.Options) {
				return func(o *redis.Options) {
					if o.Username = user; user != "default" {
						o.Password = "any"
					}
				}
			}
			hot := b.clientOn(testredis.Client(t, b.addr, as(busy))).NewLock(b.name)
			waiter := b.clientOn(testredis.Client(t, b.addr, as("nochannels"))).NewLock(b.name)

			ctx, stop := context.WithCancel(context.Background())
			var all sync.WaitGroup
			var sections atomic.Int64
			for range 8 {
				all.Go(func() {
					for ctx.Err() == nil {
						_ = hot.Do(ctx, func(context.Context) error { sections.Add(1); time.Sleep(time.Millisecond); return nil })
					}
				})
			}
			var waits []time.Duration
			var longest time.Duration
			for range 4 {
				before := sections.Load()
				testredis.Await(b, "the lock is busy", soon, func() bool { return sections.Load() > before+30 })
				start := time.Now()
				b.must(waiter.Lock(context.Background()))
				waits = append(waits, time.Since(start).Round(time.Millisecond))
				longest = max(longest, time.Since(start))
				b.must(waiter.Unlock(context.Background()))
			}
			stop()
			all.Wait()
			t.Log(fmt.Sprint("waits ", waits))
			assert.LessOrEqual(t, longest, 4*time.Second, "the longest wait of a waiter that may not subscribe")
		})
	}
}

// A TryLock whose wait time is too short to let other processes go first sends its attempt all the same.
func TestShortTryLockStillAsksAfterGivingWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRedis{records: make(map[string]*fakeRecord)}
		a, other := joinBubbleEngine(t, r, "a"), joinBubbleEngine(t, r, "b")
		a.rtt.d.Store(int64(15 * time.Millisecond))
		a.slice = 0
		ctx, cancel := context.WithCancel(context.Background())
		a.lock(1)
		go func() { _, _ = other.lockWith(ctx, 9, request{wait: forever}) }()
		time.Sleep(50 * time.Millisecond)
		got := make(chan bool)
		go func() {
			ok, err := a.lockWith(context.Background(), 2, request{wait: 10 * time.Millisecond})
			assert.NoError(t, err)
			got <- ok
		}()
		synctest.Wait()
		cancel() // the other client gives up
		synctest.Wait()
		n := r.count("acquire")
		a.unlock(1)
		if assert.True(t, <-got, "TryLock fails for a lock without a holder and waiters; %d acquires since", r.count("acquire")-n) {
			a.unlock(2)
		}
	})
}
