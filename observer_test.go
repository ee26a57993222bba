//go:build go1.25

package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake/waketest"
)

// inObservedBubble runs f in a bubble, on an engine with a recorder and a log.
func inObservedBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, logged := &recorder{}, &lockedBuffer{}
		redis := fakeredis.New()
		e := joinBubbleEngine(t, redis, "client", WithObserver(r), WithLogger(slog.New(slog.NewTextHandler(logged, nil))))
		r.engine = e.Engine
		f(t, e, r, logged)
	})
}

// x is the lock of the bubble, held by o.
func x(o engine.Owner) LockInfo { return LockInfo{"x", TypeLock, Owner(o)} }

// Each Lock and each Unlock is an event, and an Unlock without a hold is none.
func TestObserverSeesEveryLockAndUnlock(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		e.redis.Latency = time.Millisecond
		e.lock(1)
		e.lock(1)
		r.told(t,
			AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 2 * time.Millisecond, HoldCount: 1, Token: 1},
			AcquiredEvent{Lock: x(1), Path: PathImmediate, Waited: 2 * time.Millisecond, HoldCount: 2, Token: 1})
		time.Sleep(time.Second)
		e.unlock(1)
		e.unlock(1)
		r.told(t,
			ReleasedEvent{Lock: x(1), Held: time.Second + 6*time.Millisecond, HoldCount: 1},
			ReleasedEvent{Lock: x(1), Held: time.Second + 8*time.Millisecond})
		assert.ErrorIs(t, e.unlockErr(1), ErrNotHeld)
		r.told(t)
	})
}

// Acquired shows whether the lock was handed off in the process, or the queue ended and Redis was asked.
func TestObserverSeesHandoffAndQueue(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		e.lock(1)
		waiters := startInOrder(e, 2, 3)
		r.told(t, AcquiredEvent{x(1), PathImmediate, 0, 1, 1}, WaitingEvent{x(2)}, WaitingEvent{x(3)})
		time.Sleep(5 * time.Millisecond)
		e.unlock(1)
		<-waiters
		r.told(
			t,
			ReleasedEvent{x(1), 5 * time.Millisecond, 0, nil, false},
			AcquiredEvent{x(2), PathHandoff, 5 * time.Millisecond, 1, 0},
		)
		time.Sleep(time.Second) // longer than a hand-off window
		e.unlock(2)
		<-waiters
		r.told(t, ReleasedEvent{x(2), time.Second, 0, nil, false},
			AcquiredEvent{x(3), PathQueue, time.Second + 5*time.Millisecond, 1, 2})
		e.unlock(3)
		r.told(t, ReleasedEvent{x(3), 0, 0, nil, false})
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
			inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
				e.redis.Set(func() {
					e.redis.Records["x"] = &fakeredis.Record{Field: "other", Levels: 1, Expires: time.Now().Add(time.Hour)}
				})
				if test.before != nil {
					test.before(e.redis)
				}
				got := startInOrder(e, 1)
				time.Sleep(50 * time.Millisecond)
				e.redis.Set(func() { delete(e.redis.Records, "x") })
				if test.after != nil {
					test.after(e.redis)
				}
				<-got
				events := r.take()
				assert.Equal(t, test.want, events[len(events)-1].(AcquiredEvent).Path)
				e.unlock(1)
			})
		})
	}
}

// A waiter with a place in the line has polled, too, if the poller has found the lock free and woken it.
func TestObserverSeesThatThePollerHasFoundTheLockFree(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, r := newBench(t, testredis.Start(t).Addr()), &recorder{}
			ctx, waits := context.Background(), b.client(WithObserver(r))
			held := lock(b.client(), b.name)
			b.must(held.Lock(ctx))
			got := make(chan error, 1)
			go func() {
				got <- lock(waits, b.name).Do(ctx, func(context.Context) error { return nil })
			}()
			testredis.Await(t, "it stands in the line", soon, func() bool {
				return b.rdb.HExists(ctx, b.lineKey(), waits.ID()).Val()
			})
			r.take()
			b.must(b.rdb.Del(ctx, b.name).Err())
			b.must(await(b, "the waiter has the lock", got))
			events := r.take()
			assert.Equal(t, PathPolled, events[0].(AcquiredEvent).Path, "%+v", events)
			require.ErrorIs(t, held.Unlock(ctx), ErrLockLost)
		})
	}
}

