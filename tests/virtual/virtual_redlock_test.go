//go:build go1.25

package virtual

// RedLocks in virtual time: see virtual_test.go.
//
// Rules: a RedLock is held as long as a majority of its nodes is, and a loss is reported once, to the owner it concerns.
// Nodes on one Redis are refused. A waiter asks again when its subscription is in force.

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// has returns on how many servers the key exists.
func has(v *locktest.Virtual, key string) (n int) {
	for _, s := range v.Servers {
		s.Look(func(m *miniredis.Miniredis) {
			if m.Exists(key) {
				n++
			}
		})
	}
	return n
}

// nodes returns a Client of each of three servers, with its link, and its lock l.
func nodes(v *locktest.Virtual, opts ...Option) (clients []*Client, links []*bubble.Link, locks []Locker) {
	for i := range 3 {
		c, link := v.Client(i, opts...)
		clients, links, locks = append(clients, c), append(links, link), append(locks, c.NewLock("l"))
	}
	return clients, links, locks
}

// What the owner of a RedLock has at a node by itself is the hold of another owner, and the other way around. The RedLock
// is acquired without that node, and acquires it at a renewal once it is free. The owner is told of the loss of its own
// hold there, once, and its calls on the node do not touch what the RedLock has.
func TestRedLockLeavesTheHoldOfItsOwnerAtANode(t *testing.T) {
	for name, several := range map[string]bool{"one lock": false, "several that are acquired together": true} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(ctx)
				l, locks := v.RedLock()
				first := locks[0]
				next := first
				if c := locktest.ClientOf(first.(*Lock)); several {
					next = c.NewMultiLock(first, c.NewLock("other"))
				}
				require.NoError(v, first.Lock(ctx))
				require.NoError(v, first.Lock(ctx))
				require.NoError(v, l.Lock(ctx))
				require.NoError(v, locktest.Second(first.ForceUnlock(ctx)))
				require.Equal(v, 2, has(v, "l"), "nodes of the RedLock")
				time.Sleep(11 * time.Second)
				require.Equal(v, 3, has(v, "l"), "the RedLock has its first node, too")
				require.ErrorIs(v, locktest.Second(first.Guard(ctx)), ErrLockLost)
				require.ErrorIs(v, first.Unlock(ctx), ErrLockLost)
				require.ErrorIs(v, next.Lock(ctx), ErrLockLost)
				require.ErrorIs(v, locktest.Second(next.TryLock(ctx, time.Minute, 0)), ErrInvalid, "it would wait for itself")
				ok, err := next.TryLock(ctx, 0, 0)
				require.NoError(v, err)
				require.False(v, ok)
				require.ErrorIs(v, first.Unlock(ctx), ErrNotHeld)
				n, err := l.HoldCount(ctx)
				require.NoError(v, err)
				require.Equal(v, 1, n)
				require.Equal(v, 3, has(v, "l"), "nodes")
				require.NoError(v, l.Unlock(ctx))
				require.NoError(v, next.Lock(ctx))
				require.NoError(v, next.Unlock(ctx))
			})
		})
	}
}

