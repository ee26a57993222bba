package relock

// What somebody found who attacked the handover, and whether it stays mended.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/testredis"
)

// A reader that asks inside the write lock while another goroutine of the same owner gives that back.
func TestHandoverDowngradeUnderWay(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	c := b.client(WithHandoverSlice(time.Hour))
	rw := c.NewRWLock(b.name)
	first, second := WithOwner(context.Background()), WithOwner(context.Background())
	b.must(rw.Write().Lock(first))
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(second) }()
	testredis.Await(b, "the next writer waits", soon, func() bool { return b.waitsAtGate(rw.Write()) })
	s.Freeze()
	reading := make(chan error, 1)
	go func() { reading <- rw.Read().Lock(first) }()
	time.Sleep(200 * time.Millisecond) // it is under way
	unlocked := make(chan error, 1)
	go func() { unlocked <- rw.Write().Unlock(first) }()
	time.Sleep(200 * time.Millisecond)
	s.Thaw()
	b.must(await(b, "the reader is in", reading))
	b.must(await(b, "unlocked", unlocked))
	select {
	case err := <-got:
		r, err1 := rw.Read().IsHeld(first)
		w, err2 := rw.Write().IsHeld(second)
		t.Errorf("a writer (%v, held %v %v) beside a reader (held %v %v)", err, w, err2, r, err1)
		b.must(rw.Write().Unlock(second))
		b.must(rw.Read().Unlock(first))
	case <-time.After(300 * time.Millisecond):
		b.must(rw.Read().Unlock(first))
		b.must(await(b, "the writer", got))
		b.must(rw.Write().Unlock(second))
	}
}

// The same as TestHandoverDowngradeUnderWay, without a frozen server: default slice.
func TestHandoverDowngradeInNature(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	rw := c.NewRWLock(b.name)
	end := time.Now().Add(4 * time.Second)
	var all sync.WaitGroup
	var writing, reading, both, rounds atomic.Int64
	for range 3 { // writers
		all.Go(func() {
			for o := WithOwner(context.Background()); time.Now().Before(end); {
				b.must(rw.Write().Lock(o))
				writing.Add(1)
				if reading.Load() > 0 {
					both.Add(1)
				}
				time.Sleep(300 * time.Microsecond)
				if reading.Load() > 0 {
					both.Add(1)
				}
				writing.Add(-1)
				b.must(rw.Write().Unlock(o))
			}
		})
	}
	for time.Now().Before(end) {
		o := WithOwner(context.Background())
		b.must(rw.Write().Lock(o))
		rounds.Add(1)
		done := make(chan struct{})
		go func() {
			b.must(rw.Read().Lock(o))
			reading.Add(1)
			time.Sleep(500 * time.Microsecond)
			reading.Add(-1)
			b.must(rw.Read().Unlock(o))
			close(done)
		}()
		time.Sleep(50 * time.Microsecond)
		b.must(rw.Write().Unlock(o))
		<-done
	}
	all.Wait()
	if both.Load() > 0 {
		t.Errorf("a writer beside a reader %d times in %d rounds", both.Load(), rounds.Load())
	}
}

// The guards of the one before have ended when the next one is in.
func TestHandoverGuardsEndFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	l := b.client(WithHandoverSlice(time.Hour)).NewLock(b.name)
	first, second := WithOwner(context.Background()), WithOwner(context.Background())
	b.must(l.Lock(first))
	var guards []context.Context
	for range 20000 {
		g, err := l.Guard(first)
		b.must(err)
		guards = append(guards, g)
	}
	got := make(chan int, 1)
	go func() {
		b.must(l.Lock(second))
		alive := 0
		for _, g := range guards {
			if g.Err() == nil {
				alive++
			}
		}
		got <- alive
	}()
	testredis.Await(b, "the next one waits", soon, func() bool { return b.waitsAtGate(l) })
	b.must(l.Unlock(first))
	if n := <-got; n > 0 {
		t.Errorf("%d guards of the one before were alive with the next one inside", n)
	}
	b.must(l.Unlock(second))
}

