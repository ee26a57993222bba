//go:build go1.25

package engine

// Hand-offs inside one process, in bubbles.
//
// Rules: a hand-off sends no request, and passes on a valid hold that is renewed automatically, until the hand-off window
// is over. Whatever ends a caller, the lock goes to the next one or is released, and a loss reaches the holder.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
)

// newFencedFake is a fakeLock whose holds draw tokens.
func newFencedFake(r *fakeredis.Redis, name string) *fakeLock {
	l := newFakeLock(r, name)
	l.traits.Fenced = true
	return l
}

// queue makes the owners from..to wait for the lock, in this order. Each holds the lock for section, and appends itself
// to order.
func (e *bubbleEngine) queue(from, to Owner, section time.Duration) (order *[]Owner, all *sync.WaitGroup) {
	order, all = new([]Owner), new(sync.WaitGroup)
	for o := from; o <= to; o++ {
		all.Go(func() {
			e.lock(o)
			*order = append(*order, o) // the race detector checks that the owners exclude one another
			time.Sleep(section)
			e.unlock(o)
		})
		synctest.Wait()
	}
	return order, all
}

// C1: a hand-off sends no request.
func TestHandoffSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		order, all := e.queue(2, 50, 0)
		guarded := e.guarded(1)
		e.unlock(1)
		all.Wait()
		assert.True(t, slices.IsSorted(*order), "served in the order %v", *order)
		assert.Len(t, *order, 49, "served in the order %v", *order)
		assert.Equal(t, []string{"acquire", "release"}, e.redis.Requests, "requests")
		assert.Same(t, context.Canceled, context.Cause(guarded), "the guard of the first owner")
	})
}

// L6: once the hand-off window is over, the holder releases the record in Redis instead of handing the lock off.
func TestHandoffEndsWithTheWindow(t *testing.T) {
	for _, slice := range []time.Duration{0, 10 * time.Millisecond, 35 * time.Millisecond} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.HandoffWindow = slice
			const section, waiters = 3 * time.Millisecond, 40
			e.lock(1)
			time.Sleep(section)
			_, all := e.queue(2, waiters, section)
			e.unlock(1)
			all.Wait()
			holds := max(1, int((slice+section-1)/section)) // of one record: the holds that begin before the window is over
			want := (waiters + holds - 1) / holds
			assert.Equal(t, want, e.redis.Count("release"), "releases with a slice of %v", slice)
		})
	}
}

// A hold with an explicit lease is not handed off, and no lock is handed off to a waiter that wants an explicit lease.
func TestHandoffOnlyOfWatchdogHolds(t *testing.T) {
	for name, r := range map[string][2]Request{
		"holder":    {{Wait: forever, Lease: time.Minute}, {Wait: forever}},
		"next one":  {{Wait: forever}, {Wait: forever, Lease: time.Minute}},
		"re-entry?": {{Wait: forever}, {Wait: forever}},
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.lock(1, r[0])
			var all sync.WaitGroup
			all.Go(func() {
				ok, err := e.lockWith(ctx, 2, r[1])
				if !assert.NoError(t, err) || !assert.True(t, ok) {
					return
				}
				e.unlock(2)
			})
			synctest.Wait()
			e.unlock(1)
			all.Wait()
			want := 2
			if name == "re-entry?" { // neither has an explicit lease: the lock is handed off
				want = 1
			}
			assert.Equal(t, want, e.redis.Count("acquire"), "%s: acquires", name)
		})
	}
}

// S2: a hold that is no longer valid is not handed off.
func TestHandoffEndsWithValidity(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.HandoffWindow = time.Hour
		e.lock(1)
		e.faults(fakeredis.Fault{Block: io.EOF})
		ctx, cancel := context.WithCancel(ctx)
		got := e.acquiring(ctx, newFakeLock(e.redis, "x"), 2)
		time.Sleep(e.WatchdogTimeout)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
		cancel()
		assert.Error(t, <-got, "the next one got what was lost")
		e.heal()
	})
}

