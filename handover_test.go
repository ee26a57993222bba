package relock

// Handover inside one process, in bubbles; and what others notice of it, on a real Redis.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// A fencedFake is a fakeLock that draws a token for each hold.
type fencedFake struct{ *fakeLock }

func (fencedFake) tokens() bool { return true }

// queue has owners from..to wait for the lock, in this order. Each keeps it for
// section, and notes that it did.
func (e *bubbleEngine) queue(from, to owner, section time.Duration) (order *[]owner, all *sync.WaitGroup) {
	order, all = new([]owner), new(sync.WaitGroup)
	for o := from; o <= to; o++ {
		all.Go(func() {
			e.lock(o)
			*order = append(*order, o) // which the race detector looks at: they exclude one another
			time.Sleep(section)
			e.unlock(o)
		})
		synctest.Wait()
	}
	return order, all
}

func TestHandoverAsksNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		order, all := e.queue(2, 50, 0)
		guarded := e.guarded(1)
		e.unlock(1)
		all.Wait()
		if !slices.IsSorted(*order) || len(*order) != 49 {
			t.Errorf("served in the order %v", *order)
		}
		if want := []string{"acquire", "release"}; !slices.Equal(e.redis.requests, want) {
			t.Errorf("requests %v, want %v", e.redis.requests, want)
		}
		if cause := context.Cause(guarded); cause != context.Canceled {
			t.Errorf("the guard of the first one ended with %v", cause)
		}
	})
}

// L6: nobody is handed the lock once the slice is over, and the record is released.
func TestHandoverEndsWithTheSlice(t *testing.T) {
	for _, slice := range []time.Duration{0, 10 * time.Millisecond, 35 * time.Millisecond} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.slice = slice
			const section, waiters = 3 * time.Millisecond, 40
			e.lock(1)
			time.Sleep(section)
			_, all := e.queue(2, waiters, section)
			e.unlock(1)
			all.Wait()
			holds := max(1, int((slice+section-1)/section)) // of one tenure: those that begin before the slice is over
			want := (waiters + holds - 1) / holds
			if n := e.redis.count("release"); n != want {
				t.Errorf("slice %v: released %d times, want %d", slice, n, want)
			}
		})
	}
}

// A hold that ends by itself is not passed on, nor is one given to who wants such a one.
func TestHandoverOnlyOfWatchdogHolds(t *testing.T) {
	for name, r := range map[string][2]request{
		"holder":    {{wait: forever, lease: time.Minute}, {wait: forever}},
		"next one":  {{wait: forever}, {wait: forever, lease: time.Minute}},
		"re-entry?": {{wait: forever}, {wait: forever}},
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			ctx := context.Background()
			if ok, err := e.lockWith(ctx, 1, r[0]); !ok || err != nil {
				t.Fatal(ok, err)
			}
			var all sync.WaitGroup
			all.Go(func() {
				if ok, err := e.lockWith(ctx, 2, r[1]); !ok || err != nil {
					t.Errorf("%s: %v, %v", name, ok, err)
					return
				}
				e.unlock(2)
			})
			synctest.Wait()
			e.unlock(1)
			all.Wait()
			want := 2
			if name == "re-entry?" { // none: this one is handed over
				want = 1
			}
			if n := e.redis.count("acquire"); n != want {
				t.Errorf("%s: %d acquires, want %d", name, n, want)
			}
		})
	}
}

// S2: what can no longer be trusted is not handed over.
func TestHandoverNotBeyondTrust(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.slice = time.Hour
		e.lock(1)
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fakeFault{block: io.EOF} } })
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(ctx, 2, request{wait: forever})
			got <- err
		}()
		time.Sleep(e.watchdogTimeout)
		if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
			t.Errorf("unlock: %v", err)
		}
		cancel()
		if err := <-got; err == nil {
			t.Error("the next one got what was lost")
		}
		e.redis.set(func() { e.redis.fault = nil })
	})
}

