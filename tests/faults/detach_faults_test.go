package faults

// Detach and Attach whose requests or answers are lost or late.
//
// Rules: a Detach that Redis has not confirmed leaves no ticket and releases the lock; an Attach that gives up leaves
// the detached hold to the next one. No late request makes a second ticket, or revives or touches a hold.

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Rows 1, 2, 5, 6 for both calls: the answer is lost, and the request has run or has not.
func TestFaultLostAnswersOfDetachAndAttach(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
				c := b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
				h := b.Hold(k.One(c, b.LockName))
				rule := b.Proxy.On(locktest.Renames, fault).Times(2)
				ticket := b.Detach(h, time.Minute)
				require.NotZero(b, rule.Count(), "nothing was lost")
				b.Excludes(k.Rival(b.Direct, b.LockName))
				again := b.Proxy.On(locktest.Renames, fault).Times(2)
				attached := b.Attach(c, ticket)
				require.NotZero(b, again.Count(), "nothing was lost")
				b.Excludes(k.Rival(b.Direct, b.LockName))
				_, err := b.Direct.Attach(ctx, ticket)
				b.MustBe(err, ErrNotHeld)
				rule.Release()
				again.Release()
				b.Must(attached.Release(ctx))
				b.Follows(k.Rival(b.Direct, b.LockName))
			})
		})
	}
}

// If Redis does not confirm Detach, there is no ticket, and the lock is free soon, also if the request runs late.
func TestFaultDetachThatIsNotConfirmedReleases(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"late": true, "ran": false} {
		t.Run(name, func(t *testing.T) {
			locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
				c := b.PatientClient()
				h := b.Hold(k.One(c, b.LockName))
				fault := testredis.StallReply
				if late {
					fault = testredis.HoldRequest
				}
				rule := b.Proxy.On(locktest.Renames, fault).Times(testredis.Always)
				ctx, cancel := context.WithCancel(ctx)
				within, got := h.Context(), make(chan error, 1)
				go func() {
					ticket, err := h.Detach(ctx, time.Hour)
					assert.Empty(b, ticket)
					got <- err
				}()
				locktest.Await(b.Bench, "the request is under way", rule.Fired())
				b.Ends(within, ErrDetached) // before Redis answers
				cancel()
				b.MustBe(locktest.Await(b.Bench, "Detach comes back", got), context.Canceled)
				b.Follows(k.Rival(b.Direct, b.LockName))
				ran := b.ScriptRuns()
				rule.Release()
				if late {
					testredis.Await(b, "the late request has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
				}
				b.MustBe(h.Release(context.Background()), ErrNotHeld)
				b.Follows(k.Rival(b.Direct, b.LockName))
			})
		})
	}
}

// An Attach that gives up puts the detached ID back, for the rest of keep, whether its request has run, runs late, or
// is answered late: the ticket works again.
func TestFaultAttachThatGivesUpPutsTheHoldBack(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testredis.Fault{
		"ran": testredis.StallReply, "late": testredis.HoldRequest, "answered late": testredis.DelayReply(2 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
				c := b.PatientClient()
				ticket := b.Detach(b.Hold(k.One(b.Direct, b.LockName)), time.Hour)
				rule := b.Proxy.On(locktest.Renames, fault).Times(1)
				got := gaveUp(b, rule, func(ctx context.Context) error {
					h, err := c.Attach(ctx, ticket)
					assert.Nil(b, h)
					return err
				})
				b.MustBe(locktest.Await(b.Bench, "Attach comes back", got), context.Canceled)
				isBack := func() bool {
					i, err := b.Direct.Inspect(ctx, b.LockName)
					return err == nil && len(i.Holders) == 1 && i.Holders[0].Detached
				}
				testredis.Await(b, "the hold is back", locktest.Soon, isBack)
				if name == "late" {
					again := b.Proxy.On(locktest.Renames, testredis.HoldRequest).Times(testredis.Always)
					ran := b.ScriptRuns()
					rule.Release()
					testredis.Await(b, "the late request has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
					assert.True(b, isBack(), "the late request has attached the hold")
					again.Release()
				}
				testredis.Await(b, "the hold stays back", locktest.Soon, isBack)
				testredis.Await(b, "the lease is the rest of keep", locktest.Soon, func() bool {
					return b.LeaseIn(b.Direct) > 30*time.Minute
				})
				b.Excludes(k.Rival(b.Direct, b.LockName))
				b.Must(b.Attach(b.Direct, ticket).Release(ctx))
				b.Follows(k.Rival(b.Direct, b.LockName))
			})
		})
	}
}

