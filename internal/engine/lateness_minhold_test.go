//go:build go1.25

package engine

// The record that MinHold leaves, and requests of its hold that run late: see lateness_test.go.
//
// Rule: it expires when MinHold ends, and neither sooner nor later.

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
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/waitgroup"
)

// The record that MinHold leaves does not last longer because a try of an Extend, answered or not, or of a re-entry runs
// late.
func TestMinHoldEndsInTimeAfterALateTry(t *testing.T) {
	for name, c := range map[string]struct {
		verb string
		asks func(ctx context.Context, e *bubbleEngine, l *fakeLock)
	}{
		"Extend": {"renew", func(ctx context.Context, e *bubbleEngine, l *fakeLock) {
			require.NoError(e.t, e.Extend(ctx, l, 1, time.Hour))
		}},
		"Extend without an answer": {"renew", func(ctx context.Context, e *bubbleEngine, l *fakeLock) {
			short, cancel := context.WithTimeout(ctx, time.Second/2)
			defer cancel()
			require.Error(e.t, e.Extend(short, l, 1, time.Hour))
		}},
		"re-entry": {"acquire", func(_ context.Context, e *bubbleEngine, l *fakeLock) { e.take(l, 1, leased(time.Hour)) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
				e.take(l, 1, leased(30*time.Second))
				runsLate(e.redis, c.verb, 1, fakeredis.Fault{Late: 3 * time.Second})
				c.asks(ctx, e, l)
				for range holdCountOf(e.Engine, l, 1) {
					e.giveBack(l, 1)
				}
				time.Sleep(25 * time.Second)
				e.assertFree("the record after MinHold")
			})
		})
	}
}

// A renewal that is under way may give the record a longer lease than the MaxHold of the next owner allows. So the lock is
// released in Redis instead of being handed off.
func TestNoHandoffToMaxHoldWhileARenewalIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour))
		const most = 21 * time.Second
		first, second := newFakeLock(e.redis, "x"), newLimitedLock(e.redis, contract.Limits{Max: most})
		e.take(first, 1)
		got := make(chan time.Time)
		go func() {
			e.take(second, 2)
			got <- time.Now()
		}()
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 500 * time.Millisecond})
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.Equal(t, 1, e.redis.Count("renew"))
		e.giveBack(first, 1)
		begin := <-got
		require.Equal(t, 2, e.redis.Count("acquire"), "it was not handed off")
		time.Sleep(time.Until(begin.Add(most + 50*time.Millisecond)))
		assert.Zero(t, holdCountOf(e.Engine, second, 2))
		e.assertFree("the record after MaxHold")
		_ = e.Release(ctx, second, 2)
	})
}

// A Detach of a hold with MinHold is not confirmed, and runs late: MinHold still ends in time.
func TestMinHoldEndsInTimeAfterALateDetach(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
		e.take(l, 1)
		e.faults(fakeredis.Fault{Ghost: 6 * time.Second}, "rename")
		_, ended, err := e.Detach(ctx, l, 1, time.Hour)
		require.Error(t, err)
		require.True(t, ended)
		time.Sleep(40 * time.Second)
		e.assertFree("the record after MinHold")
	})
}

// The same for a renewal that failed and runs late.
func TestMinHoldEndsInTimeAfterALateRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
		e.take(l, 1)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Ghost: 8 * time.Second})
		time.Sleep(16 * time.Second)
		e.giveBack(l, 1)
		time.Sleep(5 * time.Second)
		e.assertFree("the record after MinHold")
	})
}

// A renewal is under way when a fenced lock is handed off, so that the next owner makes a record of its own with the same
// field. It unlocks at once, and MinHold ends in time.
func TestMinHoldEndsInTimeAfterAHandoffDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour))
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 5 * time.Second})
		l.traits.Fenced, l.traits.DrawsSingly = true, true
		e.take(l, 1)
		got := e.acquiring(ctx, l, 2)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 500 * time.Millisecond})
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.Equal(t, 1, e.redis.Count("renew"))
		e.giveBack(l, 1)
		require.NoError(t, <-got)
		require.Zero(t, e.redis.Count("release"), "it was handed off")
		e.giveBack(l, 2)
		time.Sleep(6 * time.Second)
		e.assertFree("the record after MinHold")
	})
}

// Unlock leaves the record to the rest of MinHold. A try of this request runs late, and would make it last longer.
func TestMinHoldEndsInTimeAfterALateTryOfItsRelease(t *testing.T) {
	for name, f := range map[string]fakeredis.Fault{
		"answered last": {Late: 3 * time.Second}, "lost": {Ghost: 3 * time.Second}, "slow": {Late: 900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				const least = 20 * time.Second
				l, begin := newLimitedLock(e.redis, contract.Limits{MinHold: least}), time.Now()
				e.take(l, 1)
				runsLate(e.redis, "renew", 1, f)
				e.giveBack(l, 1)
				time.Sleep(time.Until(begin.Add(least - 100*time.Millisecond)))
				e.assertHeld("the record before its time is over")
				time.Sleep(400 * time.Millisecond)
				e.assertFree("the record after its time")
			})
		})
	}
}

