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

// turnsPace is that of a Redis nearby.
var turnsPace = pace{rtt: time.Millisecond, slice: 10 * time.Millisecond}

// Each row of the table plays the life of one lock name in this process.
func TestTurns(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	p, start := turnsPace, turnsPace.start()
	long := p.slice // a streak of one slice
	streak := func(tr *turns, from time.Duration, others int) (end time.Duration) {
		tr.granted(from)
		tr.released(from+long, p, others)
		return from + long
	}
	for _, row := range []struct {
		name string
		play func(tr *turns)
		at   time.Duration // of the question
		want time.Duration // others go first for so long
	}{
		{"a name that was never held", func(*turns) {}, ms, 0},
		{"a streak shorter than a slice", func(tr *turns) { tr.granted(ms); tr.released(long, p, 1) }, long, 0},
		{"a streak of a slice", func(tr *turns) { streak(tr, ms, 1) }, ms + long, start},
		{"a while after it", func(tr *turns) { streak(tr, ms, 1) }, ms + long + start/2, start - start/2},
		{"long after it", func(tr *turns) { streak(tr, ms, 1) }, time.Hour, 0},
		{"a streak that another process has interrupted", func(tr *turns) {
			tr.granted(ms)
			tr.interrupted()
			tr.granted(long)
			tr.released(ms+long, p, 1)
		}, ms + long, 0},
		{"the streak begins with the first grant", func(tr *turns) {
			tr.granted(ms)
			tr.granted(long)
			tr.released(ms+long, p, 1)
		}, ms + long, start},

		// Others that were not quick enough get a start twice as long, up to mostYield.
		{"missed once", func(tr *turns) { streak(tr, streak(tr, ms, 1), 1) }, ms + 2*long, 2 * start},
		{"missed often", func(tr *turns) {
			for from, n := ms, 0; n < 20; n++ {
				from = streak(tr, from, 1)
			}
		}, ms + 20*long, mostYield},
		{"missed, and then one of them had the lock", func(tr *turns) {
			from := streak(tr, ms, 1)
			tr.interrupted()
			streak(tr, from, 1)
		}, ms + 2*long, start},

		// Each of the others that have heard the release goes first once.
		{"one of three has had the lock", func(tr *turns) {
			now := streak(tr, ms, 3)
			tr.interrupted()
			tr.heardRelease(now+50*ms, p)
		}, ms + long + 50*ms, start},
		{"two of three have had it", func(tr *turns) {
			now := streak(tr, ms, 3)
			tr.heardRelease(now+50*ms, p)
			tr.heardRelease(now+60*ms, p)
		}, ms + long + 60*ms, start},
		{"all three have had it", func(tr *turns) {
			now := streak(tr, ms, 3)
			for i := range 3 {
				tr.heardRelease(now+time.Duration(50+i)*ms, p)
			}
		}, ms + long + 52*ms, start - ms}, // of the second release: the third one changes nothing
		{"the only other one has had it", func(tr *turns) {
			now := streak(tr, ms, 1)
			tr.heardRelease(now+50*ms, p)
		}, ms + long + 50*ms, 0},

		// Releases without a subscriber.
		{"nobody has heard a release", func(tr *turns) { streak(tr, ms, 0) }, ms + long, 0},
		{"nobody has heard releases for less than unheardFor", func(tr *turns) {
			streak(tr, streak(tr, ms, 0), 0)
		}, ms + 2*long, 0},
		{"nobody has heard releases for unheardFor", func(tr *turns) {
			now := streak(tr, ms, 0)
			streak(tr, now+unheardFor-long, 0)
		}, ms + long + unheardFor, unheardYield + p.rtt},
		{"nobody has heard any of three in unheardFor", func(tr *turns) {
			now := streak(tr, ms, 0)
			now = streak(tr, now+unheardFor*3/4-long, 0)
			streak(tr, now+unheardFor/4-long, 0)
		}, ms + long + unheardFor, unheardYield + p.rtt},
		{"and others have gone first since", func(tr *turns) {
			now := streak(tr, ms, 0)
			now = streak(tr, now+unheardFor-long, 0)
			streak(tr, now+unheardYield+p.rtt, 0)
		}, ms + long + unheardFor + unheardYield + p.rtt + long, 0},
		{"another process had the lock in between", func(tr *turns) {
			now := streak(tr, ms, 0)
			tr.interrupted()
			streak(tr, now+unheardFor-long, 0)
		}, ms + long + unheardFor, 0},
		{"one was heard in between", func(tr *turns) {
			now := streak(tr, ms, 0)
			now = streak(tr, now+long, 1)
			streak(tr, now+unheardFor-long, 0)
		}, ms + 3*long + unheardFor, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			var tr turns
			row.play(&tr)
			assert.Equal(t, row.want, tr.yield(row.at), "others go first for so long")
		})
	}
}

