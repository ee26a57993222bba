package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeRedis keeps records as Redis does, in the time of the bubble, and can take
// long, lose answers, and run requests late.
type fakeRedis struct {
	pubsub fakeServer

	mu       sync.Mutex // guards below
	records  map[string]*fakeRecord
	tokens   int64
	requests []string                    // "acquire", "release", ...
	fault    func(verb string) fakeFault // of the next request
	latency  time.Duration               // each way
}

type fakeRecord struct {
	field   string
	levels  int
	expires time.Time
}

type fakeFault struct {
	err    error         // returned, after the request has run
	block  error         // returned, without the request running
	late   time.Duration // before it runs; the answer comes then
	ghost  time.Duration // err comes at once, and it runs so much later
	answer time.Duration // so much later than it has run, its answer comes
}

func (r *fakeRedis) record(name string) *fakeRecord {
	rec := r.records[name]
	if rec != nil && !time.Now().Before(rec.expires) {
		delete(r.records, name)
		return nil
	}
	return rec
}

// do runs f as one request.
func (r *fakeRedis) do(verb string, f func()) error {
	r.mu.Lock()
	var fault fakeFault
	if r.fault != nil {
		fault = r.fault(verb)
	}
	latency := r.latency
	r.requests = append(r.requests, verb)
	r.mu.Unlock()
	if fault.ghost > 0 {
		time.AfterFunc(fault.ghost, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			f()
		})
		return io.EOF
	}
	time.Sleep(latency + fault.late)
	if fault.block != nil {
		return fault.block
	}
	r.mu.Lock()
	f()
	r.mu.Unlock()
	time.Sleep(latency + fault.answer)
	return fault.err
}

func (r *fakeRedis) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *fakeRedis) count(verb string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, v := range r.requests {
		if v == verb {
			n++
		}
	}
	return n
}

// holder is the field that holds name, or "".
func (r *fakeRedis) holder(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.record(name); rec != nil {
		return rec.field
	}
	return ""
}

// fakeLock is a plain lock on a fakeRedis.
type fakeLock struct {
	redis  *fakeRedis
	lockID string
}

func (l *fakeLock) id() lockID             { return lockID{name: l.lockID} }
func (l *fakeLock) typ() LockType          { return TypeLock }
func (l *fakeLock) kin() lockID            { return lockID{} }
func (l *fakeLock) passage() passage       { return oneByOne }
func (l *fakeLock) channel(attempt) string { return "channel:" + l.lockID }

func (l *fakeLock) acquire(_ context.Context, a attempt) (grant, error) {
	var g grant // written later, too, by a ghost
	err := l.redis.do("acquire", func() {
		rec := l.redis.record(l.lockID)
		switch {
		case rec == nil && a.level == 1:
			l.redis.tokens++
			l.redis.records[l.lockID] = &fakeRecord{a.field, 1, time.Now().Add(a.lease)}
			g = grant{state: held, token: l.redis.tokens}
		case rec == nil || rec.field != a.field && a.level > 1:
			g = grant{state: gone}
		case rec.field != a.field:
			g = grant{state: busy, wait: time.Until(rec.expires), ttl: time.Until(rec.expires)}
		default:
			rec.levels = a.level
			if e := time.Now().Add(a.lease); e.After(rec.expires) {
				rec.expires = e
			}
			g = grant{state: held}
			if a.level == 1 {
				l.redis.tokens++
				g.token = l.redis.tokens
			}
		}
	})
	if err != nil {
		return grant{}, err
	}
	return g, nil
}

func (l *fakeLock) release(_ context.Context, field string, left int) (released, error) {
	var r released
	err := l.redis.do("release", func() {
		rec := l.redis.record(l.lockID)
		if rec == nil || rec.field != field {
			return
		}
		r.there = true
		if rec.levels = left; left == 0 {
			delete(l.redis.records, l.lockID)
			r.heard = l.redis.pubsub.publish("channel:" + l.lockID)
		}
	})
	if err != nil {
		return released{}, err
	}
	return r, nil
}

func (l *fakeLock) abandon(ctx context.Context, a attempt) (bool, error) {
	r, err := l.release(ctx, a.field, a.level-1)
	return r.there, err
}

func (l *fakeLock) renewal(field string, lease time.Duration, exact bool) call {
	return call{keys: []string{l.lockID}, args: []any{field, lease, exact}}
}

func (r *fakeRedis) runAll(_ context.Context, calls []call) ([]reply, []error) {
	replies, errs := make([]reply, len(calls)), make([]error, len(calls))
	err := r.do("renew", func() {
		for i, c := range calls {
			rec := r.record(c.keys[0])
			if rec == nil || rec.field != c.args[0].(string) {
				replies[i] = reply{-1}
				continue
			}
			if e := time.Now().Add(c.args[1].(time.Duration)); c.args[2].(bool) || e.After(rec.expires) {
				rec.expires = e
			}
			replies[i] = reply{1}
		}
	})
	for i := range errs {
		errs[i] = err
	}
	return replies, errs
}

// A bubbleEngine is an engine on a fakeRedis, inside a bubble.
type bubbleEngine struct {
	*engine
	redis *fakeRedis
	t     *testing.T
}

func newBubbleEngine(t *testing.T) *bubbleEngine {
	r := &fakeRedis{records: make(map[string]*fakeRecord)}
	return joinBubbleEngine(t, r, "client")
}

// joinBubbleEngine makes another client of the same Redis.
func joinBubbleEngine(t *testing.T, r *fakeRedis, id string, opts ...Option) *bubbleEngine {
	o, err := newOptions(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...))
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(id, o, oneServer(r.pubsub.dial), r.runAll)
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
		if len(e.gates) != 0 {
			t.Errorf("%d gates are left", len(e.gates))
		}
	})
	return &bubbleEngine{e, r, t}
}

const forever = -1

func (e *bubbleEngine) lock(o owner) {
	e.t.Helper()
	if ok, err := e.acquire(context.Background(), &fakeLock{e.redis, "x"}, o, request{wait: forever}); !ok || err != nil {
		e.t.Fatalf("%v does not get the lock: %v, %v", o, ok, err)
	}
}

func (e *bubbleEngine) unlock(o owner) {
	e.t.Helper()
	if err := e.release(context.Background(), &fakeLock{e.redis, "x"}, o); err != nil {
		e.t.Fatalf("%v cannot unlock: %v", o, err)
	}
}

func (e *bubbleEngine) lockWith(ctx context.Context, o owner, r request) (bool, error) {
	return e.acquire(ctx, &fakeLock{e.redis, "x"}, o, r)
}

func (e *bubbleEngine) unlockErr(o owner) error {
	return e.release(context.Background(), &fakeLock{e.redis, "x"}, o)
}

