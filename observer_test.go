package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/testredis"
)

// A recorder keeps what it is told. It asks the engine something each time, which
// would never end if a mutex were held.
type recorder struct {
	NopObserver
	engine *engine

	mu     sync.Mutex // guards below
	events []any
}

func (r *recorder) note(e any) {
	if r.engine != nil {
		_ = r.engine.open()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) Waiting(_ context.Context, e WaitingEvent)             { r.note(e) }
func (r *recorder) Acquired(_ context.Context, e AcquiredEvent)           { r.note(e) }
func (r *recorder) GaveUp(_ context.Context, e GaveUpEvent)               { r.note(e) }
func (r *recorder) Renewed(_ context.Context, e RenewedEvent)             { r.note(e) }
func (r *recorder) RenewalFailed(_ context.Context, e RenewalFailedEvent) { r.note(e) }
func (r *recorder) Released(_ context.Context, e ReleasedEvent)           { r.note(e) }
func (r *recorder) Lapsed(_ context.Context, e LapsedEvent)               { r.note(e) }
func (r *recorder) Lost(_ context.Context, e LostEvent)                   { r.note(e) }

// take returns what has been told, and forgets it.
func (r *recorder) take() []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// told fails unless exactly that has been told since it was last asked, in any order.
func (r *recorder) told(t *testing.T, want ...any) {
	t.Helper()
	got := r.take()
	for _, w := range want {
		i := slices.IndexFunc(got, func(g any) bool { return sameEvent(g, w) })
		if i < 0 {
			t.Errorf("not told: %+v", w)
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	for _, g := range got {
		t.Errorf("told: %+v", g)
	}
}

// sameEvent compares events, errors by errors.Is.
func sameEvent(got, want any) bool {
	var err, target error
	switch g := got.(type) {
	case GaveUpEvent:
		if w, ok := want.(GaveUpEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case RenewalFailedEvent:
		if w, ok := want.(RenewalFailedEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case ReleasedEvent:
		if w, ok := want.(ReleasedEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case LostEvent:
		if w, ok := want.(LostEvent); ok {
			err, target = g.Cause, w.Cause
			g.Cause, w.Cause = nil, nil
			got, want = g, w
		}
	}
	return got == want && errors.Is(err, target) && (err == nil) == (target == nil)
}

// inObservedBubble is inBubble with an engine that is observed, and whose log is kept.
func inObservedBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, logged := &recorder{}, &lockedBuffer{}
		redis := &fakeRedis{records: make(map[string]*fakeRecord)}
		e := joinBubbleEngine(t, redis, "client", WithObserver(r), WithLogger(slog.New(slog.NewTextHandler(logged, nil))))
		r.engine = e.engine
		f(t, e, r, logged)
	})
}

// x is the lock of the bubble, as o has it.
func x(o owner) LockInfo { return LockInfo{"x", TypeLock, Owner(o)} }

func TestObserverSeesLevels(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		e.redis.latency = time.Millisecond
		e.lock(1)
		e.lock(1)
		r.told(t,
			AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 2 * time.Millisecond, Level: 1, Token: 1},
			AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 2 * time.Millisecond, Level: 2, Token: 1})
		time.Sleep(time.Second)
		e.unlock(1)
		e.unlock(1)
		r.told(t,
			ReleasedEvent{Lock: x(1), Held: time.Second + 6*time.Millisecond, Left: 1},
			ReleasedEvent{Lock: x(1), Held: time.Second + 8*time.Millisecond})
		if err := e.unlockErr(1); !errors.Is(err, ErrNotHeld) {
			t.Error(err)
		}
		r.told(t)
	})
}

func TestObserverSeesHandover(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		e.lock(1)
		waiters := startInOrder(e, 2, 3)
		r.told(t, AcquiredEvent{x(1), PathImmediate, 0, 1, 1}, WaitingEvent{x(2)}, WaitingEvent{x(3)})
		time.Sleep(5 * time.Millisecond)
		e.unlock(1)
		<-waiters
		r.told(t, ReleasedEvent{x(1), 5 * time.Millisecond, 0, nil}, AcquiredEvent{x(2), PathHandover, 5 * time.Millisecond, 1, 0})
		time.Sleep(time.Second) // longer than a slice
		e.unlock(2)
		<-waiters
		r.told(t, ReleasedEvent{x(2), time.Second, 0, nil},
			AcquiredEvent{x(3), PathQueue, time.Second + 5*time.Millisecond, 1, 2})
		e.unlock(3)
		r.told(t, ReleasedEvent{x(3), 0, 0, nil})
	})
}