// After a pause of the process an Unlock may run before any timer: then the clock decides.
func TestHandoffLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		order, all := e.queue(2, 3, 0)
		e.expire(1)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
		all.Wait()
		n := e.redis.Count("acquire")
		assert.GreaterOrEqual(t, n, 2, "%d acquires for %v", n, *order)
		assert.Len(t, *order, 2, "%d acquires for %v", n, *order)
	})
}

// Only the Unlock that brings the hold count to zero hands the lock off.
func TestHandoffByTheLastUnlockOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.HandoffWindow = time.Hour
		e.lock(1)
		e.lock(1)
		order, all := e.queue(2, 2, 0)
		e.unlock(1)
		synctest.Wait()
		assert.Empty(t, *order, "the next owner holds the lock after the first of two unlocks")
		e.unlock(1)
		all.Wait()
		assert.Equal(t, 2, e.redis.Count("acquire"), "acquires: the last level was not handed over")
	})
}

// The watchdog renews the record for its current holder, and a loss is reported to that holder.
func TestHandoffKeepsRenewalAndReportsLossToTheSuccessor(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		first := e.guarded(1)
		second := make(chan context.Context)
		go func() {
			e.lock(2)
			second <- e.guarded(2)
		}()
		synctest.Wait()
		e.unlock(1)
		guarded := <-second
		time.Sleep(10 * e.WatchdogTimeout)
		require.NoError(t, guarded.Err(), "not renewed: %v", context.Cause(guarded))
		e.assertHeld("not renewed: %v", context.Cause(guarded))
		require.Equal(t, 1, e.redis.Count("acquire"), "acquires: the lock was not handed over")
		e.lock(2) // re-enters
		e.unlock(2)
		e.deleteRecord()
		start := time.Now()
		<-guarded.Done()
		took := time.Since(start)
		assert.LessOrEqual(t, took, e.WatchdogTimeout/2, "told after %v", took)
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "the holder of a lock that is gone")
		assert.Same(t, context.Canceled, context.Cause(first), "the holder before")
		assert.ErrorIs(t, e.unlockErr(2), ErrLockLost, "unlock")
	})
}

// A record that is handed off to a waiter whose ctx was canceled just before is released.
func TestHandoffToAnEndedContextReleases(t *testing.T) {
	for range 100 {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.HandoffWindow = time.Hour
			lock := newFencedFake(e.redis, "x")
			e.lock(1)
			ctx, cancel := context.WithCancel(ctx)
			got := make(chan bool, 1)
			go func() {
				ok, _ := e.acquire(ctx, lock, 2, Request{Wait: forever})
				got <- ok
			}()
			synctest.Wait()
			cancel()
			e.unlock(1)
			require.False(t, <-got, "a lock for a ctx that had ended")
			synctest.Wait()
			e.assertFree("the record is left")
		})
	}
}

// After Close nothing is handed off, and Unlock releases the record.
func TestHandoffStopsAtClose(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		got := e.asking(2)
		synctest.Wait()
		assert.NoError(t, e.Close())
		e.unlock(1)
		assert.ErrorIs(t, <-got, send.ErrClosed, "the waiter")
		e.assertFree("the record is left")
	})
}

// A goroutine of the holder that calls Lock during a hand-off to another owner gets the lock in its turn.
func TestHandoffWakesOtherGoroutinesOfTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const shared, next = Owner(-1), Owner(2)
		e.lock(shared)
		var all sync.WaitGroup
		soon, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		lock := func(o Owner) {
			ok, err := e.lockWith(soon, o, Request{Wait: forever})
			if !assert.True(t, ok, err) {
				return
			}
			e.unlock(o)
		}
		all.Go(func() { lock(next) })
		synctest.Wait()
		guard.Intercept(e.guarded(shared), func() { // no goroutine has the mutex at this moment
			all.Go(func() { lock(shared) })
			synctest.Wait()
		})
		e.unlock(shared)
		all.Wait()
	})
}