// Whoever would wait for itself gets ErrInvalid: the owner of a RedLock that locks one of its nodes, or that has a
// majority of the nodes of a RedLock by itself or through another one. A call that does not wait finds the lock busy, and
// other owners wait.
func TestRedLockOwnerDoesNotWaitForItself(t *testing.T) {
	for name, c := range map[string]struct {
		held func(l *RedLock, locks []Locker, c []*Client) []Locker // what the owner holds
		asks func(l *RedLock, locks []Locker, c []*Client) Locker   // what it asks for then
		busy bool                                                   // and does not get
	}{
		"a node of its RedLock": {
			func(l *RedLock, _ []Locker, _ []*Client) []Locker { return []Locker{l} },
			func(_ *RedLock, locks []Locker, _ []*Client) Locker { return locks[1] },
			true,
		},
		"a node of its RedLock, in a MultiLock": {
			func(l *RedLock, _ []Locker, _ []*Client) []Locker { return []Locker{l} },
			func(_ *RedLock, locks []Locker, c []*Client) Locker {
				return c[0].NewMultiLock(locks[1], c[0].NewLock("z"))
			},
			true,
		},
		"a RedLock of its locks": {
			func(_ *RedLock, locks []Locker, _ []*Client) []Locker { return locks[:2] },
			func(l *RedLock, _ []Locker, _ []*Client) Locker { return l },
			true,
		},
		"a RedLock with one of its locks": {
			func(_ *RedLock, locks []Locker, _ []*Client) []Locker { return locks[:1] },
			func(l *RedLock, _ []Locker, _ []*Client) Locker { return l },
			false,
		},
		"a RedLock that shares a majority": {
			func(l *RedLock, _ []Locker, _ []*Client) []Locker { return []Locker{l} },
			func(_ *RedLock, locks []Locker, c []*Client) Locker {
				return c[1].NewRedLock(locks[0], locks[1], c[2].NewLock("z"))
			},
			true,
		},
		"a RedLock that shares a node": {
			func(l *RedLock, _ []Locker, _ []*Client) []Locker { return []Locker{l} },
			func(_ *RedLock, locks []Locker, c []*Client) Locker {
				return c[1].NewRedLock(locks[0], c[1].NewLock("z"), c[2].NewLock("z"))
			},
			false,
		},
		"a RedLock of MultiLocks": {
			func(l *RedLock, _ []Locker, _ []*Client) []Locker { return []Locker{l} },
			func(_ *RedLock, locks []Locker, c []*Client) Locker {
				many := func(i int) Locker { return c[i].NewMultiLock(locks[i], c[i].NewLock("z")) }
				return c[0].NewRedLock(many(0), many(1), many(2))
			},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx, other := ContextWithOwner(ctx), ContextWithOwner(ctx)
				clients, _, locks := nodes(v)
				l := clients[0].NewRedLock(locks...)
				held, asks := c.held(l, locks, clients), c.asks(l, locks, clients)
				for _, h := range held {
					require.NoError(v, h.Lock(ctx))
				}
				time.Sleep(time.Second)
				ok, err := asks.TryLock(ctx, 0, 0)
				assert.NoError(v, err)
				assert.Equal(v, !c.busy, ok)
				if ok {
					require.NoError(v, asks.Unlock(ctx))
				} else {
					long, cancel := context.WithTimeout(ctx, time.Minute)
					start := time.Now()
					for range 2 {
						_, err = asks.TryLock(ctx, time.Minute, 0)
						for _, err := range []error{err, asks.Lock(long), asks.LockLease(long, time.Minute)} {
							assert.ErrorIs(v, err, ErrInvalid)
							assert.ErrorContains(v, err, "would wait for itself")
						}
					}
					cancel()
					assert.Less(v, time.Since(start), time.Second)
				}
				short, cancel := context.WithTimeout(other, time.Second)
				if err = asks.Lock(short); c.busy {
					assert.ErrorIs(v, err, ErrBusy, "another owner")
				} else {
					assert.NoError(v, err)
					require.NoError(v, asks.Unlock(other))
				}
				cancel()
				for _, h := range held {
					require.NoError(v, h.Unlock(ctx))
				}
				time.Sleep(time.Second)
				require.NoError(v, asks.Lock(ctx))
				require.NoError(v, asks.Unlock(ctx))
			})
		})
	}
}

// A majority grants a RedLock while its last attempt waits for answers. The caller has it, although its time is up before
// another node has answered.
func TestRedLockThatIsWonInTimeIsHeldAtTheEndOfTheWait(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		_, links, locks := nodes(v, WithRedLockNodeTimeout(time.Second))
		c, _ := v.Client(0)
		l := c.NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		require.NoError(v, l.Unlock(ctx))
		links[1].Set(func(c *bubble.Conditions) { c.Latency = send.MinWait * 3 / 8 }) // a majority after three quarters
		locktest.Silent(func() {
			ok, err := l.TryLock(ctx, send.MinWait/2, 0)
			assert.NoError(v, err)
			assert.True(v, ok)
		}, links[2])
		assert.NoError(v, l.Unlock(ctx))
	})
}

