//go:build go1.25

package locks

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake/waketest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inObservedBubble runs f in a bubble, on an engine with a recorder and a log.
func inObservedBubble(t *testing.T, f func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, logged *locktest.LockedBuffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, logged := &locktest.Recorder{}, &locktest.LockedBuffer{}
		redis := fakeredis.New()
		e := locktest.JoinBubbleEngine(t, redis, "client", WithObserver(r), WithLogger(slog.New(slog.NewTextHandler(logged, nil))))
		r.Engine = e.Engine
		f(t, e, r, logged)
	})
}

// x is the lock of the bubble, held by o.
func x(o engine.Owner) LockInfo { return LockInfo{Name: "x", Type: TypeLock, Owner: Owner(o)} }

// Each Lock and each Unlock is an event, and an Unlock without a hold is none.
func TestObserverSeesEveryLockAndUnlock(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, _ *locktest.LockedBuffer) {
		e.Redis.Latency = time.Millisecond
		e.Lock(1)
		e.Lock(1)
		r.Told(t,
			AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 2 * time.Millisecond, HoldCount: 1, Token: 1},
			AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 2 * time.Millisecond, HoldCount: 2, Token: 1})
		time.Sleep(time.Second)
		e.Unlock(1)
		e.Unlock(1)
		r.Told(t,
			ReleasedEvent{Lock: x(1), Held: time.Second + 6*time.Millisecond, HoldCount: 1},
			ReleasedEvent{Lock: x(1), Held: time.Second + 8*time.Millisecond})
		assert.ErrorIs(t, e.UnlockErr(1), ErrNotHeld)
		r.Told(t)
	})
}

// Acquired shows whether the lock was handed off in the process, or the queue ended and Redis was asked.
func TestObserverSeesHandoffAndQueue(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, _ *locktest.LockedBuffer) {
		e.Lock(1)
		waiters := startInOrder(e, 2, 3)
		r.Told(t, AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 0, HoldCount: 1, Token: 1}, WaitingEvent{Lock: x(2)}, WaitingEvent{Lock: x(3)})
		time.Sleep(5 * time.Millisecond)
		e.Unlock(1)
		<-waiters
		r.Told(
			t,
			ReleasedEvent{Lock: x(1), Held: 5 * time.Millisecond, HoldCount: 0, Err: nil, Detached: false},
			AcquiredEvent{Lock: x(2), Path: PathHandoff, Waited: 5 * time.Millisecond, HoldCount: 1, Token: 0},
		)
		time.Sleep(time.Second) // longer than a hand-off window
		e.Unlock(2)
		<-waiters
		r.Told(t, ReleasedEvent{Lock: x(2), Held: time.Second, HoldCount: 0, Err: nil, Detached: false},
			AcquiredEvent{Lock: x(3), Path: PathQueue, Waited: time.Second + 5*time.Millisecond, HoldCount: 1, Token: 2})
		e.Unlock(3)
		r.Told(t, ReleasedEvent{Lock: x(3), Held: 0, HoldCount: 0, Err: nil, Detached: false})
	})
}

// Acquired shows what has ended the wait: here the record was deleted, which nothing announces.
func TestObserverSeesWhatHasEndedTheWait(t *testing.T) {
	for name, test := range map[string]struct {
		before func(r *fakeredis.Redis) // the wait
		after  func(r *fakeredis.Redis) // the record was deleted
		want   AcquirePath
	}{
		"the time was up": {want: PathPolled},
		"the subscription was refused": {
			before: func(r *fakeredis.Redis) {
				r.PubSub.Refuse = func(string) error {
					time.Sleep(100 * time.Millisecond) // meanwhile the record is deleted
					return waketest.Error("NOPERM no permission")
				}
			},
			want: PathPolled,
		},
		"the subscription has begun": {
			before: func(r *fakeredis.Redis) { r.PubSub.ConfirmAfter = 100 * time.Millisecond },
			want:   PathNotified,
		},
		"the subscription has begun again": {
			after: func(r *fakeredis.Redis) { r.PubSub.Cut() },
			want:  PathNotified,
		},
		"a message for another waiter": {
			after: func(r *fakeredis.Redis) { r.PubSub.Publish("channel:x") },
			want:  PathNotified,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, _ *locktest.LockedBuffer) {
				e.Redis.Set(func() {
					e.Redis.Records["x"] = &fakeredis.Record{Field: "other", Levels: 1, Expires: time.Now().Add(time.Hour)}
				})
				if test.before != nil {
					test.before(e.Redis)
				}
				got := startInOrder(e, 1)
				time.Sleep(50 * time.Millisecond)
				e.Redis.Set(func() { delete(e.Redis.Records, "x") })
				if test.after != nil {
					test.after(e.Redis)
				}
				<-got
				events := r.Take()
				assert.Equal(t, test.want, events[len(events)-1].(AcquiredEvent).Path)
				e.Unlock(1)
			})
		})
	}
}