// startInOrder makes owners call Lock, one after the other. The channel returns each owner that has acquired the lock.
func startInOrder(e *bubbleEngine, owners ...engine.Owner) <-chan engine.Owner {
	got := make(chan engine.Owner, len(owners))
	for _, o := range owners {
		go func() {
			e.lock(o)
			got <- o
		}()
		synctest.Wait()
	}
	return got
}

// Acquired shows whether a message or a poll found the lock free.
func TestObserverSeesNotifiedAndPolled(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(9)
		got := startInOrder(e, 1)
		time.Sleep(10 * time.Second)
		other.unlock(9)
		<-got
		r.told(t, WaitingEvent{x(1)}, AcquiredEvent{x(1), PathNotified, 10 * time.Second, 1, 2})
		e.unlock(1)

		e.redis.Set(func() {
			e.redis.Records["x"] = &fakeredis.Record{
				Field:   "crashed",
				Levels:  1,
				Expires: time.Now().Add(100 * time.Millisecond),
			}
		})
		r.take()
		e.lock(1)
		events := r.take()
		a, ok := events[len(events)-1].(AcquiredEvent)
		assert.True(t, ok, "%+v", events)
		assert.Equal(t, PathPolled, a.Path)
		assert.GreaterOrEqual(t, a.Waited, 100*time.Millisecond)
		assert.LessOrEqual(t, a.Waited, 200*time.Millisecond)
		e.unlock(1)
	})
}

// GaveUp shows whether the owner waited, for how long, and the error. A call that sends no request is no event.
func TestObserverSeesOwnersThatGiveUp(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, _ *lockedBuffer) {
		e.lock(1)
		r.take()
		try := func(ctx context.Context, wait time.Duration, want error) {
			t.Helper()
			ok, err := e.lockWith(ctx, 2, engine.Request{Wait: wait})
			assert.False(t, ok)
			assert.ErrorIs(t, err, want)
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
		r.told(t) // the owner sent no request
		e.unlock(1)
	})
}

var errOff = errors.New("the power is off")

// A renewal, a failed renewal, and the loss when no renewal is confirmed are events; the loss is logged once.
func TestObserverSeesRenewalsAndTheLoss(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
		e.lock(1)
		e.lock(1)
		r.take()
		time.Sleep(e.WatchdogTimeout/3 + time.Second)
		r.told(t, RenewedEvent{x(1)})
		assert.Empty(t, logged.String(), "in a healthy run")
		e.redis.Set(func() { e.redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: errOff} } })
		time.Sleep(2 * e.WatchdogTimeout)
		var failed, lost int
		for _, event := range r.take() {
			switch event := event.(type) {
			case RenewalFailedEvent:
				failed++
				assert.Equal(t, x(1), event.Lock)
				assert.ErrorIs(t, event.Err, errOff)
				assert.Positive(t, event.ValidFor)
				assert.LessOrEqual(t, event.ValidFor, e.WatchdogTimeout)
			case LostEvent:
				lost++
				assert.Equal(t, x(1), event.Lock)
				assert.GreaterOrEqual(t, event.Held, e.WatchdogTimeout)
				assert.ErrorIs(t, event.Cause, ErrLockLost)
				assert.ErrorIs(t, event.Cause, errOff)
			default:
				assert.Fail(t, "an event that was not wanted", "%+v", event)
			}
		}
		assert.GreaterOrEqual(t, failed, 3, "failed renewals")
		assert.Equal(t, 1, lost, "losses")
		e.redis.Set(func() { e.redis.Fault = nil })
		for range 2 {
			assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
		}
		r.told(t) // the loss has been reported
		onlyWarning(t, logged, errOff.Error())
	})
}

// onlyWarning asserts that the log is one warning, with the name of the lock and the cause of the loss.
func onlyWarning(t *testing.T, logged *lockedBuffer, why string) {
	t.Helper()
	s := logged.String()
	assert.Equal(t, 1, strings.Count(s, "level="), "lines of the log: %s", s)
	assert.Contains(t, s, "level=WARN")
	assert.Contains(t, s, " lock=x ")
	assert.Contains(t, s, why)
}