// A RedLock with a short explicit lease waits for the answers of its nodes for as long as they are of use, and says so if
// they take longer. Its servers are all up, and not slower than a plain lock with this lease can bear.
func TestRedLockWithAShortLeaseIsAcquiredFromSlowServers(t *testing.T) {
	const lease = 50 * time.Millisecond
	for name, c := range map[string]struct {
		latency  time.Duration
		acquired bool
	}{
		"less than half of the lease": {lease / 5, true},
		"more than half of the lease": {lease * 3 / 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx, cancel := context.WithTimeout(ContextWithOwner(ctx), 10*time.Second)
				defer cancel()
				_, links, locks := nodes(v)
				client, _ := v.Client(0)
				l := client.NewRedLock(locks...)
				require.NoError(v, l.Lock(ctx)) // all are connected
				require.NoError(v, l.Unlock(ctx))
				for _, link := range links {
					link.Set(func(conditions *bubble.Conditions) { conditions.Latency = c.latency })
				}
				start := time.Now()
				err := l.LockLease(ctx, lease)
				if c.acquired {
					require.NoError(v, err)
					assert.Less(v, time.Since(start), lease/2)
					_ = l.Unlock(ctx) // its lease may be over
					return
				}
				assert.ErrorIs(v, err, context.DeadlineExceeded)
				assert.ErrorContains(v, err, "no answer within the part of the lease")
				assert.NotContains(v, err.Error(), "WithRedLockNodeTimeout")
			})
		})
	}
}

// A RedLock waits for its subscriptions at several nodes. The lock is released before they are in force, and the first
// one never is, because its node does not answer any more. The waiter asks again soon, and not at the poll interval.
func TestRedLockAsksAgainWhenItsFirstSubscriptionIsNotAnswered(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		holder, _ := v.RedLock()
		_, links, locks := nodes(v, WithRedLockNodeTimeout(time.Second))
		c, _ := v.Client(0, WithPollInterval(time.Hour))
		l := c.NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		require.NoError(v, l.Unlock(ctx))
		require.NoError(v, holder.Lock(ctx))
		for _, link := range links[1:] { // the attempt has ended after 200 ms, and they are subscribed after 400 ms
			link.Set(func(c *bubble.Conditions) { c.Latency = 100 * time.Millisecond })
		}
		start := time.Now()
		got := make(chan error)
		go func() { got <- l.Lock(ctx) }()
		time.Sleep(150 * time.Millisecond)
		locktest.Silent(func() {
			require.NoError(v, holder.Unlock(ctx))
			require.NoError(v, <-got)
			assert.Less(v, time.Since(start), 2*time.Second)
		}, links[0])
		require.NoError(v, l.Unlock(ctx))
	})
}

// A RedLock waits for its subscriptions at two nodes that others hold, and has been granted a third one. The lock of the
// second node is released before the subscription there is in force: the waiter asks again as soon as it is, and not at
// the poll interval.
func TestRedLockAsksAgainOnceItIsSubscribed(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		_, _, held := nodes(v)
		_, links, locks := nodes(v)
		c, _ := v.Client(0, WithPollInterval(time.Hour))
		l := c.NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx)) // all are connected
		require.NoError(v, l.Unlock(ctx))
		require.NoError(v, held[0].Lock(ctx))
		require.NoError(v, held[1].Lock(ctx))

		links[1].Set(func(c *bubble.Conditions) { c.Refused = true }) // so that there is no connection to subscribe on
		got := make(chan error)
		go func() { got <- l.Lock(ctx) }()
		time.Sleep(2 * time.Second)
		require.NoError(v, held[1].Unlock(ctx))
		links[1].Set(func(c *bubble.Conditions) { c.Refused = false })
		start := time.Now()
		require.NoError(v, <-got)
		assert.Less(v, time.Since(start), 2*time.Second, "after it could subscribe")
		require.NoError(v, l.Unlock(ctx))
		require.NoError(v, held[0].Unlock(ctx))
	})
}

