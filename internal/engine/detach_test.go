//go:build go1.25

package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// detached locks x, and detaches the hold.
func (e *bubbleEngine) detached(ctx context.Context, keep time.Duration) (Detached, error) {
	e.t.Helper()
	e.lock(1)
	d, ended, err := e.Detach(ctx, newFakeLock(e.redis, "x"), 1, keep)
	assert.True(e.t, ended)
	return d, err
}

func (e *bubbleEngine) attach(ctx context.Context, o Owner, d Detached) error {
	return e.Attach(ctx, newFakeLock(e.redis, "x"), o, d)
}

// renames makes the next requests that rename a field have these faults.
func (e *bubbleEngine) renames(faults ...fakeredis.Fault) {
	e.redis.Set(func() {
		e.redis.Fault = func(verb string) (f fakeredis.Fault) {
			if verb == "rename" && len(faults) > 0 {
				f, faults = faults[0], faults[1:]
			}
			return f
		}
	})
}

// lateAnswer is the fault of a request that runs at once, and is answered after it was sent again.
var lateAnswer = fakeredis.Fault{Answer: 3 * time.Second}

// An answer that comes after a later try has confirmed Detach does not release the detached hold.
func TestLateAnswerToADetachThatIsConfirmedReleasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		e.renames(lateAnswer)
		d, err := e.detached(context.Background(), time.Hour)
		require.NoError(t, err)
		require.Equal(t, 2, e.redis.Count("rename"), "tries")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, d.Field, e.redis.Holder("x"))
		assert.Zero(t, e.redis.Count("release"), "releases")
	})
}

// An answer that comes after a later try has confirmed Attach does not take the hold from its owner.
func TestLateAnswerToAnAttachThatIsConfirmedPutsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		d, err := e.detached(context.Background(), time.Hour)
		require.NoError(t, err)
		e.renames(lateAnswer)
		require.NoError(t, e.attach(context.Background(), 2, d))
		tries := e.redis.Count("rename")
		require.Equal(t, 3, tries, "tries, with that of Detach")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, tries, e.redis.Count("rename"))
		e.unlock(2)
		assert.Empty(t, e.redis.Holder("x"))
	})
}

// Attach acquires nothing if Shutdown begins before its answer has come: the detached hold stays what it was.
func TestAttachDuringShutdownPutsTheHoldBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		d, err := e.detached(context.Background(), time.Hour)
		require.NoError(t, err)
		e.renames(fakeredis.Fault{Answer: 300 * time.Millisecond})
		got := make(chan error, 1)
		go func() { got <- e.attach(context.Background(), 2, d) }()
		synctest.Wait()
		require.NotEqual(t, d.Field, e.redis.Holder("x"), "the request has run")
		e.stopAcquiring()
		assert.ErrorIs(t, <-got, send.ErrClosed)
		time.Sleep(3 * time.Second)
		assert.Equal(t, d.Field, e.redis.Holder("x"))
		assert.Zero(t, e.leases(), "leases")
	})
}

// While one of several calls of Attach that have given up is still undone, the hold is being put back, whichever of
// them is the last.
func TestHoldIsBeingPutBackUntilTheLastAttachIsUndone(t *testing.T) {
	for name, orphans := range map[string][2]int{"the first is the last": {1, 0}, "the second is the last": {1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			d, err := e.detached(context.Background(), time.Hour)
			require.NoError(t, err)
			s := e.retain("x")
			defer s.release()
			began := time.Now()
			for i, pause := range []time.Duration{0, send.ResendTime / 2} {
				time.Sleep(pause)
				x := &attaching{hold: s.attachingHold(newFakeLock(e.redis, "x"), Owner(2+i)), Detached: d}
				x.to, x.orphans = x.field, orphans[i] // an answer that does not come: it is awaited for send.ResendTime
				x.giveUp(context.Background())
				x.unlockHold()
				assert.True(t, e.putBacks.isUnderWay(d.Field), name)
			}
			last := send.ResendTime
			if orphans[1] > 0 {
				last = time.Since(began) + send.ResendTime - send.MinWait
			}
			time.Sleep(last - time.Since(began) - time.Millisecond)
			synctest.Wait()
			assert.True(t, e.putBacks.isUnderWay(d.Field), "%s: just before it is undone", name)
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			assert.False(t, e.putBacks.isUnderWay(d.Field), "%s: after it was undone", name)
		})
	}
}
