//go:build go1.25

package virtual

// Tests of the validity of a grant, of which a message tells the waiter, in virtual time.
//
// Rules: a grant is valid from when the request was sent that it grants, and not from when its message came. It is used
// only if its lease is as long as the caller wants. Otherwise the caller asks.

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A granting is a waiter for a lock that is held, which is granted to it.
type granting struct {
	*locktest.Virtual
	waiting, held Locker
	link          *bubble.Link // of the waiter
	key           string       // of the record
	got           chan error   // the result of the waiter
	owner         context.Context
}

// onGrants runs test for every lock type that is granted by a message. The waiter has asked with this lease, and is in the
// wait queue.
func onGrants(t *testing.T, lease time.Duration, test func(g *granting)) {
	for _, k := range []struct {
		name, key string
		newLock   func(c *Client) Locker
	}{
		{"lock", "l", func(c *Client) Locker { return c.NewLock("l") }},
		{"fenced", "l", func(c *Client) Locker { return c.NewLock("l", Fenced()) }},
		{"fair", "l", func(c *Client) Locker { return c.NewFairLock("l") }},
		{"write", "l", func(c *Client) Locker { return c.NewRWLock("l").Write() }},
		{"semaphore", "{l}:timeout", func(c *Client) Locker { return c.NewSemaphore("l", 1) }},
	} {
		t.Run(k.name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				holder, _ := v.Client(0, WithHandoffWindow(time.Hour))
				waiter, link := v.Client(0, WithPollInterval(time.Hour))
				g := &granting{v, k.newLock(waiter), k.newLock(holder), link, k.key, make(chan error, 1),
					ContextWithOwner(ctx)}
				g.wait(time.Minute)
				require.NoError(v, g.held.Unlock(g.owner)) // the first release of a hand-off window may leave the lock to all
				require.NoError(v, <-g.got)
				require.NoError(v, g.waiting.Unlock(g.owner))
				g.wait(lease)
				test(g)
			})
		})
	}
}

// wait has the lock held, and the waiter wait for it.
func (g *granting) wait(lease time.Duration) {
	require.NoError(g, g.held.Lock(g.owner))
	go func() { g.got <- g.waiting.LockLease(g.owner, lease) }()
	time.Sleep(100 * time.Millisecond)
}

// inRedis reports whether the record is in Redis.
func (g *granting) inRedis() (there bool) {
	g.Servers[0].Look(func(m *miniredis.Miniredis) { there = m.Exists(g.key) })
	return there
}

// The message of a grant is late: the hold is not valid for longer than its record is in Redis.
func TestGrantIsNotValidFromItsMessage(t *testing.T) {
	const lease = 2 * time.Second
	onGrants(t, lease, func(g *granting) {
		held := func(to, from bool) {
			g.link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{bubble.ToRedis: to, bubble.FromRedis: from} })
		}
		held(true, true)
		require.NoError(g, g.held.Unlock(g.owner))
		granted := time.Now()
		time.Sleep(600 * time.Millisecond)
		assert.Empty(g, g.got)
		held(true, false)
		require.NoError(g, <-g.got, "it is granted by the message: requests are held up")
		held(false, false)
		guarded, err := g.waiting.Guard(g.owner)
		require.NoError(g, err)
		<-guarded.Done()
		assert.True(g, g.inRedis(), "another owner could have acquired the lock before the hold ended")
		assert.Less(g, time.Since(granted), lease)
		assert.ErrorIs(g, context.Cause(guarded), ErrLockLost)
		assert.ErrorIs(g, g.waiting.Unlock(g.owner), ErrLockLost)
	})
}

// A lock is granted for a few seconds at first. A caller that has asked for a longer lease has it when its call returns.
func TestGrantThatIsTooShortIsNotUsed(t *testing.T) {
	const lease = time.Minute
	onGrants(t, lease, func(g *granting) {
		require.NoError(g, g.held.Unlock(g.owner))
		require.NoError(g, <-g.got)
		began := time.Now()
		guarded, err := g.waiting.Guard(g.owner)
		require.NoError(g, err)
		<-guarded.Done()
		assert.InDelta(g, lease, time.Since(began), float64(lease/50))
		assert.True(g, g.inRedis(), "another owner could have acquired the lock before the hold ended")
	})
}

// MaxHold counts from the message of a grant, however long ago the caller has asked.
func TestMaxHoldOfAGrantIsWhole(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		const most = 5 * time.Second
		a, _ := v.Client(0, WithHandoffWindow(time.Hour))
		c, _ := v.Client(0)
		held, waiting, owner := a.NewLock("l"), c.NewLock("l", MaxHold(most)), ContextWithOwner(ctx)
		require.NoError(v, held.Lock(owner))
		got := make(chan error)
		go func() { got <- waiting.Lock(owner) }()
		time.Sleep(3500 * time.Millisecond)
		require.NoError(v, held.Unlock(owner))
		require.NoError(v, <-got)
		began := time.Now()
		guarded, err := waiting.Guard(owner)
		require.NoError(v, err)
		<-guarded.Done()
		assert.InDelta(v, most, time.Since(began), float64(most/20))
	})
}