// The call that notices a loss first reports it, and no other call does.
func TestLossIsReportedOnce(t *testing.T) {
	notices := map[string]func(e *bubbleEngine, guarded context.Context) error{
		"unlock":       func(e *bubbleEngine, _ context.Context) error { return e.unlockErr(1) },
		"inner unlock": func(e *bubbleEngine, _ context.Context) error { e.lockedAgain(1); return e.unlockErr(1) },
		"re-entry": func(e *bubbleEngine, _ context.Context) error {
			_, err := e.lockWith(context.Background(), 1, engine.Request{Wait: forever})
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
				e.redis.Set(func() { clear(e.redis.Records) })
				assert.ErrorIs(t, notice(e, guarded), ErrLockLost)
				synctest.Wait()
				_ = e.unlockErr(1)
				time.Sleep(2 * e.WatchdogTimeout)
				lost, released := 0, 0
				for _, event := range r.take() {
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
func (e *bubbleEngine) lockedAgain(o engine.Owner) {
	p, x := e.Probe(), newFakeLock(e.redis, "x")
	p.SetHoldCount(x, o, p.HoldCount(x, o)+1)
}

// The end of an explicit lease is Expired, and not a loss.
func TestObserverSeesExpiryAsNoLoss(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
		ok, err := e.lockWith(context.Background(), 1, engine.Request{Wait: forever, Lease: time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		r.take()
		time.Sleep(time.Minute)
		r.told(t, ExpiredEvent{x(1), lease.Validity(time.Second)})
		_ = e.unlockErr(1)
		r.told(t)
		assert.Empty(t, logged.String(), "logged")
	})
}

// A release that Redis has not confirmed is Released with its error, and not a loss.
func TestObserverSeesUnconfirmedReleases(t *testing.T) {
	inObservedBubble(t, func(t *testing.T, e *bubbleEngine, r *recorder, logged *lockedBuffer) {
		e.lock(1)
		r.take()
		e.redis.Set(func() { e.redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: errOff} } })
		assert.ErrorIs(t, e.unlockErr(1), errOff)
		r.told(t, ReleasedEvent{x(1), send.ConnectTime, 0, errOff, false})
		assert.Empty(t, logged.String(), "logged")
		e.redis.Set(func() { e.redis.Fault = nil })
	})
}

// For every lock type each wait and each hold that an event begins ends with one event, also
// under deadlines and short leases.
func TestObserverCountsAddUp(t *testing.T) {
	inVirtualTime(t, 1, func(v *virtual) {
		r := &recorder{}
		c, _ := v.client(0, WithObserver(r), WithWatchdogTimeout(10*time.Second))
		plain, fair, rw := c.NewLock("l"), c.NewFairLock("l-fair"), c.NewRWLock("l-rw", Fenced())
		locks := []Locker{plain, fair, rw.Read(), rw.Write(), c.NewMultiLock(plain, fair), c.NewMultiLock(plain, rw.Write())}
		var all sync.WaitGroup
		for seed := range 12 {
			all.Go(func() {
				rng := newRand(seed)
				for range 20 {
					ctx, cancel := context.WithTimeout(ContextWithOwner(context.Background()), between(rng, 0, 200*time.Millisecond))
					l, lease, levels := locks[rng.IntN(len(locks))], time.Duration(0), 0
					if rng.IntN(4) == 0 {
						lease = 10 * time.Millisecond
					}
					for range 1 + rng.IntN(2) {
						if ok, _ := l.TryLock(ctx, between(rng, 0, 50*time.Millisecond), lease); ok {
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
		time.Sleep(c.engine.WatchdogTimeout) // whatever is left has expired
		synctest.Wait()
		waits, holds := make(map[LockType]int), make(map[LockType]int)
		for _, event := range r.take() {
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
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := ContextWithOwner(context.Background())
	o := Owner(engine.OwnerOf(ctx))
	r, node := &recorder{}, &recorder{}
	var locks []Locker
	for range 3 {
		locks = append(locks, b.clientOn(testredis.Client(t, testredis.Mini(t).Addr()), WithObserver(node)).NewLock(b.name))
	}
	l := b.client(WithObserver(r)).NewRedLock(locks...)
	b.must(l.Lock(ctx))
	testredis.Await(
		t,
		"all nodes are held",
		soon,
		func() bool { node.mu.Lock(); defer node.mu.Unlock(); return len(node.events) == 3 },
	)
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
	b := newBench(t, testredis.Mini(t).Addr())
	seen := &contexts{key: key{}}
	l := b.client(WithObserver(seen)).NewLock(b.name)
	ctx := context.WithValue(context.Background(), key{}, "trace")
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
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