func (e *bubbleEngine) guarded(o owner) context.Context {
	e.t.Helper()
	ctx, err := e.guard(context.Background(), &fakeLock{e.redis, "x"}, o)
	if err != nil {
		e.t.Fatalf("no guard for %v: %v", o, err)
	}
	return ctx
}

// inBubble runs f on a new engine, and looks afterwards whether anything is left of it. It does so
// twice: where every request may have to be left behind, as if Redis had just not answered, and
// where those of callers who have the time are not.
func inBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine)) {
	t.Helper()
	for name, prompt := range map[string]bool{"leaving": false, "prompt": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBubbleEngine(t)
				e.prompt = prompt
				f(t, e)
			})
		})
	}
}

// C1: one request to lock, one to unlock, no subscription.
func TestEngineUncontendedCostsTwoRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.unlock(1)
		if want := []string{"acquire", "release"}; !slices.Equal(e.redis.requests, want) {
			t.Errorf("requests %v, want %v", e.redis.requests, want)
		}
		if n := e.redis.pubsub.dials(); n != 0 {
			t.Errorf("%d subscription connections", n)
		}
	})
}

// C3: nothing is remembered of what nobody holds or awaits.
func TestEngineForgetsNames(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for i := range 1000 {
			b := &fakeLock{e.redis, fmt.Sprint("name", i)}
			if ok, err := e.acquire(context.Background(), b, 1, request{wait: forever}); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := e.release(context.Background(), b, 1); err != nil {
				t.Fatal(err)
			}
		}
		if len(e.holds)+len(e.gates)+len(e.dog.leases) != 0 {
			t.Errorf("%d holds, %d gates, %d leases are left", len(e.holds), len(e.gates), len(e.dog.leases))
		}
	})
}

// L6 and the gate: local waiters are served in the order in which they came, and
// only one of them bothers Redis.
func TestEngineServesLocalWaitersInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		var order []owner
		var wg sync.WaitGroup
		for o := owner(2); o <= 50; o++ {
			wg.Go(func() {
				e.lock(o)
				order = append(order, o)
				time.Sleep(time.Second)
				e.unlock(o)
			})
			synctest.Wait()
		}
		if n := e.redis.count("acquire"); n != 1 {
			t.Errorf("%d attempts while a local owner holds the lock", n)
		}
		e.unlock(1)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 49 {
			t.Errorf("served in the order %v", order)
		}
	})
}

func TestEngineTryLockOnALocallyHeldNameAsksNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		before := len(e.redis.requests)
		if ok, err := e.lockWith(context.Background(), 2, request{wait: 0}); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		if n := len(e.redis.requests) - before; n != 0 {
			t.Errorf("%d requests", n)
		}
		e.unlock(1)
	})
}

// L1: a waiter is woken by the release.
func TestEngineWaiterIsWokenByARelease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.redis.latency = 500 * time.Microsecond
		other.lock(1)
		go func() {
			time.Sleep(3300 * time.Millisecond)
			other.unlock(1)
		}()
		e.lock(2)
		if waited := other.dog.now(); waited > 3303*time.Millisecond {
			t.Errorf("got the lock %v after the start, it was released at 3.3s", waited)
		}
		e.unlock(2)
	})
}

// L1: without any wake-up, the max wake delay.
func TestEngineLostWakeUpCostsTheMaxWakeDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		e.redis.pubsub.set(func() { e.redis.pubsub.down = true })
		const releasedAfter = 7300 * time.Millisecond
		start := time.Now()
		time.AfterFunc(releasedAfter, func() { other.unlock(1) })
		e.lock(2)
		if late := time.Since(start) - releasedAfter; late > e.maxWakeDelay {
			t.Errorf("noticed the release after %v", late)
		}
		if n := e.redis.count("acquire"); n > 13 {
			t.Errorf("%d attempts in 8s: it must not poll faster than the max wake delay", n)
		}
		e.unlock(2)
	})
}

// A release between the first attempt and the subscription must not be missed.
func TestEngineAsksAgainOnceItIsSubscribed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		e.redis.pubsub.confirmAfter = 100 * time.Millisecond
		start := time.Now()
		go func() {
			time.Sleep(50 * time.Millisecond)
			other.unlock(1)
		}()
		e.lock(2)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("noticed a release before the subscription after %v", took)
		}
		e.unlock(2)
	})
}

// L3: a holder that is gone blocks for its lease and not longer.
func TestEngineCrashedHolderBlocksForItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.records["x"] = &fakeRecord{"crashed", 1, time.Now().Add(5300 * time.Millisecond)}
		start := time.Now()
		e.lock(1)
		if took := time.Since(start); took < 5300*time.Millisecond || took > 5320*time.Millisecond {
			t.Errorf("got the lock after %v", took)
		}
		e.unlock(1)
	})
}

// A record without a lease is not waited for in one long sleep.
func TestEngineWaitsForARecordThatNeverEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		if d := e.nap(-time.Millisecond); d <= 0 || d > e.maxWakeDelay {
			t.Errorf("naps for %v", d)
		}
		for range 1000 {
			for _, lease := range []time.Duration{0, time.Millisecond, time.Second, time.Hour, math.MaxInt64} {
				if d := e.nap(lease); d <= 0 || d > e.maxWakeDelay {
					t.Fatalf("naps for %v at a lease of %v", d, lease)
				}
			}
		}
	})
}

func TestEngineTryLockGivesUpInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		for _, wait := range []time.Duration{1, time.Millisecond, 300 * time.Millisecond, 5 * time.Second} {
			start := time.Now()
			ok, err := e.lockWith(context.Background(), 2, request{wait: wait})
			if took := time.Since(start); ok || err != nil || took != wait {
				t.Errorf("wait %v: %v, %v after %v", wait, ok, err, took)
			}
		}
		other.unlock(1)
		if len(e.holds) != 0 {
			t.Error("a hold is left")
		}
	})
}

func TestEngineTryLockWithoutAnAnswerIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.fault = func(string) fakeFault { return fakeFault{late: 30 * time.Second} }
		start := time.Now()
		ok, err := e.lockWith(context.Background(), 1, request{wait: time.Second})
		if ok || err == nil {
			t.Errorf("%v, %v", ok, err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(time.Minute) // it runs late, and is undone
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
	})
}

func TestEngineWaitEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(1234*time.Millisecond, func() { cancel(mine) })
		start := time.Now()
		ok, err := e.lockWith(ctx, 2, request{wait: forever})
		if ok || !errors.Is(err, context.Canceled) || !errors.Is(err, mine) || time.Since(start) != 1234*time.Millisecond {
			t.Errorf("%v, %v after %v", ok, err, time.Since(start))
		}
		deadline, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		if ok, err := e.lockWith(deadline, 2, request{wait: time.Hour}); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", ok, err)
		}
		other.unlock(1)
	})
}

func TestEngineSendsNothingForAnEndedContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if ok, err := e.lockWith(ctx, 1, request{wait: forever}); ok || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", ok, err)
		}
		if n := len(e.redis.requests); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// S3: a request that hangs when ctx ends is left behind at once, and undone: at once, and again when it has run.
func TestEngineUndoesAnAttemptThatWasGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.fault = func(verb string) fakeFault {
			if verb == "acquire" {
				return fakeFault{late: 3 * time.Second}
			}
			return fakeFault{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		if ok, err := e.lockWith(ctx, 1, request{wait: forever}); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", ok, err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("came back after %v", took)
		}
		time.Sleep(2500 * time.Millisecond)
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s holds a lock that was given up", h)
		}
		if n := e.redis.count("release"); n != 2 {
			t.Errorf("undone %d times", n)
		}
	})
}

// S3: the answer of an acquire is lost, again and again.
func TestEngineLostAnswersOfAnAcquire(t *testing.T) {
	const always = 1000
	for _, lost := range []int{0, 1, 2, 3, 4, 5, always} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			n := 0
			e.redis.fault = func(verb string) fakeFault {
				if verb == "acquire" && n < lost {
					n++
					return fakeFault{err: io.EOF}
				}
				return fakeFault{}
			}
			ok, err := e.lockWith(context.Background(), 1, request{wait: forever})
			if lost < always {
				if !ok || err != nil {
					t.Fatalf("%d answers lost: %v, %v", lost, ok, err)
				}
				if rec := e.redis.records["x"]; rec.levels != 1 {
					t.Errorf("%d answers lost: %d levels", lost, rec.levels)
				}
				e.unlock(1)
			} else if ok || !errors.Is(err, io.EOF) {
				t.Fatalf("%d answers lost: %v, %v", lost, ok, err)
			}
			time.Sleep(time.Second)
			if h := e.redis.holder("x"); h != "" {
				t.Errorf("%d answers lost: %s holds the lock", lost, h)
			}
		})
	}
}

// S3: an acquire that runs after its undo lapses with its lease, and is not renewed.
func TestEngineAcquireThatOvertakesItsUndoLapses(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.fault = func(verb string) fakeFault {
			return fakeFault{block: io.ErrUnexpectedEOF}
		}
		if ok, err := e.lockWith(context.Background(), 1, request{wait: forever}); ok || err == nil {
			t.Fatal(ok, err)
		}
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(2 * unlockTime)
		// Now the server gets to what it had read.
		e.redis.set(func() {
			e.redis.records["x"] = &fakeRecord{"client:1:1", 1, time.Now().Add(e.watchdogTimeout)}
		})
		start := time.Now()
		e.lock(2)
		if took := time.Since(start); took > e.watchdogTimeout+20*time.Millisecond {
			t.Errorf("an orphan blocked for %v", took)
		}
		e.unlock(2)
	})
}

func TestEngineLostAnswersOfARelease(t *testing.T) {
	for _, lost := range []int{1, 2, 5} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.lock(1)
			e.lock(1)
			n := 0
			e.redis.set(func() {
				e.redis.fault = func(verb string) fakeFault {
					if verb == "release" && n%(lost+1) < lost {
						n++
						return fakeFault{err: io.EOF}
					}
					n++
					return fakeFault{}
				}
			})
			e.unlock(1)
			if rec := e.redis.records["x"]; rec.levels != 1 {
				t.Errorf("%d levels are left after one of two unlocks", rec.levels)
			}
			e.unlock(1)
			if h := e.redis.holder("x"); h != "" {
				t.Errorf("%s holds the lock", h)
			}
		})
	}
}

// S3: a repeated release does not free whoever came between.
func TestEngineRepeatedReleaseFreesNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.lock(1)
		first := true
		e.redis.set(func() {
			e.redis.fault = func(verb string) fakeFault {
				if verb == "release" && first {
					first = false
					return fakeFault{err: io.EOF}
				}
				if verb == "release" {
					return fakeFault{late: time.Second}
				}
				return fakeFault{}
			}
		})
		go func() {
			if ok, err := other.lockWith(context.Background(), 2, request{wait: forever}); !ok || err != nil {
				t.Errorf("%v, %v", ok, err)
			}
		}()
		e.unlock(1)
		synctest.Wait()
		if _, levels := other.levels(&fakeLock{e.redis, "x"}, 2); levels != 1 || e.redis.holder("x") == "" {
			t.Error("a repeated release has freed the next holder")
		}
		e.redis.set(func() { e.redis.fault = nil })
		other.unlock(2)
	})
}

func TestEngineReleaseThatIsNeverConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fakeFault{block: io.EOF} } })
		start := time.Now()
		err := e.unlockErr(1)
		if err == nil || errors.Is(err, ErrNotHeld) || !errors.Is(err, io.EOF) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took > unlockTime {
			t.Errorf("took %v", took)
		}
		if context.Cause(guarded) != context.Canceled {
			t.Errorf("the guard says %v", context.Cause(guarded))
		}
		synctest.Wait() // one may have been on its way
		renewals := e.redis.count("renew")
		time.Sleep(time.Hour)
		if n := e.redis.count("renew"); n != renewals {
			t.Error("what was released is still renewed")
		}
		e.redis.set(func() { e.redis.fault = nil })
		e.lock(1)
		e.unlock(1)
	})
}

// S2: the local timer ends the guard, whether or not Redis can be reached.
func TestEngineGuardEndsWhenTrustIsOver(t *testing.T) {
	for name, fault := range map[string]fakeFault{
		"refused": {block: io.EOF},
		"silent":  {late: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.latency = time.Second
				start := time.Now()
				e.lock(1)
				guarded := e.guarded(1)
				e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fault } })
				<-guarded.Done()
				if want := e.watchdogTimeout - drift(e.watchdogTimeout); time.Since(start) != want {
					t.Errorf("trusted for %v after the request was sent, want %v", time.Since(start), want)
				}
				if cause := context.Cause(guarded); !errors.Is(cause, ErrLockLost) {
					t.Errorf("cause %v", cause)
				}
				if _, err := e.guard(context.Background(), &fakeLock{e.redis, "x"}, 1); !errors.Is(err, ErrLockLost) {
					t.Errorf("a new guard: %v", err)
				}
				if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
					t.Errorf("unlock: %v", err)
				}
				if err := e.unlockErr(1); !errors.Is(err, ErrNotHeld) || errors.Is(err, ErrLockLost) {
					t.Errorf("second unlock: %v", err)
				}
				e.redis.set(func() { e.redis.fault = nil })
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// After a pause of the process the clock decides, before any timer has fired.
func TestEngineGuardLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		child, cancel := context.WithCancel(guarded)
		defer cancel()
		e.dog.close() // as if it had not been scheduled since
		time.Sleep(e.watchdogTimeout - drift(e.watchdogTimeout) - 1)
		if guarded.Err() != nil {
			t.Error("ended while it is trusted")
		}
		time.Sleep(time.Nanosecond)
		if guarded.Err() == nil || !errors.Is(context.Cause(guarded), ErrLockLost) {
			t.Errorf("err %v, cause %v", guarded.Err(), context.Cause(guarded))
		}
		if !errors.Is(context.Cause(child), ErrLockLost) {
			t.Errorf("a derived ctx says %v", context.Cause(child))
		}
	})
}

