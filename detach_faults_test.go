package relock

// Detach and Attach whose requests or answers are lost or late.
//
// Rules: a Detach that Redis has not confirmed leaves no ticket and releases the lock; an Attach that gives up leaves
// the detached hold to the next one. No late request makes a second ticket, or revives or touches a hold.

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/testredis"
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
func TestFaultAttachThatIsOvertakenByItsRollback(t *testing.T) {
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
		await(b.bench, "the rollback is under way", back.Fired())
		var err error
		select {
		case err = <-got: // too early
		case <-time.After(50 * time.Millisecond):
		}
		b.proxy.Latency(20 * time.Millisecond) // so that the next request would arrive before another rollback
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
			rolledBack := b.proxy.On(k.rollsBack, testredis.HoldRequest).Times(testredis.Always)
			ran := b.scriptRuns()
			rule.Release()
			testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
			assert.Empty(b, b.records(), "a late attempt has taken a lock")
			rolledBack.Release()
			b.follows(k.rival(b.direct, b.name))
		})
	}
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
func TestFaultLateSplitIsRolledBack(t *testing.T) {
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
	testredis.Await(b, "the rollback has run", soon, func() bool { return releases.Count() == 4 }) // rollBackOne
	b.must(other.Context().Err())
	ran := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the late request has run, and is rolled back", soon, func() bool {
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
