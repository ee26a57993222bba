//go:build go1.25

package engine

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/report"
)

// A lossLog has the losses that were reported, and what the log gets of them.
type lossLog struct {
	Events

	mu      sync.Mutex // guards below
	losses  int
	lines   int
	omitted int
	at      []time.Time // when the log got each line, also those of how many more there were
}

func (l *lossLog) Report(_ context.Context, v Event) {
	if v.What != Lost {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses++
	if v.Logged {
		l.lines++
		l.at = append(l.at, time.Now())
	}
}

func (l *lossLog) LossesOmitted(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.omitted += n
	l.at = append(l.at, time.Now())
}

// told asserts how many losses there were, and that the log got lines about all of them, but few.
func (l *lossLog) told(t *testing.T, losses int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	assert.Equal(t, losses, l.losses, "losses")
	assert.Equal(t, losses, l.lines+l.omitted, "every loss is logged or counted")
	for i := report.MostLines; i < len(l.at); i++ {
		assert.GreaterOrEqual(t, l.at[i].Sub(l.at[i-report.MostLines]), time.Second, "lines %d to %d", i-report.MostLines, i)
	}
}

// losing makes an engine report losses to l.
func losing(l *lossLog) with {
	return func(c *Config) { l.Events, c.Events = c.Events, l }
}

// Thousands of locks that are lost together, and others after them, are ten lines in a second. The Observer hears of
// each of them.
func TestThousandsOfLossesAreTenLinesASecond(t *testing.T) {
	t.Parallel()
	const holds = 3000
	synctest.Test(t, func(t *testing.T) {
		l, r := new(lossLog), fakeredis.New()
		e := joinBubbleEngine(t, r, "client", losing(l))
		for i := range holds {
			e.lockNamed(fmt.Sprint("lock", i), 1)
			if i%100 == 99 {
				time.Sleep(80 * time.Millisecond) // they are renewed over 2.4s
			}
		}
		r.Set(func() { clear(r.Records) })
		pass(15 * time.Second)
		l.told(t, holds)
		assert.Greater(t, l.lines, report.MostLines, "lines")

		lines := l.lines
		for i := range report.MostLines / 2 {
			e.lockNamed(fmt.Sprint("lock", i), 2)
		}
		r.Set(func() { clear(r.Records) })
		pass(15 * time.Second)
		l.told(t, holds+report.MostLines/2)
		assert.Equal(t, lines+report.MostLines/2, l.lines, "lines about losses that are few")
	})
}

// A Client that is closed a moment after it has lost many locks still logs how many they were.
func TestCloseLogsHowManyLocksWereLost(t *testing.T) {
	t.Parallel()
	const holds = 500
	synctest.Test(t, func(t *testing.T) {
		l, r := new(lossLog), fakeredis.New()
		e := abandonedBubbleEngine(t, r, losing(l))
		for i := range holds {
			e.lockNamed(fmt.Sprint("lock", i), 1)
		}
		r.Set(func() { clear(r.Records) })
		pass(10*time.Second + time.Second/2)
		assert.Equal(t, holds, l.losses)
		assert.Zero(t, l.omitted, "before a second has passed")
		assert.NoError(t, e.Close())
		l.told(t, holds)
		assert.Equal(t, report.MostLines, len(l.at), "lines")
	})
}

// heldForTenSeconds returns a hold with an explicit lease that has ended at this moment. Redis has just run a request
// that extends its record by ten minutes, and the answer is about to be noted.
func heldForTenSeconds(t *testing.T, e *bubbleEngine) *hold {
	t.Helper()
	e.lock(1, leased(10*time.Second))
	h, _ := e.holdBy(contract.LockID{Name: "x"}, 1)
	e.redis.Set(func() { e.redis.Records["x"].Expires = time.Now().Add(10 * time.Minute) })
	mayLast(h, 10*time.Minute, nil)
	synctest.Wait() // the watchdog has looked at the new lease, and sleeps
	h.record.lease.SetValidUntil(e.watchdog.Now())
	return h
}

// The watchdog has found that a lease has ended, and is about to end the hold. An answer that is noted in between does
// not extend the lease: otherwise the hold would be lost, and its record left for as long as the request has asked for.
func TestLeaseThatHasEndedIsNotExtended(t *testing.T) {
	for name, note := range map[string]func(t *testing.T, h *hold){
		"re-entry": func(_ *testing.T, h *hold) {
			again := target{hold: h, Attempt: contract.Attempt{Field: h.Field().ID, HoldCount: 2, Lease: 10 * time.Minute}}
			h.lockState.locked(func() { again.acquiredLocked(Answer{Sent: time.Now()}) })
		},
		"Extend": func(t *testing.T, h *hold) {
			assert.ErrorIs(t, noteExtended(h, time.Now(), 10*time.Minute), ErrLockLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				h := heldForTenSeconds(t, e)
				r := h.record
				e.watchdog.Remove(&r.lease)
				note(t, h)
				r.LeaseEnded(ErrExpired)
				assert.Zero(t, holdCountOf(e.Engine, h.lock, 1), "the hold is not lost")
				time.Sleep(time.Second)
				e.assertFree("nobody holds the lock, and its record is left")
			})
		})
	}
}