// After a pause of the whole process Unlock may come before any timer.
func TestHandoverLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		order, all := e.queue(2, 3, 0)
		e.mu.Lock()
		h := e.holds[holdKey{lockID{name: "x"}, 1}]
		e.mu.Unlock()
		h.tenure.lease.until.Store(0)
		if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
			t.Errorf("unlock: %v", err)
		}
		all.Wait()
		if n := e.redis.count("acquire"); n < 2 || len(*order) != 2 {
			t.Errorf("%d acquires for %v", n, *order)
		}
	})
}

// Between the end of a lease and the moment when its hold is told nothing is handed
// over: the loss would be told to the wrong one.
func TestHandoverNotOfWhatHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.slice = time.Hour
		e.lock(1)
		_, all := e.queue(2, 2, 0)
		e.mu.Lock()
		e.holds[holdKey{lockID{name: "x"}, 1}].tenure.ended = true
		e.mu.Unlock()
		e.unlock(1)
		all.Wait()
		if n := e.redis.count("release"); n != 2 {
			t.Errorf("%d releases", n)
		}
	})
}

func TestHandoverOfTheLastLevelOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.slice = time.Hour
		e.lock(1)
		e.lock(1)
		order, all := e.queue(2, 2, 0)
		e.unlock(1)
		synctest.Wait()
		if len(*order) != 0 {
			t.Error("the next one is in after the first of two unlocks")
		}
		e.unlock(1)
		all.Wait()
		if n := e.redis.count("acquire"); n != 2 {
			t.Errorf("%d acquires: the last level was not handed over", n)
		}
	})
}

// The watchdog keeps the record for whoever has it now, and tells that one of its loss.
func TestHandoverKeepsTheLease(t *testing.T) {
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
		time.Sleep(10 * e.watchdogTimeout)
		if guarded.Err() != nil || e.redis.holder("x") == "" {
			t.Fatalf("not renewed: %v", context.Cause(guarded))
		}
		if n := e.redis.count("acquire"); n != 1 {
			t.Fatalf("%d acquires: it was not handed over", n)
		}
		e.lock(2) // re-enters
		e.unlock(2)
		e.redis.set(func() { delete(e.redis.records, "x") })
		start := time.Now()
		<-guarded.Done()
		if took := time.Since(start); took > e.watchdogTimeout/2 {
			t.Errorf("told after %v", took)
		}
		if cause := context.Cause(guarded); !errors.Is(cause, ErrLockLost) {
			t.Errorf("the holder of a lock that is gone is told %v", cause)
		}
		if cause := context.Cause(first); cause != context.Canceled {
			t.Errorf("the one before is told %v", cause)
		}
		if err := e.unlockErr(2); !errors.Is(err, ErrLockLost) {
			t.Errorf("unlock: %v", err)
		}
	})
}

// Whoever gives up at the moment when the lock is left to it either has it, or the next one has.
func TestHandoverToWhoGivesUp(t *testing.T) {
	for seed := range uint64(200) {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			rng := rand.New(rand.NewPCG(seed, 0))
			e.slice = time.Hour
			fenced := seed%2 == 1
			var lock backend = &fakeLock{e.redis, "x"}
			if fenced {
				lock = fencedFake{lock.(*fakeLock)}
				e.redis.latency = time.Duration(rng.IntN(2)) * time.Millisecond
			}
			var inside, served atomic.Int32
			var all sync.WaitGroup
			for o := owner(1); o <= 20; o++ {
				all.Go(func() {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					if rng := rand.New(rand.NewPCG(seed, uint64(o))); rng.IntN(2) == 0 {
						time.AfterFunc(time.Duration(rng.IntN(10))*time.Millisecond, cancel)
					}
					ok, err := e.acquire(ctx, lock, o, request{wait: forever})
					if !ok {
						if !errors.Is(err, context.Canceled) {
							t.Errorf("%v: %v", o, err)
						}
						return
					}
					if n := inside.Add(1); n != 1 {
						t.Errorf("seed %d: %d inside", seed, n)
					}
					served.Add(1)
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					if err := e.release(context.Background(), lock, o); err != nil {
						t.Errorf("%v: %v", o, err)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			time.Sleep(2 * time.Second)
			if h := e.redis.holder("x"); h != "" {
				t.Errorf("seed %d: %s is left", seed, h)
			}
			if len(e.holds)+len(e.dog.leases) != 0 {
				t.Errorf("seed %d: %d holds, %d leases are left", seed, len(e.holds), len(e.dog.leases))
			}
		})
	}
}

// The record that was left to somebody whose ctx has just ended is released.
func TestHandoverOfARecordToNobody(t *testing.T) {
	for range 100 {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.slice = time.Hour
			lock := fencedFake{&fakeLock{e.redis, "x"}}
			e.lock(1)
			ctx, cancel := context.WithCancel(context.Background())
			got := make(chan bool, 1)
			go func() {
				ok, _ := e.acquire(ctx, lock, 2, request{wait: forever})
				got <- ok
			}()
			synctest.Wait()
			cancel()
			e.unlock(1)
			if <-got {
				t.Fatal("a lock for a ctx that had ended")
			}
			synctest.Wait()
			if h := e.redis.holder("x"); h != "" {
				t.Fatalf("%s is left", h)
			}
		})
	}
}

