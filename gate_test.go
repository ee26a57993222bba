//go:build go1.25

package relock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func open(t *ticket) bool {
	select {
	case <-t.turn:
		return true
	default:
		return false
	}
}

// A gate admits one owner at a time. The place of a waiter that gives up passes on, also after its turn has come.
func TestGatePassesAnAbandonedTurnOn(t *testing.T) {
	var g gate
	require.True(t, g.tryEnter(), "an open gate admits an owner")
	require.False(t, g.tryEnter(), "a gate admits one owner")
	first, second := g.enqueue(nil, 1), g.enqueue(nil, 2)
	g.leave()
	require.True(t, open(first), "the first waiter is admitted")
	require.False(t, open(second), "the second waiter waits")
	require.False(t, g.tryEnter(), "no owner overtakes the waiters")
	g.cancel(first) // its ctx ended at the same instant
	require.True(t, open(second), "a turn was lost")
	g.cancel(second)
	require.True(t, g.tryEnter(), "the gate stays shut behind the last waiter")
}

// A waiter whose turn comes at its deadline is admitted or gives up, and the engine forgets a gate without owners.
func TestGateLeavesNothingWhenATurnMeetsTheDeadline(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			wants := func(o owner) []want {
				return []want{{hold: &hold{backend: &fakeLock{e.redis, "x"}, key: holdKey{lockID{name: "x"}, o}}}}
			}
			leave := func(wants []want) {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.leaveAllLocked(wants)
			}
			first, second := wants(1), wants(2)
			_, err := e.enterGates(&patience{ctx: context.Background()}, first)
			require.NoError(t, err)
			time.AfterFunc(time.Second, func() { leave(first) })
			_, err = e.enterGates(&patience{ctx: context.Background(), deadline: time.Now().Add(time.Second)}, second)
			assert.True(t, err == nil || err == errTimeUp, "%v", err)
			synctest.Wait()
			leave(second)
			assert.Empty(t, e.gates, "gates are left behind a waiter that was told %v", err)
		})
	}
}

// endsWhenSeen is a ctx that ends right after the first call of Err.
type endsWhenSeen struct {
	context.Context
	seen atomic.Bool
}

func (c *endsWhenSeen) Err() error {
	if c.seen.CompareAndSwap(false, true) {
		return nil
	}
	return context.Canceled
}

// A Lock whose ctx ends at the moment when its reserve is over returns the error of its ctx. The error
// of a wait time is for a caller that gave one: to Lock it is no error.
func TestGateReportsAnEndedContextAfterTheReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		start := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		wants := func(o owner, names ...string) (all []want) {
			for _, name := range names {
				all = append(all, want{hold: &hold{backend: &fakeLock{e.redis, name}, key: holdKey{lockID{name: name}, o}}})
			}
			return all
		}
		through := func(o owner, name string, from, until time.Duration) {
			go func() {
				at(from)
				mine := wants(o, name)
				_, err := e.enterGates(&patience{ctx: context.Background()}, mine)
				assert.NoError(t, err)
				at(until)
				e.leaveGates(mine, -1)
			}()
		}
		// Each time owner 9 comes through one gate, the other gate is taken. The third time, at 3s,
		// owner 9 keeps x, and waits for y no longer than the reserve.
		through(1, "x", 0, time.Second)
		through(2, "y", 0, 2*time.Second)
		through(3, "x", 700*time.Millisecond, 3*time.Second)
		through(4, "y", 1500*time.Millisecond, 5*time.Second)
		at(500 * time.Millisecond)
		mine := wants(9, "x", "y")
		_, err := e.enterGates(&patience{ctx: &endsWhenSeen{Context: context.Background()}}, mine)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 3*time.Second+reserveTime, time.Since(start), "not when the reserve is over")
		at(6 * time.Second)
	})
}

// A waiter that was turned away from a gate does not drop the gate that has replaced it since.
func TestGateThatReplacesAnotherIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		id := lockID{name: "x"}
		e.mu.Lock()
		defer e.mu.Unlock()
		before := e.gateLocked(id)
		before.tryEnter()
		first := before.enqueue(nil, 1)
		before.enqueue(nil, 2)
		before.turnAway()
		before.leave()
		before.cancel(first)
		e.dropGateLocked(id, before)

		now := e.gateLocked(id)
		now.tryEnter()
		e.dropGateLocked(id, before) // by a waiter that was turned away
		assert.Same(t, now, e.gateLocked(id), "there are two gates of one name")
		now.leave()
		e.dropGateLocked(id, now)
	})
}