// A guard that is asked for by another goroutine of the owner while it unlocks either is refused or ends.
func TestHandoverGuardsMadeMeanwhile(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	l := b.client(WithHandoverSlice(time.Hour)).NewLock(b.name)
	for range full(10, 50) {
		first, second := WithOwner(context.Background()), WithOwner(context.Background())
		b.must(l.Lock(first))
		got := make(chan error, 1)
		go func() { got <- l.Lock(second) }()
		testredis.Await(b, "the next one waits", soon, func() bool { return b.waitsAtGate(l) })
		made := make(chan []context.Context)
		many := make(chan struct{})
		go func() {
			var guards []context.Context
			for {
				g, err := l.Guard(first)
				if err != nil {
					made <- guards
					return
				}
				if guards = append(guards, g); len(guards) == 1000 {
					close(many)
				}
			}
		}()
		<-many
		b.must(l.Unlock(first))
		b.must(<-got)
		guards := <-made
		for _, g := range guards {
			if g.Err() == nil {
				t.Fatalf("one of %d guards of the one before is alive with the next one inside", len(guards))
			}
		}
		b.must(l.Unlock(second))
	}
}

// ForceUnlock while the lock passes on: whoever has it by then is told at once.
func TestHandoverForceWhileItPasses(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.slice = time.Hour
		e.lock(1)
		second := make(chan context.Context)
		go func() {
			e.lock(2)
			second <- e.guarded(2)
		}()
		synctest.Wait()
		e.redis.latency = 5 * time.Millisecond
		forced := make(chan bool)
		go func() {
			ok, err := e.force(context.Background(), &forcible{fakeLock{e.redis, "x"}})
			if err != nil {
				t.Error(err)
			}
			forced <- ok
		}()
		synctest.Wait()
		e.unlock(1) // to 2, while the request is under way
		guarded := <-second
		if !<-forced {
			t.Error("not forced")
		}
		start := time.Now()
		synctest.Wait()
		<-guarded.Done()
		if took := time.Since(start); took > time.Second {
			t.Errorf("the holder of this client was told after %v", took)
		}
		_ = e.unlockErr(2)
	})
}

type forcible struct{ fakeLock }

func (f *forcible) inspect(context.Context, string) (state, error) { return state{}, nil }
func (f *forcible) force(context.Context) (ok bool, err error) {
	err = f.redis.do("force", func() {
		ok = f.redis.record("x") != nil
		delete(f.redis.records, "x")
	})
	return ok, err
}

// The lease of whoever was handed the lock is what it asked for.
func TestHandoverLeaseOfTheOneBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	l := b.client(WithHandoverSlice(time.Hour)).NewLock(b.name)
	first, second := WithOwner(context.Background()), WithOwner(context.Background())
	b.must(l.LockLease(first, time.Hour))
	b.must(l.Lock(first))
	got := make(chan error, 1)
	go func() { got <- l.Lock(second) }()
	testredis.Await(b, "the next one waits", soon, func() bool { return b.waitsAtGate(l) })
	b.must(l.Unlock(first))
	b.must(l.Unlock(first))
	b.must(await(b, "handed over", got))
	ttl, err := l.TTL(second)
	b.must(err)
	if ttl > 30*time.Second {
		t.Errorf("a holder with the watchdog's lease of 30s has a record of %v: should it crash now, others wait so long", ttl)
	}
	b.must(l.Unlock(second))
}

// A TryLock that is too short to let others go first asks all the same.
func TestHandoverTryLockNeverAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRedis{records: make(map[string]*fakeRecord)}
		a, other := joinBubbleEngine(t, r, "a"), joinBubbleEngine(t, r, "b")
		a.trip.Store(int64(15 * time.Millisecond))
		a.slice = 0
		ctx, cancel := context.WithCancel(context.Background())
		a.lock(1)
		go func() { _, _ = other.lockWith(ctx, 9, request{wait: forever}) }()
		time.Sleep(50 * time.Millisecond)
		got := make(chan bool)
		go func() {
			ok, err := a.lockWith(context.Background(), 2, request{wait: 10 * time.Millisecond})
			if err != nil {
				t.Error(err)
			}
			got <- ok
		}()
		synctest.Wait()
		cancel() // the other one gives up
		synctest.Wait()
		n := r.count("acquire")
		a.unlock(1)
		if !<-got {
			t.Errorf("false, and nobody has the lock or waits for it; %d acquires since", r.count("acquire")-n)
		} else {
			a.unlock(2)
		}
	})
}