// startInOrder has owners lock, one after the other, and says when each of them has.
func startInOrder(e *bubbleEngine, owners ...owner) <-chan owner {
	got := make(chan owner, len(owners))
	for _, o := range owners {
		go func() {
			e.lock(o)
			got <- o
		}()
		synctest.Wait()
	}
	return got
}

func TestObserverSeesWakeUpsAndTimers(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(9)
		got := startInOrder(e, 1)
		time.Sleep(10 * time.Second)
		other.unlock(9)
		<-got
		r.told(t, WaitingEvent{x(1)}, AcquiredEvent{x(1), PathNotified, 10 * time.Second, 1, 2})
		e.unlock(1)

		e.redis.set(func() {
			e.redis.records["x"] = &fakeRecord{"crashed", 1, time.Now().Add(100 * time.Millisecond)}
		})
		r.take()
		e.lock(1)
		events := r.take()
		if a, ok := events[len(events)-1].(AcquiredEvent); !ok || a.Path != PathPolled || a.Waited < 100*time.Millisecond || a.Waited > 200*time.Millisecond {
			t.Errorf("%+v", events)
		}
		e.unlock(1)
	})
}

func TestObserverSeesWhoGivesUp(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		e.lock(1)
		r.take()
		try := func(ctx context.Context, wait time.Duration, want error) {
			t.Helper()
			if ok, err := e.lockWith(ctx, 2, request{wait: wait}); ok || !errors.Is(err, want) {
				t.Errorf("%v, %v", ok, err)
			}
		}
		try(context.Background(), 0, nil)
		r.told(t, GaveUpEvent{Lock: x(2)})
		try(context.Background(), time.Second, nil)
		r.told(t, WaitingEvent{x(2)}, GaveUpEvent{x(2), true, time.Second, nil})
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		try(soon, forever, context.DeadlineExceeded)
		r.told(t, WaitingEvent{x(2)}, GaveUpEvent{x(2), true, time.Second, context.DeadlineExceeded})
		try(soon, forever, context.DeadlineExceeded)
		r.told(t) // it did not ask
		e.unlock(1)
	})
}

var errOff = errors.New("the power is off")

// One renewal that fails, one that does not; then none is confirmed any more.
func TestObserverSeesRenewalsAndTheLoss(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
		e.lock(1)
		e.lock(1)
		r.take()
		time.Sleep(e.watchdogTimeout/3 + time.Second)
		r.told(t, RenewedEvent{x(1)})
		if logged.String() != "" {
			t.Errorf("in a healthy run: %s", logged.String())
		}
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fakeFault{block: errOff} } })
		time.Sleep(2 * e.watchdogTimeout)
		var failed, lost int
		for _, event := range r.take() {
			switch event := event.(type) {
			case RenewalFailedEvent:
				if failed++; event.Lock != x(1) || !errors.Is(event.Err, errOff) || event.Left <= 0 || event.Left > e.watchdogTimeout {
					t.Errorf("%+v", event)
				}
			case LostEvent:
				lost++
				if event.Lock != x(1) || event.Held < e.watchdogTimeout || !errors.Is(event.Cause, ErrLockLost) || !errors.Is(event.Cause, errOff) {
					t.Errorf("%+v", event)
				}
			default:
				t.Errorf("%+v", event)
			}
		}
		if failed < 3 || lost != 1 {
			t.Errorf("%d renewals failed, %d losses", failed, lost)
		}
		e.redis.set(func() { e.redis.fault = nil })
		for range 2 {
			if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
				t.Error(err)
			}
		}
		r.told(t) // it has been
		onlyWarning(t, logged, errOff.Error())
	})
}

