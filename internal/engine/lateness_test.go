//go:build go1.25

package engine

// Requests that run late, or whose answers are lost, and that do more than acquire: they extend a lease or rename a
// field. What this process knows of them is in internal/late and in internal/tenancy.
//
// Rules: no request that runs late makes a record shorter than its hold, or longer than its limits. What this means
// after the hold is in lateness_minhold_test.go and lateness_deleted_test.go.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
)

// late makes the n-th request with this verb (from 1) run late.
func runsLate(r *fakeredis.Redis, verb string, n int, f fakeredis.Fault) {
	seen := 0
	r.Set(func() {
		r.Fault = func(v string) (none fakeredis.Fault) {
			if v != verb {
				return none
			}
			if seen++; seen == n {
				return f
			}
			return none
		}
	})
}

// A Detach asks for the rest of MaxHold, and runs late: the detached hold does not outlive MaxHold.
func TestDetachedHoldEndsAtMaxHoldAfterASlowDetach(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 10 * time.Second
		l, end := newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now().Add(most)
		e.take(l, 1)
		time.Sleep(6 * time.Second)
		runsLate(e.redis, "rename", 1, fakeredis.Fault{Late: 900 * time.Millisecond})
		d, _, err := e.Detach(ctx, l, 1, time.Hour)
		require.NoError(t, err)
		assert.Equal(t, d.ID, e.redis.Holder("x"))
		assert.LessOrEqual(t, d.KeepEnd, end.UnixMilli())
		time.Sleep(time.Until(end.Add(10 * time.Millisecond)))
		e.assertFree("the record after MaxHold")
	})
}