// S6: a fenced lock draws a token for each hold, with one request.
func TestHandoverDrawsTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.slice = time.Hour
		lock := fencedFake{&fakeLock{e.redis, "x"}}
		var last int64
		section := func(o owner) {
			if ok, err := e.acquire(context.Background(), lock, o, request{wait: forever}); !ok || err != nil {
				t.Error(ok, err)
			}
			token, err := e.token(lock, o)
			if err != nil || token <= last {
				t.Errorf("token %d after %d: %v", token, last, err)
			}
			last = token
			time.Sleep(time.Millisecond)
			if err := e.release(context.Background(), lock, o); err != nil {
				t.Error(err)
			}
		}
		var all sync.WaitGroup
		for o := range owner(20) {
			all.Go(func() { section(o + 1) })
			synctest.Wait() // the first one holds: who finds the gate open asks Redis, and cannot be left anything
		}
		all.Wait()
		if a, r := e.redis.count("acquire"), e.redis.count("release"); a != 20 || r != 1 {
			t.Errorf("%d acquires and %d releases of 20 holds", a, r)
		}
	})
}

// After Close nobody is left a lock, and Unlock really releases.
func TestHandoverNotAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 2, request{wait: forever})
			got <- err
		}()
		synctest.Wait()
		if err := e.close(); err != nil {
			t.Error(err)
		}
		e.unlock(1)
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("the one that waited: %v", err)
		}
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s is left", h)
		}
	})
}

// L6: several processes that are all busy get about the same, in turns.
func TestHandoverLetsOthersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, workers, section = 4, 16, time.Millisecond
		r := &fakeRedis{records: make(map[string]*fakeRecord), latency: time.Millisecond}
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		var turns []int // whose, one after the other
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
		if least, most := slices.Min(got[:]), slices.Max(got[:]); 2*least < most {
			t.Errorf("the slowest client has %d sections, the fastest %d", least, most)
		}
		if part := float64(len(turns)) * float64(section) / float64(long); part < 0.8 {
			t.Errorf("the lock was used for %.2f of the time", part)
		}
		if longest > 4*clients*workers*section {
			t.Errorf("somebody waited %v", longest)
		}
	})
}

// Only this process knows that the lock has changed hands; the others wait, and get
// their turn after the slice.
func TestHandoverSeenFromOutside(t *testing.T) {
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
				if inside.Add(1) != 1 {
					t.Error("two inside")
				}
				inside.Add(-1)
				b.must(l.Unlock(owner))
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
				if !section(other, WithOwner(context.Background())) {
					t.Error("the other process did not get the lock")
				}
				if took := time.Since(start); took > soon {
					t.Errorf("the other process waited %v", took)
				}
			}
			cancel()
			all.Wait()
		})
	}
}

