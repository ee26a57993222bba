//go:build go1.25

package relock

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fakeCluster is fake servers that have slots: a channel is a slot. node answers with
// the owner of a channel at the last reload.
type fakeCluster struct {
	servers []*fakeServer

	mu       sync.Mutex // guards below
	owner    map[string]int
	believed map[string]int
	stales   int
	knownAt  time.Time // until then reload finds the old owners
	tolerant bool      // replicas take subscriptions
	plain    bool      // the servers know no sharded pub/sub
}

func newFakeCluster(t *testing.T, servers int) (*fakeCluster, *hub) {
	c := &fakeCluster{owner: make(map[string]int), believed: make(map[string]int)}
	for i := range servers {
		s := &fakeServer{}
		s.refuse = func(ch string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			switch {
			case c.plain:
				return answerError("ERR unknown command 'ssubscribe', with args beginning with: 'x'")
			case c.owner[ch] != i && !c.tolerant:
				return answerError(fmt.Sprintf("MOVED 1 127.0.0.1:%d", c.owner[ch]))
			}
			return nil
		}
		c.servers = append(c.servers, s)
	}
	p := newHub(c, slog.New(slog.DiscardHandler), func(string, error) {})
	t.Cleanup(p.close)
	return c, p
}

func (c *fakeCluster) node(ch string) node {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.believed[ch]
	return node{fmt.Sprint("node-", i), c.servers[i].dial}
}

func (c *fakeCluster) reload() {
	time.AfterFunc(30*time.Millisecond, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stales++
		if time.Now().Before(c.knownAt) {
			return
		}
		for ch, i := range c.owner {
			c.believed[ch] = max(i, 0)
		}
	})
}

func (c *fakeCluster) moves() bool { return true }

func (c *fakeCluster) refused(err error) bool { return isUnknownCommand(err) }

func isUnknownCommand(err error) bool { return strings.Contains(err.Error(), "unknown command") }

// place puts a channel on a server, and all clients know it.
func (c *fakeCluster) place(ch string, server int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner[ch], c.believed[ch] = server, server
}

// move moves a channel to another server. The server before ends its subscriptions.
func (c *fakeCluster) move(ch string, to int) {
	c.mu.Lock()
	from := c.servers[max(c.owner[ch], 0)]
	c.owner[ch] = to
	c.mu.Unlock()
	from.set(func() {
		for _, conn := range from.conns {
			if conn.subs[ch] {
				delete(conn.subs, ch)
				conn.out <- &redis.Subscription{Kind: "sunsubscribe", Channel: ch}
			}
		}
	})
}

func (c *fakeCluster) publish(ch string) {
	c.mu.Lock()
	s := c.servers[c.owner[ch]]
	c.mu.Unlock()
	s.publish(ch)
}

// C2: one connection a shard, whatever the number of channels.
func TestShardsShareOneConnectionEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 3)
		var listening []*listener
		for i := range 100 {
			ch := fmt.Sprint("ch", i)
			c.place(ch, i%2)
			listening = append(listening, p.join(ch))
		}
		for _, l := range listening {
			require.True(t, ready(l), "not ready")
			c.publish(l.channel.name)
			require.True(t, woken(l), "not woken")
		}
		for i, want := range []int{1, 1, 0} {
			assert.Equal(t, want, c.servers[i].dials(), "connections of shard %d", i)
		}
		for _, l := range listening {
			l.leave()
		}
		time.Sleep(p.idle + 2*p.idleTTL)
		synctest.Wait()
		assert.Empty(t, p.links, "links are left")
		assert.Empty(t, p.channels, "channels are left")
	})
}

// A channel is subscribed where the node that the client knew of redirects to.
func TestShardsFollowARedirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.owner["x"] = 1
		l, other := p.join("x"), p.join("y")
		require.True(t, ready(other), "a redirected channel disturbs another one")
		require.False(t, ready(l), "ready although it was redirected")
		time.Sleep(p.reroute + 50*time.Millisecond)
		require.True(t, ready(l), "not ready after the redirection")
		c.publish("x")
		assert.True(t, woken(l), "not subscribed where the channel is")
	})
}

// L2: a channel whose slot has moved is subscribed on its new node, and its
// listeners, which may have missed a message, are woken.
func TestShardsFollowASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.place("x", 0)
		l := p.join("x")
		require.True(t, ready(l), "not ready")
		require.False(t, woken(l), "woken without a reason")
		for _, to := range []int{1, 0, 1} {
			c.move("x", to)
			time.Sleep(2*p.reroute + 50*time.Millisecond)
			require.True(t, woken(l), "not woken after the slot has moved")
			c.publish("x")
			require.True(t, woken(l), "deaf after the slot has moved")
		}
		assert.Equal(t, 2, c.servers[0].dials()+c.servers[1].dials(), "connections")
	})
}

