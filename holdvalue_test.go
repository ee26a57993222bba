package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/ticket"
	"github.com/relock-go/relock/internal/waitgroup"
)

// hold acquires l.
func (b *bench) hold(l Locker) *Hold {
	b.Helper()
	h, err := l.(Acquirer).Acquire(context.Background())
	b.must(err)
	return h
}

// holdFor acquires l, which is free or soon will be, with a lease.
func (b *bench) holdFor(l Locker, lease time.Duration) *Hold {
	b.Helper()
	h, ok, err := l.(Acquirer).TryAcquire(context.Background(), soon, lease)
	b.must(err)
	require.True(b, ok, "TryAcquire answers")
	return h
}

// ends waits until ctx is done, which must be with this cause.
func (b *bench) ends(ctx context.Context, cause error) {
	b.Helper()
	await(b, "the ctx of the hold ends", ctx.Done())
	b.mustBe(context.Cause(ctx), cause)
}

// A ward is a struct in which users store holds.
type ward struct{ hold *Hold }

// holdTests are the rules for the holds that every lock type returns.
func (s suite) holdTests() []suiteTest {
	newLock, rival, shared := s.newLock, s.rival, s.shared
	ctx := context.Background()
	return []suiteTest{
		{"HoldExcludes", func(b *bench) {
			var together section
			var sections atomic.Int64
			var all sync.WaitGroup
			for _, c := range []*Client{b.client(), b.client(), b.client()} {
				for i := range 4 {
					l, alone := newLock(c, b.name), !shared
					if i%2 == 0 {
						l, alone = rival(c, b.name), true
					}
					waitgroup.Go(&all, func() {
						for range 10 {
							h, err := l.(Acquirer).Acquire(ctx)
							if !assert.NoError(b, err) {
								return
							}
							together.visit(b, alone, 0)
							sections.Add(1)
							assert.NoError(b, h.Release(ctx))
						}
					})
				}
			}
			all.Wait()
			assert.Equal(b, int64(120), sections.Load(), "sections")
		}},
		{"HoldHasAnOwnerOfItsOwn", func(b *bench) {
			c := b.client()
			l, other := newLock(c, b.name), rival(c, b.name)
			one := ContextWithOwner(ctx)
			h, err := l.(Acquirer).Acquire(one)
			b.must(err)
			for name, ctx := range map[string]context.Context{"goroutine": ctx, "owner of the ctx": one} {
				ok, err := other.TryLock(ctx, 0, 0)
				assert.NoError(b, err, name)
				assert.False(b, ok, "the %s holds the lock", name)
			}
			second, ok, err := other.(Acquirer).TryAcquire(one, 0, 0)
			assert.NoError(b, err)
			assert.False(b, ok, "a second hold with the same ctx")
			assert.Nil(b, second)
			b.mustBe(l.Unlock(one), ErrNotHeld)

			within := h.Context()
			b.must(l.Lock(within)) // acquires it again
			n, err := l.HoldCount(within)
			b.must(err)
			assert.Equal(b, 2, n, "levels")
			b.must(l.Unlock(within))
			b.must(h.Release(ctx))
			b.tries(other, true)
			b.must(other.Unlock(ctx))
		}},
		{"HoldIsReleasedAnywhereOnce", func(b *bench) {
			w := ward{b.hold(newLock(b.client(), b.name))}
			assert.Contains(b, w.hold.Name(), b.name, "name")
			within := w.hold.Context()
			ended, cancel := context.WithCancel(ctx)
			cancel() // Release ignores the cancellation
			var nils atomic.Int64
			var all sync.WaitGroup
			for range 8 {
				waitgroup.Go(&all, func() {
					err := w.hold.Release(ended)
					if err == nil {
						nils.Add(1)
						return
					}
					assert.ErrorIs(b, err, ErrNotHeld)
					assert.NotErrorIs(b, err, ErrLockLost)
					assert.ErrorContains(b, err, "release")
					assert.ErrorContains(b, err, b.name)
				})
			}
			all.Wait()
			assert.Equal(b, int64(1), nils.Load(), "calls that released the hold")
			b.ends(within, context.Canceled)
			b.isLocked(rival(b.client(), b.name), false)
			b.mustBe(w.hold.Release(ctx), ErrNotHeld)
			_, err := w.hold.Token()
			b.mustBe(err, ErrNotHeld)
		}},
		{"HoldIsReleasedOnceAlsoWithLevelsInside", func(b *bench) {
			l := newLock(b.client(), b.name)
			h := b.hold(l)
			within := h.Context()
			b.must(l.Lock(within))
			b.must(h.Release(ctx))
			b.mustBe(h.Release(ctx), ErrNotHeld) // and leaves the hold count of the code inside unchanged
			b.isLocked(l, true)
			b.must(l.Unlock(within))
			b.isLocked(l, false)
		}},
		{"HoldContext", func(b *bench) {
			type key struct{}
			taken, cancel := context.WithTimeout(context.WithValue(ctx, key{}, "value"), time.Hour)
			h, err := newLock(b.client(), b.name).(Acquirer).Acquire(taken)
			b.must(err)
			cancel()
			all := make([]context.Context, 8)
			var calls sync.WaitGroup
			for i := range all {
				waitgroup.Go(&calls, func() { all[i] = h.Context() })
			}
			calls.Wait()
			for _, within := range all {
				require.Same(b, all[0], within, "the ctx of another call")
			}
			require.Same(b, all[0], h.guardIs(ctx), "the ctx of a later call")
			require.NoError(b, all[0].Err(), "the ctx of the hold ended with that of Acquire")
			_, limited := all[0].Deadline()
			assert.False(b, limited, "the ctx of the hold has a deadline")
			assert.Equal(b, "value", all[0].Value(key{}), "value of the ctx")
			b.must(h.Release(ctx))
			b.ends(all[0], context.Canceled)
		}},
		{"HoldContextAfterTheEnd", func(b *bench) {
			c := b.client()
			l := newLock(c, b.name)
			released := b.hold(l)
			b.must(released.Release(ctx))
			b.ends(released.Context(), context.Canceled)

			lost := b.hold(l)
			b.forget()
			b.mustBe(lost.Release(ctx), ErrLockLost)
			b.ends(lost.Context(), ErrLockLost)

			left := b.hold(l)
			b.must(c.Close())
			b.ends(left.Context(), ErrClosed)
			b.ends(released.Context(), context.Canceled)
			b.must(left.Release(ctx))
		}},
		{"HoldGuard", func(b *bench) {
			l := newLock(b.client(), b.name)
			h := b.hold(l)
			type key struct{}
			reason := errors.New("a reason")
			parent, cancel := context.WithCancelCause(context.WithValue(ContextWithOwner(ctx), key{}, "value"))
			timed, stop := context.WithTimeout(parent, time.Hour)
			defer stop()
			guarded, err := h.Guard(timed)
			b.must(err)
			assert.Equal(b, "value", guarded.Value(key{}), "value of the ctx")
			want, _ := timed.Deadline()
			until, limited := guarded.Deadline()
			assert.True(b, limited, "the guard has the deadline of its ctx")
			assert.Equal(b, want, until, "deadline")
			b.must(l.Lock(guarded)) // acquires it again: the owner is that of the hold
			levels, err := l.HoldCount(guarded)
			b.must(err)
			assert.Equal(b, 2, levels, "hold count")
			b.must(l.Unlock(guarded))
			b.must(guarded.Err())
			again, err := h.Guard(guarded)
			b.must(err)

			short, stopShort := context.WithTimeout(ctx, time.Millisecond)
			defer stopShort()
			hurried, err := h.Guard(short)
			b.must(err)
			await(b, "the guard ends with the deadline of its ctx", hurried.Done())
			assert.Equal(b, context.DeadlineExceeded, hurried.Err())
			cancel(reason)
			b.ends(guarded, reason)
			b.ends(again, reason)
			b.must(h.Context().Err()) // the hold continues

			last, err := h.Guard(ctx)
			b.must(err)
			b.must(h.Release(ctx))
			b.ends(last, context.Canceled)
			_, err = h.Guard(ctx)
			b.mustBe(err, ErrNotHeld)
			assert.NotErrorIs(b, err, ErrLockLost)
			assert.ErrorContains(b, err, "guard")
			assert.ErrorContains(b, err, b.name)
		}},
		{"HoldGuardEndsWithTheHold", func(b *bench) {
			c := b.client(WithWatchdogTimeout(1500 * time.Millisecond))
			l := newLock(c, b.name)
			lost := b.hold(l)
			guarded, err := lost.Guard(ctx)
			b.must(err)
			b.forget()
			b.ends(guarded, ErrLockLost)
			_, err = lost.Guard(ctx)
			b.mustBe(err, ErrLockLost)
			b.mustBe(lost.Release(ctx), ErrLockLost)
			_, err = lost.Guard(ctx)
			b.mustBe(err, ErrNotHeld)

			lapses := b.holdFor(l, 600*time.Millisecond)
			if guarded, err = lapses.Guard(ctx); err == nil { // on a busy machine the lease may have expired
				b.ends(guarded, ErrLockLost)
			}
			_, err = lapses.Guard(ctx)
			b.mustBe(err, ErrLockLost)
			b.mustBe(lapses.Release(ctx), ErrLockLost)

			// Another name: a RedLock whose last hold has just expired may hold no more than a majority, which Close
			// releases.
			left := b.hold(newLock(c, b.name+"-left"))
			guarded, err = left.Guard(ctx)
			b.must(err)
			b.must(c.Close())
			b.ends(guarded, ErrClosed)
			_, err = left.Guard(ctx)
			b.mustBe(err, ErrClosed)
			b.must(left.Release(ctx))
		}},
		{"HoldLossEndsTheContext", func(b *bench) {
			l := newLock(b.client(WithWatchdogTimeout(1500*time.Millisecond)), b.name)
			h := b.hold(l)
			within := h.Context()
			b.forget()
			b.ends(within, ErrLockLost)
			require.Same(b, within, h.Context())
			err := h.Release(ctx)
			b.mustBe(err, ErrLockLost)
			assert.ErrorContains(b, err, "release")
			err = h.Release(ctx)
			b.mustBe(err, ErrNotHeld)
			assert.NotErrorIs(b, err, ErrLockLost, "the second Release")
			b.must(b.hold(l).Release(ctx))
		}},
		{"HoldAtClose", func(b *bench) {
			c := b.client()
			l := newLock(c, b.name)
			h := b.hold(l)
			within := h.Context()
			b.must(c.Close())
			b.ends(within, ErrClosed)
			_, err := l.(Acquirer).Acquire(ctx)
			b.mustBe(err, ErrClosed)
			assert.ErrorContains(b, err, "acquire")
			_, _, err = l.(Acquirer).TryAcquire(ctx, 0, 0)
			b.mustBe(err, ErrClosed)
			b.must(h.Release(ctx))
			b.isLocked(newLock(b.client(), b.name), false)
		}},
		{"HoldLeaseLapses", func(b *bench) {
			const lease = 600 * time.Millisecond
			l, next := newLock(b.client(), b.name), rival(b.client(), b.name)
			start := time.Now()
			h := b.holdFor(l, lease)
			within := h.Context()
			after := b.hold(next)
			assert.GreaterOrEqual(b, time.Since(start), lease-lease/10, "the next owner got the lock before the lease was over")
			b.ends(within, ErrLockLost)
			b.mustBe(h.Extend(ctx, time.Minute), ErrLockLost)
			b.mustBe(h.Release(ctx), ErrLockLost)
			b.must(after.Context().Err())
			b.must(after.Release(ctx))
		}},
		{"HoldIsExtended", func(b *bench) {
			const lease = 2 * time.Second
			l := newLock(b.client(), b.name)
			h := b.holdFor(l, lease)
			within := h.Context()
			b.must(h.Extend(ctx, time.Minute))
			b.must(h.Extend(ctx, lease)) // never shortens
			ttl, err := l.TTL(ctx)
			b.must(err)
			assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL")
			assert.LessOrEqual(b, ttl, time.Minute, "TTL")
			select {
			case <-within.Done():
				assert.NoError(b, context.Cause(within), "the hold ended with its first lease")
			case <-time.After(lease + lease/10):
			}
			b.must(h.Release(ctx))
			b.isLocked(l, false)
			b.mustBe(h.Extend(ctx, lease), ErrNotHeld)
		}},
		{"HoldExtendedInVain", func(b *bench) {
			l := newLock(b.client(), b.name)
			h := b.holdFor(l, time.Minute)
			b.forget()
			err := h.Extend(ctx, time.Minute)
			b.mustBe(err, ErrLockLost)
			assert.ErrorContains(b, err, "extend")
			assert.ErrorContains(b, err, b.name)
			b.ends(h.Context(), ErrLockLost)
			b.mustBe(h.Release(ctx), ErrLockLost)
			b.isLocked(l, false)
		}},
		{"HoldThatIsRenewedIsNotExtended", func(b *bench) {
			l := newLock(b.client(), b.name)
			h := b.hold(l)
			b.mustBe(h.Extend(ctx, time.Minute), ErrInvalid)
			b.must(h.Release(ctx))

			h = b.holdFor(l, time.Minute)
			for _, lease := range []time.Duration{0, -time.Second, time.Millisecond - 1} {
				b.mustBe(h.Extend(ctx, lease), ErrInvalid)
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			b.mustBe(h.Extend(ended, time.Minute), context.Canceled)
			b.must(h.Release(ctx))
		}},
		{"TryAcquireGivesUp", func(b *bench) {
			held := b.hold(rival(b.client(), b.name))
			l := newLock(b.client(), b.name).(Acquirer)
			for _, wait := range []time.Duration{0, 1, 20 * time.Millisecond, 300 * time.Millisecond} {
				var h *Hold
				var took time.Duration
				ok, err := untilAnswered(func() (ok bool, err error) {
					start := time.Now()
					defer func() { took = time.Since(start) }()
					h, ok, err = l.TryAcquire(ctx, wait, 0)
					return ok, err
				})
				assert.NoError(b, err)
				assert.False(b, ok, "wait %v", wait)
				assert.Nil(b, h)
				assert.GreaterOrEqual(b, took, wait, "time of a TryAcquire")
				assert.LessOrEqual(b, took, wait+soon, "time of a TryAcquire")
			}
			b.must(held.Release(ctx))
		}},
		{"NilHold", func(b *bench) {
			held := b.hold(rival(b.client(), b.name))
			busy, ok, err := newLock(b.client(), b.name).(Acquirer).TryAcquire(ctx, 0, 0)
			b.must(err)
			require.False(b, ok)
			require.Nil(b, busy)
			for what, none := range map[string]*Hold{"nil": busy, "zero": new(Hold)} {
				assert.Empty(b, none.Name(), what)
				for name, err := range map[string]error{
					"Release":         none.Release(ctx),
					"Release nil ctx": none.Release(nilCtx),
					"Extend":          none.Extend(ctx, time.Second),
					"Token":           second(none.Token()),
					"Context":         context.Cause(none.Context()),
					"Guard":           second(none.Guard(ctx)),
				} {
					assert.ErrorIs(b, err, ErrNotHeld, "%s of a %s Hold", name, what)
					assert.ErrorIs(b, err, ErrInvalid, "%s of a %s Hold", name, what)
					assert.NotErrorIs(b, err, ErrLockLost, "%s of a %s Hold", name, what)
				}
			}
			b.isLocked(rival(b.client(), b.name), true) // and nothing of the holder was released
			b.must(held.Release(ctx))
		}},
		{"AcquireEndsWithCtx", func(b *bench) {
			held := b.hold(rival(b.client(), b.name))
			l := newLock(b.client(), b.name).(Acquirer)
			deadline, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			h, err := l.Acquire(deadline)
			b.mustBe(err, context.DeadlineExceeded)
			assert.ErrorContains(b, err, "acquire")
			assert.ErrorContains(b, err, b.name)
			assert.Nil(b, h)
			b.must(held.Release(ctx))
			b.must(b.holdFor(newLock(b.client(), b.name), 0).Release(ctx)) // and nothing is left: see newBench
		}},
		{"HoldBadInput", func(b *bench) {
			c := b.client()
			l := newLock(c, b.name).(Acquirer)
			h := b.hold(newLock(c, b.name))
			try := func(_ *Hold, _ bool, err error) error { return err }
			for name, err := range map[string]error{
				"nil ctx":         second(l.Acquire(nilCtx)),
				"try nil ctx":     try(l.TryAcquire(nilCtx, 0, 0)),
				"release nil ctx": h.Release(nilCtx),
				"extend nil ctx":  h.Extend(nilCtx, time.Second),
				"guard nil ctx":   second(h.Guard(nilCtx)),
				"lease 1ns":       try(l.TryAcquire(ctx, 0, 1)),
				"wait -1ns":       try(l.TryAcquire(ctx, -1, 0)),
				"empty name":      second(newLock(c, "").(Acquirer).Acquire(ctx)),
				"nil client":      second(newLock(nil, b.name).(Acquirer).Acquire(ctx)),
				"zero Release":    new(Hold).Release(ctx),
				"zero Extend":     new(Hold).Extend(ctx, time.Second),
				"zero Token":      second(new(Hold).Token()),
				"zero Context":    context.Cause(new(Hold).Context()),
				"zero Guard":      second(new(Hold).Guard(ctx)),
			} {
				assert.ErrorIs(b, err, ErrInvalid, name)
			}
			b.must(h.Release(ctx))
		}},
	}
}

var _ = []Acquirer{
	(*Lock)(nil),
	(*FairLock)(nil),
	(*ReadLock)(nil),
	(*WriteLock)(nil),
	(*MultiLock)(nil),
	(*RedLock)(nil),
}

func TestHoldToken(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client(WithHandoffWindow(time.Hour))
		l := c.NewLock(b.name, Fenced())
		var last int64
		for range 3 {
			h := b.hold(l)
			token, err := h.Token()
			b.must(err)
			assert.Greater(t, token, last, "a token is greater than the one before")
			last = token
			same, err := l.Token(h.Context())
			b.must(err)
			assert.Equal(t, token, same, "token of the owner")
			b.must(h.Release(ctx))
		}
		for _, l := range []Locker{c.NewLock(b.name), c.NewRWLock(b.name, Fenced()).Read(), c.NewMultiLock(l)} {
			h := b.hold(l)
			_, err := h.Token()
			b.mustBe(err, ErrInvalid)
			b.must(h.Release(ctx))
		}
		h := b.hold(l)
		b.forget()
		require.False(t, elsewhere(func() bool { held, _ := l.IsHeld(h.ctx); return held }))
		_, err := h.Token()
		b.mustBe(err, ErrLockLost)
		b.mustBe(h.Release(ctx), ErrLockLost)
	})
}