// onlyWarning fails unless exactly one warning was logged, with the name of the lock and why it was lost.
func onlyWarning(t *testing.T, logged *lockedBuffer, why string) {
	t.Helper()
	s := logged.String()
	if strings.Count(s, "level=") != 1 || !strings.Contains(s, "level=WARN") || !strings.Contains(s, " lock=x ") || !strings.Contains(s, why) {
		t.Errorf("logged: %s", s)
	}
}

// Whoever notices first that a hold is lost reports it, and nobody else.
func TestLossIsReportedOnceWhoeverNotices(t *testing.T) {
	notices := map[string]func(e *bubbleEngine, guarded context.Context) error{
		"unlock":       func(e *bubbleEngine, _ context.Context) error { return e.unlockErr(1) },
		"inner unlock": func(e *bubbleEngine, _ context.Context) error { e.lockedAgain(1); return e.unlockErr(1) },
		"re-entry": func(e *bubbleEngine, _ context.Context) error {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			return err
		},
		"watchdog": func(_ *bubbleEngine, guarded context.Context) error {
			<-guarded.Done()
			return context.Cause(guarded)
		},
	}
	for name, notice := range notices {
		t.Run(name, func(t *testing.T) {
			inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
				e.lock(1)
				guarded := e.guarded(1)
				e.redis.set(func() { clear(e.redis.records) })
				if err := notice(e, guarded); !errors.Is(err, ErrLockLost) {
					t.Error(err)
				}
				synctest.Wait()
				_ = e.unlockErr(1)
				time.Sleep(2 * e.watchdogTimeout)
				lost, released := 0, 0
				for _, event := range r.take() {
					switch event := event.(type) {
					case LostEvent:
						lost++
					case ReleasedEvent:
						if event.Left == 0 {
							released++
						}
					}
				}
				if lost != 1 || released != 0 {
					t.Errorf("%d losses, %d releases", lost, released)
				}
				onlyWarning(t, logged, "gone")
			})
		})
	}
}

// lockedAgain is a level that o has by now as far as this process knows.
func (e *bubbleEngine) lockedAgain(o owner) {
	e.holdOf(lockID{name: "x"}, o, func(h *hold) { h.levels++ })
}

// A lease that runs out as it was asked for is no loss.
func TestObserverSeesLeasesLapse(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
		if ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Second}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		r.take()
		time.Sleep(time.Minute)
		r.told(t, LapsedEvent{x(1), trust(time.Second)})
		_ = e.unlockErr(1)
		r.told(t)
		if logged.String() != "" {
			t.Errorf("logged: %s", logged.String())
		}
	})
}

// A release that Redis has not confirmed is one all the same.
func TestObserverSeesUnconfirmedReleases(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
		e.lock(1)
		r.take()
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fakeFault{block: errOff} } })
		if err := e.unlockErr(1); !errors.Is(err, errOff) {
			t.Error(err)
		}
		r.told(t, ReleasedEvent{x(1), unlockTime, 0, errOff})
		if logged.String() != "" {
			t.Errorf("logged: %s", logged.String())
		}
		e.redis.set(func() { e.redis.fault = nil })
	})
}