// A call has found that the validity of a hold is over, and is about to end the hold. If an Extend of another goroutine
// is answered in between, which makes the hold valid again, the hold is not lost.
func TestHoldThatIsExtendedMeanwhileIsNotLost(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		h := heldForTenSeconds(t, e)
		cause := whyExpired(h)
		require.ErrorIs(t, cause, ErrExpired)
		require.NoError(t, noteExtended(h, time.Now(), 10*time.Minute))
		h.lose(cause)
		time.Sleep(time.Minute)
		assert.Equal(t, 1, holdCountOf(e.Engine, h.lock, 1))
		e.unlock(1)
		e.assertFree()
	})
}

// A renewal has found that the record is gone, or MaxHold is over, and the watchdog is about to end the hold. A re-entry
// and an Extend that are answered in between return the loss, with its cause.
func TestAnswerBesideALossReturnsTheLoss(t *testing.T) {
	again := func(e *bubbleEngine, l contract.Record) error {
		_, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		return err
	}
	extend := func(e *bubbleEngine, l contract.Record) error {
		return e.Extend(ctx, l, 1, time.Minute)
	}
	for name, c := range map[string]struct {
		limits contract.Limits
		lease  time.Duration
		over   bool
		ask    func(e *bubbleEngine, l contract.Record) error
		want   error
	}{
		"re-entry, gone":    {contract.Limits{}, 10 * time.Second, false, again, errGone},
		"re-entry, expired": {contract.Limits{}, 10 * time.Second, true, again, ErrExpired},
		"re-entry, MaxHold": {contract.Limits{Max: 10 * time.Second}, 0, true, again, ErrMaxHold},
		"Extend, gone":      {contract.Limits{}, 10 * time.Second, false, extend, errGone},
		"Extend, expired":   {contract.Limits{}, 10 * time.Second, true, extend, ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newLimitedLock(e.redis, c.limits)
				e.take(l, 1, leased(c.lease))
				h, _ := e.holdBy(l.Traits().ID, 1)
				e.redis.Set(func() {
					e.redis.Fault = func(string) (none fakeredis.Fault) { // while the request is under way
						e.watchdog.Remove(&h.record.lease)
						if c.over {
							h.record.lease.SetValidUntil(e.watchdog.Now())
						}
						return none
					}
				})
				err := c.ask(e, l)
				assert.ErrorIs(t, err, ErrLockLost)
				assert.ErrorIs(t, err, c.want)
				assert.Zero(t, holdCountOf(e.Engine, l, 1))
			})
		})
	}
}

// Some permits of a hold are gone. Redis cannot be reached when the others are to be released: they are released when
// it can be reached again, and not when their lease is over.
func TestRestOfTheLostPermitsIsReleasedAfterAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		l.traits.Admission, l.traits.Several = contract.Counting, 2
		e.take(l, 1, leased(time.Hour))
		h, field := e.holdBy(l.Traits().ID, 1)
		e.faults(fakeredis.Fault{Block: io.ErrUnexpectedEOF})
		h.lose(errGone)
		time.Sleep(3 * UnlockTime)
		require.Equal(t, field, e.redis.Holder("x"))
		e.heal()
		time.Sleep(2 * clearPause)
		e.assertFree()
		assert.ErrorIs(t, e.Release(ctx, l, 1), ErrLockLost)
	})
}