// Acquire and Release send the same requests as Lock and Unlock, and Extend of a lock with a record sends one request.
func TestHoldCostsNoMoreRequests(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		for _, k := range faultLocks {
			if k.parts > 1 {
				continue
			}
			t.Run(k.name, func(t *testing.T) {
				b := newBench(t, addr)
				rdb := testredis.Client(t, addr)
				sent := new(counter)
				rdb.AddHook(sent)
				l := k.one(b.clientOn(rdb), b.name)
				b.must(b.hold(l).Release(context.Background())) // loads the scripts
				requests := func(f func()) int64 {
					before := sent.n.Load()
					f()
					return sent.n.Load() - before
				}
				var h *Hold
				assert.Equal(t, int64(1), requests(func() { h = b.holdFor(l, time.Minute) }), "requests of TryAcquire")
				b.must(h.Extend(context.Background(), time.Minute))
				assert.Equal(
					t,
					int64(1),
					requests(func() { b.must(h.Extend(context.Background(), time.Hour)) }),
					"requests of Extend",
				)
				assert.Zero(t, requests(func() { _ = h.Context() }), "requests of Context")
				assert.Equal(t, int64(1), requests(func() { b.must(h.Release(context.Background())) }), "requests of Release")
				assert.Zero(t, requests(func() { _ = h.Release(context.Background()) }), "requests of another Release")
			})
		}
	})
}