// What begins ends: every wait, and every hold; over all kinds of locks, and
// whatever becomes of them.
func TestObserverCountsAddUp(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	r := &recorder{}
	c := b.client(WithObserver(r), WithWatchdogTimeout(10*time.Second))
	plain, fair, rw := c.NewLock(b.name), c.NewFairLock(b.name+"-fair"), c.NewRWLock(b.name+"-rw", Fenced())
	locks := []Locker{plain, fair, rw.Read(), rw.Write(), c.NewMultiLock(plain, fair), c.NewMultiLock(plain, rw.Write())}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			for range 20 {
				ctx, cancel := context.WithTimeout(WithOwner(context.Background()), rand.N(200*time.Millisecond))
				l, lease, levels := locks[rand.N(len(locks))], time.Duration(0), 0
				if rand.N(4) == 0 {
					lease = 10 * time.Millisecond
				}
				for range 1 + rand.N(2) {
					if ok, _ := l.TryLock(ctx, rand.N(50*time.Millisecond), lease); ok {
						levels++
					}
				}
				for range levels {
					_ = l.Unlock(ctx)
				}
				cancel()
			}
		})
	}
	all.Wait()
	var seen string
	testredis.Await(t, "all holds and waits have ended", soon, func() bool {
		waits, holds := make(map[LockType]int), make(map[LockType]int)
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, event := range r.events {
			switch e := event.(type) {
			case WaitingEvent:
				waits[e.Lock.Type]++
			case AcquiredEvent:
				if e.Path != PathImmediate {
					waits[e.Lock.Type]--
				}
				if e.Level == 1 {
					holds[e.Lock.Type]++
				}
				if (e.Token > 0) != (e.Lock.Type == TypeWrite) {
					t.Errorf("%+v", e)
				}
			case GaveUpEvent:
				if e.Waiting {
					waits[e.Lock.Type]--
				}
			case ReleasedEvent:
				if e.Left == 0 {
					holds[e.Lock.Type]--
				}
			case LapsedEvent:
				holds[e.Lock.Type]--
			case LostEvent:
				holds[e.Lock.Type]--
			}
		}
		seen = fmt.Sprint("waits ", waits, " holds ", holds)
		for _, n := range []map[LockType]int{waits, holds} {
			for _, n := range n {
				if n != 0 {
					return false
				}
			}
		}
		return len(waits) == 4 && len(holds) == 4
	})
	t.Log(seen)
}

// A RedLock is seen by the observer of its Client, its nodes by those of theirs.
func TestObserverSeesRedLockAndNodes(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := WithOwner(context.Background())
	o := Owner(ownerOf(ctx))
	r, node := &recorder{}, &recorder{}
	var locks []Locker
	for range 3 {
		locks = append(locks, b.clientOn(testredis.Client(t, testredis.Mini(t).Addr()), WithObserver(node)).NewLock(b.name))
	}
	l := b.client(WithObserver(r)).NewRedLock(locks...)
	b.must(l.Lock(ctx))
	testredis.Await(t, "all nodes are held", soon, func() bool { node.mu.Lock(); defer node.mu.Unlock(); return len(node.events) == 3 })
	b.must(l.Unlock(ctx))
	kinds := func(r *recorder) (kinds []string) {
		for _, event := range r.take() {
			switch e := event.(type) {
			case AcquiredEvent:
				kinds = append(kinds, fmt.Sprint("acquired ", e.Lock == LockInfo{b.name, e.Lock.Type, o}, e.Lock.Type))
			case ReleasedEvent:
				kinds = append(kinds, fmt.Sprint("released ", e.Lock == LockInfo{b.name, e.Lock.Type, o}, e.Lock.Type))
			default:
				kinds = append(kinds, fmt.Sprintf("%T", e))
			}
		}
		return kinds
	}
	if got, want := kinds(r), []string{"acquired trueredlock", "released trueredlock"}; !slices.Equal(got, want) {
		t.Errorf("itself: %v", got)
	}
	if got, want := kinds(node), append(slices.Repeat([]string{"acquired truelock"}, 3), slices.Repeat([]string{"released truelock"}, 3)...); !slices.Equal(got, want) {
		t.Errorf("its nodes: %v", got)
	}
}

// An Observer gets the ctx of the call, so that it finds the trace that the call belongs to.
func TestObserverGetsTheContextOfTheCall(t *testing.T) {
	type key struct{}
	b := newBench(t, testredis.Mini(t).Addr())
	seen := &contexts{key: key{}}
	l := b.client(WithObserver(seen)).NewLock(b.name)
	ctx := context.WithValue(context.Background(), key{}, "trace")
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
	if !slices.Equal(seen.values, []any{"trace", "trace"}) {
		t.Errorf("%v", seen.values)
	}
}

type contexts struct {
	NopObserver
	key    any
	values []any
}

func (c *contexts) Acquired(ctx context.Context, _ AcquiredEvent) {
	c.values = append(c.values, ctx.Value(c.key))
}

func (c *contexts) Released(ctx context.Context, _ ReleasedEvent) {
	c.values = append(c.values, ctx.Value(c.key))
}