// Somebody else has noticed the loss, and has not come to the guard yet.
func TestEngineGuardOfAHoldThatIsBeingLost(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		h := guarded.(*guard).hold
		set := func(state holdState, loss error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			h.state, h.loss = state, loss
		}
		set(lost, lossError(errLapsed))
		defer func() {
			set(holding, nil)
			e.unlock(1)
		}()
		if guarded.Err() == nil || !errors.Is(context.Cause(guarded), ErrLockLost) {
			t.Errorf("err %v, cause %v", guarded.Err(), context.Cause(guarded))
		}
	})
}

func TestEngineRenewsUntilTheLastLevel(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		if ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: time.Second}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		guarded := e.guarded(1)
		time.Sleep(time.Hour)
		e.unlock(1)
		time.Sleep(time.Hour)
		if guarded.Err() != nil {
			t.Fatalf("lost: %v", context.Cause(guarded))
		}
		e.unlock(1)
		if context.Cause(guarded) != context.Canceled {
			t.Errorf("the guard says %v", context.Cause(guarded))
		}
		synctest.Wait() // one may have been on its way
		renewals := e.redis.count("renew")
		time.Sleep(time.Hour)
		if n := e.redis.count("renew"); n != renewals {
			t.Errorf("%d renewals after the last unlock", n-renewals)
		}
	})
}

// Both ways of a hold without and with the watchdog; no lease adds up.
func TestEngineReentryLeases(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		leases []time.Duration // taken one after the other, a second apart; 0: the watchdog's
		ends   time.Duration   // from the start; 0: never
	}{
		{"one", []time.Duration{10 * s}, 10 * s},
		{"the longer one counts: later", []time.Duration{10 * s, 20 * s}, 21 * s},
		{"the longer one counts: earlier", []time.Duration{10 * s, 2 * s}, 10 * s},
		{"leases do not add up", []time.Duration{10 * s, 10 * s, 10 * s}, 12 * s},
		{"the watchdog takes over", []time.Duration{10 * s, 0}, 0},
		{"the watchdog stays", []time.Duration{0, 2 * s, 3 * s}, 0},
		{"a long lease is not cut by the watchdog", []time.Duration{100 * s, 0}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				start := time.Now()
				for i, lease := range c.leases {
					if i > 0 {
						time.Sleep(s)
					}
					if ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: lease}); !ok || err != nil {
						t.Fatal(ok, err)
					}
				}
				guarded := e.guarded(1)
				record := func() time.Time {
					e.redis.mu.Lock()
					defer e.redis.mu.Unlock()
					return e.redis.records["x"].expires
				}
				if c.ends == 0 {
					time.Sleep(time.Hour)
					if guarded.Err() != nil || e.redis.holder("x") == "" {
						t.Fatalf("lost: %v", context.Cause(guarded))
					}
					for range c.leases {
						e.unlock(1)
					}
					return
				}
				if got := record().Sub(start); got != c.ends {
					t.Errorf("the record ends %v after the start, want %v", got, c.ends)
				}
				<-guarded.Done()
				if early := c.ends - time.Since(start); early < 2*time.Millisecond || early > drift(c.ends) {
					t.Errorf("the guard ended %v before the record", early)
				}
				// It is over: it needs no unlock, and the next one is fresh.
				time.Sleep(s)
				e.lock(1)
				if _, levels := e.levels(&fakeLock{e.redis, "x"}, 1); levels != 1 {
					t.Errorf("%d levels after a fresh lock", levels)
				}
				e.unlock(1)
			})
		})
	}
}

func TestEngineLapsedHoldLetsLocalWaitersIn(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		if ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: 5 * time.Second}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		start := time.Now()
		e.lock(2)
		if took := time.Since(start); took > 5100*time.Millisecond {
			t.Errorf("a local waiter got the lock after %v", took)
		}
		if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
			t.Errorf("the late unlock of a lapsed hold: %v", err)
		}
		e.unlock(2)
	})
}

func TestEngineRemembersAFewLapsedHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for i := range owner(3 * lapsedKept) {
			b := &fakeLock{e.redis, fmt.Sprint("name", i)}
			if ok, err := e.acquire(context.Background(), b, i+1, request{lease: time.Second + time.Duration(i)*time.Millisecond}); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(e.holds); n > lapsedKept {
			t.Errorf("%d lapsed holds are remembered", n)
		}
		last := owner(3 * lapsedKept)
		if err := e.release(context.Background(), &fakeLock{e.redis, fmt.Sprint("name", last-1)}, last); !errors.Is(err, ErrLockLost) {
			t.Errorf("unlock of the last one: %v", err)
		}
		if err := e.release(context.Background(), &fakeLock{e.redis, "name0"}, 1); !errors.Is(err, ErrNotHeld) {
			t.Errorf("unlock of the first one: %v", err)
		}
	})
}

// S4, and the row of the re-entry: the outer section must hear of a loss, once.
func TestEngineReentryAfterALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1)
		guarded := e.guarded(1)
		e.redis.set(func() { delete(e.redis.records, "x") })
		if ok, err := e.lockWith(context.Background(), 1, request{wait: forever}); ok || !errors.Is(err, ErrLockLost) {
			t.Fatalf("re-entry of a hold whose record has gone: %v, %v", ok, err)
		}
		if !errors.Is(context.Cause(guarded), ErrLockLost) {
			t.Errorf("the guard says %v", context.Cause(guarded))
		}
		if e.redis.holder("x") != "" {
			t.Error("the re-entry took the lock anew")
		}
		for range 2 {
			if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
				t.Errorf("unlock: %v", err)
			}
		}
		e.lock(1)
		e.unlock(1)
	})
}

func TestEngineFreshLockOnceTheLossWasTold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.redis.set(func() { delete(e.redis.records, "x") })
		time.Sleep(time.Minute) // the watchdog notices
		if ok, err := e.lockWith(context.Background(), 1, request{wait: 0}); ok || !errors.Is(err, ErrLockLost) {
			t.Fatalf("%v, %v", ok, err)
		}
		e.lock(1)
		if _, levels := e.levels(&fakeLock{e.redis, "x"}, 1); levels != 1 {
			t.Errorf("%d levels", levels)
		}
		e.unlock(1)
	})
}

