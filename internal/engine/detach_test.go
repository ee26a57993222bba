//go:build go1.25

package engine

import (
	"context"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/ticket"
)

// detached locks x, and detaches the hold.
func (e *bubbleEngine) detached(ctx context.Context, keep time.Duration) (ticket.Ticket, error) {
	e.t.Helper()
	e.lock(1)
	d, ended, err := e.Detach(ctx, newFakeLock(e.redis, "x"), 1, keep)
	assert.True(e.t, ended)
	return d, err
}

// mustDetach is detached, which Redis confirms.
func (e *bubbleEngine) mustDetach(keep time.Duration) ticket.Ticket {
	e.t.Helper()
	d, err := e.detached(ctx, keep)
	require.NoError(e.t, err)
	return d
}

func (e *bubbleEngine) attach(ctx context.Context, o Owner, d ticket.Ticket) error {
	return e.Attach(ctx, newFakeLock(e.redis, "x"), o, d)
}

// renames makes the next requests that rename a field have these faults.
func (e *bubbleEngine) renames(faults ...fakeredis.Fault) {
	e.fail(func(verb string) (f fakeredis.Fault) {
		if verb == "rename" && len(faults) > 0 {
			f, faults = faults[0], faults[1:]
		}
		return f
	})
}

// lateAnswer is the fault of a request that runs at once, and is answered after it was sent again.
var lateAnswer = fakeredis.Fault{Answer: 3 * time.Second}

// An answer that comes after a later try has confirmed Detach does not release the detached hold.
func TestLateAnswerToADetachThatIsConfirmedReleasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		e.renames(lateAnswer)
		d := e.mustDetach(time.Hour)
		require.Equal(t, 2, e.redis.Count("rename"), "tries")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, d.ID, e.redis.Holder("x"))
		assert.Zero(t, e.redis.Count("release"), "releases")
	})
}

// An answer that comes after a later try has confirmed Attach does not take the hold from its owner.
func TestLateAnswerToAnAttachThatIsConfirmedPutsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		d := e.mustDetach(time.Hour)
		e.renames(lateAnswer)
		require.NoError(t, e.attach(ctx, 2, d))
		tries := e.redis.Count("rename")
		require.Equal(t, 3, tries, "tries, with that of Detach")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, tries, e.redis.Count("rename"))
		e.unlock(2)
		e.assertFree()
	})
}

// Attach acquires nothing if Shutdown begins before its answer has come: the detached hold stays what it was.
func TestAttachDuringShutdownPutsTheHoldBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		d := e.mustDetach(time.Hour)
		e.renames(fakeredis.Fault{Answer: 300 * time.Millisecond})
		got := later(func() error { return e.attach(ctx, 2, d) })
		synctest.Wait()
		require.NotEqual(t, d.ID, e.redis.Holder("x"), "the request has run")
		e.stopAcquiring()
		assert.ErrorIs(t, <-got, send.ErrClosed)
		time.Sleep(3 * time.Second)
		assert.Equal(t, d.ID, e.redis.Holder("x"))
		assert.Zero(t, e.leases(), "leases")
	})
}

// An Attach was given up, and Redis cannot be reached for longer than a watchdog timeout. The request runs when Redis
// continues. The hold is put back then, and the ticket can be used again.
func TestAttachThatRunsAfterAnOutageIsPutBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		d := e.mustDetach(time.Hour)
		outage, tries := e.WatchdogTimeout+15*time.Second, 0
		end := time.Now().Add(outage)
		e.fail(func(string) fakeredis.Fault {
			tries++
			switch {
			case !time.Now().Before(end):
				return fakeredis.Fault{}
			case tries == 1:
				return fakeredis.Fault{Ghost: outage}
			}
			return fakeredis.Fault{Block: io.ErrUnexpectedEOF}
		})
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.Error(t, e.attach(ctx, 2, d))
		time.Sleep(time.Until(end) + 2*UnlockTime)
		assert.Equal(t, d.ID, e.redis.Holder("x"))
		require.NoError(t, e.attach(context.Background(), 3, d))
		e.unlock(3)
	})
}

// An Attach that is refused while an earlier try of it is under way puts back what that try renames: the detached hold
// may be there again by then.
func TestAttachThatIsRefusedPutsBackWhatALateTryRenames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		d := e.mustDetach(time.Hour)
		holds := func(field string) { e.redis.Set(func() { e.redis.Record("x").Field = field }) }
		holds("a field of another process")
		e.renames(fakeredis.Fault{Late: 3 * time.Second})
		assert.ErrorIs(t, e.attach(ctx, 2, d), ErrNotHeld)
		require.Equal(t, "a field of another process", e.redis.Holder("x"))
		holds(d.ID) // the other process has given up
		tries := e.redis.Count("rename")
		time.Sleep(10 * time.Second)
		assert.Greater(t, e.redis.Count("rename"), tries, "the late try is rolled back")
		assert.Equal(t, d.ID, e.redis.Holder("x"))
	})
}