// A Client with nodes of a RedLock shuts down. It renews the nodes until their holders have finished, so the RedLock is
// held until its Unlock, although the guards of the nodes have ended.
func TestRedLockIsHeldWhileTheClientsOfItsNodesShutDown(t *testing.T) {
	newRedLock := func(c []*Client) *RedLock {
		return c[0].NewRedLock(c[0].NewLock("l"), c[1].NewLock("l"), c[2].NewLock("l"))
	}
	for name, c := range map[string]struct {
		newLock func(c []*Client) *RedLock
		leaving int // how many of the Clients shut down
		down    int // how many of the nodes do not answer
	}{
		"its own Client":     {newRedLock, 1, 1},
		"all Clients":        {newRedLock, 3, 0},
		"nodes, not its own": {func(c []*Client) *RedLock { return newRedLock([]*Client{c[2], c[1], c[0]}) }, 2, 0},
		"MultiLocks": {func(c []*Client) *RedLock {
			many := func(i int) Locker { return c[0].NewMultiLock(c[i].NewLock("l"), c[i].NewLock("m")) }
			return c[0].NewRedLock(many(0), many(1), many(2))
		}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(ctx)
				clients, links, _ := nodes(v)
				l := c.newLock(clients)
				other, _ := v.RedLock()
				locktest.Refusing(func() {
					require.NoError(v, l.Lock(ctx))
					time.Sleep(time.Second)
					ended := make(chan error)
					for _, client := range clients[:c.leaving] {
						go func() { ended <- client.Shutdown(ctx) }()
					}
					time.Sleep(time.Minute)
					assert.Equal(v, 3-c.down, has(v, "l"))
					ok, err := other.TryLock(context.Background(), 0, 0)
					assert.NoError(v, err)
					assert.False(v, ok)
					assert.NoError(v, l.Unlock(ctx))
					for range c.leaving {
						assert.NoError(v, <-ended)
					}
					assert.Zero(v, has(v, "l"))
				}, links[3-c.down:]...)
			})
		})
	}
}

// A RedLock is lost as soon as too many Clients of its nodes are closed, also at the end of a Shutdown that has waited
// for it. The Client of a MultiLock counts, too.
func TestRedLockIsLostWhenTheClientsOfItsNodesAreClosed(t *testing.T) {
	const waits = time.Minute
	for name, c := range map[string]struct {
		end   func(c *Client) error
		at    time.Duration
		multi bool
	}{
		"close": {end: (*Client).Close},
		"shutdown": {end: func(c *Client) error {
			ctx, cancel := context.WithTimeout(ctx, waits)
			defer cancel()
			return c.Shutdown(ctx)
		}, at: waits},
		"MultiLock": {end: (*Client).Close, multi: true},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(ctx)
				var locks []Locker
				var clients []*Client
				for i := range 3 {
					client, _ := v.Client(i)
					lock := Locker(client.NewLock("l"))
					if c.multi {
						client, _ = v.Client(i)
						lock = client.NewMultiLock(lock)
					}
					locks, clients = append(locks, lock), append(clients, client)
				}
				home, _ := v.Client(0, WithWatchdogTimeout(time.Hour))
				l := home.NewRedLock(locks...)
				require.NoError(v, l.Lock(ctx))
				time.Sleep(time.Second)
				guarded, err := l.Guard(ctx)
				require.NoError(v, err)
				start := time.Now()
				for _, client := range clients[1:] {
					go func() { _ = c.end(client) }()
				}
				<-guarded.Done()
				assert.InDelta(v, c.at, time.Since(start), float64(time.Second))
				assert.ErrorIs(v, context.Cause(guarded), ErrLockLost)
				assert.ErrorIs(v, l.Unlock(ctx), ErrLockLost)
			})
		})
	}
}

// guardedRedLock returns a RedLock whose own next renewal is far away, and its guard. The owner of ctx holds it. The
// Clients are those of its nodes.
func guardedRedLock(ctx context.Context, v *locktest.Virtual) (clients []*Client, l *RedLock, guarded context.Context) {
	clients, _, locks := nodes(v)
	home, _ := v.Client(0, WithWatchdogTimeout(time.Hour))
	l = home.NewRedLock(locks...)
	require.NoError(v, l.Lock(ctx))
	time.Sleep(time.Second)
	guarded, err := l.Guard(ctx)
	require.NoError(v, err)
	return clients, l, guarded
}