// S4: a holder that has lost its record never gets it back by renewing.
func TestEngineLossIsNoticedWithinAThirdOfTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.lock(1)
		guarded := e.guarded(1)
		time.Sleep(time.Minute)
		e.redis.set(func() { delete(e.redis.records, "x") })
		start := time.Now()
		other.lock(2)
		<-guarded.Done()
		if took := time.Since(start); took > e.watchdogTimeout/3 || !errors.Is(context.Cause(guarded), ErrLockLost) {
			t.Errorf("noticed after %v: %v", took, context.Cause(guarded))
		}
		time.Sleep(time.Hour)
		if _, levels := other.levels(&fakeLock{e.redis, "x"}, 2); levels != 1 {
			t.Error("the next holder was disturbed")
		}
		if err := e.unlockErr(1); !errors.Is(err, ErrLockLost) {
			t.Errorf("unlock: %v", err)
		}
		other.unlock(2)
	})
}

// A waiter rides out a failover; one who has nothing yet is told soon.
func TestEngineOutages(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		down := fakeFault{block: io.EOF}
		e.redis.fault = func(string) fakeFault { return down }
		start := time.Now()
		if ok, err := e.lockWith(context.Background(), 1, request{wait: forever}); ok || !errors.Is(err, io.EOF) || time.Since(start) > 2*time.Second {
			t.Errorf("%v, %v after %v", ok, err, time.Since(start))
		}
		tries := e.redis.count("acquire")
		if tries < quickTries || tries > 3*quickTries {
			t.Errorf("%d tries", tries)
		}
		time.Sleep(time.Minute) // its undo is given up too

		e.redis.set(func() { e.redis.fault = nil })
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 2, request{wait: forever})
			got <- err
		}()
		time.Sleep(5 * time.Second)
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return down } })
		time.Sleep(15 * time.Second)
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(5 * time.Second)
		other.unlock(1)
		if err := <-got; err != nil {
			t.Errorf("a waiter did not ride out an outage of 15s: %v", err)
		}
		e.unlock(2)

		other.lock(1)
		go func() {
			_, err := e.lockWith(context.Background(), 2, request{wait: forever})
			got <- err
		}()
		time.Sleep(5 * time.Second)
		start = time.Now()
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return down } })
		if err := <-got; !errors.Is(err, io.EOF) || time.Since(start) > 2*e.watchdogTimeout {
			t.Errorf("a waiter without any Redis: %v after %v", err, time.Since(start))
		}
		e.redis.set(func() { e.redis.fault = nil })
	})
}

func TestEngineCloseWakesEverybody(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		var wg sync.WaitGroup
		for o := owner(2); o < 10; o++ {
			wg.Go(func() {
				if ok, err := e.lockWith(context.Background(), o, request{wait: forever}); ok || !errors.Is(err, ErrClosed) {
					t.Errorf("%v, %v", ok, err)
				}
			})
		}
		held := &fakeLock{e.redis, "held"}
		if ok, err := e.acquire(context.Background(), held, 1, request{wait: forever}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		guarded, err := e.guard(context.Background(), held, 1)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		if err := e.close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if time.Since(start) != 0 {
			t.Errorf("took %v", time.Since(start))
		}
		if !errors.Is(context.Cause(guarded), ErrClosed) {
			t.Errorf("the guard says %v", context.Cause(guarded))
		}
		if ok, err := e.lockWith(context.Background(), 3, request{wait: 0}); ok || !errors.Is(err, ErrClosed) {
			t.Errorf("lock after close: %v, %v", ok, err)
		}
		if e.redis.holder("held") == "" {
			t.Error("close has released what is held")
		}
		if err := e.release(context.Background(), held, 1); err != nil || e.redis.holder("held") != "" {
			t.Errorf("unlock after close: %v", err)
		}
		other.unlock(1)
	})
}

// An attempt that is on its way while the client closes is undone.
func TestEngineCloseDuringAnAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = time.Second
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		time.Sleep(time.Millisecond)
		if err := e.close(); err != nil {
			t.Error(err)
		}
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("error %v", err)
		}
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
	})
}

// Goroutines that share an owner share its hold.
func TestEngineSharedOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = time.Millisecond
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(9)
		const o, many = owner(-1), 20
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() { e.lock(o) })
		}
		synctest.Wait()
		if ok, err := e.lockWith(context.Background(), o, request{wait: 0}); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		if err := e.unlockErr(o); !errors.Is(err, ErrNotHeld) {
			t.Errorf("unlock of what is not held yet: %v", err)
		}
		other.unlock(9)
		wg.Wait()
		if _, levels := e.levels(&fakeLock{e.redis, "x"}, o); levels != many || e.redis.records["x"].levels != many {
			t.Errorf("%d levels here, %d in Redis", levels, e.redis.records["x"].levels)
		}
		for range many {
			wg.Go(func() { e.unlock(o) })
		}
		wg.Wait()
		if e.redis.holder("x") != "" {
			t.Error("not released")
		}
		if err := e.unlockErr(o); !errors.Is(err, ErrNotHeld) {
			t.Errorf("error %v", err)
		}
	})
}

// A waiter of the same owner whose first contender gives up takes its place.
func TestEngineSharedOwnerFirstGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(9)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = e.lockWith(ctx, 1, request{wait: forever}) }()
		synctest.Wait()
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		other.unlock(9)
		if err := <-got; err != nil {
			t.Error(err)
		}
		e.unlock(1)
	})
}

func TestEngineGuardsOfManyContexts(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		b := &fakeLock{e.redis, "x"}
		for range 100 {
			ctx, cancel := context.WithCancel(context.Background())
			g, err := e.guard(ctx, b, 1)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if !errors.Is(g.Err(), context.Canceled) {
				t.Error("a guard outlives its parent")
			}
		}
		synctest.Wait()
		e.mu.Lock()
		n := len(e.holds[holdKey{lockID{name: "x"}, 1}].guards)
		e.mu.Unlock()
		if n != 0 {
			t.Errorf("%d guards of ended contexts are remembered", n)
		}
		e.unlock(1)
	})
}

// S1 under everything at once: random owners, leases, latencies, lost answers and
// late requests; no two trusted holds at a time, and nothing left in the end.
func TestEngineRandomly(t *testing.T) {
	for seed := range 40 {
		synctest.Test(t, func(t *testing.T) { engineRandomly(t, seed) })
	}
}

