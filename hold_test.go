package relock

// Holds as values: what the holds of every lock type do. Extend and Detach have files of their own.
//
// Rules: a Hold has an owner of its own, ends once, and its context tells why. It costs no more requests than Lock and
// Unlock.

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
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

			expires := b.holdFor(l, 600*time.Millisecond)
			if guarded, err = expires.Guard(ctx); err == nil { // on a busy machine the lease may have expired
				b.ends(guarded, ErrLockLost)
			}
			_, err = expires.Guard(ctx)
			b.mustBe(err, ErrLockLost)
			b.mustBe(expires.Release(ctx), ErrLockLost)

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