// The Clients of the nodes of a RedLock shut down before its own one, and lose the nodes before it is released. They go on
// for other holds, and so do the guards of the nodes. The RedLock is lost all the same, long before its own next renewal.
func TestRedLockIsLostWithNodesWhoseClientsShutDown(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		clients, l, guarded := guardedRedLock(ctx, v)
		var others []*Hold
		ended := make(chan error)
		for _, client := range clients {
			other, err := client.NewLock(client.ID()).Acquire(ctx)
			require.NoError(v, err)
			others = append(others, other)
			go func() { ended <- client.Shutdown(ctx) }()
		}
		time.Sleep(time.Minute)
		require.NoError(v, guarded.Err())
		start := time.Now()
		for _, s := range v.Servers[1:] {
			s.Look(func(m *miniredis.Miniredis) { m.Del("l") })
		}
		<-guarded.Done()
		assert.Less(v, time.Since(start), 11*time.Second, "a third of the watchdog timeout of the nodes, and a moment")
		assert.ErrorIs(v, context.Cause(guarded), ErrLockLost)
		assert.ErrorIs(v, l.Unlock(ctx), ErrLockLost)
		for _, other := range others {
			assert.NoError(v, other.Release(ctx))
			assert.NoError(v, <-ended)
		}
	})
}

// A node that answers late has granted nothing: its grant is released as soon as it arrives.
func TestRedLockLateGrantsAreReleased(t *testing.T) {
	locktest.InVirtualTime(t, 5, func(v *locktest.Virtual) {
		const nodeTimeout, latency = 300 * time.Millisecond, 900 * time.Millisecond
		var locks []Locker
		var links []*bubble.Link
		for i, name := range []string{"l", "l", "l", "l", "a longer name"} {
			c, link := v.Client(i, WithRedLockNodeTimeout(nodeTimeout))
			locks, links = append(locks, c.NewLock(name)), append(links, link)
		}
		c, _ := v.Client(0)
		l := c.NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		require.NoError(v, l.Unlock(ctx))
		for _, link := range links[1:4] {
			link.Set(func(c *bubble.Conditions) { c.Latency = latency })
		}
		start := time.Now()
		ok, err := l.TryLock(ctx, 0, 0)
		assert.LessOrEqual(v, time.Since(start), nodeTimeout+50*time.Millisecond, "waiting for late answers")
		assert.False(v, ok)
		var quorum *QuorumError
		require.ErrorAs(v, err, &quorum)
		assert.Equal(v, 2, quorum.Granted)
		time.Sleep(time.Until(start.Add(latency + 50*time.Millisecond)))
		assert.Equal(v, 3, has(v, "l"), "nodes on which the attempts that were given up have run")
		time.Sleep(2*latency + 50*time.Millisecond) // the answers, and the releases
		assert.Zero(v, has(v, "l")+has(v, "a longer name"), "nodes on which something is left")
	})
}

// The owner of a RedLock waits for a read lock at a node that the RedLock does not have, because another process writes
// there. When that one releases it, the RedLock acquires the node at a renewal, before the owner has asked again: now the
// owner waits for itself, and is told so.
func TestRedLockRenewalAcquiresTheNodeForWhichItsOwnerWaits(t *testing.T) {
	for early := time.Duration(0); early < 100*time.Millisecond; early += 10 * time.Millisecond {
		t.Run(fmt.Sprint(early), func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(ctx)
				clients, links, _ := nodes(v)
				var locks []Locker
				for _, c := range clients {
					locks = append(locks, c.NewRWLock("l").Write())
				}
				other, _ := v.Client(0)
				writer := other.NewRWLock("l").Write()
				home, _ := v.Client(1)
				l := home.NewRedLock(locks...)
				require.NoError(v, l.Lock(ctx)) // all are connected
				require.NoError(v, l.Unlock(ctx))
				require.NoError(v, writer.Lock(context.Background()))
				links[0].Set(func(c *bubble.Conditions) { c.Latency = 40 * time.Millisecond })
				start := time.Now()
				require.NoError(v, l.Lock(ctx))
				got := make(chan error)
				go func() {
					long, cancel := context.WithTimeout(ctx, 2*time.Minute)
					defer cancel()
					got <- clients[0].NewRWLock("l").Read().Lock(long)
				}()
				time.Sleep(10*time.Second - early - time.Since(start))
				require.NoError(v, writer.Unlock(context.Background()))
				err := <-got
				assert.Less(v, time.Since(start), time.Minute)
				if err == nil {
					assert.NoError(v, clients[0].NewRWLock("l").Read().Unlock(ctx))
				} else {
					assert.ErrorIs(v, err, ErrInvalid)
				}
				assert.NoError(v, l.Unlock(ctx))
			})
		})
	}
}