// A subscription leaves a master that became a replica, which takes subscriptions and passes no
// messages on. For a while no node tells of the new master.
func TestShardsLeaveAReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l, other := p.join("x"), p.join("y")
		require.True(t, ready(l), "not ready")
		require.True(t, ready(other), "not ready")
		c.mu.Lock()
		c.tolerant, c.knownAt = true, time.Now().Add(2500*time.Millisecond)
		c.mu.Unlock()
		c.move("x", 1)
		time.Sleep(time.Second)
		woken(l)
		time.Sleep(4 * time.Second)
		assert.True(t, woken(l), "not woken after the subscription on the new master")
		c.publish("x")
		assert.True(t, woken(l), "deaf")
		assert.Equal(t, 1, c.servers[0].count("unsubscribe x"), "UNSUBSCRIBEs on the replica")
		asked := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.stales
		}
		before := asked()
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, asked()-before, 25, "reloads in a quiet minute")
		assert.False(t, woken(other), "another channel was disturbed")
		assert.Equal(t, 1, c.servers[0].count("subscribe y"), "another channel was disturbed")
	})
}

// A slot without a node is looked for now and then while a listener needs it, and found when it is back.
func TestShardsKeepLookingForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.owner["x"] = -1 // no node
		l := p.join("x")
		time.Sleep(10 * time.Second)
		n := c.servers[0].count("subscribe x")
		assert.GreaterOrEqual(t, n, 50, "SUBSCRIBEs in 10s")
		assert.LessOrEqual(t, n, 110, "SUBSCRIBEs in 10s")
		c.place("x", 1)
		time.Sleep(2 * p.reroute)
		assert.True(t, ready(l), "not found when the slot is back")

		for _, wasThere := range []bool{false, true} {
			c.place("y", 0)
			if !wasThere {
				c.move("y", -1)
			}
			l = p.join("y")
			require.Equal(t, wasThere, ready(l), "ready or not?")
			c.move("y", -1)
			l.leave()
			time.Sleep(2 * p.idleTTL)
			asked := c.servers[0].count("subscribe y")
			c.place("y", 0)
			time.Sleep(time.Second)
			assert.Equal(t, asked, c.servers[0].count("subscribe y"), "a channel without listeners is looked for")
			assert.Nil(t, p.channels["y"], "a channel without listeners is remembered")
		}
	})
}

// The answer to an UNSUBSCRIBE is not taken for the loss of a later channel of the same name.
func TestShardsLateAnswerIsNotOfALaterChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 1)
		c.servers[0].confirmAfter = time.Second
		l := p.join("x")
		time.Sleep(2 * time.Second)
		l.leave()
		time.Sleep(p.idleTTL + 100*time.Millisecond)
		l = p.join("x")
		time.Sleep(5 * time.Second)
		assert.True(t, ready(l), "commands: %v", c.servers[0].commands)
		assert.Equal(t, 1, c.servers[0].count("unsubscribe x"), "commands: %v", c.servers[0].commands)
		assert.Equal(t, 2, c.servers[0].count("subscribe x"), "commands: %v", c.servers[0].commands)
	})
}

// A redirection that was sent for a listener that has left since is not taken for a redirection of a later listener
// of the same channel.
func TestShardsLateRedirectionIsNotOfALaterChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		s := c.servers[0]
		l := p.join("x")
		require.True(t, ready(l), "not ready")
		s.set(func() { s.silent = true }) // during a failover
		s.cut()
		time.Sleep(100 * time.Millisecond)
		l.leave()
		time.Sleep(2 * p.idleTTL)
		l = p.join("x")
		c.move("x", 1)
		asked := s.count("subscribe x") - 1
		s.set(func() {
			s.silent = false
			for range asked {
				s.conns[len(s.conns)-1].out <- answerError("MOVED 1 127.0.0.1:1")
			}
		})
		time.Sleep(10 * time.Second)
		assert.True(t, ready(l), "not ready")
		c.publish("x")
		assert.True(t, woken(l), "deaf")
		time.Sleep(2 * p.idle)
		synctest.Wait()
		assert.Len(t, p.links, 1, "links")
		assert.Equal(t, 1, p.links["node-1"].size, "channels of the link")
	})
}