// An Attach that follows one that has given up is not refused because the hold is still being put back: it waits for
// that.
func TestFaultAttachAfterOneThatGaveUpIsNotRefused(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.PatientClient()
		ticket := b.Detach(b.Hold(k.One(b.Direct, b.LockName)), time.Hour)
		attach := b.Proxy.On(locktest.Renames, testredis.StallReply).Times(1)
		back := b.Proxy.On(locktest.Renames, testredis.HoldRequest).Times(1)
		got := gaveUp(b, attach, func(ctx context.Context) error { return locktest.Second(c.Attach(ctx, ticket)) })
		b.MustBe(locktest.Await(b.Bench, "Attach comes back", got), context.Canceled)
		locktest.Await(b.Bench, "the hold is being put back", back.Fired())

		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := c.Attach(ctx, ticket)
		b.MustBe(err, context.DeadlineExceeded)
		again := make(chan *Hold, 1)
		go func() {
			h, err := c.Attach(context.Background(), ticket)
			assert.NoError(b, err)
			again <- h
		}()
		b.Must(locktest.Await(b.Bench, "the next Attach", again).Release(context.Background()))
		b.Follows(k.Rival(b.Direct, b.LockName))
	})
}

// The request that puts the hold back overtakes that of an Attach, and finds nothing to put back. The next Attach of
// the same Client waits until the hold was put back after all.
func TestFaultAttachThatIsOvertakenByItsRollback(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.PatientClient()
		ticket := b.Detach(b.Hold(k.One(b.Direct, b.LockName)), time.Hour)
		attach := b.Proxy.On(locktest.Renames, testredis.HoldRequest).Times(1)
		back := b.Proxy.On(locktest.Renames, testredis.DelayReply(0)).Times(1)
		got := gaveUp(b, attach, func(ctx context.Context) error { return locktest.Second(c.Attach(ctx, ticket)) })
		locktest.Await(b.Bench, "the rollback is under way", back.Fired())
		var err error
		select {
		case err = <-got: // too early
		case <-time.After(50 * time.Millisecond):
		}
		b.Proxy.Latency(20 * time.Millisecond) // so that the next request would arrive before another rollback
		attach.Release()
		if err == nil {
			err = locktest.Await(b.Bench, "Attach comes back", got)
		}
		b.MustBe(err, context.Canceled)
		next, err := c.Attach(ctx, ticket)
		b.Must(err)
		b.Proxy.Latency(0)
		b.Must(next.Release(ctx))
		b.Follows(k.Rival(b.Direct, b.LockName))
	})
}

// A renewal that was under way when a hold was detached, or that runs late, does not touch the detached hold.
func TestFaultLateRenewalOfADetachedHold(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.PatientClient(WithWatchdogTimeout(3 * time.Second))
		h := b.Hold(k.One(c, b.LockName))
		rule := b.Proxy.On(locktest.AnyOf(record.Script("renew"), record.Script("read_renew"), record.Script("semaphore_renew")), testredis.HoldRequest).Times(testredis.Always)
		locktest.Await(b.Bench, "a renewal is under way", rule.Fired())
		ticket := b.Detach(h, time.Second)
		began, ran := time.Now(), b.ScriptRuns()
		rule.Release()
		testredis.Await(b, "the late renewal has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
		if i, err := b.Direct.Inspect(ctx, b.LockName); assert.NoError(b, err) && len(i.Holders) > 0 {
			assert.LessOrEqual(b, i.Holders[0].Remaining, time.Second, "keep is exact")
		}
		b.Follows(k.Rival(b.Direct, b.LockName))
		assert.GreaterOrEqual(b, time.Since(began), time.Second-200*time.Millisecond, "keep is over")
		_, err := c.Attach(ctx, ticket)
		b.MustBe(err, ErrNotHeld)
	})
}