// The owner of a RedLock that was lost acquires one of its nodes as soon as the guard has told it of the loss. The RedLock is
// about to release that node, so the owner does not wait for itself.
func TestRedLockThatIsLostDoesNotBlockItsOwner(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		_, _, locks := nodes(v)
		home, _ := v.Client(1)
		l := home.NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		time.Sleep(2 * time.Second)
		got := make(chan error, 1)
		var told atomic.Bool
		for range 2000 {
			guarded, err := l.Guard(ctx)
			require.NoError(v, err)
			context.AfterFunc(guarded, func() {
				if !told.Swap(true) {
					got <- locks[2].Lock(ctx)
				}
			})
		}
		for _, n := range locks[:2] {
			go func() { _, _ = n.ForceUnlock(context.Background()) }()
		}
		if err := <-got; assert.NoError(v, err) {
			assert.NoError(v, locks[2].Unlock(ctx))
		}
		assert.ErrorIs(v, l.Unlock(ctx), ErrLockLost)
	})
}

// A RedLock of RedLocks whose nodes its owner holds by itself.
func TestRedLockWhoseOwnerHoldsTheNodesOfItsNodes(t *testing.T) {
	locktest.InVirtualTime(t, 9, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		var all, reds []Locker
		var home *Client
		for i := range 9 {
			c, _ := v.Client(i)
			home, all = c, append(all, c.NewLock(fmt.Sprint("l", i)))
		}
		for i := range 3 {
			reds = append(reds, home.NewRedLock(all[3*i:3*i+3]...))
		}
		l := home.NewRedLock(reds...)
		for _, i := range []int{0, 1, 3, 4} {
			require.NoError(v, all[i].Lock(ctx))
		}
		long, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		assert.ErrorIs(v, l.Lock(long), ErrInvalid)
		for _, i := range []int{0, 1, 3, 4} {
			require.NoError(v, all[i].Unlock(ctx))
		}
		require.NoError(v, l.Lock(ctx))
		long, cancel = context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		assert.ErrorIs(v, all[0].Lock(long), ErrInvalid)
		assert.NoError(v, l.Unlock(ctx))
	})
}

// A panicking is a type of the user whose Guard panics.
type panicking struct{ Locker }

func (panicking) Guard(context.Context) (context.Context, error) { panic("mine") }

// The Guard of one node panics after the node has granted the lock: the grant is released with the RedLock.
func TestRedLockReleasesANodeWhoseGuardPanics(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		_, _, locks := nodes(v)
		locks[2] = panicking{locks[2]}
		home, _ := v.Client(1)
		l := home.NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		time.Sleep(time.Minute)
		require.NoError(v, l.Unlock(ctx))
		time.Sleep(time.Minute)
		assert.Zero(v, has(v, "l"), "nodes that are still held")
	})
}

// One node of five has other data at its key, and two are silent, so that no majority confirms a call. The call returns that,
// and the hold goes on, because four nodes have it.
func TestRedLockWithAReplacedRecordAndSilentNodes(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, l *RedLock, h *Hold) error{
		"Extend": func(ctx context.Context, _ *RedLock, h *Hold) error { return h.Extend(ctx, time.Minute) },
		"IsHeld": func(ctx context.Context, l *RedLock, _ *Hold) error { _, err := l.IsHeld(ctx); return err },
		"Unlock": func(ctx context.Context, l *RedLock, _ *Hold) error { return l.Unlock(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 5, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(ctx)
				var links []*bubble.Link
				var locks, others []Locker
				var home *Client
				for i := range 5 {
					c, link := v.Client(i)
					home, links, locks, others = c, append(links, link), append(locks, c.NewLock("l")), append(others, c.NewLock("m"))
				}
				l := home.NewRedLock(locks...)
				require.NoError(v, l.Lock(ctx))
				require.NoError(v, l.Lock(ctx))
				guarded, err := l.Guard(ctx)
				require.NoError(v, err)
				h, ok, err := home.NewRedLock(others...).TryAcquire(ctx, time.Second, time.Minute)
				require.NoError(v, err)
				require.True(v, ok)
				v.Servers[0].Look(func(m *miniredis.Miniredis) {
					for _, key := range []string{"l", "m"} {
						m.Del(key)
						assert.NoError(v, m.Set(key, "data"))
					}
				})
				locktest.Silent(func() { err = call(ctx, l, h) }, links[1], links[2])
				assert.ErrorAs(v, err, new(*QuorumError))
				assert.NotContains(v, err.Error(), "RedLock was lost")
				time.Sleep(time.Second)
				assert.NoError(v, guarded.Err())
				assert.NoError(v, h.Context().Err())
				assert.NoError(v, l.Unlock(ctx))
				assert.NoError(v, h.Release(ctx))
			})
		})
	}
}

