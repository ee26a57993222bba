//go:build go1.25

package engine

// The record that MinHold leaves, and requests of its hold that run late: see lateness_test.go.
//
// Rule: it does not expire before MinHold ends, and a request that runs after the release prolongs it by no more than the
// lease that the request sets.

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

// A request that runs after the release makes the record last for the lease that it sets, and no longer: one of the Lock, of an
// Extend or a re-entry, a renewal, or another try of the release itself. The record does not end sooner, either.
func TestRequestThatRunsLateProlongsMinHoldByItsLease(t *testing.T) {
	const least, renewed = 20 * time.Second, 30 * time.Second
	nothing := func(*bubbleEngine, *fakeLock) {}
	for name, c := range map[string]struct {
		verb  string
		late  fakeredis.Fault
		lease time.Duration // that it sets
		asks  func(e *bubbleEngine, l *fakeLock)
	}{
		"Extend": {"renew", fakeredis.Fault{Late: 3 * time.Second}, time.Hour, func(e *bubbleEngine, l *fakeLock) {
			require.NoError(e.t, e.Extend(ctx, l, 1, time.Hour))
		}},
		"Extend without an answer": {"renew", fakeredis.Fault{Late: 3 * time.Second}, time.Hour, func(e *bubbleEngine, l *fakeLock) {
			short, cancel := context.WithTimeout(ctx, time.Second/2)
			defer cancel()
			require.Error(e.t, e.Extend(short, l, 1, time.Hour))
		}},
		"re-entry": {"acquire", fakeredis.Fault{Late: 3 * time.Second}, time.Hour, func(e *bubbleEngine, l *fakeLock) {
			e.take(l, 1, leased(time.Hour))
		}},
		"renewal": {"renew", fakeredis.Fault{Ghost: 8 * time.Second}, renewed, func(e *bubbleEngine, l *fakeLock) {
			e.take(l, 1)
			time.Sleep(16 * time.Second)
		}},
		"renewal under way": {"renew", fakeredis.Fault{Late: 700 * time.Millisecond}, renewed, func(e *bubbleEngine, l *fakeLock) {
			e.take(l, 1)
			time.Sleep(10*time.Second + 100*time.Millisecond)
		}},
		"release":      {"renew", fakeredis.Fault{Late: 3 * time.Second}, least, nothing},
		"lost release": {"renew", fakeredis.Fault{Ghost: 3 * time.Second}, least, nothing},
		"slow release": {"renew", fakeredis.Fault{Late: 900 * time.Millisecond}, least, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l, begin := newLimitedLock(e.redis, contract.Limits{MinHold: least}), time.Now()
				e.take(l, 1, leased(renewed))
				runsLate(e.redis, c.verb, 1, c.late)
				c.asks(e, l)
				for range holdCountOf(e.Engine, l, 1) {
					e.giveBack(l, 1)
				}
				runs := time.Now().Add(c.late.Late + c.late.Ghost)
				time.Sleep(time.Until(begin.Add(least - 100*time.Millisecond)))
				e.assertHeld("the record before its time is over")
				time.Sleep(time.Until(runs.Add(c.lease + 100*time.Millisecond)))
				e.assertFree("the record after the lease")
			})
		})
	}
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

// A try of the Lock that is answered late, or is heard to have failed, does not end the record before MinHold has
// passed, and makes it last for a lease at most: also if the lock was handed off meanwhile, to an owner whose MinHold it is.
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
				time.Sleep(6*time.Second + e.WatchdogTimeout)
				e.assertFree("after a lease")
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

// A renewal that failed runs late, when the release has set the lease: the record is deleted when MinHold is over.
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