// startInOrder makes owners call Lock, one after the other. The channel returns each owner that has acquired the lock.
func startInOrder(e *locktest.BubbleEngine, owners ...engine.Owner) <-chan engine.Owner {
	got := make(chan engine.Owner, len(owners))
	for _, o := range owners {
		go func() {
			e.Lock(o)
			got <- o
		}()
		synctest.Wait()
	}
	return got
}

// GaveUp shows whether the owner waited, for how long, and the error. A call that sends no request is no event.
func TestObserverSeesOwnersThatGiveUp(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, _ *locktest.LockedBuffer) {
		e.Lock(1)
		r.Take()
		try := func(ctx context.Context, wait time.Duration, want error) {
			t.Helper()
			ok, err := e.LockWith(ctx, 2, engine.Request{Wait: wait})
			assert.False(t, ok)
			assert.ErrorIs(t, err, want)
		}
		try(ctx, 0, nil)
		r.Told(t, GaveUpEvent{Lock: x(2)})
		try(ctx, time.Second, nil)
		r.Told(t, WaitingEvent{Lock: x(2)}, GaveUpEvent{Lock: x(2), Contended: true, Waited: time.Second, Err: nil})
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		try(soon, locktest.Forever, context.DeadlineExceeded)
		r.Told(t, WaitingEvent{Lock: x(2)}, GaveUpEvent{Lock: x(2), Contended: true, Waited: time.Second, Err: context.DeadlineExceeded})
		try(soon, locktest.Forever, context.DeadlineExceeded)
		r.Told(t) // the owner sent no request
		e.Unlock(1)
	})
}

// A renewal, a failed renewal, and the loss when no renewal is confirmed are events; the loss is logged once.
func TestObserverSeesRenewalsAndTheLoss(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, logged *locktest.LockedBuffer) {
		e.Lock(1)
		e.Lock(1)
		r.Take()
		time.Sleep(e.WatchdogTimeout/3 + time.Second)
		r.Told(t, RenewedEvent{Lock: x(1)})
		assert.Empty(t, logged.String(), "in a healthy run")
		e.Redis.Set(func() {
			e.Redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: locktest.ErrOff} }
		})
		time.Sleep(2 * e.WatchdogTimeout)
		var failed, lost int
		for _, event := range r.Take() {
			switch event := event.(type) {
			case RenewalFailedEvent:
				failed++
				assert.Equal(t, x(1), event.Lock)
				assert.ErrorIs(t, event.Err, locktest.ErrOff)
				assert.Positive(t, event.ValidFor)
				assert.LessOrEqual(t, event.ValidFor, e.WatchdogTimeout)
			case LostEvent:
				lost++
				assert.Equal(t, x(1), event.Lock)
				assert.GreaterOrEqual(t, event.Held, e.WatchdogTimeout)
				assert.ErrorIs(t, event.Cause, ErrLockLost)
				assert.ErrorIs(t, event.Cause, locktest.ErrOff)
			default:
				assert.Fail(t, "an event that was not wanted", "%+v", event)
			}
		}
		assert.GreaterOrEqual(t, failed, 3, "failed renewals")
		assert.Equal(t, 1, lost, "losses")
		e.Redis.Set(func() { e.Redis.Fault = nil })
		for range 2 {
			assert.ErrorIs(t, e.UnlockErr(1), ErrLockLost)
		}
		r.Told(t) // the loss has been reported
		onlyWarning(t, logged, locktest.ErrOff.Error())
	})
}