// A lease that is too short is refused at once, also while another goroutine holds the RedLock.
func TestRedLockRefusesAShortLeaseAtOnce(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		other := ContextWithOwner(ctx)
		l, _ := v.RedLock()
		require.NoError(v, l.Lock(other))
		start := time.Now()
		for _, wait := range []time.Duration{0, time.Second} {
			_, err := l.TryLock(ctx, wait, 2*time.Millisecond)
			assert.ErrorIs(v, err, ErrInvalid)
		}
		assert.Less(v, time.Since(start), time.Second)
		require.NoError(v, l.Unlock(other))
	})
}

// A losing is an Observer that is slow to be told of losses, and notes their owners.
type losing struct {
	NopObserver
	owners sync.Map
}

func (o *losing) Lost(_ context.Context, e LostEvent) {
	o.owners.Store(e.Lock.Owner, true)
	time.Sleep(time.Second / 2)
}

// When ForceUnlock of two of three nodes has returned, the RedLock is lost, and its calls say so, with its cause. The
// losses of its nodes are told as those of its owner.
func TestRedLockLossIsSeenAtOnce(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		o := new(losing)
		_, _, locks := nodes(v, WithObserver(o))
		home, _ := v.Client(0)
		l, ctx := home.NewRedLock(locks...), ContextWithOwner(ctx)
		for i := range 50 {
			require.NoError(v, l.Lock(ctx))
			for _, n := range locks[:2] {
				_, err := n.ForceUnlock(ctx)
				require.NoError(v, err)
			}
			if i%2 == 0 {
				_, err := l.Guard(ctx)
				require.ErrorIs(v, err, ErrLockLost)
			}
			err := l.Unlock(ctx)
			require.ErrorIs(v, err, ErrLockLost)
			require.ErrorContains(v, err, "too few of its locks are held")
			time.Sleep(time.Second / 4) // the next losses are told late
		}
		time.Sleep(time.Minute)
		owners := 0
		o.owners.Range(func(any, any) bool { owners++; return true })
		assert.Equal(v, 1, owners, "owners that have lost a node")
	})
}

// A RedLock with an explicit lease is acquired once more without one, by a call that has no answers yet when it is canceled.
// The hold has its explicit lease still, and can be extended.
func TestRedLockIsExtendedAfterAReentryThatFailed(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		clients, _, locks := nodes(v)
		l := clients[0].NewRedLock(locks...)
		h, _, err := l.TryAcquire(ctx, 0, time.Minute)
		require.NoError(v, err)
		short, cancel := context.WithTimeout(h.Context(), 500*time.Microsecond)
		defer cancel()
		require.Error(v, l.Lock(short))
		time.Sleep(5 * time.Second)
		assert.NoError(v, h.Extend(ctx, 2*time.Minute))
		time.Sleep(90 * time.Second)
		assert.NoError(v, h.Release(ctx))
	})
}

// The owner of a RedLock of MultiLocks, which has an explicit lease, acquires it again. A round trip takes more than half of
// the time that a node has for its answer.
func TestRedLockOfMultiLocksIsReenteredInOneTrip(t *testing.T) {
	for _, length := range []time.Duration{0, time.Minute} {
		locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
			ctx := ContextWithOwner(ctx)
			clients, links, locks := nodes(v)
			for i, c := range clients {
				locks[i] = c.NewMultiLock(locks[i], c.NewLock("m"))
			}
			red := clients[0].NewRedLock(locks...)
			for range 2 { // the servers know all scripts then
				require.NoError(v, red.LockLease(ctx, time.Minute))
			}
			for _, link := range links {
				link.Set(func(c *bubble.Conditions) { c.Latency = 60 * time.Millisecond })
			}
			ok, err := red.TryLock(ctx, 0, length)
			assert.NoError(v, err)
			assert.True(v, ok)
			for range 3 {
				assert.NoError(v, red.Unlock(ctx))
			}
		})
	}
}
