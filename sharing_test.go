package relock

// Readers that share a record: in bubbles, where a second record would be in the way of
// the first, so that whoever does not share waits; and on a real Redis.

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/testredis"
)

// A sharedFake is a fakeLock that those who hold it in one process share.
type sharedFake struct{ *fakeLock }

func (sharedFake) passage() passage { return together }

func (e *bubbleEngine) shared() backend { return sharedFake{&fakeLock{e.redis, "x"}} }

func (e *bubbleEngine) share(ctx context.Context, o owner, r request) (bool, error) {
	return e.acquire(ctx, e.shared(), o, r)
}

func (e *bubbleEngine) shares(o owner) {
	e.t.Helper()
	if ok, err := e.share(context.Background(), o, request{wait: forever}); !ok || err != nil {
		e.t.Fatalf("%v does not come in: %v, %v", o, ok, err)
	}
}

// sharesNot says that o asks Redis, where the record of another one is in the way.
func (e *bubbleEngine) sharesNot(o owner, r request) {
	e.t.Helper()
	before := e.redis.count("acquire")
	if ok, err := e.share(context.Background(), o, r); ok || err != nil {
		e.t.Errorf("%v came in: %v, %v", o, ok, err)
	}
	if e.redis.count("acquire") == before {
		e.t.Errorf("%v did not ask", o)
	}
}

// C1 for readers: one request for all to lock, one to unlock, whoever is the last.
func TestReadersAskOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for o := owner(1); o <= 50; o++ {
			e.shares(o)
		}
		guarded := e.guarded(7)
		for _, o := range rand.Perm(50) {
			if e.redis.holder("x") == "" {
				t.Fatal("the record is gone while somebody reads")
			}
			e.unlock(owner(o + 1))
		}
		if want := []string{"acquire", "release"}; !slices.Equal(e.redis.requests, want) {
			t.Errorf("requests %v, want %v", e.redis.requests, want)
		}
		if cause := context.Cause(guarded); cause != context.Canceled {
			t.Errorf("a guard ended with %v", cause)
		}
		if len(e.holds)+len(e.dog.leases)+len(e.gates) != 0 {
			t.Errorf("%d holds, %d leases and %d gates are left", len(e.holds), len(e.dog.leases), len(e.gates))
		}
	})
}

// Of those who wait one asks, and they come in together.
func TestReadersComeInTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		var all sync.WaitGroup
		var inside, most atomic.Int32
		for o := owner(1); o <= 50; o++ {
			all.Go(func() {
				e.shares(o)
				if n := inside.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				e.unlock(o)
			})
		}
		time.Sleep(5 * time.Second)
		if n := e.redis.count("acquire"); n > 12 { // of the holder, and of one waiter for each max wake delay
			t.Errorf("%d attempts while they wait", n)
		}
		e.redis.set(func() { e.redis.requests = nil })
		other.unlock(1)
		all.Wait()
		if n := e.redis.count("acquire"); n != 1 || most.Load() != 50 {
			t.Errorf("%d attempts for %d at once", n, most.Load())
		}
	})
}

// L5: after the slice whoever comes asks Redis, where a writer may be in line.
func TestSharingEndsWithTheSlice(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		time.Sleep(e.slice - time.Nanosecond)
		e.shares(2)
		e.unlock(1)
		time.Sleep(time.Nanosecond)
		e.sharesNot(3, request{wait: 0})
		e.unlock(2)
		e.shares(3)
		e.unlock(3)
	})
}