func engineRandomly(t *testing.T, seed int) {
	r := &fakeRedis{records: make(map[string]*fakeRecord)}
	rng := newRand(seed)
	faulty := true
	r.fault = func(string) fakeFault { // with r.mu held, which also guards rng here
		if !faulty {
			return fakeFault{}
		}
		switch rng.IntN(20) {
		case 0:
			return fakeFault{err: io.EOF}
		case 1:
			return fakeFault{block: io.EOF}
		case 2:
			return fakeFault{late: time.Duration(rng.IntN(int(2 * time.Second)))}
		case 3:
			return fakeFault{late: time.Duration(rng.IntN(int(40 * time.Second))), err: io.EOF}
		}
		return fakeFault{late: time.Duration(rng.IntN(int(20 * time.Millisecond)))}
	}
	var (
		mu     sync.Mutex // guards below
		inside = make(map[string]string)
		held   int
	)
	var wg sync.WaitGroup
	for c := range 3 {
		e := joinBubbleEngine(t, r, fmt.Sprint("client", c))
		for o := owner(1); o <= 4; o++ {
			rng := newRand(seed*1000 + c*10 + int(o))
			wg.Go(func() {
				for range 20 {
					b := &fakeLock{r, "x"}
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(30))*time.Second)
					req := request{wait: forever}
					switch rng.IntN(3) {
					case 0:
						req.wait = time.Duration(rng.IntN(int(3 * time.Second)))
					case 1:
						req.lease = time.Duration(1+rng.IntN(20)) * time.Second
					}
					ok, err := e.acquire(ctx, b, o, req)
					cancel()
					if ok != (err == nil && ok) {
						t.Errorf("seed %d: %v, %v", seed, ok, err)
					}
					if !ok {
						continue
					}
					guarded, err := e.guard(context.Background(), b, o)
					if err == nil {
						me := fmt.Sprintf("client %d owner %d", c, o)
						mu.Lock()
						held++
						if who := inside["x"]; who != "" {
							t.Errorf("seed %d: %s holds the lock together with %s", seed, me, who)
						}
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
					if err := e.release(context.Background(), b, o); err != nil && !errors.Is(err, ErrLockLost) && !errors.Is(err, io.EOF) && !errors.Is(err, errSilent) {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
			})
		}
	}
	wg.Wait()
	mu.Lock()
	if held < 10 {
		t.Errorf("seed %d: only %d holds", seed, held)
	}
	mu.Unlock()
	r.set(func() { faulty = false })
	time.Sleep(2 * time.Minute) // whatever was left behind lapses
	if h := r.holder("x"); h != "" {
		t.Errorf("seed %d: %s still holds the lock", seed, h)
	}
}

// Every Unlock counts, also one that does not get its turn while others of the
// same owner wait for Redis: a hold that nobody owes an Unlock is not renewed.
func TestEngineSharedOwnerUnlocksWhileRedisHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.prompt = false // what hangs longer than that is bounded by go-redis, for those who stay
		const o, many = owner(-1), 5
		for range many {
			e.lock(o)
		}
		guarded := e.guarded(o)
		e.redis.set(func() {
			e.redis.fault = func(verb string) fakeFault { return fakeFault{late: 12 * time.Second} }
		})
		var wg sync.WaitGroup
		start := time.Now()
		for range many {
			wg.Go(func() { _ = e.unlockErr(o) })
		}
		wg.Wait()
		if took := time.Since(start); took > unlockTime+answerTime {
			t.Errorf("it took %v", took)
		}
		if guarded.Err() == nil {
			t.Error("the hold goes on")
		}
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(2 * e.watchdogTimeout)
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s is still renewed", h)
		}
		e.lock(1)
		e.unlock(1)
	})
}

// An undo that comes before what it undoes looks again.
func TestEngineUndoThatOvertakesItsAttempt(t *testing.T) {
	for _, late := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.redis.fault = func(verb string) fakeFault {
				if verb == "acquire" {
					return fakeFault{ghost: late}
				}
				return fakeFault{}
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			if ok, err := e.lockWith(ctx, 1, request{wait: forever}); ok || err == nil {
				t.Fatal(ok, err)
			}
			e.redis.set(func() { e.redis.fault = nil })
			time.Sleep(1500 * time.Millisecond)
			if h := e.redis.holder("x"); h != "" {
				t.Errorf("%s, which ran %v late, holds the lock", h, late)
			}
		})
	}
}

// Several tries have gone unanswered, and run one after the other while they are undone.
func TestEngineUndoOfSeveralGhosts(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		lates := []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond}
		e.redis.fault = func(verb string) fakeFault {
			if verb != "acquire" || len(lates) == 0 {
				return fakeFault{}
			}
			late := lates[0]
			lates = lates[1:]
			return fakeFault{ghost: late}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if ok, err := e.lockWith(ctx, 1, request{wait: forever}); ok || err == nil {
			t.Fatal(ok, err)
		}
		if len(lates) > 1 {
			t.Fatalf("tried %d times", 3-len(lates))
		}
		time.Sleep(1500 * time.Millisecond)
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
	})
}

// A re-entry that is answered when the hold has lapsed leaves no lease behind.
func TestEngineReentryThatComesTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		if ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: 200 * time.Millisecond}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		e.redis.latency = 150 * time.Millisecond
		if ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Hour}); ok || !errors.Is(err, ErrLockLost) {
			t.Errorf("%v, %v", ok, err)
		}
		time.Sleep(time.Second)
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
	})
}

// A re-entry that was given up has stretched the lease, perhaps: the hold ends with its own.
func TestEngineReentryThatWasGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		if ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: 500 * time.Millisecond}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		e.redis.set(func() { e.redis.latency = 50 * time.Millisecond })
		ctx, cancel := context.WithTimeout(context.Background(), 70*time.Millisecond)
		defer cancel()
		if ok, err := e.lockWith(ctx, 1, request{wait: forever, lease: time.Hour}); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", ok, err)
		}
		time.Sleep(2 * time.Second)
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
	})
}

// Close waits for whoever is in a request, so that the connection can be closed after it.
func TestEngineCloseWaitsForCallers(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = 500 * time.Millisecond
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		time.Sleep(100 * time.Millisecond)
		if err := e.close(); err != nil {
			t.Error(err)
		}
		requests := len(e.redis.requests)
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Hour)
		if n := len(e.redis.requests); n != requests || e.redis.holder("x") != "" {
			t.Errorf("%d requests after Close, %q holds the lock", n-requests, e.redis.holder("x"))
		}
	})
}

