//go:build go1.25

package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A fakeLocalLock is a LocalLock that is free, or refuses every attempt.
type fakeLocalLock struct {
	*fakeLock
	refusal Refusal  // Who is set: it is not free
	asked   func()   // during each attempt
	broken  error    // why its hold is not valid; or nil
	field   string   // that has the lock; or ""
	lost    []string // the fields of the holds that were lost
}

var _ LocalLock = (*fakeLocalLock)(nil)

func newFakeLocalLock(e *bubbleEngine) *fakeLocalLock {
	return &fakeLocalLock{fakeLock: newFakeLock(e.redis, "local"), asked: func() {}}
}

func (l *fakeLocalLock) Ask(_ *send.Wait, _ Owner, a contract.Attempt) (contract.Status, Refusal, error) {
	l.asked()
	if l.refusal.Who != "" {
		return contract.Busy, l.refusal, nil
	}
	l.field = a.Field
	return contract.Held, Refusal{}, nil
}

func (l *fakeLocalLock) free(field string) send.Call {
	return send.Call{Run: func(*send.Wait) (any, error) {
		if l.field != field {
			return "-1 0 0", nil
		}
		l.field = ""
		return "1 0 0", nil
	}}
}

func (l *fakeLocalLock) Release(r contract.Release) send.Call  { return l.free(r.Field) }
func (l *fakeLocalLock) RollBack(a contract.Attempt) send.Call { return l.free(a.Field) }
func (*fakeLocalLock) Listen([]int) []*wake.Listener           { return nil }
func (l *fakeLocalLock) Check(string) error                    { return l.broken }
func (l *fakeLocalLock) Lost(field string)                     { l.lost, l.field = append(l.lost, field), "" }
func (*fakeLocalLock) Unanswered() error                       { return ErrNoAnswer }

var errLocal = errors.New("a part of it is gone")

// A local lock tells the engine that a hold was lost. The cause is its own, unless the lease of the hold is over.
func TestLossOfALocalLockHasItsCause(t *testing.T) {
	for name, c := range map[string]struct {
		lease time.Duration
		over  bool // the watchdog has not noticed yet that the lease is over
		cause error
	}{
		"it is renewed":         {0, false, errLocal},
		"the lease is not over": {time.Minute, false, errLocal},
		"the lease is over":     {time.Minute, true, ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newFakeLocalLock(e)
				ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: c.lease})
				require.NoError(t, err)
				require.True(t, ok)
				guarded, err := e.Guard(ctx, l, 1)
				require.NoError(t, err)
				field := l.field
				if c.over {
					e.holdOf(l.traits.ID, 1, func(h *hold) { h.record.lease.SetValidUntil(0) })
				}
				e.Lose(l, "another field", errLocal)
				e.Lose(l, field, errLocal)
				e.Lose(l, field, errLocal)
				<-guarded.Done()
				assert.ErrorIs(t, context.Cause(guarded), c.cause)
				assert.Equal(t, []string{field}, l.lost)
				assert.ErrorIs(t, e.Release(ctx, l, 1), c.cause)
			})
		})
	}
}

// A loss before the hold has begun for the engine is not forgotten: the engine asks the lock when it has.
func TestLossOfALocalLockBeforeItHasBegun(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLocalLock(e)
		l.broken = errLocal
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		assert.Len(t, l.lost, 1)
		assert.ErrorIs(t, e.Release(ctx, l, 1), errLocal)
	})
}

// The panic of code of the user during an attempt leaves nothing.
func TestLocalLockIsFreeAfterAPanic(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLocalLock(e)
		l.asked = func() {
			l.field = "client:1:1" // what the attempt has acquired by then
			panic("no")
		}
		assert.Panics(t, func() { _, _ = e.acquire(ctx, l, 1, Request{Wait: forever}) })
		synctest.Wait()
		assert.Empty(t, l.field, "it is rolled back")
		l.asked = func() {}
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		assert.NoError(t, err)
		assert.True(t, ok)
		assert.NoError(t, e.Release(ctx, l, 1))
		assert.Zero(t, e.holds(), "holds that are left")
	})
}

// A refusal tells whether others have the lock.
func TestRefusalOfALocalLockIsBusyOrNot(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLocalLock(e)
		for _, wait := range []time.Duration{0, time.Second} {
			l.refusal = Refusal{Who: "others have it", Wait: 10 * time.Millisecond}
			ok, err := e.acquire(ctx, l, 1, Request{Wait: wait})
			assert.NoError(t, err)
			assert.False(t, ok)
			l.refusal.Cause = errLocal
			_, err = e.acquire(ctx, l, 1, Request{Wait: wait})
			assert.ErrorIs(t, err, errLocal)
		}
		l.refusal.Cause = nil
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		assert.ErrorIs(t, err, ErrBusy)
		assert.ErrorContains(t, err, "others have it")
	})
}