func TestHandoverChaos(t *testing.T) {
	for seed := range full[uint64](300, 2000) {
		synctest.Test(t, func(t *testing.T) {
			r := &fakeRedis{records: make(map[string]*fakeRecord), latency: time.Duration(seed%3) * 500 * time.Microsecond}
			fr := rand.New(rand.NewPCG(seed, 99))
			if seed%2 == 1 {
				r.fault = func(verb string) fakeFault { // mu held
					switch fr.IntN(40) {
					case 0:
						return fakeFault{err: io.EOF}
					case 1:
						return fakeFault{block: io.EOF}
					case 2:
						return fakeFault{late: time.Duration(fr.IntN(300)) * time.Millisecond}
					}
					return fakeFault{}
				}
			}
			var mu sync.Mutex
			inside, token := 0, int64(0)
			var all sync.WaitGroup
			var engines []*bubbleEngine
			for n := range 2 {
				e := joinBubbleEngine(t, r, fmt.Sprint("c", n))
				e.slice = []time.Duration{0, 10 * time.Millisecond, time.Hour}[seed%3]
				engines = append(engines, e)
				for o := owner(1); o <= 6; o++ {
					all.Go(func() {
						rng := rand.New(rand.NewPCG(seed, uint64(n)*100+uint64(o)))
						for range 12 {
							var lock backend = &fakeLock{r, "x"}
							fenced := rng.IntN(2) == 0
							if fenced {
								lock = fencedFake{lock.(*fakeLock)}
							}
							q := request{wait: forever}
							if rng.IntN(4) == 0 {
								q.wait = time.Duration(rng.IntN(20)) * time.Millisecond
							}
							if rng.IntN(5) == 0 {
								q.lease = time.Minute
							}
							ctx, cancel := context.WithCancel(context.Background())
							if rng.IntN(3) == 0 {
								time.AfterFunc(time.Duration(rng.IntN(15))*time.Millisecond, cancel)
							}
							ok, err := e.acquire(ctx, lock, o, q)
							if !ok {
								if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) && !errors.Is(err, errNoAnswer) {
									t.Errorf("seed %d: %v", seed, err)
								}
								cancel()
								continue
							}
							g, err := e.guard(context.Background(), lock, o)
							if err != nil {
								t.Errorf("seed %d: guard %v", seed, err)
							} else {
								mu.Lock()
								if inside++; inside != 1 {
									t.Errorf("seed %d: %d inside", seed, inside)
								}
								if fenced {
									tk, err := e.token(lock, o)
									if err != nil || tk <= token {
										t.Errorf("seed %d: token %d after %d %v", seed, tk, token, err)
									}
									token = max(token, tk)
								}
								mu.Unlock()
								levels := 1
								if rng.IntN(4) == 0 {
									if ok, _ := e.acquire(ctx, lock, o, request{wait: forever}); ok {
										levels++
									}
								}
								time.Sleep(time.Duration(rng.IntN(4)) * time.Millisecond)
								if g.Err() != nil {
									t.Errorf("seed %d: lost %v", seed, context.Cause(g))
								}
								for levels > 1 {
									levels--
									if err := e.release(ctx, lock, o); err != nil && !errors.Is(err, io.EOF) {
										t.Errorf("seed %d: unlock %v", seed, err)
									}
								}
								mu.Lock()
								inside--
								mu.Unlock()
							}
							cancel()
							if err := e.release(ctx, lock, o); err != nil && !errors.Is(err, io.EOF) {
								t.Errorf("seed %d: unlock %v", seed, err)
							}
						}
					})
				}
			}
			start := time.Now()
			all.Wait()
			if took := time.Since(start); took > 40*time.Second {
				t.Errorf("seed %d: took %v", seed, took)
			}
			time.Sleep(31 * time.Second)
			synctest.Wait()
			if h := r.holder("x"); h != "" {
				t.Errorf("seed %d: %s is left", seed, h)
			}
			for _, e := range engines {
				if len(e.holds)+len(e.gates)+len(e.dog.leases) != 0 || e.atWork() != 0 {
					t.Errorf("seed %d: %d holds %d gates %d leases %d working", seed, len(e.holds), len(e.gates), len(e.dog.leases), e.atWork())
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}