// A Lock inside a hold with an explicit lease starts its automatic renewal, and Extend returns an error from then on.
func TestHoldThatTheWatchdogTookOverIsNotExtended(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	l := b.client().NewLock(b.name)
	h := b.holdFor(l, time.Minute)
	b.must(l.Lock(h.Context()))
	b.mustBe(h.Extend(ctx, time.Hour), ErrInvalid)
	b.must(l.Unlock(h.Context()))
	b.must(h.Release(ctx))
}

// MaxHold counts from the beginning of the hold, and an Extend beyond it changes nothing.
func TestExtendGoesNotBeyondMaxHold(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewLock(b.name, MaxHold(time.Minute))
		h := b.holdFor(l, time.Second)
		b.must(h.Extend(ctx, 30*time.Second))
		err := h.Extend(ctx, time.Minute)
		b.mustBe(err, ErrInvalid)
		assert.ErrorContains(t, err, "MaxHold")
		ttl, err := l.TTL(ctx)
		b.must(err)
		assert.LessOrEqual(t, ttl, 30*time.Second, "TTL")
		b.must(h.Context().Err())
		b.must(h.Release(ctx))
	})
}

// A hold without a call of Context has no guard.
func TestHoldMakesItsGuardWhenItIsAskedFor(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	l := b.client().NewLock(b.name)
	h := b.hold(l)
	guards := func() int { return l.client.engine.Probe().Guards(l.lock, h.owner()) }
	assert.Zero(t, guards(), "guards before Context")
	for range 3 {
		h.Context()
	}
	assert.Equal(t, 1, guards(), "guards after Context")
	b.must(h.Release(context.Background()))
}

// S3: an Extend whose answer is lost is sent again.
func TestFaultLostAnswerOfExtend(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			onFaultLocks(t, server, func(b *faultBench, k faultLock) {
				ctx := context.Background()
				h := b.holdFor(k.one(b.patientClient(), b.name), 40*time.Second)
				rule := b.proxy.On(k.renews, fault).Times(k.asks)
				b.must(h.Extend(ctx, 2*time.Minute))
				require.NotZero(b, rule.Count(), "nothing was lost")
				rule.Release()
				ttl, err := k.one(b.direct, b.name).TTL(ctx)
				b.must(err)
				assert.GreaterOrEqual(b, ttl, time.Minute, "TTL")
				b.must(h.Context().Err())
				b.must(h.Release(ctx))
			})
		})
	}
}

// S3, S4: an Extend that was given up and runs late shortens nothing, creates nothing, and leaves nothing.
func TestFaultLateExtend(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		h := b.holdFor(k.one(b.clientOn(b.proxy.Client()), b.name), 40*time.Second)
		late := b.proxy.On(k.renews, testredis.HoldRequest).Times(testredis.Always)
		hurried, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() { given <- h.Extend(hurried, time.Second) }()
		await(b.bench, "the request is under way", late.Fired())
		cancel()
		b.mustBe(await(b.bench, "Extend gives up", given), context.Canceled)
		b.must(h.Context().Err())
		ran := b.scriptRuns()
		late.Release()
		testredis.Await(b, "the late request has run", soon, func() bool { return b.scriptRuns() > ran })
		ttl, err := k.one(b.direct, b.name).TTL(ctx)
		b.must(err)
		assert.GreaterOrEqual(b, ttl, 10*time.Second, "TTL")
		b.must(h.Release(ctx))
	})
}

// A RedLock extends its lease at a majority. With too few nodes the error has the answer of each of them, and the
// validity of the hold does not change.
func TestRedLockExtendNeedsAMajority(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	h := b.holdFor(b.lock(WithRedLockNodeTimeout(time.Second)), time.Minute)
	within := h.Context()
	for _, s := range b.servers[:2] {
		s.Freeze()
	}
	b.must(h.Extend(ctx, 2*time.Minute))
	b.servers[2].Freeze()
	err := h.Extend(ctx, time.Hour)
	assert.NotErrorIs(t, err, ErrLockLost)
	assert.Equal(t, 2, b.quorumError(err).Granted, "nodes that extended the lease")
	b.must(within.Err())

	b.back(false, b.servers[:3]...)
	b.forget()
	err = h.Extend(ctx, time.Minute)
	b.mustBe(err, ErrLockLost)
	b.ends(within, ErrLockLost)
	b.mustBe(h.Release(ctx), ErrLockLost)
}

// Some of the locks are renewed automatically, because the owner has acquired them by themselves. Extend extends the
// others.
func TestExtendOfSeveralLocksLeavesThoseThatAreRenewed(t *testing.T) {
	for name, newLock := range map[string]func(c *Client, locks []Locker) Locker{
		"MultiLock": func(c *Client, locks []Locker) Locker { return c.NewMultiLock(locks...) },
		"RedLock":   func(c *Client, locks []Locker) Locker { return c.NewRedLock(locks...) },
		"RedLock of MultiLocks": func(c *Client, locks []Locker) Locker {
			return c.NewRedLock(c.NewMultiLock(locks[0]), c.NewMultiLock(locks[1]), locks[2])
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			ctx := context.Background()
			locks := b.nodeLocks()
			h := b.holdFor(newLock(b.client(), locks), time.Minute)
			testredis.Await(b, "all are held", soon, func() bool { return b.has() == 3 })
			for _, renewed := range locks[:2] {
				b.must(renewed.Lock(h.Context()))
				b.must(renewed.Unlock(h.Context()))
			}
			b.must(h.Extend(ctx, time.Hour))
			ttl, err := locks[2].TTL(ctx)
			b.must(err)
			assert.Greater(t, ttl, 2*time.Minute)
			b.must(h.Release(ctx))
		})
	}
}

// A RedLock whose Extend a majority did not answer ends with the lease that it has. Its remaining holds at the nodes
// are released by the hold of the RedLock, which has no record of its own.
func TestRedLockEndsAfterAnExtendInVain(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	h := b.holdFor(b.lock(WithRedLockNodeTimeout(200*time.Millisecond)), time.Second)
	within := h.Context()
	for _, s := range b.servers[:3] {
		s.Freeze()
	}
	assert.NotErrorIs(t, h.Extend(ctx, time.Minute), ErrLockLost)
	b.ends(within, ErrLockLost)
	b.back(false, b.servers[:3]...)
	b.mustBe(h.Release(ctx), ErrLockLost)
}

// A MultiLock that has lost one lock is lost, whatever the other locks return.
func TestMultiLockExtendNeedsAllLocks(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		h := b.holdFor(newMultiLock(b.client(), b.name), time.Minute)
		b.must(h.Extend(ctx, time.Minute))
		b.must(b.rdb.Del(ctx, b.name+"-second").Err())
		b.mustBe(h.Extend(ctx, time.Minute), ErrLockLost)
		b.ends(h.Context(), ErrLockLost)
		b.mustBe(h.Release(ctx), ErrLockLost)
	})
}

// The locks of a MultiLock end together even if one of them was valid for longer.
func TestMultiLockEndsTogetherAfterExtend(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	l := newMultiLock(c, b.name).(*MultiLock)
	h := b.holdFor(l, time.Minute)
	b.must(h.Extend(ctx, time.Hour))
	ends := make(map[time.Time]bool)
	for _, s := range l.many.steps {
		for _, id := range s.ids {
			ends[c.engine.Probe().LeasesEnd(id, h.owner())] = true
		}
	}
	assert.Len(t, ends, 1, "times at which the locks end")
	b.must(h.Release(ctx))
}