// C3: a channel without listeners is forgotten after a failure, and not subscribed on another node.
func TestShardsForgetAnIdleChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l := p.join("x")
		require.True(t, ready(l), "not ready")
		l.leave()
		c.place("x", 1)
		c.servers[0].cut()
		time.Sleep(p.idleTTL + time.Second)
		synctest.Wait()
		assert.Empty(t, p.channels, "channels are remembered")
		assert.Zero(t, c.servers[1].count("subscribe x"), "SUBSCRIBEs on the new node")
	})
}

// L2: a listener is woken when another node has the slots of a failed master, and gets the messages of that node.
func TestShardsFollowAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l := p.join("x")
		require.True(t, ready(l), "not ready")
		c.servers[0].set(func() { c.servers[0].down = true })
		c.servers[0].cut()
		time.Sleep(3 * time.Second)
		c.mu.Lock()
		c.owner["x"] = 1
		c.mu.Unlock()
		time.Sleep(2 * time.Second)
		require.True(t, woken(l), "not woken after the failover")
		c.publish("x")
		assert.True(t, woken(l), "deaf after the failover")
	})
}

// A server without sharded pub/sub is subscribed with plain SUBSCRIBE on a new connection.
func TestShardsFallBackToPlainPubSub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		_, p := newFakePubSub(t)
		routes := &refusingRouter{s: s}
		p.router = routes
		s.refuse = func(string) error {
			if !routes.plain {
				return answerError("ERR unknown command `ssubscribe`, with args beginning with: `x`, ")
			}
			return nil
		}
		l := p.join("x")
		time.Sleep(time.Second)
		require.True(t, ready(l), "not ready")
		require.Equal(t, 2, s.dials(), "connections")
		s.publish("x")
		assert.True(t, woken(l), "deaf")
	})
}

// A refusingRouter uses plain pub/sub after the first refusal.
type refusingRouter struct {
	s     *fakeServer
	plain bool
}

func (r *refusingRouter) node(string) node { return node{dial: r.s.dial} }
func (r *refusingRouter) moves() bool      { return true }
func (r *refusingRouter) reload()          {}

func (r *refusingRouter) refused(err error) bool {
	unknown := isUnknownCommand(err)
	r.s.set(func() { r.plain = r.plain || unknown })
	return unknown
}

// After random joins, leaves, cuts and moves, and a moment without a move, a listener gets every
// message of its channel and no other. Nothing is left in the end.
func TestShardsReadyListenersHearEveryMessage(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) { shardListenersHearEveryMessage(t, seed) })
	}
}

func shardListenersHearEveryMessage(t *testing.T, seed int) {
	c, p := newFakeCluster(t, 3)
	rng := newRand(seed)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		c.place(name, rng.IntN(3))
	}
	var listening []*listener
	for step := range 500 {
		switch rng.IntN(7) {
		case 0, 1:
			listening = append(listening, p.join(names[rng.IntN(len(names))]))
		case 2:
			if len(listening) > 0 {
				i := rng.IntN(len(listening))
				listening[i].leave()
				listening = slices.Delete(listening, i, i+1)
			}
		case 3:
			time.Sleep(time.Duration(rng.IntN(int(2 * p.idleTTL))))
		case 4:
			c.move(names[rng.IntN(len(names))], rng.IntN(3))
		case 5:
			if rng.IntN(5) == 0 {
				c.servers[rng.IntN(3)].cut()
			}
		case 6:
			time.Sleep(5 * time.Second) // longer than the longest pause between connections
			name := names[rng.IntN(len(names))]
			for _, l := range listening {
				woken(l)
			}
			c.publish(name)
			for _, l := range listening {
				require.True(t, ready(l), "seed %d step %d: %s is not ready", seed, step, l.channel.name)
				require.Equal(t, l.channel.name == name, woken(l), "seed %d step %d: a listener of %s, woken by a message on %s", seed, step, l.channel.name, name)
			}
		}
	}
	for _, l := range listening {
		l.leave()
	}
	time.Sleep(2*p.idleTTL + 5*time.Second)
	synctest.Wait()
	size := 0
	for _, l := range p.links {
		size += l.size + len(l.idling) + len(l.pending) + len(l.wanted) + len(l.unrouted)
	}
	assert.Empty(t, p.channels, "seed %d: channels are left", seed)
	assert.Zero(t, size, "seed %d: places in the lists are left", seed)
}