// Nobody comes into what may end before the watchdog does something about it, or has ended.
func TestSharingOnlyWhatIsKept(t *testing.T) {
	for name, change := range map[string]func(e *bubbleEngine, of *tenure){
		"by the clock": func(_ *bubbleEngine, of *tenure) { of.lease.until.Store(0) },
		"ended":        func(_ *bubbleEngine, of *tenure) { of.ended = true },
		"no slice":     func(e *bubbleEngine, _ *tenure) { e.slice = 0 },
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			t.Log(name)
			e.slice = time.Hour
			e.shares(1)
			e.mu.Lock()
			change(e, e.holds[holdKey{e.shared().id(), 1}].tenure)
			e.mu.Unlock()
			e.sharesNot(2, request{wait: 0})
			_ = e.unlockErr(1)
		})
	}
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // an explicit lease, on either side
		e.slice = time.Hour
		e.shares(1)
		e.sharesNot(2, request{wait: 0, lease: time.Minute})
		e.unlock(1)
		if ok, err := e.share(context.Background(), 1, request{wait: 0, lease: time.Minute}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		e.sharesNot(2, request{wait: 0})
		e.unlock(1)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // the last one is about to give it back
		e.slice = time.Hour
		e.redis.latency = time.Second
		e.shares(1)
		go func() {
			if err := e.unlockErr(1); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		before := e.redis.count("acquire")
		e.shares(2)
		if e.redis.count("acquire") == before {
			t.Error("came in while the record was on its way out")
		}
		e.unlock(2)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		_ = e.close()
		if ok, err := e.share(context.Background(), 2, request{wait: 0}); ok || !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, %v", ok, err)
		}
		e.unlock(1)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // the guards of 1 have ended, and 2 is not told yet
		e.slice = time.Hour
		e.shares(1)
		e.mu.Lock()
		e.isClosed = true
		e.mu.Unlock()
		e.sharesNot(2, request{wait: 0})
		e.mu.Lock()
		e.isClosed = false
		e.mu.Unlock()
		e.unlock(1)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // who has to do with the other half asks Redis what that means
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		in := make(chan owner, 3)
		for o := owner(1); o <= 3; o++ {
			go func() {
				if ok, err := e.acquire(context.Background(), kinFake{sharedFake{&fakeLock{e.redis, "x"}}}, o, request{wait: forever}); !ok || err != nil {
					t.Errorf("%v: %v, %v", o, ok, err)
				}
				in <- o
			}()
			synctest.Wait()
		}
		if ok, err := e.acquire(context.Background(), &fakeLock{e.redis, "kin"}, 3, request{wait: forever}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		other.unlock(1)
		synctest.Wait()
		if len(in) != 2 || <-in+<-in != 3 {
			t.Error("not the two who have nothing to do with it")
		}
		e.unlock(1)
		e.unlock(2)
		<-in
		e.unlock(3)
		if err := e.release(context.Background(), &fakeLock{e.redis, "kin"}, 3); err != nil {
			t.Error(err)
		}
	})
}

// A kinFake has another half.
type kinFake struct{ sharedFake }

func (kinFake) kin() lockID { return lockID{name: "kin"} }

// C3, also after a loss.
func TestSharingLeavesNoGate(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.redis.set(func() { delete(e.redis.records, "x") })
		time.Sleep(e.watchdogTimeout)
		e.mu.Lock()
		if len(e.gates) != 0 {
			t.Errorf("%d gates are left", len(e.gates))
		}
		e.mu.Unlock()
		_, _ = e.unlockErr(1), e.unlockErr(2)
	})
}

// Whoever notices that the record is gone, all are told.
func TestSharingALoss(t *testing.T) {
	for name, notice := range map[string]func(e *bubbleEngine){
		"the watchdog": func(e *bubbleEngine) { time.Sleep(e.watchdogTimeout / 2) },
		"a re-entry": func(e *bubbleEngine) {
			if ok, err := e.share(context.Background(), 2, request{wait: forever}); ok || !errors.Is(err, ErrLockLost) {
				e.t.Errorf("re-entry: %v, %v", ok, err)
			}
		},
		"the clock": func(e *bubbleEngine) {
			e.holds[holdKey{e.shared().id(), 1}].tenure.lease.until.Store(0)
			_, _ = e.levels(e.shared(), 2)
		},
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			var guards []context.Context
			for o := owner(1); o <= 5; o++ {
				e.shares(o)
				guards = append(guards, e.guarded(o))
			}
			e.unlock(5)
			e.redis.set(func() { delete(e.redis.records, "x") })
			notice(e)
			for i, guarded := range guards[:4] {
				if cause := context.Cause(guarded); !errors.Is(cause, ErrLockLost) {
					t.Errorf("%s: guard %d ended with %v", name, i+1, cause)
				}
			}
			e.shares(6) // a fresh one
			for o := owner(1); o <= 4; o++ {
				if err := e.unlockErr(o); !errors.Is(err, ErrLockLost) {
					t.Errorf("%s: unlock %v: %v", name, o, err)
				}
			}
			if e.redis.holder("x") == "" {
				t.Errorf("%s: an Unlock of a lost hold took away that of another one", name)
			}
			e.unlock(6)
		})
	}
}

// Each has levels of its own.
func TestSharingAndReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.shares(2)
		e.shares(1)
		e.shares(2)
		for _, o := range []owner{1, 2, 1, 2} {
			e.unlock(o)
			if e.redis.holder("x") == "" {
				t.Fatal("the record is gone while owner 2 reads")
			}
		}
		if err := e.unlockErr(1); !errors.Is(err, ErrNotHeld) {
			t.Errorf("one Unlock too many: %v", err)
		}
		time.Sleep(3 * e.watchdogTimeout)
		if e.redis.holder("x") == "" {
			t.Fatal("it is not renewed")
		}
		e.unlock(2)
		if e.redis.holder("x") != "" {
			t.Error("the record is left")
		}
	})
}