// An Extend that one of the locks refuses makes none of the others last for longer: they still end together.
func TestMultiLockEndsTogetherAfterAnExtendInVain(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	limited, other := c.NewLock(b.name, MaxHold(time.Minute)), c.NewLock(b.name+"-b")
	h := b.holdFor(c.NewMultiLock(limited, other), time.Minute)
	p := c.engine.Probe()
	end := p.LeasesEnd(other.lock, h.owner())
	b.mustBe(h.Extend(ctx, time.Hour), ErrInvalid)
	assert.Equal(t, end, p.LeasesEnd(other.lock, h.owner()))
	assert.Equal(t, end, p.LeasesEnd(limited.lock, h.owner()))
	b.must(h.Context().Err())
	b.must(h.Release(ctx))
}

// An Extend of a MultiLock does not end one of its locks because the owner has released another one meanwhile, as a
// Release under way does.
func TestMultiLockIsReleasedWhileItIsExtended(t *testing.T) {
	b, ctx := newFaultBench(t), ContextWithOwner(context.Background())
	early, late := b.direct.NewLock(b.name), b.patientClient().NewLock(b.name+"-b")
	l := b.direct.NewMultiLock(early, late)
	b.must(l.LockLease(ctx, time.Minute))
	rule := b.proxy.On(calls(renewScript), testredis.HoldRequest)
	extended := make(chan error, 1)
	go func() { extended <- l.many.extend(ctx, time.Hour) }()
	await(b.bench, "the request for the second lock is under way", rule.Fired())
	testredis.Await(b, "the first one is extended", soon, func() bool {
		return time.Until(early.client.engine.Probe().LeasesEnd(early.lock, engine.OwnerOf(ctx))) > time.Minute
	})
	b.must(early.Unlock(ctx))
	rule.Release()
	b.must(await(b.bench, "both are extended", extended))
	b.must(late.Unlock(ctx))
}

// A Locker of another package is extended by acquiring it once more. It may have lost its hold without an error.
func TestExtendOfForeignLockers(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	foreign := stubLocker{Locker: c.NewLock(b.name)}
	h := b.holdFor(c.NewMultiLock(foreign, c.NewLock(b.name+"-b")), time.Minute)
	b.must(h.Extend(ctx, time.Hour))
	ttl, err := c.NewLock(b.name).TTL(ctx)
	b.must(err)
	assert.GreaterOrEqual(t, ttl, 50*time.Minute, "TTL")
	b.must(h.Release(ctx))

	l := c.NewLock(b.name)
	owner := ContextWithOwner(ctx)
	b.must(l.LockLease(owner, time.Minute))
	ended, end := context.WithCancel(ctx)
	foreign.guard = func(context.Context) (context.Context, error) { return ended, nil }
	foreign.tryLock = func(context.Context, time.Duration, time.Duration) (bool, error) {
		end()
		return l.TryLock(owner, 0, time.Minute)
	}
	b.mustBe(extendLocker(owner, foreign, time.Minute), ErrLockLost)
	foreign.guard = nil
	foreign.tryLock = func(context.Context, time.Duration, time.Duration) (bool, error) { return false, nil }
	b.mustBe(extendLocker(owner, foreign, time.Minute), ErrLockLost)
	b.must(l.Unlock(owner))

	h = b.hold(c.NewMultiLock(stubLocker{Locker: l}))
	b.mustBe(h.Extend(ctx, time.Hour), ErrInvalid) // it is renewed automatically
	b.must(h.Release(ctx))
}

// At least half of the lease remains when Extend returns: if the answer is late, it asks again.
func TestExtendLeavesHalfOfTheLease(t *testing.T) {
	const lease = time.Second
	b := newFaultBench(t)
	ctx := context.Background()
	l := b.bench.clientOn(b.proxy.Client()).NewLock(b.name)
	var h *Hold
	for range 5 { // on a busy machine the first lease may have expired before the late answer arrives
		taken, ok, err := l.TryAcquire(ctx, time.Minute, lease+200*time.Millisecond)
		b.must(err)
		require.True(t, ok)
		late := b.proxy.On(calls(renewScript), testredis.DelayReply(860*time.Millisecond))
		h, err = taken, taken.Extend(ctx, lease)
		if !errors.Is(err, ErrLockLost) {
			b.must(err)
			break
		}
		await(b.bench, "the late answer", late.Fired())
		_ = taken.Release(ctx)
	}
	stays(b, "the lease was hardly extended", h.Context().Done(), lease/2-50*time.Millisecond)
	b.must(h.Release(ctx))
}

// The locks whose holds can be detached, and those that exclude them. The permits are several of one hold.
var detachable = append(slices.Clone(recordLocks), lockKind{name: "permits", one: newPermits, rival: newPermits})

// permits are all permits of a semaphore, which a hold has together.
type permits struct{ *Semaphore }

const somePermits = 3

func newPermits(c *Client, name string) Locker { return permits{c.NewSemaphore(name, somePermits)} }

func (p permits) Acquire(ctx context.Context) (*Hold, error) { return p.AcquireN(ctx, somePermits) }

func (p permits) TryAcquire(ctx context.Context, wait, lease time.Duration) (*Hold, bool, error) {
	return p.TryAcquireN(ctx, somePermits, wait, lease)
}

// onDetachable runs test for every lock type whose holds can be detached, on one server.
func onDetachable(t *testing.T, test func(b *faultBench, k lockKind)) {
	t.Parallel()
	server := testredis.Start(t)
	for _, k := range detachable {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(newFaultBenchOn(t, server), k)
		})
	}
}

// renames matches the requests that detach or attach a hold.
var renames = anyOf(lockRename, fairRename, readRename, semaphoreRename)

// detach detaches h.
func (b *bench) detach(h *Hold, keep time.Duration) (ticket string) {
	b.Helper()
	ticket, err := h.Detach(context.Background(), keep)
	b.must(err)
	return ticket
}

// attach attaches a hold.
func (b *bench) attach(c *Client, ticket string) *Hold {
	b.Helper()
	h, err := c.Attach(context.Background(), ticket)
	b.must(err)
	return h
}

// excludes checks that l, which h excludes, cannot be acquired.
func (b *bench) excludes(l Locker) {
	b.Helper()
	h, ok, err := l.(Acquirer).TryAcquire(context.Background(), 0, 0)
	b.must(err)
	require.False(b, ok, "the lock is free: %v", h)
}

// follows checks that l can be acquired, soon.
func (b *bench) follows(l Locker) {
	b.Helper()
	b.must(b.holdFor(l, 0).Release(context.Background()))
}

// leaseIn returns the remaining lease in Redis.
func (b *bench) leaseIn(c *Client) time.Duration {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.name)
	b.must(err)
	require.Len(b, i.Holders, 1)
	return i.Holders[0].Remaining
}

// A hold that was detached has ended here, its lock is held in Redis, and another Client makes it a hold again, once.
func TestDetachedHoldIsAttachedOnce(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, k := range detachable {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				b, ctx := newBench(t, addr), context.Background()
				c1, c2 := b.client(WithLabel("first")), b.client()
				l, rival := k.one(c1, b.name), k.rival(c2, b.name)
				h := b.hold(l)
				within, guarded := h.Context(), func() context.Context {
					ctx, err := h.Guard(ctx)
					b.must(err)
					return ctx
				}()
				ticket := b.detach(h, time.Minute)
				b.ends(within, ErrDetached)
				b.ends(guarded, ErrDetached)
				for name, err := range map[string]error{
					"Release": h.Release(ctx), "Extend": h.Extend(ctx, time.Hour),
					"Detach": func() error { _, err := h.Detach(ctx, 0); return err }(),
					"Guard":  func() error { _, err := h.Guard(ctx); return err }(),
					"Unlock": l.Unlock(within),
				} {
					if name != "Extend" || err == nil {
						assert.ErrorIs(b, err, ErrNotHeld, name)
					}
					assert.NotErrorIs(b, err, ErrLockLost, name)
				}
				b.ends(h.Context(), ErrDetached)
				b.excludes(rival)
				i, err := c2.Inspect(ctx, b.name)
				b.must(err)
				require.Len(b, i.Holders, 1)
				assert.True(b, i.Holders[0].Detached, "Inspect shows that it was detached")
				assert.Equal(b, "detached", i.Holders[0].Owner)
				assert.Equal(b, c1.ID(), i.Holders[0].Client)
				assert.Regexp(b, "^"+c1.ID()+":0:[0-9a-f]{4}(:write)?$", i.Holders[0].Field, "its number is a secret")
				assert.InDelta(b, time.Minute, i.Holders[0].Remaining, float64(soon), "the lease is keep")

				attached := b.attach(c2, ticket)
				assert.Equal(b, b.name, attached.Name())
				b.must(attached.Context().Err())
				b.excludes(rival)
				_, err = c1.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				_, err = c2.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				i, err = c2.Inspect(ctx, b.name)
				b.must(err)
				require.Len(b, i.Holders, 1)
				assert.False(b, i.Holders[0].Detached)
				assert.Equal(b, c2.ID(), i.Holders[0].Client)
				assert.LessOrEqual(b, i.Holders[0].Remaining, 30*time.Second, "the lease is that of the watchdog")

				again := b.attach(c1, b.detach(attached, 0)) // a keep of 0 is the watchdog timeout
				end := again.Context()
				b.must(again.Release(ctx))
				b.ends(end, context.Canceled)
				b.mustBe(again.Release(ctx), ErrNotHeld)
				b.follows(rival)
			})
		}
	})
}