// onlyWarning asserts that the log is one warning, with the name of the lock and the cause of the loss.
func onlyWarning(t *testing.T, logged *locktest.LockedBuffer, why string) {
	t.Helper()
	s := logged.String()
	assert.Equal(t, 1, strings.Count(s, "level="), "lines of the log: %s", s)
	assert.Contains(t, s, "level=WARN")
	assert.Contains(t, s, " lock=x ")
	assert.Contains(t, s, why)
}

// The call that notices a loss first reports it, and no other call does.
func TestLossIsReportedOnce(t *testing.T) {
	notices := map[string]func(e *locktest.BubbleEngine, guarded context.Context) error{
		"unlock":       func(e *locktest.BubbleEngine, _ context.Context) error { return e.UnlockErr(1) },
		"inner unlock": func(e *locktest.BubbleEngine, _ context.Context) error { lockedAgain(e, 1); return e.UnlockErr(1) },
		"re-entry": func(e *locktest.BubbleEngine, _ context.Context) error {
			_, err := e.LockWith(ctx, 1, engine.Request{Wait: locktest.Forever})
			return err
		},
		"watchdog": func(_ *locktest.BubbleEngine, guarded context.Context) error {
			<-guarded.Done()
			return context.Cause(guarded)
		},
	}
	for name, notice := range notices {
		t.Run(name, func(t *testing.T) {
			inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, logged *locktest.LockedBuffer) {
				e.Lock(1)
				guarded := e.Guarded(1)
				e.Redis.Set(func() { clear(e.Redis.Records) })
				assert.ErrorIs(t, notice(e, guarded), ErrLockLost)
				synctest.Wait()
				_ = e.UnlockErr(1)
				time.Sleep(2 * e.WatchdogTimeout)
				lost, released := 0, 0
				for _, event := range r.Take() {
					switch event := event.(type) {
					case LostEvent:
						lost++
					case ReleasedEvent:
						if event.HoldCount == 0 {
							released++
						}
					}
				}
				assert.Equal(t, 1, lost, "losses")
				assert.Zero(t, released, "releases")
				onlyWarning(t, logged, "gone")
			})
		})
	}
}

// lockedAgain increments the hold count of o in this process only.
func lockedAgain(e *locktest.BubbleEngine, o engine.Owner) {
	p, x := e.Probe(), locktest.NewFakeLock(e.Redis, "x")
	p.SetHoldCount(x, o, p.Look(x, o).HoldCount+1)
}

// The end of an explicit lease is Expired, and not a loss.
func TestObserverSeesExpiryAsNoLoss(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, logged *locktest.LockedBuffer) {
		ok, err := e.LockWith(ctx, 1, engine.Request{Wait: locktest.Forever, Lease: time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		r.Take()
		time.Sleep(time.Minute)
		r.Told(t, ExpiredEvent{Lock: x(1), Held: lease.Validity(time.Second)})
		_ = e.UnlockErr(1)
		r.Told(t)
		assert.Empty(t, logged.String(), "logged")
	})
}

// A release that Redis has not confirmed is Released with its error, and not a loss.
func TestObserverSeesUnconfirmedReleases(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *locktest.BubbleEngine, r *locktest.Recorder, logged *locktest.LockedBuffer) {
		e.Lock(1)
		r.Take()
		e.Redis.Set(func() {
			e.Redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: locktest.ErrOff} }
		})
		assert.ErrorIs(t, e.UnlockErr(1), locktest.ErrOff)
		r.Told(t, ReleasedEvent{Lock: x(1), Held: send.ConnectTime, HoldCount: 0, Err: locktest.ErrOff, Detached: false})
		assert.Empty(t, logged.String(), "logged")
		e.Redis.Set(func() { e.Redis.Fault = nil })
	})
}