// When Redis cannot be reached, the callers in line find out at the same time, each by its own request.
func TestEngineQueueOnADeadServer(t *testing.T) {
	for name, fault := range map[string]fakeFault{"refused": {block: io.EOF}, "hangs": {block: io.EOF, late: 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.fault = func(string) fakeFault { return fault }
				var wg sync.WaitGroup
				start := time.Now()
				for o := range owner(100) {
					wg.Go(func() {
						if ok, err := e.lockWith(context.Background(), o+1, request{wait: forever}); ok || !errors.Is(err, io.EOF) && !errors.Is(err, errSilent) {
							t.Errorf("%v, %v", ok, err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(start); took > 11*time.Second {
					t.Errorf("the last one was told after %v", took)
				}
				e.redis.set(func() { e.redis.fault = nil })
				e.lock(1)
				e.unlock(1)
			})
		})
	}
}

// A refusingLock is a fakeLock that answers attempts with an error of its own.
type refusingLock struct {
	*fakeLock
	err error
}

func (l refusingLock) acquire(context.Context, attempt) (grant, error) { return grant{}, l.err }

// No caller is told the error of another caller's request. An answer that refuses one caller says
// nothing about the others in line.
func TestEngineEveryCallerGetsItsOwnAnswer(t *testing.T) {
	for _, refused := range []error{errUpgrade, ErrNotALock, invalid("lease 1ms"), errReply, ErrNotSynced} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.lock(1)
			results := make(chan error, 1)
			go func() {
				b := refusingLock{&fakeLock{e.redis, "x"}, refused}
				_, err := e.acquire(context.Background(), b, 2, request{wait: forever, lease: time.Minute})
				results <- err
			}()
			synctest.Wait()
			var behind sync.WaitGroup
			for o := range owner(10) {
				r := request{wait: forever}
				if o%2 == 0 {
					r.lease = time.Minute
				}
				behind.Go(func() {
					if ok, err := e.lockWith(context.Background(), 3+o, r); !ok || err != nil {
						t.Errorf("%v is behind a caller who was told %v, and is told %v, %v", 3+o, refused, ok, err)
						return
					}
					time.Sleep(time.Millisecond)
					e.unlock(3 + o)
				})
			}
			synctest.Wait()
			e.unlock(1)
			behind.Wait()
			if err := <-results; !errors.Is(err, refused) {
				t.Errorf("the one in front is told %v, not %v", err, refused)
			}
		})
	}
}

// Redis does not answer a TryLock that does not wait, and answers the callers behind it: they get the
// lock, in the order in which they came.
func TestEngineCallersBehindAnUnansweredTryAskForThemselves(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Minute} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			other := joinBubbleEngine(t, e.redis, "other")
			e.redis.latency = time.Millisecond
			e.redis.fault = func(string) fakeFault { return fakeFault{block: io.EOF} }
			tried := make(chan error, 1)
			go func() {
				_, err := e.lockWith(context.Background(), 1, request{wait: 0})
				e.redis.set(func() { e.redis.fault = nil })
				tried <- err
			}()
			synctest.Wait()
			var behind sync.WaitGroup
			var order []owner
			for o := owner(2); o < 12; o++ {
				behind.Go(func() {
					if ok, err := e.lockWith(context.Background(), o, request{wait: forever, lease: lease}); !ok || err != nil {
						t.Errorf("%v is told %v, %v", o, ok, err)
						return
					}
					order = append(order, o)
					time.Sleep(time.Second)
					e.unlock(o)
				})
				synctest.Wait()
			}
			// Another client has the lock by the time when they ask.
			e.redis.set(func() { e.redis.records["x"] = &fakeRecord{"other:1:1", 1, time.Now().Add(time.Minute)} })
			if err := <-tried; !errors.Is(err, io.EOF) {
				t.Errorf("the TryLock is told %v", err)
			}
			time.Sleep(time.Second)
			b := &fakeLock{e.redis, "x"}
			if r, err := b.release(context.Background(), "other:1:1", 0); !r.there || err != nil {
				t.Fatal(r, err)
			}
			behind.Wait()
			if !slices.IsSorted(order) || len(order) != 10 {
				t.Errorf("served in the order %v", order)
			}
			other.lock(1)
			other.unlock(1)
		})
	}
}

// A hold is not reported when hardly anything is left of its trust: it is asked for again, which restores the lease.
func TestEngineAnswerThatComesTooLateIsAskedForAgain(t *testing.T) {
	const lease = 600 * time.Millisecond // less than resendTime
	for name, late := range map[string]time.Duration{"nearly over": lease - 40*time.Millisecond, "over": lease + 40*time.Millisecond} {
		for _, explicit := range []time.Duration{0, lease} {
			for levels := range 2 {
				t.Run(fmt.Sprint(name, explicit, levels), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						e := joinBubbleEngine(t, &fakeRedis{records: make(map[string]*fakeRecord)}, "client", WithWatchdogTimeout(lease))
						if levels > 0 {
							if ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Hour}); !ok || err != nil {
								t.Fatal(ok, err)
							}
						}
						asked := 0
						e.redis.set(func() {
							e.redis.fault = func(verb string) fakeFault {
								if asked++; verb == "acquire" && asked <= 2 {
									return fakeFault{answer: late}
								}
								return fakeFault{}
							}
						})
						ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: explicit})
						if !ok || err != nil {
							t.Fatal(ok, err)
						}
						guarded := e.guarded(1)
						time.Sleep(lease / 2)
						if guarded.Err() != nil {
							t.Errorf("it was reported, and is over: %v", context.Cause(guarded))
						}
						if want := 3 - 2*levels; asked != want && explicit > 0 { // the rest is renewals
							t.Errorf("asked %d times, want %d: an hour is left of what was held", asked, want)
						}
						for range levels + 1 {
							e.unlock(1)
						}
						if h := e.redis.holder("x"); h != "" {
							t.Errorf("%s holds the lock", h)
						}
					})
				})
			}
		}
	}
}

// Where Redis always takes longer to answer than a lease lasts, that is an error after a few tries, and
// nothing is left of them. A lease that is over at once, as documented, is reported as ever.
func TestEngineLeaseShorterThanTheAnswersTake(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = 50 * time.Millisecond
		start := time.Now()
		ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: 60 * time.Millisecond})
		if ok || !errors.Is(err, ErrLockLost) || !errors.Is(err, errLate) {
			t.Errorf("%v, %v", ok, err)
		}
		if n := e.redis.count("acquire"); n != mostAsked {
			t.Errorf("asked %d times", n)
		}
		if took := time.Since(start); took > 10*2*e.redis.latency {
			t.Errorf("it took %v", took)
		}
		if h := e.redis.holder("x"); h != "" {
			t.Errorf("%s is left", h)
		}
		if ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Millisecond}); !ok || err != nil {
			t.Errorf("a lease of 1ms: %v, %v", ok, err)
		}
		e.lock(1)
		e.unlock(1)
	})
}