// The fencing token moves with the hold, and the next one is greater.
func TestAttachedHoldHasTheSameToken(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for name, lock := range map[string]func(c *Client, name string) Locker{
			"lock":  func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
			"fair":  func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) },
			"write": func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() },
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, addr)
				c1, c2 := b.client(), b.client()
				h := b.hold(lock(c1, b.name))
				token, err := h.Token()
				b.must(err)
				attached := b.attach(c2, b.detach(h, 0))
				moved, err := attached.Token()
				b.must(err)
				assert.Equal(b, token, moved)
				b.must(attached.Release(context.Background()))
				next := b.hold(lock(c1, b.name))
				greater, err := next.Token()
				b.must(err)
				assert.Greater(b, greater, token)
				b.must(next.Release(context.Background()))
			})
		}
	})
}

// A text that is no ticket of a detached hold attaches nothing, and the error says so before a request is sent.
func TestTicketsAreChecked(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Mini(t).Addr()), context.Background()
	c := b.client(WithKeyPrefix("app:"))
	live := b.hold(c.NewLock(b.name))
	i, err := c.Inspect(ctx, b.name)
	b.must(err)
	detached := c.ID() + ":0:0123456789012345"
	encode := func(change func(t *ticket.Ticket)) string {
		t := ticket.Ticket{Type: string(TypeLock), Key: "app:" + b.name, ID: detached, KeepEnd: time.Now().Add(time.Hour).UnixMilli()}
		change(&t)
		text, err := t.Encode()
		b.must(err)
		return text
	}
	for name, text := range map[string]string{
		"empty":             "",
		"a name":            b.name,
		"damaged":           encode(func(*ticket.Ticket) {}) + "A",
		"another version":   strings.Replace(encode(func(*ticket.Ticket) {}), "relock1.", "relock9.", 1),
		"another prefix":    encode(func(t *ticket.Ticket) { t.Key = "other:" + b.name }),
		"no name":           encode(func(t *ticket.Ticket) { t.Key = "app:" }),
		"a live ID":         encode(func(t *ticket.Ticket) { t.ID = i.Holders[0].Field }),
		"a Java ID":         encode(func(t *ticket.Ticket) { t.ID = c.ID() + ":7" }),
		"no client":         encode(func(t *ticket.Ticket) { t.ID = "mode:0:0123456789012345" }),
		"a short ID":        encode(func(t *ticket.Ticket) { t.ID = c.ID() + ":0:01" }),
		"permits of a lock": encode(func(t *ticket.Ticket) { t.ID += "+2" }),
		"too many permits":  encode(func(t *ticket.Ticket) { t.Type, t.ID = string(TypeSemaphore), t.ID+"+1001" }),
		"another type":      encode(func(t *ticket.Ticket) { t.Type = string(TypeRed) }),
		"a fenced permit":   encode(func(t *ticket.Ticket) { t.Type, t.Token = string(TypeSemaphore), 7 }),
	} {
		h, err := c.Attach(ctx, text)
		assert.ErrorIs(b, err, ErrInvalid, name)
		assert.Nil(b, h, name)
	}
	_, err = c.Attach(ctx, encode(func(*ticket.Ticket) {}))
	b.mustBe(err, ErrNotHeld)
	_, err = c.Attach(nilCtx, "")
	b.mustBe(err, ErrInvalid)
	_, err = (*Client)(nil).Attach(ctx, "")
	b.mustBe(err, ErrInvalid)
	b.must(live.Context().Err())
	b.must(live.Release(ctx))
}

// A hold that cannot be detached goes on.
func TestDetachIsRefused(t *testing.T) {
	b, ctx := newFaultBench(t), context.Background()
	c := b.direct
	rw := c.NewRWLock(b.name + "-rw")
	for name, get := range map[string]func() (h *Hold, then func()){
		"entered again": func() (*Hold, func()) {
			h, l := b.hold(c.NewLock(b.name)), c.NewLock(b.name)
			b.must(l.Lock(h.Context()))
			return h, func() { b.must(l.Unlock(h.Context())) }
		},
		"reads, too": func() (*Hold, func()) {
			h := b.hold(rw.Write())
			b.must(rw.Read().Lock(h.Context()))
			return h, func() { b.must(rw.Read().Unlock(h.Context())) }
		},
		"waits to write": func() (*Hold, func()) {
			h, other := b.hold(rw.Read()), b.hold(rw.Read())
			ends, cancel := context.WithCancel(h.Context())
			got := make(chan error, 1)
			go func() { got <- rw.Write().Lock(ends) }()
			testredis.Await(b, "it asks for the write lock", soon, func() bool {
				return c.engine.Probe().Stats().Holds == 3
			})
			return h, func() {
				cancel()
				b.mustBe(await(b.bench, "it gives up", got), context.Canceled)
				b.must(other.Release(ctx))
			}
		},
		"MultiLock": func() (*Hold, func()) {
			return b.hold(c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"))), func() {}
		},
		"RedLock":   func() (*Hold, func()) { return b.hold(newThreeWayLock(c, b.name)), func() {} },
		"long name": func() (*Hold, func()) { return b.hold(c.NewLock(b.name + strings.Repeat("x", 300))), func() {} },
	} {
		h, then := get()
		_, err := h.Detach(ctx, 0)
		assert.ErrorIs(b, err, ErrInvalid, name)
		b.must(h.Context().Err())
		then()
		b.must(h.Release(ctx))
	}
	h := b.hold(c.NewLock(b.name))
	for _, keep := range []time.Duration{-time.Second, time.Microsecond} {
		_, err := h.Detach(ctx, keep)
		b.mustBe(err, ErrInvalid)
	}
	_, err := h.Detach(nilCtx, 0)
	b.mustBe(err, ErrInvalid)
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = h.Detach(done, 0)
	b.mustBe(err, context.Canceled)
	b.must(h.Context().Err())
	b.must(h.Release(ctx))
	for _, none := range []*Hold{nil, {}, h} {
		_, err = none.Detach(ctx, 0)
		b.mustBe(err, ErrNotHeld)
	}
	b.forget()
	lost := b.hold(c.NewLock(b.name))
	b.forget()
	_, err = lost.Detach(ctx, 0)
	b.mustBe(err, ErrLockLost)
	b.mustBe(lost.Release(ctx), ErrNotHeld)
}

// A Detach whose ctx is done before its request is sent leaves the hold alone: the hold goes on in this process.
func TestDetachWhoseContextIsDoneLeavesTheHoldAlone(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		ctx := context.Background()
		h := b.hold(k.one(b.clientOn(b.proxy.Client()), b.name))
		within := h.Context()
		sent := b.proxy.On(renames, testredis.DropRequest).Times(testredis.Always)
		done, cancel := context.WithCancel(ctx)
		cancel()
		ticket, err := h.Detach(done, time.Minute)
		b.mustBe(err, context.Canceled)
		assert.Empty(b, ticket)
		stays(b.bench, "the hold has ended", within.Done(), 100*time.Millisecond)
		assert.Zero(b, sent.Count(), "requests of Detach")
		sent.Release()
		b.excludes(k.rival(b.direct, b.name))
		i, err := b.direct.Inspect(ctx, b.name)
		b.must(err)
		require.Len(b, i.Holders, 1)
		assert.False(b, i.Holders[0].Detached, "Inspect shows that it was detached")
		b.must(b.attach(b.direct, b.detach(h, time.Minute)).Release(ctx)) // it can still be detached
		b.follows(k.rival(b.direct, b.name))
	})
}

// The same for a Detach that is waiting for another call of its owner.
func TestDetachThatWaitsForItsOwnerCanBeCanceled(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	h := b.holdFor(b.clientOn(b.proxy.Client()).NewLock(b.name), time.Minute)
	within := h.Context()
	extending := b.proxy.On(calls(renewScript), testredis.HoldRequest).Times(testredis.Always)
	extended, detached := make(chan error, 1), make(chan error, 1)
	go func() { extended <- h.Extend(ctx, 2*time.Minute) }()
	await(b.bench, "Extend is under way", extending.Fired())
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	go func() {
		_, err := h.Detach(brief, time.Minute)
		detached <- err
	}()
	b.mustBe(await(b.bench, "Detach comes back", detached), context.DeadlineExceeded)
	b.must(within.Err())
	extending.Release()
	b.must(await(b.bench, "Extend comes back", extended))
	b.must(within.Err())
	b.must(h.Release(ctx))
	b.follows(b.direct.NewLock(b.name))
}

// An operator can release a detached hold by force, as Inspect shows it: its ticket does not work any more.
func TestDetachedHoldIsReleasedByForce(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		ctx, c := context.Background(), b.client()
		ticket := b.detach(b.hold(k.one(c, b.name)), time.Hour)
		i, err := c.Inspect(ctx, b.name)
		b.must(err)
		freed, err := b.direct.ForceUnlock(ctx, i)
		b.must(err)
		assert.True(b, freed)
		_, err = c.Attach(ctx, ticket)
		b.mustBe(err, ErrNotHeld)
		b.follows(k.rival(c, b.name))
	})
}