// An Attach that is answered when too little of its lease is left asks again.
func TestAttachAsksAgainIfTooLittleOfTheLeaseIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWatchdogTimeout(2*time.Second))
		d := e.mustDetach(time.Hour)
		e.renames(fakeredis.Fault{Answer: 1500 * time.Millisecond}, lateAnswer)
		require.NoError(t, e.attach(ctx, 2, d))
		assert.Equal(t, 4, e.redis.Count("rename"), "the requests: of Detach, two that are slow, and one more")
		e.holdOf(newFakeLock(e.redis, "x").Traits().ID, 2, func(h *hold) {
			assert.Greater(t, e.watchdog.Left(&h.record.lease), time.Second, "what is left of the lease")
		})
		time.Sleep(time.Minute)
		e.unlock(2)
	})
}

// An exitingTransport ends the goroutine that sends the next request when exits is set, as a hook of the Redis client
// can.
type exitingTransport struct {
	*fakeredis.Redis
	exits atomic.Bool
}

func (t *exitingTransport) Run(ctx context.Context, c send.Call, first bool) (any, error) {
	answer, err := t.Redis.Run(ctx, c, first)
	if t.exits.CompareAndSwap(true, false) {
		runtime.Goexit()
	}
	return answer, err
}

// An Attach whose goroutine a hook of the Redis client ends may have renamed the field: it puts the hold back.
func TestAttachWhoseGoroutineEndsPutsTheHoldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &exitingTransport{Redis: fakeredis.New()}
		e := joinSending(t, r.Redis, "client", fakeredis.Prompt(r))
		d := e.mustDetach(time.Hour)
		r.exits.Store(true)
		go func() {
			_ = e.attach(ctx, 2, d)
			assert.Fail(t, "the goroutine has not ended")
		}()
		time.Sleep(3 * time.Second)
		assert.Equal(t, d.ID, e.redis.Holder("x"))
		require.NoError(t, e.attach(ctx, 2, d))
		e.unlock(2)
	})
}

// A Detach whose goroutine a hook ends returns no ticket: the lock is released.
func TestDetachWhoseGoroutineEndsReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &exitingTransport{Redis: fakeredis.New()}
		e := joinSending(t, r.Redis, "client", fakeredis.Prompt(r))
		l := newFakeLock(e.redis, "x")
		e.take(l, 1)
		e.fail(func(verb string) fakeredis.Fault {
			r.exits.Store(verb == "rename")
			return fakeredis.Fault{}
		})
		go func() {
			_, _, _ = e.Detach(ctx, l, 1, time.Hour)
			assert.Fail(t, "the goroutine has not ended")
		}()
		time.Sleep(5 * time.Second)
		assert.Positive(t, e.redis.Count("rename"))
		e.assertFree()
	})
}

// MaxHold leaves so little of the lease that no renewal will make it longer: a grant of which more than a quarter is
// left is kept, because another request would not help. With less the hold would be of hardly any use.
func TestAttachKeepsALeaseThatMaxHoldHasCut(t *testing.T) {
	for name, of := range map[string]struct {
		answer   time.Duration
		requests int
	}{"a third is left": {650 * time.Millisecond, 1}, "hardly any is left": {850 * time.Millisecond, 2}} {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			d := e.mustDetach(time.Hour)
			before := e.redis.Count("rename")
			d.MaxEnd = time.Now().Add(time.Second).UnixMilli()
			e.renames(fakeredis.Fault{Answer: of.answer})
			_ = e.attach(ctx, 2, d)
			assert.Equal(t, of.requests, e.redis.Count("rename")-before, name)
			time.Sleep(time.Minute)
			_ = e.Release(ctx, newFakeLock(e.redis, "x"), 2)
		})
	}
}

// An Attach that finds no detached field, while another one of the process that has given up does not end, waits for it,
// and no longer than an Unlock.
func TestAttachWaitsForAHoldThatIsPutBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		d := e.mustDetach(time.Hour)
		e.redis.Set(func() { e.redis.Record("x").Field = "that of an Attach that has given up" })
		e.late.Left(d.ID, returns, 1, false)
		began := time.Now()
		assert.ErrorIs(t, e.attach(ctx, 2, d), errPutBack)
		assert.Equal(t, UnlockTime, time.Since(began))
		e.late.Heard(d.ID, returns, true)
		e.deleteRecord()
	})
}

// unlockingEvents unlocks each lock when it is acquired.
type unlockingEvents struct {
	logged
	unlock func(ctx context.Context, o Owner)
}

func (e unlockingEvents) Report(ctx context.Context, v Event) {
	if v.What == Acquired {
		e.unlock(ctx, v.Owner)
	}
}

// When Acquired is reported, other goroutines of the owner can use the hold, however it was acquired.
func TestHoldCanBeUsedWhenAcquiredIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		giving := joinBubbleEngine(t, r, "another client")
		var e *bubbleEngine
		e = joinBubbleEngine(t, r, "client", func(c *Config) {
			c.Observed = true
			c.Events = unlockingEvents{logged{c.Log}, func(ctx context.Context, o Owner) {
				began := time.Now()
				assert.NoError(t, e.Release(ctx, newFakeLock(r, "x"), o))
				assert.Zero(t, time.Since(began), "the wait for the owner mutex")
			}}
		})
		e.lock(2)
		d := giving.mustDetach(time.Hour)
		require.NoError(t, e.attach(ctx, 2, d))
		assert.Empty(t, r.Holder("x"))
	})
}