// For every lock type each wait and each hold that an event begins ends with one event, also
// under deadlines and short leases.
func TestObserverCountsAddUp(t *testing.T) {
	t.Parallel()
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		r := &locktest.Recorder{}
		c, _ := v.Client(0, WithObserver(r), WithWatchdogTimeout(10*time.Second))
		plain, fair, rw := c.NewLock("l"), c.NewFairLock("l-fair"), c.NewRWLock("l-rw", Fenced())
		locks := []Locker{plain, fair, rw.Read(), rw.Write(), c.NewMultiLock(plain, fair), c.NewMultiLock(plain, rw.Write())}
		var all sync.WaitGroup
		for seed := range 12 {
			all.Go(func() {
				rng := locktest.NewRand(seed)
				for range 20 {
					ctx, cancel := context.WithTimeout(ContextWithOwner(ctx), locktest.Between(rng, 0, 200*time.Millisecond))
					l, lease, levels := locks[rng.IntN(len(locks))], time.Duration(0), 0
					if rng.IntN(4) == 0 {
						lease = 10 * time.Millisecond
					}
					for range 1 + rng.IntN(2) {
						if ok, _ := l.TryLock(ctx, locktest.Between(rng, 0, 50*time.Millisecond), lease); ok {
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
		time.Sleep(locktest.EngineOf(c).WatchdogTimeout) // whatever is left has expired
		synctest.Wait()
		waits, holds := make(map[LockType]int), make(map[LockType]int)
		for _, event := range r.Take() {
			switch e := event.(type) {
			case WaitingEvent:
				waits[e.Lock.Type]++
			case AcquiredEvent:
				if e.Path != PathImmediate {
					waits[e.Lock.Type]--
				}
				if e.HoldCount == 1 {
					holds[e.Lock.Type]++
				}
				assert.Equal(v, e.Lock.Type == TypeWrite, e.Token > 0, "%+v", e)
			case GaveUpEvent:
				if e.Contended {
					waits[e.Lock.Type]--
				}
			case ReleasedEvent:
				if e.HoldCount == 0 {
					holds[e.Lock.Type]--
				}
			case ExpiredEvent:
				holds[e.Lock.Type]--
			case LostEvent:
				holds[e.Lock.Type]--
			}
		}
		none := map[LockType]int{TypeLock: 0, TypeFair: 0, TypeRead: 0, TypeWrite: 0} // each type has been held, and waited for
		assert.Equal(v, none, waits, "waits that no event has ended")
		assert.Equal(v, none, holds, "holds that no event has ended")
	})
}

// The Observer of a Client receives events of its RedLock, and the Observers of the nodes receive those of the locks of
// the nodes.
func TestObserverSeesRedLockAndNodes(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	ctx := ContextWithOwner(ctx)
	o := Owner(engine.OwnerOf(ctx))
	r, node := &locktest.Recorder{}, &locktest.Recorder{}
	var locks []Locker
	for range 3 {
		locks = append(locks, b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr()), WithObserver(node)).NewLock(b.LockName))
	}
	l := b.Client(WithObserver(r)).NewRedLock(locks...)
	b.Must(l.Lock(ctx))
	testredis.Await(
		t,
		"all nodes are held",
		locktest.Soon,
		func() bool { node.Mu.Lock(); defer node.Mu.Unlock(); return len(node.Events) == 3 },
	)
	b.Must(l.Unlock(ctx))
	kinds := func(r *locktest.Recorder) (kinds []string) {
		for _, event := range r.Take() {
			switch e := event.(type) {
			case AcquiredEvent:
				kinds = append(kinds, fmt.Sprint("acquired ", e.Lock == LockInfo{Name: b.LockName, Type: e.Lock.Type, Owner: o}, e.Lock.Type))
			case ReleasedEvent:
				kinds = append(kinds, fmt.Sprint("released ", e.Lock == LockInfo{Name: b.LockName, Type: e.Lock.Type, Owner: o}, e.Lock.Type))
			default:
				kinds = append(kinds, fmt.Sprintf("%T", e))
			}
		}
		return kinds
	}
	assert.Equal(t, []string{"acquired trueredlock", "released trueredlock"}, kinds(r), "the RedLock")
	assert.Equal(
		t,
		append(slices.Repeat([]string{"acquired truelock"}, 3), slices.Repeat([]string{"released truelock"}, 3)...),
		kinds(node),
		"its nodes",
	)
}

// An Observer receives the context of the call, and finds the trace of the call in it.
func TestObserverGetsTheContextOfTheCall(t *testing.T) {
	type key struct{}
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	seen := &contexts{key: key{}}
	l := b.Client(WithObserver(seen)).NewLock(b.LockName)
	ctx := context.WithValue(ctx, key{}, "trace")
	b.Must(l.Lock(ctx))
	b.Must(l.Unlock(ctx))
	assert.Equal(t, []any{"trace", "trace"}, seen.values)
}

// A contexts records a value of the context of each event.
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