// Those in line are not stuck behind one that gives up or fails.
func TestReadersPassOneThatGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		ctx, cancel := context.WithCancel(context.Background())
		gave := make(chan error, 1)
		go func() {
			_, err := e.share(ctx, 1, request{wait: forever})
			gave <- err
		}()
		synctest.Wait()
		var all sync.WaitGroup
		for o := owner(2); o <= 5; o++ {
			all.Go(func() {
				e.shares(o)
				time.Sleep(time.Millisecond)
				e.unlock(o)
			})
		}
		if ok, err := e.share(context.Background(), 6, request{wait: time.Second}); ok || err != nil {
			t.Errorf("TryLock in line: %v, %v", ok, err)
		}
		cancel()
		if err := <-gave; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		other.unlock(1)
		start := time.Now()
		all.Wait()
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("they were in and out after %v", took)
		}
	})
}

// After a pause of the whole process Unlock may come before any timer: not even one that
// leaves the record to others is silent about that.
func TestSharingLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.holds[holdKey{e.shared().id(), 1}].tenure.lease.until.Store(0)
		for o := owner(1); o <= 2; o++ {
			if err := e.unlockErr(o); !errors.Is(err, ErrLockLost) {
				t.Errorf("unlock %v: %v", o, err)
			}
		}
	})
}

// Callers of the same owner take turns: one that re-enters is not overtaken.
func TestSharingTakesTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.redis.latency = time.Second
		done := make(chan error)
		go func() {
			_, err := e.share(context.Background(), 2, request{wait: forever})
			done <- err
		}()
		synctest.Wait()
		e.unlock(2)
		if err := <-done; err != nil {
			t.Errorf("the re-entry: %v", err)
		}
		e.unlock(2)
		e.unlock(1)
	})
}

// Random readers and faults: a record for whoever reads and is not told otherwise, and none in the end.
func TestSharingAtRandom(t *testing.T) {
	for seed := range full[uint64](25, 100) {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.redis.latency = time.Millisecond
			e.watchdogTimeout = time.Second
			rng := rand.New(rand.NewPCG(seed, 0))
			e.redis.fault = func(string) fakeFault {
				switch rng.IntN(20) {
				case 0:
					return fakeFault{err: io.EOF}
				case 1:
					return fakeFault{block: io.EOF}
				case 2:
					return fakeFault{ghost: time.Duration(rng.IntN(300)) * time.Millisecond}
				}
				return fakeFault{}
			}
			stop := time.Now().Add(5 * time.Second)
			var all sync.WaitGroup
			for o := owner(1); o <= 8; o++ {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(o)))
					for time.Now().Before(stop) {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(3000))*time.Millisecond)
						ok, _ := e.share(ctx, o, request{wait: time.Duration(rng.IntN(2000)-1000) * time.Millisecond})
						cancel()
						if !ok {
							continue
						}
						guarded := e.guarded(o)
						time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
						if guarded.Err() == nil && e.redis.holder("x") == "" && guarded.Err() == nil {
							t.Errorf("seed %d: %v reads, and there is no record", seed, o)
						}
						_ = e.unlockErr(o)
					}
				})
			}
			all.Wait()
			e.redis.set(func() { e.redis.fault = nil })
			time.Sleep(2 * e.watchdogTimeout)
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.redis.holder("x") != "" || len(e.holds)+len(e.dog.leases) != 0 {
				t.Errorf("seed %d: left: record %q, %d holds, %d leases", seed, e.redis.holder("x"), len(e.holds), len(e.dog.leases))
			}
		})
	}
}

// A reader that asks for the write lock is one of several in its own way: it waits for
// the others, and is refused when only such are left.
func TestUpgradeOfASharedRead(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
		me, you := WithOwner(context.Background()), WithOwner(context.Background())
		b.must(rw.Read().Lock(me))
		b.must(rw.Read().Lock(you))
		if n := b.rdb.HLen(me, b.name).Val(); n != 2 { // mode, and one field
			t.Fatalf("%d fields: they do not share", n)
		}
		if ok, err := rw.Write().TryLock(me, 0, 0); ok || err != nil {
			t.Fatalf("beside another reader: %v, %v", ok, err)
		}
		got := make(chan error, 1)
		go func() { got <- rw.Write().Lock(me) }()
		stays(b, "it waits for the other reader", got, 100*time.Millisecond)
		b.mustBe(rw.Write().Lock(you), ErrInvalid) // each waits for the other one
		b.must(rw.Read().Unlock(you))
		b.mustBe(await(b, "nobody but itself is in its way", got), ErrInvalid)
		b.must(rw.Read().Unlock(me))
		b.must(rw.Write().Lock(me))
		b.must(rw.Write().Unlock(me))
	})
}