// A late attempt with the old ID acquires nothing after the hold was detached, attached and released.
func TestFaultLateAttemptOfADetachedHold(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.FaultLocks[:6] {
		t.Run(k.Name, func(t *testing.T) {
			b := locktest.NewFaultBench(t)
			rule := b.Proxy.On(k.Takes, testredis.HoldRequest).Times(1)
			h := b.Hold(k.One(b.PatientClient(), b.LockName)) // the second try has acquired it
			ticket := b.Detach(h, time.Minute)
			b.Must(b.Attach(b.Direct, ticket).Release(ctx))
			rolledBack := b.Proxy.On(k.RollsBack, testredis.HoldRequest).Times(testredis.Always)
			ran := b.ScriptRuns()
			rule.Release()
			testredis.Await(b, "the late attempt has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
			assert.Empty(b, b.Records(), "a late attempt has taken a lock")
			rolledBack.Release()
			b.Follows(k.Rival(b.Direct, b.LockName))
		})
	}
}

// While a reader is split off, the others of its entry may leave: the entry is released when that is answered.
func TestFaultReadersLeaveWhileOneIsSplitOff(t *testing.T) {
	b := locktest.NewFaultBench(t)
	c := b.ClientOn(b.Proxy.Client(), WithHandoffWindow(time.Minute))
	l, writer := c.NewRWLock(b.LockName).Read(), b.Direct.NewRWLock(b.LockName).Write()
	holds := []*Hold{b.Hold(l), b.Hold(l), b.Hold(l)}
	rule := b.Proxy.On(locktest.Renames, testredis.DelayRequest(500*time.Millisecond)).Times(2)
	got := make(chan string, 2)
	for _, h := range holds[:2] {
		go func() {
			ticket, err := h.Detach(ctx, time.Minute)
			assert.NoError(b, err)
			got <- ticket
		}()
	}
	locktest.Await(b.Bench, "the request is under way", rule.Fired())
	b.Must(holds[2].Release(ctx))
	one, two := locktest.Await(b.Bench, "the first is detached", got), locktest.Await(b.Bench, "the second is detached", got)
	testredis.Await(b, "the entry of the others is released", locktest.Soon, func() bool {
		i, err := b.Direct.Inspect(ctx, b.LockName)
		return err == nil && len(i.Holders) == 2 && i.Holders[0].Detached && i.Holders[1].Detached
	})
	b.Must(b.Attach(b.Direct, one).Release(ctx))
	b.Excludes(writer)
	b.Must(b.Attach(b.Direct, two).Release(ctx))
	b.Follows(writer)
}

// A reader that was to be split off is not left behind if the request runs late: the entry from which it is split is
// still there.
func TestFaultLateSplitIsRolledBack(t *testing.T) {
	b := locktest.NewFaultBench(t)
	l := b.ClientOn(b.Proxy.Client(), WithHandoffWindow(time.Minute)).NewRWLock(b.LockName).Read()
	h, other := b.Hold(l), b.Hold(l)
	rule := b.Proxy.On(locktest.Renames, testredis.HoldRequest).Times(testredis.Always)
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan error, 1)
	go func() {
		_, err := h.Detach(ctx, time.Hour)
		got <- err
	}()
	locktest.Await(b.Bench, "the request is under way", rule.Fired())
	releases := b.Proxy.On(locktest.Calls(record.Script("read_release")), testredis.DelayReply(0)).Times(testredis.Always)
	cancel()
	b.MustBe(locktest.Await(b.Bench, "Detach comes back", got), context.Canceled)
	testredis.Await(b, "the rollback has run", locktest.Soon, func() bool { return releases.Count() == 4 }) // rollBackOne
	b.Must(other.Context().Err())
	ran := b.ScriptRuns()
	rule.Release()
	testredis.Await(b, "the late request has run, and is rolled back", locktest.Soon, func() bool {
		i, err := b.Direct.Inspect(context.Background(), b.LockName)
		return err == nil && b.ScriptRuns() > ran+2 && len(i.Holders) == 1 && !i.Holders[0].Detached
	})
	b.Must(other.Release(context.Background()))
	b.Follows(b.Direct.NewRWLock(b.LockName).Write())
}

// S2: the attached hold is valid from before the request that was answered.
func TestFaultAttachIsValidFromBeforeTheRequest(t *testing.T) {
	b := locktest.NewFaultBench(t)
	c := b.ClientOn(b.Proxy.Client())
	ticket := b.Detach(b.Hold(b.Direct.NewLock(b.LockName)), time.Minute)
	const late = 500 * time.Millisecond // every answer, so that it is the same if the request is sent again
	b.Proxy.On(locktest.Renames, testredis.DelayReply(late)).Times(testredis.Always)
	attached := b.Attach(c, ticket)
	left := time.Until(locktest.EngineOf(c).Probe().Look(locktest.LockOf(c.NewLock(b.LockName)), locktest.OwnerOf(attached)).LeaseEnds)
	assert.LessOrEqual(b, left, lease.Validity(30*time.Second)-late, "how long it is valid")
	b.Must(attached.Release(ctx))
}
