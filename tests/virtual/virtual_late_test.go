//go:build go1.25

package virtual

// Tests of Clients that are late for their grants, in virtual time.
//
// Rule: a Client that was late for a grant gets the lock in its next turn, because that grant has the whole lease.

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lateness is a Client that is late in its turns, and two others, each of which holds the lock for some time in turn.
type lateness struct {
	*locktest.Virtual
	link         *bubble.Link // of the Client
	holder, next Locker
	got          chan error // the result of the Client
	ctx          context.Context
	giveUp       func()
	waiting      Locker
}

func onLateness(t *testing.T, test func(l *lateness)) {
	for _, k := range []struct {
		name    string
		newLock func(c *Client) Locker
	}{
		{"lock", func(c *Client) Locker { return c.NewLock("l") }},
		{"fair", func(c *Client) Locker { return c.NewFairLock("l") }},
		{"write", func(c *Client) Locker { return c.NewRWLock("l").Write() }},
		{"semaphore", func(c *Client) Locker { return c.NewSemaphore("l", 1) }},
	} {
		t.Run(k.name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				a, _ := v.Client(0, WithPollInterval(100*time.Millisecond))
				b, _ := v.Client(0, WithPollInterval(100*time.Millisecond))
				link := v.Servers[0].Link("late", 99)
				link.Set(func(c *bubble.Conditions) { c.Latency = 500 * time.Microsecond })
				rdb := redis.NewClient(&redis.Options{
					Addr: bubble.Addr(0), Dialer: link.Dial, DialerRetries: 1, PoolSize: bubble.PoolSize, ReadTimeout: time.Minute,
					MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
				})
				v.Cleanup(func() { assert.NoError(v, rdb.Close()) })
				ctx := ContextWithOwner(ctx)
				l := &lateness{v, link, k.newLock(a), k.newLock(b), make(chan error, 1), ctx, nil, k.newLock(v.ClientOn(rdb))}
				require.NoError(v, l.holder.Lock(ctx))
				waits, giveUp := context.WithCancel(ctx)
				defer giveUp()
				l.giveUp = giveUp
				go func() { l.got <- l.waiting.Lock(waits) }()
				test(l)
			})
		})
	}
}

// turn has the next of the other Clients wait behind the late one, and the holder release the lock. late runs around the
// release, and turn reports whether the Client has got the lock then.
func (l *lateness) turn(hold time.Duration, late func(release func())) (got bool) {
	time.Sleep(hold)
	locked := make(chan error, 1)
	go func() { locked <- l.next.Lock(l.ctx) }()
	time.Sleep(100 * time.Millisecond)
	late(func() { require.NoError(l, l.holder.Unlock(l.ctx)) })
	if len(l.got) == 0 { // it may have got the lock, and lost it to the next one
		select {
		case err := <-l.got:
			l.got <- err
		case err := <-locked:
			require.NoError(l, err)
			l.holder, l.next = l.next, l.holder
			return false
		}
	}
	require.NoError(l, <-l.got)
	_ = l.waiting.Unlock(l.ctx) // its requests may still be slow
	require.NoError(l, <-locked)
	require.NoError(l, l.next.Unlock(l.ctx))
	return true
}

// ends ends the wait of a Client that has got nothing.
func (l *lateness) ends() {
	l.giveUp()
	<-l.got
	require.NoError(l, l.holder.Unlock(l.ctx))
}

// A process hears nothing of Redis for six seconds, twice, in the moment of its turn. The subscription is given up after
// three seconds of silence, and the message of the grant is lost with it.
func TestClientThatIsCutOffInItsTurnGetsTheNextOne(t *testing.T) {
	onLateness(t, func(l *lateness) {
		const turns = 6
		for turn := 1; turn <= turns; turn++ {
			if l.turn(10*time.Second, func(release func()) {
				locktest.Silent(func() {
					release()
					time.Sleep(6 * time.Second)
				}, l.link)
				time.Sleep(time.Second)
			}) {
				assert.LessOrEqual(l, turn, 2, "the turn in which the Client gets the lock")
				return
			}
		}
		assert.Fail(l, "the Client has lost each of its turns")
		l.ends()
	})
}

// The requests of a process take longer than five seconds in its turns, which come more rarely than once in a watchdog
// timeout. It hears of its grants, and confirms each too late.
func TestClientThatIsSlowInItsTurnGetsTheNextOne(t *testing.T) {
	onLateness(t, func(l *lateness) {
		const turns = 6
		for turn := 1; turn <= turns; turn++ {
			if l.turn(2*time.Minute, func(release func()) {
				l.link.Set(func(c *bubble.Conditions) { c.Delayed, c.Late = 1, 5500*time.Millisecond })
				release()
				time.Sleep(8 * time.Second)
				l.link.Set(func(c *bubble.Conditions) { c.Delayed = 0 })
				time.Sleep(3 * time.Second)
			}) {
				assert.LessOrEqual(l, turn, 2, "the turn in which the Client gets the lock")
				return
			}
		}
		assert.Fail(l, "the Client has lost each of its turns")
		l.ends()
	})
}

// A writer has read inside, with a longer lease, which the record keeps. Its Unlock goes on after an outage that is longer
// than its own lease.
func TestUnlockOfAWriterThatHasRead(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, link := v.Client(0, WithWatchdogTimeout(2*time.Second))
		other, _ := v.Client(0)
		rw, owner := c.NewRWLock("rw"), ContextWithOwner(ctx)
		require.NoError(v, rw.Write().Lock(owner))
		require.NoError(v, rw.Read().LockLease(owner, time.Hour))
		require.NoError(v, rw.Read().Unlock(owner))
		locktest.Silent(func() {
			assert.Error(v, rw.Write().Unlock(owner))
			time.Sleep(20 * time.Second)
		}, link)
		ok, err := other.NewRWLock("rw").Read().TryLock(ctx, 10*time.Second, 0)
		assert.NoError(v, err)
		assert.True(v, ok)
	})
}

// Redis is 150 ms away, and answers everything at once: a TryLock whose time is up is told that the lock is busy, and a Lock
// whose context ends, at whatever moment of a request that is.
func TestWaitsForABusyLockOfAFarRedisEndBusy(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		near, _ := v.Client(0)
		far, link := v.Client(0)
		holder := near.NewLock("x")
		require.NoError(v, holder.Lock(ctx))
		link.Set(func(c *bubble.Conditions) { c.Latency = 75 * time.Millisecond })
		l := far.NewLock("x")
		for wait := time.Second; wait < 4*time.Second; wait += 7 * time.Millisecond {
			ok, err := l.TryLock(ctx, wait, 0)
			assert.False(v, ok)
			assert.NoError(v, err, wait)
			limited, cancel := context.WithTimeout(ctx, wait)
			assert.ErrorIs(v, l.Lock(limited), ErrBusy, wait)
			cancel()
		}
		link.Set(func(c *bubble.Conditions) { c.Latency = 0 })
		require.NoError(v, holder.Unlock(ctx))
	})
}
