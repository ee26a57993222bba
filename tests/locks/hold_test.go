package locks

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

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A ward is a struct in which users store holds.
type ward struct{ hold *Hold }

// holdTests are the rules for the holds that every lock type returns.
func (s suite) holdTests() []suiteTest {
	newLock, rival := s.newLock, s.rival
	return []suiteTest{
		{"HoldHasAnOwnerOfItsOwn", func(b *locktest.Bench) {
			c := b.Client()
			l, other := newLock(c, b.LockName), rival(c, b.LockName)
			one := ContextWithOwner(ctx)
			h, err := l.(Acquirer).Acquire(one)
			b.Must(err)
			for name, ctx := range map[string]context.Context{"goroutine": ctx, "owner of the ctx": one} {
				ok, err := other.TryLock(ctx, 0, 0)
				assert.NoError(b, err, name)
				assert.False(b, ok, "the %s holds the lock", name)
			}
			second, ok, err := other.(Acquirer).TryAcquire(one, 0, 0)
			assert.NoError(b, err)
			assert.False(b, ok, "a second hold with the same ctx")
			assert.Nil(b, second)
			b.MustBe(l.Unlock(one), ErrNotHeld)

			within := h.Context()
			b.Must(l.Lock(within)) // acquires it again
			n, err := l.HoldCount(within)
			b.Must(err)
			assert.Equal(b, 2, n, "levels")
			b.Must(l.Unlock(within))
			b.Must(h.Release(ctx))
			b.Tries(other, true)
			b.Must(other.Unlock(ctx))
		}},
		{"HoldIsReleasedAnywhereOnce", func(b *locktest.Bench) {
			w := ward{b.Hold(newLock(b.Client(), b.LockName))}
			assert.Contains(b, w.hold.Name(), b.LockName, "name")
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
					assert.ErrorContains(b, err, b.LockName)
				})
			}
			all.Wait()
			assert.Equal(b, int64(1), nils.Load(), "calls that released the hold")
			b.Ends(within, context.Canceled)
			b.IsLocked(rival(b.Client(), b.LockName), false)
			b.MustBe(w.hold.Release(ctx), ErrNotHeld)
			_, err := w.hold.Token()
			b.MustBe(err, ErrNotHeld)
		}},
		{"HoldIsReleasedOnceAlsoWithLevelsInside", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			h := b.Hold(l)
			within := h.Context()
			b.Must(l.Lock(within))
			b.Must(h.Release(ctx))
			b.MustBe(h.Release(ctx), ErrNotHeld) // and leaves the hold count of the code inside unchanged
			b.IsLocked(l, true)
			b.Must(l.Unlock(within))
			b.IsLocked(l, false)
		}},
		{"HoldContext", func(b *locktest.Bench) {
			type key struct{}
			taken, cancel := context.WithTimeout(context.WithValue(ctx, key{}, "value"), time.Hour)
			h, err := newLock(b.Client(), b.LockName).(Acquirer).Acquire(taken)
			b.Must(err)
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
			require.Same(b, all[0], h.Context(), "the ctx of a later call")
			require.NoError(b, all[0].Err(), "the ctx of the hold ended with that of Acquire")
			_, limited := all[0].Deadline()
			assert.False(b, limited, "the ctx of the hold has a deadline")
			assert.Equal(b, "value", all[0].Value(key{}), "value of the ctx")
			b.Must(h.Release(ctx))
			b.Ends(all[0], context.Canceled)
		}},
		{"HoldContextAfterTheEnd", func(b *locktest.Bench) {
			c := b.Client()
			l := newLock(c, b.LockName)
			released := b.Hold(l)
			b.Must(released.Release(ctx))
			b.Ends(released.Context(), context.Canceled)

			lost := b.Hold(l)
			b.Forget()
			b.MustBe(lost.Release(ctx), ErrLockLost)
			b.Ends(lost.Context(), ErrLockLost)

			left := b.Hold(l)
			b.Must(c.Close())
			b.Ends(left.Context(), ErrClosed)
			b.Ends(released.Context(), context.Canceled)
			b.Must(left.Release(ctx))
		}},
		{"HoldGuard", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			h := b.Hold(l)
			type key struct{}
			reason := errors.New("a reason")
			parent, cancel := context.WithCancelCause(context.WithValue(ContextWithOwner(ctx), key{}, "value"))
			timed, stop := context.WithTimeout(parent, time.Hour)
			defer stop()
			guarded, err := h.Guard(timed)
			b.Must(err)
			assert.Equal(b, "value", guarded.Value(key{}), "value of the ctx")
			want, _ := timed.Deadline()
			until, limited := guarded.Deadline()
			assert.True(b, limited, "the guard has the deadline of its ctx")
			assert.Equal(b, want, until, "deadline")
			b.Must(l.Lock(guarded)) // acquires it again: the owner is that of the hold
			levels, err := l.HoldCount(guarded)
			b.Must(err)
			assert.Equal(b, 2, levels, "hold count")
			b.Must(l.Unlock(guarded))
			b.Must(guarded.Err())
			again, err := h.Guard(guarded)
			b.Must(err)

			short, stopShort := context.WithTimeout(ctx, time.Millisecond)
			defer stopShort()
			hurried, err := h.Guard(short)
			b.Must(err)
			locktest.Await(b, "the guard ends with the deadline of its ctx", hurried.Done())
			assert.Equal(b, context.DeadlineExceeded, hurried.Err())
			cancel(reason)
			b.Ends(guarded, reason)
			b.Ends(again, reason)
			b.Must(h.Context().Err()) // the hold continues

			last, err := h.Guard(ctx)
			b.Must(err)
			b.Must(h.Release(ctx))
			b.Ends(last, context.Canceled)
			_, err = h.Guard(ctx)
			b.MustBe(err, ErrNotHeld)
			assert.NotErrorIs(b, err, ErrLockLost)
			assert.ErrorContains(b, err, "guard")
			assert.ErrorContains(b, err, b.LockName)
		}},
		{"HoldGuardEndsWithTheHold", func(b *locktest.Bench) {
			c := b.Client(WithWatchdogTimeout(1500 * time.Millisecond))
			l := newLock(c, b.LockName)
			lost := b.Hold(l)
			guarded, err := lost.Guard(ctx)
			b.Must(err)
			b.Forget()
			b.Ends(guarded, ErrLockLost)
			_, err = lost.Guard(ctx)
			b.MustBe(err, ErrLockLost)
			b.MustBe(lost.Release(ctx), ErrLockLost)
			_, err = lost.Guard(ctx)
			b.MustBe(err, ErrNotHeld)

			expires := b.HoldFor(l, 600*time.Millisecond)
			if guarded, err = expires.Guard(ctx); err == nil { // on a busy machine the lease may have expired
				b.Ends(guarded, ErrLockLost)
			}
			_, err = expires.Guard(ctx)
			b.MustBe(err, ErrLockLost)
			b.MustBe(expires.Release(ctx), ErrLockLost)

			// Another name: a RedLock whose last hold has just expired may hold no more than a majority, which Close
			// releases.
			left := b.Hold(newLock(c, b.LockName+"-left"))
			guarded, err = left.Guard(ctx)
			b.Must(err)
			b.Must(c.Close())
			b.Ends(guarded, ErrClosed)
			_, err = left.Guard(ctx)
			b.MustBe(err, ErrClosed)
			b.Must(left.Release(ctx))
		}},
		{"HoldIsExtended", func(b *locktest.Bench) {
			const lease = 2 * time.Second
			l := newLock(b.Client(), b.LockName)
			h := b.HoldFor(l, lease)
			within := h.Context()
			b.Must(h.Extend(ctx, time.Minute))
			b.Must(h.Extend(ctx, lease)) // never shortens
			ttl, err := l.TTL(ctx)
			b.Must(err)
			assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL")
			assert.LessOrEqual(b, ttl, time.Minute, "TTL")
			select {
			case <-within.Done():
				assert.NoError(b, context.Cause(within), "the hold ended with its first lease")
			case <-time.After(lease + lease/10):
			}
			b.Must(h.Release(ctx))
			b.IsLocked(l, false)
			b.MustBe(h.Extend(ctx, lease), ErrNotHeld)
		}},
		{"HoldExtendedInVain", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			h := b.HoldFor(l, time.Minute)
			b.Forget()
			err := h.Extend(ctx, time.Minute)
			b.MustBe(err, ErrLockLost)
			assert.ErrorContains(b, err, "extend")
			assert.ErrorContains(b, err, b.LockName)
			b.Ends(h.Context(), ErrLockLost)
			b.MustBe(h.Release(ctx), ErrLockLost)
			b.IsLocked(l, false)
		}},
		{"HoldThatIsRenewedIsNotExtended", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			h := b.Hold(l)
			b.MustBe(h.Extend(ctx, time.Minute), ErrInvalid)
			b.Must(h.Release(ctx))

			h = b.HoldFor(l, time.Minute)
			for _, lease := range []time.Duration{0, -time.Second, time.Millisecond - 1} {
				b.MustBe(h.Extend(ctx, lease), ErrInvalid)
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			b.MustBe(h.Extend(ended, time.Minute), context.Canceled)
			b.Must(h.Release(ctx))
		}},
		{"NilHold", func(b *locktest.Bench) {
			held := b.Hold(rival(b.Client(), b.LockName))
			busy, ok, err := newLock(b.Client(), b.LockName).(Acquirer).TryAcquire(ctx, 0, 0)
			b.Must(err)
			require.False(b, ok)
			require.Nil(b, busy)
			for what, none := range map[string]*Hold{"nil": busy, "zero": new(Hold)} {
				assert.Empty(b, none.Name(), what)
				for name, err := range map[string]error{
					"Release":         none.Release(ctx),
					"Release nil ctx": none.Release(locktest.NilCtx),
					"Extend":          none.Extend(ctx, time.Second),
					"Token":           locktest.Second(none.Token()),
					"Context":         context.Cause(none.Context()),
					"Guard":           locktest.Second(none.Guard(ctx)),
				} {
					assert.ErrorIs(b, err, ErrNotHeld, "%s of a %s Hold", name, what)
					assert.ErrorIs(b, err, ErrInvalid, "%s of a %s Hold", name, what)
					assert.NotErrorIs(b, err, ErrLockLost, "%s of a %s Hold", name, what)
				}
			}
			b.IsLocked(rival(b.Client(), b.LockName), true) // and nothing of the holder was released
			b.Must(held.Release(ctx))
		}},
		{"HoldBadInput", func(b *locktest.Bench) {
			c := b.Client()
			l := newLock(c, b.LockName).(Acquirer)
			h := b.Hold(newLock(c, b.LockName))
			try := func(_ *Hold, _ bool, err error) error { return err }
			for name, err := range map[string]error{
				"nil ctx":         locktest.Second(l.Acquire(locktest.NilCtx)),
				"try nil ctx":     try(l.TryAcquire(locktest.NilCtx, 0, 0)),
				"release nil ctx": h.Release(locktest.NilCtx),
				"extend nil ctx":  h.Extend(locktest.NilCtx, time.Second),
				"guard nil ctx":   locktest.Second(h.Guard(locktest.NilCtx)),
				"lease 1ns":       try(l.TryAcquire(ctx, 0, 1)),
				"wait -1ns":       try(l.TryAcquire(ctx, -1, 0)),
				"empty name":      locktest.Second(newLock(c, "").(Acquirer).Acquire(ctx)),
				"nil client":      locktest.Second(newLock(nil, b.LockName).(Acquirer).Acquire(ctx)),
			} {
				assert.ErrorIs(b, err, ErrInvalid, name)
			}
			b.Must(h.Release(ctx))
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
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client(WithHandoffWindow(time.Hour))
		l := c.NewLock(b.LockName, Fenced())
		var last int64
		for range 3 {
			h := b.Hold(l)
			token, err := h.Token()
			b.Must(err)
			assert.Greater(t, token, last, "a token is greater than the one before")
			last = token
			same, err := l.Token(h.Context())
			b.Must(err)
			assert.Equal(t, token, same, "token of the owner")
			b.Must(h.Release(ctx))
		}
		for _, l := range []Locker{c.NewLock(b.LockName), c.NewRWLock(b.LockName, Fenced()).Read(), c.NewMultiLock(l)} {
			h := b.Hold(l)
			_, err := h.Token()
			b.MustBe(err, ErrInvalid)
			b.Must(h.Release(ctx))
		}
		h := b.Hold(l)
		b.Forget()
		require.False(t, locktest.Elsewhere(func() bool { held, _ := l.IsHeld(h.Context()); return held }))
		_, err := h.Token()
		b.MustBe(err, ErrLockLost)
		b.MustBe(h.Release(ctx), ErrLockLost)
	})
}