// A detached hold that no process attaches expires after keep.
func TestDetachedHoldExpires(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.client()
		ticket := b.detach(b.hold(k.one(c, b.name)), 50*time.Millisecond)
		b.follows(k.rival(c, b.name))
		_, err := c.Attach(context.Background(), ticket)
		b.mustBe(err, ErrNotHeld)
	})
}

// A ticket is over when keep has passed, even if the detached hold is still there: an Attach that gives up after that
// time puts it back for a moment.
func TestTicketIsOverWhenKeepHasPassed(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.client()
		text := b.detach(b.hold(k.one(c, b.name)), time.Hour)
		over, err := ticket.Decode(text)
		b.must(err)
		over.KeepEnd -= 2 * time.Hour.Milliseconds()
		late, err := over.Encode()
		b.must(err)
		_, err = c.Attach(context.Background(), late)
		b.mustBe(err, ErrNotHeld)
		b.excludes(k.rival(c, b.name))
		b.must(b.attach(c, text).Release(context.Background()))
	})
}

// A hold that has expired is not attached, although others keep the key: a permit has an end of its own, and a reader a
// lease.
func TestExpiredHoldIsNotAttached(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for name, l := range map[string]func(c *Client, name string) Locker{
			"read":      newReadLock,
			"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 2) },
		} {
			t.Run(name, func(t *testing.T) {
				b, ctx := newBench(t, addr), context.Background()
				c1, c2 := b.client(), b.client()
				other := b.hold(l(c2, b.name))
				ticket := b.detach(b.hold(l(c1, b.name)), 10*time.Millisecond)
				testredis.Await(b, "the detached hold has expired", soon, func() bool {
					i, err := c1.Inspect(ctx, b.name)
					b.must(err)
					return !slices.ContainsFunc(i.Holders, func(h Holder) bool { return h.Detached && h.Remaining != 0 })
				})
				_, err := c1.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				b.must(other.Release(ctx))
				b.forget()
			})
		}
	})
}

// Rows 1, 2, 5, 6 for both calls: the answer is lost, and the request has run or has not.
func TestFaultLostAnswersOfDetachAndAttach(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			onDetachable(t, func(b *faultBench, k lockKind) {
				c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
				h := b.hold(k.one(c, b.name))
				rule := b.proxy.On(renames, fault).Times(2)
				ticket := b.detach(h, time.Minute)
				require.NotZero(b, rule.Count(), "nothing was lost")
				b.excludes(k.rival(b.direct, b.name))
				again := b.proxy.On(renames, fault).Times(2)
				attached := b.attach(c, ticket)
				require.NotZero(b, again.Count(), "nothing was lost")
				b.excludes(k.rival(b.direct, b.name))
				_, err := b.direct.Attach(context.Background(), ticket)
				b.mustBe(err, ErrNotHeld)
				rule.Release()
				again.Release()
				b.must(attached.Release(context.Background()))
				b.follows(k.rival(b.direct, b.name))
			})
		})
	}
}

// Of readers that share a record, one is detached by a request that leaves the field of the others in place. A try of it
// that runs late, when the ticket was used and the hold released, does not bring the detached reader back.
func TestSplitThatRunsLateMakesNoSecondTicket(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for name, use := range map[string]func(b *bench, c *Client, ticket string){
			"attached, and released": func(b *bench, c *Client, ticket string) {
				b.must(b.attach(c, ticket).Release(context.Background()))
			},
			"released by force": func(b *bench, c *Client, ticket string) {
				freed, err := c.NewRWLock(b.name).Read().ForceUnlock(context.Background())
				b.must(err)
				assert.True(b, freed)
			},
		} {
			t.Run(name, func(t *testing.T) {
				b, ctx := newBench(t, addr), context.Background()
				c, other := b.client(), b.client()
				l := c.NewRWLock(b.name).Read()
				first, second := b.hold(l), b.hold(l)
				readers := func() []string {
					fields, err := b.rdb.HKeys(ctx, b.name).Result()
					b.must(err)
					return slices.DeleteFunc(fields, func(f string) bool { return f == "mode" })
				}
				shared := readers()
				require.Len(b, shared, 1, "the readers share a record")
				ticket := b.detach(first, time.Hour)
				both := readers()
				require.Len(b, both, 2)
				detached := both[0]
				if detached == shared[0] {
					detached = both[1]
				}
				use(b, other, ticket)
				leaseOfShared := l.lock.(*readLock).leases + shared[0] + ":rwlock_timeout:1"
				if len(readers()) == 0 { // the shared field is gone, too: another one takes its place
					b.rdb.HSet(ctx, b.name, "mode", "read", shared[0], 1)
					b.rdb.Set(ctx, leaseOfShared, 1, time.Minute)
					b.rdb.PExpire(ctx, b.name, time.Minute)
				}
				late := contract.Rename{From: shared[0], To: detached, Lease: time.Hour, Splits: true}
				r, err := c.send(l.lock.(*readLock).Rename(late))
				b.must(err)
				assert.EqualValues(b, -1, r[0])
				assert.Equal(b, shared, readers(), "the late try has brought the detached reader back")
				_, err = other.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				_ = second.Release(ctx) // which sends nothing if the loss was noticed meanwhile
				b.rdb.Del(ctx, b.name, leaseOfShared)
				b.follows(other.NewRWLock(b.name).Write())
			})
		}
	})
}

// A rename of a reader whose lease has expired, which leaves a tombstone, does not make it a living reader again.
func TestRenameOfADeadReaderDoesNotReviveIt(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b, ctx := newBench(t, addr), context.Background()
		c, other := b.client(), b.client()
		l := c.NewRWLock(b.name).Read()
		living := b.hold(l)
		fields, err := b.rdb.HKeys(ctx, b.name).Result()
		b.must(err)
		require.Len(b, fields, 2)
		dead := c.ID() + ":77:077"
		b.rdb.HSet(ctx, b.name, dead, 1)
		late := contract.Rename{From: dead, To: c.ID() + ":0:0100000000000001", Lease: time.Hour, Late: true}
		r, err := c.send(l.lock.(*readLock).Rename(late))
		b.must(err)
		assert.EqualValues(b, -1, r[0])
		b.must(living.Release(ctx))
		ok, err := other.NewRWLock(b.name).Write().TryLock(ctx, soon, 0)
		b.must(err)
		assert.True(b, ok, "a dead reader keeps the writer out")
		if ok {
			b.must(other.NewRWLock(b.name).Write().Unlock(ctx))
		}
	})
}

// If Redis does not confirm Detach, there is no ticket, and the lock is free soon, also if the request runs late.
func TestFaultDetachThatIsNotConfirmedReleases(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"late": true, "ran": false} {
		t.Run(name, func(t *testing.T) {
			onDetachable(t, func(b *faultBench, k lockKind) {
				c := b.patientClient()
				h := b.hold(k.one(c, b.name))
				fault := testredis.StallReply
				if late {
					fault = testredis.HoldRequest
				}
				rule := b.proxy.On(renames, fault).Times(testredis.Always)
				ctx, cancel := context.WithCancel(context.Background())
				within, got := h.Context(), make(chan error, 1)
				go func() {
					ticket, err := h.Detach(ctx, time.Hour)
					assert.Empty(b, ticket)
					got <- err
				}()
				await(b.bench, "the request is under way", rule.Fired())
				b.ends(within, ErrDetached) // before Redis answers
				cancel()
				b.mustBe(await(b.bench, "Detach comes back", got), context.Canceled)
				b.follows(k.rival(b.direct, b.name))
				ran := b.scriptRuns()
				rule.Release()
				if late {
					testredis.Await(b, "the late request has run", soon, func() bool { return b.scriptRuns() > ran })
				}
				b.mustBe(h.Release(context.Background()), ErrNotHeld)
				b.follows(k.rival(b.direct, b.name))
			})
		})
	}
}

// The context of a detached hold is canceled with the cause ErrDetached, whenever Context is first called: while Detach
// waits for Redis, also if Release is called meanwhile, or after it.
func TestContextOfADetachedHoldTellsTheCause(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c, ctx := b.patientClient(), context.Background()
		for _, releases := range []bool{false, true} {
			h := b.hold(k.one(c, b.name))
			rule := b.proxy.On(renames, testredis.HoldRequest).Times(testredis.Always)
			got := make(chan string, 1)
			go func() {
				ticket, err := h.Detach(ctx, time.Minute)
				assert.NoError(b, err)
				got <- ticket
			}()
			await(b.bench, "the request is under way", rule.Fired())
			ended := make(chan error, 1)
			if releases {
				go func() { ended <- h.Release(ctx) }()
				testredis.Await(b, "Release has begun", soon, h.released.Load)
			}
			b.ends(h.Context(), ErrDetached)
			rule.Release()
			ticket := await(b.bench, "Detach comes back", got)
			if releases {
				b.mustBe(await(b.bench, "Release comes back", ended), ErrNotHeld)
			}
			b.ends(h.Context(), ErrDetached)
			h = b.attach(c, ticket)
			ticket = b.detach(h, time.Minute)
			b.ends(h.Context(), ErrDetached)
			b.must(b.attach(c, ticket).Release(ctx))
		}
	})
}