// A process that is stopped while a lock is handed on in it does not report the lock when it goes on: the
// one who was next asks for a hold of its own. So do those who were let in to share one.
func TestEngineHandoverThatComesTooLateIsNotReported(t *testing.T) {
	type stopped func(e *bubbleEngine, before *hold)
	handOver := func(e *bubbleEngine, before *hold) {
		if !e.handOverLocked(before) {
			e.t.Error("not handed over")
		}
	}
	letIn := func(e *bubbleEngine, before *hold) {
		before.gate = e.gates[before.key.id]
		e.openLocked(before)
	}
	for name, left := range map[string]time.Duration{"over": -time.Second, "nearly over": time.Millisecond, "noticed": 0} {
		for way, pass := range map[string]stopped{"handover": handOver, "let in": letIn} {
			t.Run(name+", "+way, func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *bubbleEngine) {
					events := &lossCounter{}
					e.observer = events
					b := backend(&fakeLock{e.redis, "x"})
					if way == "let in" {
						b = sharedFake{b.(*fakeLock)}
					}
					take := func(o owner) {
						if ok, err := e.acquire(context.Background(), b, o, request{wait: forever}); !ok || err != nil {
							t.Error(ok, err)
						}
					}
					take(1)
					before := e.find(b.id(), 1)
					e.mu.Lock()
					if way == "let in" { // the gate is open by now
						before.gate = nil
						e.gateLocked(b.id()).open = nil
						e.gateLocked(b.id()).taken = true
					}
					e.mu.Unlock()
					got := make(chan struct{})
					go func() { take(2); close(got) }()
					synctest.Wait()

					e.mu.Lock()
					tenure := before.tenure
					pass(e, before)
					tenure.lease.until.Store(int64(e.dog.now() + left))
					e.mu.Unlock()
					if name == "noticed" {
						tenure.leaseEnded(errLapsed)
					}
					<-got
					h := e.find(b.id(), 2)
					if h == nil || h.field == before.field {
						t.Fatalf("it is reported with the record of before: %v", h)
					}
					ctx, err := e.guard(context.Background(), b, 2)
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
					if ctx.Err() != nil {
						t.Error("it was reported, and is over")
					}
					if events.of(2) > 0 {
						t.Error("a loss was reported of what was never held")
					}
					_ = e.release(context.Background(), b, 1)
					if err := e.release(context.Background(), b, 2); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Minute)
					if h := e.redis.holder("x"); h != "" {
						t.Errorf("%s holds the lock", h)
					}
				})
			})
		}
	}
}

// A lossCounter counts losses.
type lossCounter struct {
	NopObserver
	mu   sync.Mutex // guards below
	lost map[Owner]int
}

func (c *lossCounter) Lost(_ context.Context, e LostEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.lost = make(map[Owner]int)
	}
	c.lost[e.Lock.Owner]++
}

func (c *lossCounter) of(o Owner) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost[o]
}

// A re-entry of an owner that several share waits for its turn, also with wait 0.
func TestEngineSharedOwnerTriesWhileItHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = time.Millisecond
		const o = owner(-1)
		e.lock(o)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if ok, err := e.lockWith(context.Background(), o, request{wait: 0}); !ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
			})
		}
		wg.Wait()
		for range 21 {
			e.unlock(o)
		}
	})
}

// A fakeLock one of whose requests panics, as a hook of the Redis client may.
type panickingLock struct {
	*fakeLock
	verb string
}

func (l panickingLock) acquire(ctx context.Context, a attempt) (grant, error) {
	g, err := l.fakeLock.acquire(ctx, a)
	if l.verb == "acquire" {
		panic("a hook")
	}
	return g, err
}

func (l panickingLock) release(ctx context.Context, field string, left int) (released, error) {
	if l.verb == "release" {
		panic("a hook")
	}
	return l.fakeLock.release(ctx, field, left)
}

// A panic of a hook is an error to the engine, which leaves nothing behind: what the request has
// done in Redis is undone at once. See TestHookPanicReachesTheCaller for what callers see.
func TestEngineUndoesARequestThatPanics(t *testing.T) {
	for _, verb := range []string{"acquire", "release"} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			b := panickingLock{&fakeLock{e.redis, "x"}, verb}
			_, err := e.acquire(context.Background(), b, 1, request{wait: forever})
			if verb == "release" {
				require.NoError(t, err)
				err = e.release(context.Background(), b, 1)
			}
			var p *hookPanic
			require.ErrorAs(t, err, &p)
			require.Equal(t, "a hook", p.value)
			start := time.Now()
			if verb == "acquire" {
				e.lock(2)
				e.unlock(2)
				require.Less(t, time.Since(start), time.Second, "the record stays")
			} else {
				e.lock(2) // every release panics: the record lapses
				e.unlock(2)
			}
			require.Empty(t, e.holds)
			require.Empty(t, e.gates)
			require.Empty(t, e.dog.leases)
		})
	}
}

// atWork is how many callers and goroutines are at something.
func (e *engine) atWork() int64 { return e.working.Load() - e.idle.Load() }

// An Unlock that has waited for its turn has the time for its request that every request has: it is
// told of the loss of the lock, and does not take a request that was never sent for one that was.
func TestEngineUnlockThatWaitedForItsTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const o = owner(-1)
		b := boundLock{&fakeLock{e.redis, "x"}}
		for range 2 {
			if ok, err := e.acquire(context.Background(), b, o, request{wait: forever}); !ok {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // the limit of the next request is a new one
		e.redis.set(func() { e.redis.latency = 300 * time.Millisecond })
		first := make(chan error, 1)
		go func() { first <- e.release(context.Background(), b, o) }()
		synctest.Wait()
		second := make(chan error, 1)
		go func() { second <- e.release(context.Background(), b, o) }()
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) // the first one has run, and is not answered yet
		e.redis.set(func() { delete(e.redis.records, "x") })
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-second; !errors.Is(err, ErrLockLost) {
			t.Errorf("%v, want ErrLockLost", err)
		}
	})
}

// A boundLock is a fakeLock whose requests are not sent when their ctx has ended.
type boundLock struct{ *fakeLock }

func (l boundLock) release(ctx context.Context, field string, left int) (released, error) {
	if err := ctx.Err(); err != nil {
		return released{}, err
	}
	return l.fakeLock.release(ctx, field, left)
}

// C4: a waiter that may not subscribe asks often while the lock changes hands, and rarely while somebody keeps it.
func TestPollingOfALockThatIsKept(t *testing.T) {
	t.Parallel()
	const lease, most = 30 * time.Second, time.Second
	start := time.Now()
	count := func(holds time.Duration) int {
		var p polling
		polls := 0
		for now := start; now.Sub(start) < time.Minute; polls++ {
			since := now.Sub(start) % holds // renewed, or taken by another one
			now = now.Add(min(most, p.next(now, lease-since)))
		}
		return polls
	}
	if n := count(10 * time.Second); n > 6*30+60 {
		t.Errorf("%d requests in a minute for a lock that is kept and renewed", n)
	}
	if n := count(20 * time.Millisecond); n < 5000 {
		t.Errorf("%d requests in a minute for a lock that changes hands", n)
	}
}