// L5: once a reader waits to write, others do not join it to read.
func TestUpgradingReaderIsNotJoined(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		rw, elsewhere := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name), b.client().NewRWLock(b.name).Read()
		me, you := WithOwner(context.Background()), WithOwner(context.Background())
		b.must(elsewhere.Lock(you))
		b.must(rw.Read().Lock(me))
		got := make(chan error, 1)
		go func() { got <- rw.Write().Lock(me) }()
		testredis.Await(t, "a writer waits", soon, func() bool { return b.rdb.ZCard(me, "relock_rwlock_writers:{"+b.name+"}").Val() == 2 })
		b.tries(rw.Read(), false)
		b.must(elsewhere.Unlock(you))
		b.mustBe(await(b, "nobody but itself is in its way", got), ErrInvalid)
		b.must(rw.Read().Unlock(me))
	})
}

// A writer that reads too has a record of its own for that, and nobody shares it.
func TestDowngradeIsNotShared(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
	me, you := WithOwner(context.Background()), WithOwner(context.Background())
	b.must(rw.Write().Lock(me))
	got := make(chan error, 1)
	go func() { got <- rw.Read().Lock(you) }()
	stays(b, "a reader waits for the writer", got, 50*time.Millisecond)
	b.must(rw.Read().Lock(me))
	stays(b, "a reader waits for the writer that reads", got, 50*time.Millisecond)
	b.must(rw.Write().Unlock(me))
	b.must(await(b, "a reader beside a reader", got))
	b.must(rw.Read().Unlock(me))
	b.must(rw.Read().Unlock(you))
}

// What an operator does to the record ends the holds of all who share it.
func TestForceUnlockOfASharedRead(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client(WithHandoverSlice(time.Hour))
	l := c.NewRWLock(b.name).Read()
	var owners, guards []context.Context
	for range 5 {
		o := WithOwner(context.Background())
		b.must(l.Lock(o))
		guarded, err := l.Guard(o)
		b.must(err)
		owners, guards = append(owners, o), append(guards, guarded)
	}
	if freed, err := l.ForceUnlock(context.Background()); !freed || err != nil {
		t.Fatal(freed, err)
	}
	for i, o := range owners {
		b.mustBe(context.Cause(guards[i]), ErrLockLost)
		b.mustBe(l.Unlock(o), ErrLockLost)
	}
}

// C1: an owner that waits for both halves at a time may be granted the write half first.
// Then its read is a downgrade, which nobody shares.
func TestWriterThatReadsLetsNobodyIn(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
	me, you, other := WithOwner(context.Background()), WithOwner(context.Background()), WithOwner(context.Background())
	elsewhere := b.client().NewRWLock(b.name)
	b.must(elsewhere.Read().Lock(other))
	waits := func(l known, ctx context.Context) <-chan error {
		got := make(chan error, 1)
		go func() { got <- l.(Locker).Lock(ctx) }()
		return got
	}
	ctx, cancel := context.WithCancel(WithOwner(context.Background()))
	first := waits(elsewhere.Write(), ctx) // the sign of this writer holds off the readers
	testredis.Await(b, "a writer's sign", time.Second, func() bool {
		return b.rdb.Exists(me, "relock_rwlock_writers:{"+b.name+"}").Val() == 1
	})
	mine := waits(rw.Read(), me)
	testredis.Await(b, "a reader at the gate", time.Second, func() bool { return b.asks(rw.Read()) })
	yours := waits(rw.Read(), you)
	testredis.Await(b, "another one behind it", time.Second, func() bool { return b.waitsAtGate(rw.Read()) })
	wrote := waits(rw.Write(), me)
	testredis.Await(b, "the sign of both writers", time.Second, func() bool {
		return b.rdb.ZCard(me, "relock_rwlock_writers:{"+b.name+"}").Val() == 2
	})
	cancel()
	b.mustBe(<-first, context.Canceled)
	b.must(elsewhere.Read().Unlock(other))
	b.must(await(b, "the writer", wrote))
	b.must(await(b, "its read", mine))
	stays(b, "a reader beside a writer", yours, 100*time.Millisecond)
	if ok, err := rw.Read().TryLock(you, 0, 0); ok || err != nil {
		t.Errorf("a reader that comes later: %v, %v", ok, err)
	}
	b.must(rw.Write().Unlock(me))
	b.must(await(b, "a reader beside a reader", yours))
	b.must(rw.Read().Unlock(me))
	b.must(rw.Read().Unlock(you))
}