// An Attach that gives up puts the detached ID back, for the rest of keep, whether its request has run, runs late, or
// is answered late: the ticket works again.
func TestFaultAttachThatGivesUpPutsTheHoldBack(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testredis.Fault{
		"ran": testredis.StallReply, "late": testredis.HoldRequest, "answered late": testredis.DelayReply(2 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			onDetachable(t, func(b *faultBench, k lockKind) {
				c := b.patientClient()
				ticket := b.detach(b.hold(k.one(b.direct, b.name)), time.Hour)
				rule := b.proxy.On(renames, fault).Times(1)
				ctx, cancel := context.WithCancel(context.Background())
				got := make(chan error, 1)
				go func() {
					h, err := c.Attach(ctx, ticket)
					assert.Nil(b, h)
					got <- err
				}()
				await(b.bench, "the request is under way", rule.Fired())
				cancel()
				b.mustBe(await(b.bench, "Attach comes back", got), context.Canceled)
				isBack := func() bool {
					i, err := b.direct.Inspect(context.Background(), b.name)
					return err == nil && len(i.Holders) == 1 && i.Holders[0].Detached
				}
				testredis.Await(b, "the hold is back", soon, isBack)
				if name == "late" {
					again := b.proxy.On(renames, testredis.HoldRequest).Times(testredis.Always)
					ran := b.scriptRuns()
					rule.Release()
					testredis.Await(b, "the late request has run", soon, func() bool { return b.scriptRuns() > ran })
					assert.True(b, isBack(), "the late request has attached the hold")
					again.Release()
				}
				testredis.Await(b, "the hold stays back", soon, isBack)
				testredis.Await(b, "the lease is the rest of keep", soon, func() bool {
					return b.leaseIn(b.direct) > 30*time.Minute
				})
				b.excludes(k.rival(b.direct, b.name))
				b.must(b.attach(b.direct, ticket).Release(context.Background()))
				b.follows(k.rival(b.direct, b.name))
			})
		})
	}
}

// An Attach that follows one that has given up is not refused because the hold is still being put back: it waits for
// that.
func TestFaultAttachAfterOneThatGaveUpIsNotRefused(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.patientClient()
		ticket := b.detach(b.hold(k.one(b.direct, b.name)), time.Hour)
		attach := b.proxy.On(renames, testredis.StallReply).Times(1)
		back := b.proxy.On(renames, testredis.HoldRequest).Times(1)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() {
			_, err := c.Attach(ctx, ticket)
			got <- err
		}()
		await(b.bench, "the request is under way", attach.Fired())
		cancel()
		b.mustBe(await(b.bench, "Attach comes back", got), context.Canceled)
		await(b.bench, "the hold is being put back", back.Fired())

		ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, err := c.Attach(ctx, ticket)
		b.mustBe(err, context.DeadlineExceeded)
		again := make(chan *Hold, 1)
		go func() {
			h, err := c.Attach(context.Background(), ticket)
			assert.NoError(b, err)
			again <- h
		}()
		b.must(await(b.bench, "the next Attach", again).Release(context.Background()))
		b.follows(k.rival(b.direct, b.name))
	})
}

// The request that puts the hold back overtakes that of an Attach, and finds nothing to put back. The next Attach of
// the same Client waits until the hold was put back after all.
func TestFaultAttachThatIsOvertakenByItsUndo(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.patientClient()
		ticket := b.detach(b.hold(k.one(b.direct, b.name)), time.Hour)
		attach := b.proxy.On(renames, testredis.HoldRequest).Times(1)
		back := b.proxy.On(renames, testredis.DelayReply(0)).Times(1)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() {
			_, err := c.Attach(ctx, ticket)
			got <- err
		}()
		await(b.bench, "the request is under way", attach.Fired())
		cancel()
		await(b.bench, "the undo is under way", back.Fired())
		var err error
		select {
		case err = <-got: // too early
		case <-time.After(50 * time.Millisecond):
		}
		b.proxy.Latency(20 * time.Millisecond) // so that the next request would arrive before another undo
		attach.Release()
		if err == nil {
			err = await(b.bench, "Attach comes back", got)
		}
		b.mustBe(err, context.Canceled)
		next, err := c.Attach(context.Background(), ticket)
		b.must(err)
		b.proxy.Latency(0)
		b.must(next.Release(context.Background()))
		b.follows(k.rival(b.direct, b.name))
	})
}

// A renewal that was under way when a hold was detached, or that runs late, does not touch the detached hold.
func TestFaultLateRenewalOfADetachedHold(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.patientClient(WithWatchdogTimeout(3 * time.Second))
		h := b.hold(k.one(c, b.name))
		rule := b.proxy.On(anyOf(renewScript, readRenew, semaphoreRenew), testredis.HoldRequest).Times(testredis.Always)
		await(b.bench, "a renewal is under way", rule.Fired())
		ticket := b.detach(h, time.Second)
		began, ran := time.Now(), b.scriptRuns()
		rule.Release()
		testredis.Await(b, "the late renewal has run", soon, func() bool { return b.scriptRuns() > ran })
		if i, err := b.direct.Inspect(context.Background(), b.name); assert.NoError(b, err) && len(i.Holders) > 0 {
			assert.LessOrEqual(b, i.Holders[0].Remaining, time.Second, "keep is exact")
		}
		b.follows(k.rival(b.direct, b.name))
		assert.GreaterOrEqual(b, time.Since(began), time.Second-200*time.Millisecond, "keep is over")
		_, err := c.Attach(context.Background(), ticket)
		b.mustBe(err, ErrNotHeld)
	})
}

// A late attempt with the old ID acquires nothing after the hold was detached, attached and released.
func TestFaultLateAttemptOfADetachedHold(t *testing.T) {
	t.Parallel()
	for _, k := range faultLocks[:6] {
		t.Run(k.name, func(t *testing.T) {
			b := newFaultBench(t)
			rule := b.proxy.On(k.takes, testredis.HoldRequest).Times(1)
			h := b.hold(k.one(b.patientClient(), b.name)) // the second try has acquired it
			ticket := b.detach(h, time.Minute)
			b.must(b.attach(b.direct, ticket).Release(context.Background()))
			undone := b.proxy.On(k.undoes, testredis.HoldRequest).Times(testredis.Always)
			ran := b.scriptRuns()
			rule.Release()
			testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
			assert.Empty(b, b.records(), "a late attempt has taken a lock")
			undone.Release()
			b.follows(k.rival(b.direct, b.name))
		})
	}
}

// The waiters of the process that detaches or attaches wait until the attached hold is released: it is not handed off.
func TestWaitersOfADetachedHold(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.client()
		h, l := b.hold(k.one(c, b.name)), k.rival(c, b.name)
		got := make(chan error, 2)
		wait := func() {
			h, err := l.(Acquirer).Acquire(context.Background())
			if err == nil {
				err = h.Release(context.Background())
			}
			got <- err
		}
		go wait()
		testredis.Await(b, "it waits", soon, func() bool { return c.engine.Probe().Stats().Holds == 2 })
		ticket := b.detach(h, time.Minute)
		go wait()
		testredis.Await(b, "both wait", soon, func() bool { return c.engine.Probe().Stats().Holds == 2 })
		attached := b.attach(c, ticket)
		stays(b, "a waiter has acquired the lock", got, 300*time.Millisecond)
		b.excludes(l)
		b.must(attached.Release(context.Background()))
		for range 2 {
			b.must(await(b.bench, "the waiters are next", got))
		}
	})
}

// MaxHold goes on: the lease of the detached hold ends with it, and so does the attached hold.
func TestMaxHoldOfADetachedHold(t *testing.T) {
	t.Parallel()
	b, c := newBench(t, testredis.Start(t).Addr()), (*Client)(nil)
	c = b.client(WithWatchdogTimeout(time.Second))
	const most = 2 * time.Second
	began := time.Now()
	ticket := b.detach(b.hold(c.NewLock(b.name, MaxHold(most))), time.Hour)
	assert.LessOrEqual(b, b.leaseIn(c), most, "keep is cut")
	attached := b.attach(c, ticket)
	end := attached.Context()
	b.ends(end, ErrMaxHold)
	assert.InDelta(b, most, time.Since(began), float64(time.Second), "when it ends")
	b.mustBe(attached.Release(context.Background()), ErrLockLost)
	b.follows(c.NewLock(b.name))
}

// A detached write lock expires when keep has passed, although the record has a read hold that its owner has lost.
func TestDetachedWriterBesideALostReaderExpires(t *testing.T) {
	b, ctx := newFaultBench(t), context.Background()
	c := b.patientClient()
	rw := c.NewRWLock(b.name)
	h := b.hold(rw.Write())
	b.must(rw.Read().LockLease(h.Context(), 50*time.Millisecond))
	guarded, err := rw.Read().Guard(h.Context())
	b.must(err)
	rule := b.proxy.On(calls(readRelease), testredis.HoldRequest).Times(testredis.Always)
	b.ends(guarded, ErrLockLost)
	testredis.Await(b, "the lease of the reader has expired", soon, func() bool {
		return b.rdb.PTTL(ctx, b.name).Val() > 0 && len(b.rdb.Keys(ctx, "*"+b.name+"*:rwlock_timeout:1").Val()) == 0
	})
	const keep = 100 * time.Millisecond
	b.detach(h, keep)
	assert.LessOrEqual(b, b.rdb.PTTL(ctx, b.name).Val(), keep)
	b.follows(b.direct.NewRWLock(b.name).Write())
	rule.Release()
}

