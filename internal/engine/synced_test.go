//go:build go1.25

package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A syncedRedis has replicas that confirm a request only if it asks for that, and not while they are behind.
type syncedRedis struct {
	*fakeredis.Redis
	behind bool
	asked  map[string][]bool // for each verb, whether its requests have asked for a confirmation
}

func (r *syncedRedis) Run(ctx context.Context, c send.Call, taking bool) (any, error) {
	answer, err := r.Redis.Run(ctx, c, taking)
	verb := c.Args[0].(string)
	r.Set(func() { r.asked[verb] = append(r.asked[verb], taking) })
	if err == nil && taking && r.behind {
		err = send.ErrNotSynced
	}
	return answer, err
}

// inSyncedBubble runs f on an engine whose requests have to be confirmed.
func inSyncedBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine, r *syncedRedis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &syncedRedis{fakeredis.New(), false, make(map[string][]bool)}
		f(t, joinSending(t, r.Redis, "client", send.Config{Transport: r}), r)
	})
}

// Each request after which an owner relies on its hold for longer is confirmed by replicas, and a release is not.
func TestReplicasConfirmWhatAnOwnerReliesOn(t *testing.T) {
	inSyncedBubble(t, func(t *testing.T, e *bubbleEngine, r *syncedRedis) {
		lock := newFakeLock(e.redis, "x")
		for range 2 {
			e.take(lock, 1, Request{Lease: 10 * time.Second})
		}
		require.NoError(t, e.Extend(ctx, lock, 1, time.Minute))
		e.unlock(1)
		e.unlock(1)
		want := map[string][]bool{"acquire": {true, true}, "renew": {true}, "release": {false, false}}
		assert.Equal(t, want, r.asked)
	})
}

// The last Unlock of a hold with MinHold shortens the lease: no replica has to confirm that.
func TestReplicasNeedNotConfirmMinHold(t *testing.T) {
	inSyncedBubble(t, func(t *testing.T, e *bubbleEngine, r *syncedRedis) {
		lock := newLimitedLock(e.redis, contract.Limits{MinHold: time.Second})
		e.take(lock, 1, Request{})
		e.giveBack(lock, 1)
		assert.Equal(t, []bool{false}, r.asked["renew"])
	})
}

// If the replicas have not confirmed an Extend, the hold keeps the lease that it had: after a failover, Redis may not
// know of a longer one. The record, which may last longer, is deleted when the hold has ended.
func TestExtendThatReplicasDoNotConfirmChangesNothing(t *testing.T) {
	inSyncedBubble(t, func(t *testing.T, e *bubbleEngine, r *syncedRedis) {
		lock, begin := newFakeLock(e.redis, "x"), time.Now()
		e.take(lock, 1, Request{Lease: 10 * time.Second})
		guarded := e.guarded(1)
		r.behind = true
		assert.ErrorIs(t, e.Extend(ctx, lock, 1, 10*time.Minute), send.ErrNotSynced)
		require.NoError(t, guarded.Err())
		<-guarded.Done()
		assert.Equal(t, lease.Validity(10*time.Second), time.Since(begin))
		time.Sleep(time.Second)
		e.assertFree()
	})
}