// An Unlock that did not get its turn behind a re-entry of its owner leaves the record
// to those who share it, also when the re-entry is granted in the end.
func TestSharingWithOneWhoseReentryComesTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.slice = time.Hour
		e.shares(1)
		e.shares(2)
		guarded := e.guarded(1)
		asked := false
		e.redis.set(func() {
			e.redis.fault = func(verb string) fakeFault {
				if verb != "acquire" {
					return fakeFault{}
				}
				if asked = !asked; asked {
					return fakeFault{block: answerError("LOADING Redis is loading the dataset in memory")}
				}
				return fakeFault{late: unlockTime + time.Second}
			}
		})
		reentry := make(chan error)
		go func() {
			_, err := e.share(context.Background(), 2, request{wait: forever})
			reentry <- err
		}()
		synctest.Wait()
		if err := e.unlockErr(2); err == nil {
			t.Error("it did get its turn")
		}
		if err := <-reentry; err != nil { // it has begun again, and holds what it found given back
			t.Errorf("the re-entry: %v", err)
		}
		e.unlock(2)
		time.Sleep(5 * time.Second)
		if e.redis.holder("x") == "" {
			t.Error("the record is gone while somebody reads")
		}
		if guarded.Err() != nil {
			t.Errorf("the guard of the other one ended: %v", context.Cause(guarded))
		}
		e.unlock(1)
	})
}

// A loss is told to all, also if the first of them is just leaving.
func TestSharingALossWhileOneLeaves(t *testing.T) {
	t.Parallel()
	r := &fakeRedis{records: make(map[string]*fakeRecord)}
	e := joinBubbleEngine(t, r, "client")
	e.slice = time.Hour
	for range 50 {
		e.shares(1)
		e.shares(2)
		guarded := e.guarded(2)
		tenure := e.holds[holdKey{e.shared().id(), 1}].tenure
		var all sync.WaitGroup
		e.mu.Lock() // both wait for the mutex so long that they get it in turn
		all.Go(func() {
			e.dog.remove(&tenure.lease) // as the watchdog does before it tells
			tenure.leaseEnded(errGone)
		})
		time.Sleep(2 * time.Millisecond)
		all.Go(func() { _ = e.unlockErr(1) })
		time.Sleep(2 * time.Millisecond)
		e.mu.Unlock()
		e.mu.Lock()
		time.Sleep(2 * time.Millisecond)
		e.mu.Unlock()
		all.Wait()
		select {
		case <-guarded.Done():
		default:
			t.Fatal("one that shares the lost record is not told")
		}
		_ = e.unlockErr(2)
		r.set(func() { clear(r.records) })
	}
}

// What a loss costs grows with those who are told, and not with their square.
func TestSharingALossOfMany(t *testing.T) {
	const many = 5000
	e := joinBubbleEngine(t, &fakeRedis{records: make(map[string]*fakeRecord)}, "client")
	e.slice = time.Hour
	for o := owner(1); o <= many; o++ {
		e.shares(o)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e.holds[holdKey{e.shared().id(), 1}].lose(errGone)
	runtime.ReadMemStats(&after)
	if size := (after.TotalAlloc - before.TotalAlloc) / many; size > 2000 {
		t.Errorf("%d bytes for each reader", size)
	}
	for o := owner(1); o <= many; o++ {
		if err := e.unlockErr(o); !errors.Is(err, ErrLockLost) {
			t.Fatalf("%v was not told: %v", o, err)
		}
	}
}

// Where the way to Redis takes longer than a slice, those who wait for the same answer
// do not go it one after the other.
func TestReadersOfAFarRedisComeInTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = longSlice // each way
		start := time.Now()
		var all sync.WaitGroup
		for o := owner(1); o <= 50; o++ {
			all.Go(func() { e.shares(o) })
		}
		all.Wait()
		if took := time.Since(start); took > 4*longSlice || e.redis.count("acquire") > 2 {
			t.Errorf("%d requests, and all are in after %v", e.redis.count("acquire"), took)
		}
		for o := owner(1); o <= 50; o++ {
			e.unlock(o)
		}
	})
}