// A ForceUnlock during a hand-off reports the loss to the successor at once.
func TestForceUnlockDuringAHandoffReachesTheSuccessor(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.HandoffWindow = time.Hour
		e.lock(1)
		second := make(chan context.Context)
		go func() {
			e.lock(2)
			second <- e.guarded(2)
		}()
		synctest.Wait()
		e.redis.Latency = 5 * time.Millisecond
		forced := make(chan bool)
		go func() {
			ok, err := e.Force(ctx, newFakeLock(e.redis, "x"))
			assert.NoError(t, err)
			forced <- ok
		}()
		synctest.Wait()
		e.unlock(1) // to 2, while the request is under way
		guarded := <-second
		assert.True(t, <-forced, "not forced")
		start := time.Now()
		synctest.Wait()
		<-guarded.Done()
		took := time.Since(start)
		assert.LessOrEqual(t, took, time.Second, "the successor was told after %v", took)
		_ = e.unlockErr(2)
	})
}

// S1 and S6 under random faults, with and without tokens: one owner holds the lock at a time, tokens grow, and nothing
// is left in the end.
func TestHandoffExcludesUnderRandomFaults(t *testing.T) {
	for seed := range full[uint64](300, 2000) {
		synctest.Test(t, func(t *testing.T) {
			r := &fakeredis.Redis{
				Records: make(map[string]*fakeredis.Record),
				Latency: time.Duration(seed%3) * 500 * time.Microsecond,
			}
			fr := rand.New(rand.NewPCG(seed, 99))
			if seed%2 == 1 {
				r.Fault = func(verb string) fakeredis.Fault { // called with mu held
					switch fr.IntN(40) {
					case 0:
						return fakeredis.Fault{Err: io.EOF}
					case 1:
						return fakeredis.Fault{Block: io.EOF}
					case 2:
						return fakeredis.Fault{Late: time.Duration(fr.IntN(300)) * time.Millisecond}
					}
					return fakeredis.Fault{}
				}
			}
			var mu sync.Mutex
			inside, token := 0, int64(0)
			var all sync.WaitGroup
			var engines []*bubbleEngine
			for n := range 2 {
				e := joinBubbleEngine(t, r, fmt.Sprint("c", n))
				e.HandoffWindow = []time.Duration{0, 10 * time.Millisecond, time.Hour}[seed%3]
				engines = append(engines, e)
				for o := Owner(1); o <= 6; o++ {
					all.Go(func() {
						rng := rand.New(rand.NewPCG(seed, uint64(n)*100+uint64(o)))
						for range 12 {
							var lock contract.Record = newFakeLock(r, "x")
							fenced := rng.IntN(2) == 0
							if fenced {
								lock.(*fakeLock).traits.Fenced = true
							}
							q := Request{Wait: forever}
							if rng.IntN(4) == 0 {
								q.Wait = time.Duration(rng.IntN(20)) * time.Millisecond
							}
							if rng.IntN(5) == 0 {
								q.Lease = time.Minute
							}
							ctx, cancel := context.WithCancel(ctx)
							if rng.IntN(3) == 0 {
								time.AfterFunc(time.Duration(1+rng.IntN(15))*time.Millisecond, cancel)
							}
							ok, err := e.acquire(ctx, lock, o, q)
							if !ok {
								assert.True(
									t,
									err == nil || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) || errors.Is(err, ErrNoAnswer),
									"seed %d: %v",
									seed,
									err,
								)
								cancel()
								continue
							}
							g, err := e.Guard(context.Background(), lock, o)
							if assert.NoError(t, err, "seed %d: guard", seed) {
								mu.Lock()
								inside++
								assert.Equal(t, 1, inside, "seed %d: owners inside", seed)
								if fenced {
									tk, err := e.Token(lock, o)
									assert.NoError(t, err, "seed %d: token", seed)
									assert.Greater(t, tk, token, "seed %d: tokens do not grow", seed)
									token = max(token, tk)
								}
								mu.Unlock()
								levels := 1
								if rng.IntN(4) == 0 {
									if ok, _ := e.acquire(ctx, lock, o, Request{Wait: forever}); ok {
										levels++
									}
								}
								time.Sleep(time.Duration(rng.IntN(4)) * time.Millisecond)
								assert.NoError(t, g.Err(), "seed %d: lost %v", seed, context.Cause(g))
								for levels > 1 {
									levels--
									err := e.Release(ctx, lock, o)
									assert.True(t, err == nil || errors.Is(err, io.EOF), "seed %d: unlock: %v", seed, err)
								}
								mu.Lock()
								inside--
								mu.Unlock()
							}
							cancel()
							err = e.Release(ctx, lock, o)
							assert.True(t, err == nil || errors.Is(err, io.EOF), "seed %d: unlock: %v", seed, err)
						}
					})
				}
			}
			start := time.Now()
			all.Wait()
			assert.LessOrEqual(t, time.Since(start), 40*time.Second, "time taken")
			time.Sleep(31 * time.Second)
			synctest.Wait()
			h := r.Holder("x")
			assert.Empty(t, h, "seed %d: %s is left", seed, h)
			for _, e := range engines {
				assert.Zero(
					t,
					e.names()+e.leases(),
					"seed %d: %d holds %d wait queues %d leases %d working",
					seed,
					e.holds(),
					e.waitQueues(),
					e.leases(),
					e.atWork(),
				)
				assert.Zero(
					t,
					e.atWork(),
					"seed %d: %d holds %d wait queues %d leases %d working",
					seed,
					e.holds(),
					e.waitQueues(),
					e.leases(),
					e.atWork(),
				)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A process that is paused during a hand-off does not report the lock as acquired when it resumes: the waiter to which
// it was handed off acquires a new hold. So does a waiter that was admitted to a shared record.
func TestEngineLateHandoffIsNotReported(t *testing.T) {
	type stopped func(e *bubbleEngine, before *hold)
	handOver := func(e *bubbleEngine, before *hold) {
		assert.True(e.t, before.handOffLocked(), "not handed over")
	}
	letIn := func(e *bubbleEngine, before *hold) {
		before.queue = before.lockState.findQueueLocked(before.half())
		openLocked(before, 0)
	}
	for name, left := range map[string]time.Duration{"over": -time.Second, "nearly over": time.Millisecond, "noticed": 0} {
		for way, pass := range map[string]stopped{"handover": handOver, "let in": letIn} {
			t.Run(name+", "+way, func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *bubbleEngine) {
					events := &lossCounter{}
					e.Events = events
					kind := contract.Record(newFakeLock(e.redis, "x"))
					if way == "let in" {
						kind = newSharedFake(e.redis, "x")
					}
					e.take(kind, 1)
					var before *hold
					e.holdOf(kind.Traits().ID, 1, func(h *hold) {
						if before = h; way == "let in" { // it has left the queue by now, and enters it again
							before.queue = nil
							q := h.lockState.queueLocked(kind.Traits().ID.Half)
							q.shared = nil
							q.TryEnter()
						}
					})
					got := make(chan struct{})
					go func() { e.take(kind, 2); close(got) }()
					synctest.Wait()

					record := before.record
					before.lockState.locked(func() {
						pass(e, before)
						record.lease.SetValidUntil(e.watchdog.Now() + left)
					})
					if name == "noticed" {
						record.LeaseEnded(ErrExpired)
					}
					<-got
					h, _ := e.holdBy(kind.Traits().ID, 2)
					require.NotNil(t, h, "no hold")
					require.NotEqual(t, before.Field().ID, h.Field().ID, "Lock returned with the record of the holder before")
					ctx, err := e.Guard(ctx, kind, 2)
					require.NoError(t, err)
					time.Sleep(time.Second)
					assert.NoError(t, ctx.Err(), "Lock returned a hold that is over")
					assert.Zero(t, events.of(2), "a loss was reported of a hold that Lock never returned")
					_ = e.Release(context.Background(), kind, 1)
					e.giveBack(kind, 2)
					time.Sleep(time.Minute)
					e.assertFree("the lock is still held")
				})
			})
		}
	}
}

// A lossCounter counts losses.
type lossCounter struct {
	Events
	mu   sync.Mutex // guards below
	lost map[Owner]int
}

func (c *lossCounter) Report(_ context.Context, v Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.lost = make(map[Owner]int)
	}
	c.lost[v.Owner]++
}