// A lock is handed on inside the process for one slice, and not more than mostPassed times.
func TestTurnsEndHandoversWithTheSlice(t *testing.T) {
	t.Parallel()
	p := turnsPace
	var tr turns
	tr.granted(1)
	assert.True(t, tr.mayHandOver(p.slice, p), "a moment before the end of the slice")
	assert.False(t, tr.mayHandOver(1+p.slice, p), "at the end of the slice")
	tr.interrupted()
	tr.granted(1 + p.slice)
	assert.True(t, tr.mayHandOver(1+p.slice, p), "a new streak")
	for range mostPassed - 1 {
		tr.handedOver()
	}
	assert.True(t, tr.mayHandOver(1+p.slice, p), "after %d handovers", mostPassed-1)
	tr.handedOver()
	assert.False(t, tr.mayHandOver(1+p.slice, p), "after %d handovers", mostPassed)
	tr.interrupted()
	tr.granted(1 + p.slice)
	assert.True(t, tr.mayHandOver(1+p.slice, p), "after %d handovers of the streak before", mostPassed)
	assert.False(t, (&turns{}).mayHandOver(0, pace{rtt: p.rtt}), "without a slice")
}

// The start that others get grows with the round trip, and so does the slice; both have a bound.
func TestPaceFollowsTheRoundTrip(t *testing.T) {
	t.Parallel()
	const slice = 10 * time.Millisecond
	for _, row := range []struct{ slice, rtt, wantSlice, wantStart time.Duration }{
		{slice, 0, slice, leastYield},
		{slice, 100 * time.Microsecond, slice, leastYield + 100*time.Microsecond},
		{slice, 2 * time.Millisecond, sliceTrips * 2 * time.Millisecond, leastYield + 2*time.Millisecond},
		{slice, time.Second, longSlice, mostYield},
		{time.Second, time.Second, time.Second, mostYield},
		{0, time.Second, 0, mostYield}, // nothing is handed over
	} {
		e := &engine{slice: row.slice}
		e.rtt.observe(row.rtt)
		assert.Equal(t, row.wantSlice, e.pace().slice, "the slice with %+v", row)
		assert.Equal(t, row.wantStart, e.pace().start(), "the start of others with %+v", row)
	}
}

// A round trip that took long once counts little; a Redis that has become quicker counts soon.
func TestRoundTripForgetsOutliers(t *testing.T) {
	t.Parallel()
	var r roundTrip
	r.observe(time.Millisecond)
	assert.Equal(t, time.Millisecond, r.get(), "the first one")
	r.observe(time.Hour)
	assert.LessOrEqual(t, r.get(), 1100*time.Microsecond, "after an outlier")
	for range 20 {
		r.observe(100 * time.Microsecond)
	}
	assert.LessOrEqual(t, r.get(), 110*time.Microsecond, "after 20 that were quicker")
	for range 100 {
		r.observe(10 * time.Millisecond)
	}
	assert.GreaterOrEqual(t, r.get(), 9*time.Millisecond, "after 100 that took longer")
}