// A try of the Lock that is answered late, or is heard to have failed, does not end the record before MinHold has
// passed, and does not make it last longer: also if the lock was handed off meanwhile, to an owner whose MinHold it is.
func TestMinHoldIsKeptFromALateTryOfTheLock(t *testing.T) {
	const minHold = 10 * time.Second
	for name, c := range map[string]struct {
		try   fakeredis.Fault // the first one, which is sent again after a second
		works time.Duration   // for how long the first owner holds the lock
		next  bool            // another owner waits for it
	}{
		"granted late":                {fakeredis.Fault{Late: 4 * time.Second}, 0, false},
		"failed late":                 {fakeredis.Fault{Late: 4 * time.Second, Err: io.EOF}, 0, false},
		"granted after a hand-off":    {fakeredis.Fault{Late: 14 * time.Second}, minHold, true},
		"failed after the hand-off":   {fakeredis.Fault{Late: 14 * time.Second, Err: io.EOF}, minHold, true},
		"granted when it has ended":   {fakeredis.Fault{Late: 30 * time.Second}, 0, false},
		"failed when the job is over": {fakeredis.Fault{Late: 30 * time.Second, Err: io.EOF}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour))
				l := newLimitedLock(e.redis, contract.Limits{MinHold: minHold})
				runsLate(e.redis, "acquire", 1, c.try)
				acquire := func(o Owner) {
					e.take(l, o)
				}
				acquire(1)
				var next sync.WaitGroup
				if c.next {
					waitgroup.Go(&next, func() {
						acquire(2)
						e.giveBack(l, 2)
					})
				}
				time.Sleep(c.works)
				synctest.Wait()
				e.giveBack(l, 1)
				next.Wait()
				require.Equal(t, 2, e.redis.Count("acquire"), "two tries of the first owner, and a hand-off")
				time.Sleep(minHold - 2*time.Second)
				e.assertHeld("before MinHold has passed")
				time.Sleep(minHold)
				e.assertFree("after it")
				time.Sleep(time.Minute)
				e.assertFree("later")
			})
		})
	}
}

// There is no tombstone, and a try of the Lock runs after MinHold has passed and the record was deleted. It is rolled
// back, and does not keep the lock for its lease.
func TestTryOfTheLockThatRunsAfterMinHoldIsRolledBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 2 * time.Second})
		runsLate(e.redis, "acquire", 1, fakeredis.Fault{Late: 5 * time.Second})
		e.take(l, 1, leased(time.Hour))
		e.giveBack(l, 1)
		time.Sleep(3 * time.Second)
		e.assertFree("MinHold has passed")
		time.Sleep(3 * time.Second)
		e.assertFree("the late try has the lock for nobody")
		time.Sleep(late.Life)
		e.assertFree()
	})
}

// The message that has granted the lock comes when the hold was released, and MinHold keeps the record: it does not end
// the record sooner. A grant of later that no caller waits for is released, as any other.
func TestMinHoldIsKeptFromALateGrant(t *testing.T) {
	const minHold = 10 * time.Second
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: minHold})
		e.take(l, 1)
		_, field := e.holdBy(l.Traits().ID, 1)
		grant := fmt.Sprintf("grant %s 1 5000 0", field)
		e.giveBack(l, 1)
		e.Probe().HearGrant(l, grant)
		time.Sleep(minHold - time.Second)
		e.assertHeld("before MinHold has passed")
		time.Sleep(2 * time.Second)
		e.assertFree("after it")

		e.redis.Set(func() {
			e.redis.Records["x"] = &fakeredis.Record{Field: field, Levels: 1, Expires: time.Now().Add(time.Hour)}
		})
		e.Probe().HearGrant(l, grant)
		time.Sleep(time.Second)
		e.assertFree("later")
	})
}

// What MinHold keeps is remembered no longer than that.
func TestKeptFieldsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k keptFields
		k.add("client:1:7", time.Second)
		k.add("client:1:100+3", time.Hour)
		assert.True(t, k.has("client:1:7"))
		time.Sleep(2 * time.Second)
		assert.False(t, k.has("client:1:7"))
		assert.True(t, k.has("client:1:102"), "one of its permits")
		assert.False(t, k.has("client:1:103"))
		time.Sleep(time.Hour)
		assert.False(t, k.has("client:1:102"))
	})
}