// MinHold goes on: the detached hold lasts at least that long, and so does the record after the attached hold was
// released.
func TestMinHoldOfADetachedHold(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	const least = 3 * time.Second
	began := time.Now()
	l := c.NewLock(b.name, MinHold(least))
	ticket := b.detach(b.hold(l), time.Millisecond)
	assert.InDelta(b, least, b.leaseIn(c), float64(time.Second))
	attached := b.attach(c, ticket)
	b.must(attached.Release(context.Background()))
	b.excludes(l)
	b.must(c.NewLock(b.name).Lock(context.Background()))
	assert.GreaterOrEqual(b, time.Since(began), least, "when another owner acquires it")
	b.must(c.NewLock(b.name).Unlock(context.Background()))
}

// Detach works during Shutdown, which need not wait for the hold any more. Attach does not.
func TestDetachDuringShutdown(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	c := b.client()
	h := b.hold(c.NewLock(b.name))
	got := make(chan error, 1)
	go func() { got <- c.Shutdown(ctx) }()
	b.ends(h.Context(), ErrClosed)
	_, err := c.Attach(ctx, "")
	b.mustBe(err, ErrInvalid)
	ticket := b.detach(h, time.Minute)
	_, err = c.Attach(ctx, ticket)
	b.mustBe(err, ErrClosed)
	b.must(await(b, "Shutdown ends", got))
	_, err = h.Detach(ctx, 0)
	b.mustBe(err, ErrNotHeld)
	other := b.client()
	attached := b.attach(other, ticket)
	b.must(other.Close())
	_, err = attached.Detach(ctx, 0)
	b.mustBe(err, ErrClosed)
	b.must(attached.Release(ctx))
}

// A reader that shares an entry with others is split off: each has a lease of its own, and no newcomer joins the entry.
func TestDetachedReaderIsSplitOff(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	c, other := b.client(WithHandoffWindow(time.Minute)), b.client()
	l, writer := c.NewRWLock(b.name).Read(), other.NewRWLock(b.name).Write()
	h, second := b.hold(l), b.hold(l)
	holders := func() (detached, live int) {
		i, err := other.Inspect(ctx, b.name)
		b.must(err)
		for _, h := range i.Holders {
			if h.Detached {
				detached++
			} else {
				live++
			}
		}
		return detached, live
	}
	_, live := holders()
	require.Equal(b, 1, live, "the readers share an entry")
	ticket := b.detach(h, time.Minute)
	detached, live := holders()
	assert.Equal(b, []int{1, 1}, []int{detached, live}, "the detached reader is beside the other one")
	b.must(second.Context().Err())
	third := b.hold(l)
	_, live = holders()
	assert.Equal(b, 2, live, "a newcomer joins the entry of the detached reader")
	b.must(second.Release(ctx))
	b.must(third.Release(ctx))
	b.excludes(writer)
	attached := b.attach(other, ticket)
	detached, live = holders()
	assert.Equal(b, []int{0, 1}, []int{detached, live})
	b.must(attached.Release(ctx))
	b.follows(writer)
}

// While a reader is split off, the others of its entry may leave: the entry is released when that is answered.
func TestFaultReadersLeaveWhileOneIsSplitOff(t *testing.T) {
	b, ctx := newFaultBench(t), context.Background()
	c := b.clientOn(b.proxy.Client(), WithHandoffWindow(time.Minute))
	l, writer := c.NewRWLock(b.name).Read(), b.direct.NewRWLock(b.name).Write()
	holds := []*Hold{b.hold(l), b.hold(l), b.hold(l)}
	rule := b.proxy.On(renames, testredis.DelayRequest(500*time.Millisecond)).Times(2)
	got := make(chan string, 2)
	for _, h := range holds[:2] {
		go func() {
			ticket, err := h.Detach(ctx, time.Minute)
			assert.NoError(b, err)
			got <- ticket
		}()
	}
	await(b.bench, "the request is under way", rule.Fired())
	b.must(holds[2].Release(ctx))
	one, two := await(b.bench, "the first is detached", got), await(b.bench, "the second is detached", got)
	testredis.Await(b, "the entry of the others is released", soon, func() bool {
		i, err := b.direct.Inspect(ctx, b.name)
		return err == nil && len(i.Holders) == 2 && i.Holders[0].Detached && i.Holders[1].Detached
	})
	b.must(b.attach(b.direct, one).Release(ctx))
	b.excludes(writer)
	b.must(b.attach(b.direct, two).Release(ctx))
	b.follows(writer)
}

// A reader that was to be split off is not left behind if the request runs late: the entry from which it is split is
// still there.
func TestFaultLateSplitIsUndone(t *testing.T) {
	b := newFaultBench(t)
	l := b.clientOn(b.proxy.Client(), WithHandoffWindow(time.Minute)).NewRWLock(b.name).Read()
	h, other := b.hold(l), b.hold(l)
	rule := b.proxy.On(renames, testredis.HoldRequest).Times(testredis.Always)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := h.Detach(ctx, time.Hour)
		got <- err
	}()
	await(b.bench, "the request is under way", rule.Fired())
	releases := b.proxy.On(calls(readRelease), testredis.DelayReply(0)).Times(testredis.Always)
	cancel()
	b.mustBe(await(b.bench, "Detach comes back", got), context.Canceled)
	testredis.Await(b, "the undo has run", soon, func() bool { return releases.Count() == 4 }) // rollBackOne
	b.must(other.Context().Err())
	ran := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the late request has run, and is undone", soon, func() bool {
		i, err := b.direct.Inspect(context.Background(), b.name)
		return err == nil && b.scriptRuns() > ran+2 && len(i.Holders) == 1 && !i.Holders[0].Detached
	})
	b.must(other.Release(context.Background()))
	b.follows(b.direct.NewRWLock(b.name).Write())
}

// S2: the attached hold is valid from before the request that was answered.
func TestFaultAttachIsValidFromBeforeTheRequest(t *testing.T) {
	b := newFaultBench(t)
	c := b.clientOn(b.proxy.Client())
	ticket := b.detach(b.hold(b.direct.NewLock(b.name)), time.Minute)
	b.proxy.On(renames, testredis.DelayReply(500*time.Millisecond)).Times(1)
	sent := time.Now()
	attached := b.attach(c, ticket)
	took := time.Since(sent)
	left := time.Until(c.engine.Probe().LeasesEnd(c.NewLock(b.name).lock, attached.owner()))
	assert.LessOrEqual(b, left, lease.Validity(30*time.Second)-took+200*time.Millisecond, "how long it is valid")
	b.must(attached.Release(context.Background()))
}

// WithSyncedReplicas: replicas confirm both calls. If they do not, there is no ticket, or the ticket works again.
func TestSyncedReplicasConfirmDetachAndAttach(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		ctx := context.Background()
		synced := b.client(WithSyncedReplicas(1, 20*time.Millisecond)) // the server has no replica
		ticket := b.detach(b.hold(k.one(b.direct, b.name)), time.Minute)
		_, err := synced.Attach(ctx, ticket)
		b.mustBe(err, ErrNotSynced)
		testredis.Await(b, "the ticket works again", soon, func() bool {
			h, err := b.direct.Attach(ctx, ticket)
			if err != nil {
				return false
			}
			ticket = b.detach(h, time.Minute)
			return true
		})
		b.must(b.attach(b.direct, ticket).Release(ctx))
	})
}

// Events: a hold ends as detached, and not as lost, and begins as attached. Its old age is reported like that of
// others.
func TestDetachAndAttachAreObserved(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	var events recorder
	log := new(lockedBuffer)
	c := b.client(WithObserver(&events), WithHoldWarning(100*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	ticket := b.detach(b.hold(c.NewLock(b.name)), time.Minute)
	attached := b.attach(c, ticket)
	_, err := c.Attach(ctx, ticket)
	b.mustBe(err, ErrNotHeld)
	testredis.Await(b, "a warning of the attached hold, with its stack", soon, func() bool {
		return strings.Contains(log.String(), "TestDetachAndAttachAreObserved")
	})
	b.must(attached.Release(ctx))
	var is []string
	for _, e := range events.take() {
		switch e := e.(type) {
		case AcquiredEvent:
			is = append(is, "acquired "+string(e.Path))
		case ReleasedEvent:
			is = append(is, fmt.Sprint("released ", e.Detached, e.Err))
		case GaveUpEvent:
			assert.ErrorIs(b, e.Err, ErrNotHeld)
			is = append(is, fmt.Sprint("gave up ", e.Contended))
		case RenewedEvent:
		default:
			is = append(is, fmt.Sprintf("%T", e))
		}
	}
	assert.Equal(b, []string{
		"acquired immediate", "released true <nil>", "acquired attached", "gave up false", "released false <nil>",
	}, is)
}