func (c *lossCounter) of(o Owner) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost[o]
}

// L6: several busy processes get about equal shares of the lock.
func TestHandoffSharesTheLockBetweenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, workers, section = 4, 16, time.Millisecond
		r := &fakeredis.Redis{Records: make(map[string]*fakeredis.Record), Latency: time.Millisecond}
		ctx, cancel := context.WithCancel(ctx)
		var all sync.WaitGroup
		var turns []int // the numbers of the clients that had the lock, in order
		var longest time.Duration
		for c := range clients {
			e := joinBubbleEngine(t, r, fmt.Sprint("client", c))
			for w := range workers {
				all.Go(func() {
					for ctx.Err() == nil {
						start := time.Now()
						if ok, _ := e.lockWith(ctx, Owner(w+1), Request{Wait: forever}); !ok {
							return
						}
						longest = max(longest, time.Since(start))
						turns = append(turns, c)
						time.Sleep(section)
						e.unlock(Owner(w + 1))
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

// A TryLock whose wait time is too short to let other processes go first sends its attempt nevertheless.
func TestShortTryLockStillAsksAfterGivingWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		a, other := joinBubbleEngine(t, r, "a"), joinBubbleEngine(t, r, "b")
		for range 2 {
			a.rtt.Observe(15 * time.Millisecond)
		}
		a.HandoffWindow = 0
		ctx, cancel := context.WithCancel(ctx)
		a.lock(1)
		go func() { _, _ = other.lockWith(ctx, 9, Request{Wait: forever}) }()
		time.Sleep(50 * time.Millisecond)
		got := make(chan bool)
		go func() {
			ok, err := a.lockWith(context.Background(), 2, Request{Wait: 10 * time.Millisecond})
			assert.NoError(t, err)
			got <- ok
		}()
		synctest.Wait()
		cancel() // the other client gives up
		synctest.Wait()
		n := r.Count("acquire")
		a.unlock(1)
		if assert.True(
			t,
			<-got,
			"TryLock fails for a lock without a holder and waiters; %d acquires since",
			r.Count("acquire")-n,
		) {
			a.unlock(2)
		}
	})
}

// An endingCtx ends the goroutine that waits for it, after a moment.
type endingCtx struct{ context.Context }

func (endingCtx) Done() <-chan struct{} {
	time.Sleep(time.Second)
	runtime.Goexit()
	return nil
}

// The user's ctx ends the goroutine that waits in the local queue or for the owner mutex, as a panic would. Nothing is left
// of the call, also if the lock was handed off to it by then, and others get the lock.
func TestWaitThatTheContextEndsLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		owner  Owner
		after  time.Duration // when the lock is released
		fenced bool
	}{
		"local queue":    {owner: 2, after: 2 * time.Second},
		"owner mutex":    {owner: 3, after: 2 * time.Second},
		"handed off":     {owner: 2, after: time.Second / 2},
		"left to adopt":  {owner: 2, after: time.Second / 2, fenced: true},
		"explicit lease": {owner: 4, after: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.HandoffWindow = time.Minute
				l := newFakeLock(e.redis, "x")
				l.traits.Fenced = c.fenced
				lock := func(ctx context.Context, o Owner, r Request) {
					ok, err := e.acquire(ctx, l, o, r)
					assert.NoError(t, err)
					assert.True(t, ok)
				}
				background, r := ctx, Request{Wait: forever}
				lock(background, 1, r)
				if c.owner == 4 {
					r.Lease = time.Hour
				}
				ends := func() { go lock(endingCtx{background}, c.owner, r) }
				if c.owner != 3 {
					ends()
					synctest.Wait()
				}
				got := begin(func() {
					lock(background, 3, Request{Wait: forever})
				})
				synctest.Wait()
				if c.owner == 3 {
					ends()
				}
				time.Sleep(c.after)
				require.NoError(t, e.Release(background, l, 1))
				<-got
				require.NoError(t, e.Release(background, l, 3))
				time.Sleep(2 * time.Second)
				assert.Zero(t, e.holds(), "holds that are left")
				e.assertFree()
				lock(background, 2, Request{})
				require.NoError(t, e.Release(background, l, 2))
			})
		})
	}
}