// Acquire and Release send the same requests as Lock and Unlock, and Extend of a lock with a record sends one request.
func TestHoldCostsNoMoreRequests(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for _, k := range locktest.FaultLocks {
			if k.Parts > 1 {
				continue
			}
			t.Run(k.Name, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				rdb := testredis.Client(t, addr)
				sent := new(locktest.Counter)
				rdb.AddHook(sent)
				l := k.One(b.ClientOn(rdb), b.LockName)
				b.Must(b.Hold(l).Release(ctx)) // loads the scripts
				requests := func(f func()) int64 {
					before := sent.N.Load()
					f()
					return sent.N.Load() - before
				}
				var h *Hold
				assert.Equal(t, int64(1), requests(func() { h = b.HoldFor(l, time.Minute) }), "requests of TryAcquire")
				b.Must(h.Extend(ctx, time.Minute))
				assert.Equal(
					t,
					int64(1),
					requests(func() { b.Must(h.Extend(ctx, time.Hour)) }),
					"requests of Extend",
				)
				assert.Zero(t, requests(func() { _ = h.Context() }), "requests of Context")
				assert.Equal(t, int64(1), requests(func() { b.Must(h.Release(ctx)) }), "requests of Release")
				assert.Zero(t, requests(func() { _ = h.Release(ctx) }), "requests of another Release")
			})
		}
	})
}