// A writer that keeps the read lock when it gives back the write lock has nothing to hand over.
func TestHandoverNotOfADowngrade(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
	first, second := WithOwner(context.Background()), WithOwner(context.Background())
	b.must(rw.Write().Lock(first))
	b.must(rw.Read().Lock(first))
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(second) }()
	testredis.Await(b, "the next writer waits", soon, func() bool { return b.waitsAtGate(rw.Write()) })
	b.must(rw.Write().Unlock(first))
	select {
	case err := <-got:
		t.Fatalf("a writer beside a reader: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.must(rw.Read().Unlock(first))
	b.must(await(b, "the writer comes in", got))
	b.must(rw.Write().Unlock(second))
}

// waitsAtGate says whether somebody stands at the gate of l.
func (b *bench) waitsAtGate(l known) bool {
	h := l.inside()
	e := h.client.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.gates[h.lock.id()]
	return g != nil && g.first() != nil
}

// S6, in Redis: each kind of lock that draws tokens does so for each hold that was left to somebody.
func TestHandoverTokensInRedis(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client(WithHandoverSlice(time.Hour))
	for name, l := range map[string]interface {
		Locker
		known
		Token(context.Context) (int64, error)
	}{
		"lock":  c.NewLock(b.name, Fenced()),
		"write": c.NewRWLock(b.name+"-rw", Fenced()).Write(),
	} {
		held := WithOwner(context.Background())
		b.must(l.Lock(held))
		last, err := l.Token(held)
		b.must(err)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				owner := WithOwner(context.Background())
				b.must(l.Lock(owner))
				token, err := l.Token(owner)
				if err != nil || token <= last {
					t.Errorf("%s: token %d after %d: %v", name, token, last, err)
				}
				last = token
				if ok, err := l.IsHeld(owner); !ok || err != nil {
					t.Errorf("%s: not held: %v", name, err)
				}
				b.must(l.Unlock(owner))
			})
		}
		testredis.Await(b, "they wait", soon, func() bool { return b.waitsAtGate(l) })
		b.must(l.Unlock(held))
		all.Wait()
	}
}

// asks says whether somebody of this process contends for l.
func (b *bench) asks(l known) bool {
	h := l.inside()
	h.client.engine.mu.Lock()
	defer h.client.engine.mu.Unlock()
	g := h.client.engine.gates[h.lock.id()]
	return g != nil && g.taken
}

// Others of the same owner who come while a lock is being left to the next one are not left waiting.
func TestHandoverWithOthersOfTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const shared, next = owner(-1), owner(2)
		e.lock(shared)
		var all sync.WaitGroup
		soon, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		lock := func(o owner) {
			if ok, err := e.lockWith(soon, o, request{wait: forever}); !ok {
				t.Error(err)
				return
			}
			e.unlock(o)
		}
		all.Go(func() { lock(next) })
		synctest.Wait()
		g := e.guarded(shared).(*guard).end
		end := g.cancel
		g.cancel = func(cause error) { // while nobody has the mutex
			end(cause)
			all.Go(func() { lock(shared) })
			synctest.Wait()
		}
		e.unlock(shared)
		all.Wait()
	})
}

// L6: a waiter that may not subscribe gets a lock that another process keeps hot, whether or not that
// one may publish.
func TestWaiterWithoutChannelsGetsAHotLock(t *testing.T) {
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
			for range 8 {
				all.Go(func() {
					for ctx.Err() == nil {
						_ = hot.Do(ctx, func(context.Context) error { time.Sleep(time.Millisecond); return nil })
					}
				})
			}
			var waits []time.Duration
			var longest time.Duration
			for range 4 {
				time.Sleep(50 * time.Millisecond)
				start := time.Now()
				b.must(waiter.Lock(context.Background()))
				waits = append(waits, time.Since(start).Round(time.Millisecond))
				longest = max(longest, time.Since(start))
				b.must(waiter.Unlock(context.Background()))
			}
			stop()
			all.Wait()
			t.Log(fmt.Sprint("waits ", waits))
			if longest > 4*time.Second {
				t.Errorf("a waiter that may not subscribe waited %v", longest)
			}
		})
	}
}