// The same, and Redis cannot be reached when the record that was left to the caller is to be released: that is done
// when Redis can be reached again.
func TestRecordLeftToACallerThatEndsIsReleasedAfterAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.HandoffWindow = time.Minute
		l := newFencedFake(e.redis, "x")
		e.take(l, 1)
		go func() { _, _ = e.acquire(endingCtx{ctx}, l, 2, Request{Wait: forever}) }()
		synctest.Wait()
		e.giveBack(l, 1)
		e.assertHeld("it was left to owner 2")
		e.faults(fakeredis.Fault{Block: io.ErrUnexpectedEOF})
		time.Sleep(2 * UnlockTime)
		e.heal()
		time.Sleep(2 * clearPause)
		e.assertFree()
	})
}

// A slowCtx takes a second to return its channel.
type slowCtx struct{ context.Context }

func (c slowCtx) Done() <-chan struct{} {
	time.Sleep(time.Second)
	return c.Context.Done()
}

// The lock was handed off to a caller that has not run since, and perhaps ends before it does. Another goroutine of its
// owner has re-entered it, and knows of it: so the loss is reported.
func TestLossOfAReentryOfAHandoffIsReported(t *testing.T) {
	for passes, caller := range map[time.Duration]context.Context{
		0: slowCtx{ctx}, 2 * time.Second: endingCtx{ctx},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour), func(c *Config) {
				c.Events = lostEvents{logged{c.Log}, &n}
			})
			e.lock(1)
			go func() { _, _ = e.lockWith(caller, 2, Request{Wait: forever}) }()
			synctest.Wait()
			e.unlock(1)
			e.lock(2)
			time.Sleep(passes)
			h, _ := e.holdBy(contract.LockID{Name: "x"}, 2)
			e.deleteRecord()
			h.lose(errGone)
			synctest.Wait()
			assert.Equal(t, 1, n, "events")
			time.Sleep(2 * time.Second)
			_ = e.unlockErr(2)
			_ = e.unlockErr(2)
		})
	}
}

// A hold of which a Report has not told is lost: the loss is told behind it, once.
func TestLossBeforeAReportIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		e := joinBubbleEngine(t, fakeredis.New(), "client", func(c *Config) { c.Events = lostEvents{logged{c.Log}, &n} })
		var report Report
		e.take(newFakeLock(e.redis, "x"), 1, Request{Wait: forever, Report: &report})
		h, _ := e.holdBy(contract.LockID{Name: "x"}, 1)
		e.deleteRecord()
		h.lose(errGone)
		synctest.Wait()
		assert.Zero(t, n, "events")
		report.Tell()
		synctest.Wait()
		assert.Equal(t, 1, n, "events")
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}
