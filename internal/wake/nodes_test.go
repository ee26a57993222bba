//go:build go1.25

package wake

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/wake/waketest"
)

// A fakeCluster is a number of fake servers with slots, where each channel is a slot of its own. Node returns the
// server that owned the channel at the last reload.
type fakeCluster struct {
	servers []*waketest.Server

	mu       sync.Mutex // guards below
	owner    map[string]int
	believed map[string]int
	stales   int
	knownAt  time.Time // until then a reload finds the old owners
	tolerant bool      // replicas accept subscriptions
	plain    bool      // the servers do not know sharded pub/sub
}

func newFakeCluster(t *testing.T, servers int) (*fakeCluster, *Hub) {
	c := &fakeCluster{owner: make(map[string]int), believed: make(map[string]int)}
	for i := range servers {
		s := &waketest.Server{}
		s.Refuse = func(ch string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			switch {
			case c.plain:
				return waketest.Error("ERR unknown command 'ssubscribe', with args beginning with: 'x'")
			case c.owner[ch] != i && !c.tolerant:
				return waketest.Error(fmt.Sprintf("MOVED 1 127.0.0.1:%d", c.owner[ch]))
			}
			return nil
		}
		c.servers = append(c.servers, s)
	}
	p := New(c, slog.New(slog.DiscardHandler), func(string, error) {})
	t.Cleanup(p.Close)
	return c, p
}

func (c *fakeCluster) Node(ch string) Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.believed[ch]
	return dialling(fmt.Sprint("node-", i), c.servers[i])
}

func (c *fakeCluster) Reload() {
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

func (c *fakeCluster) Refused(err error) bool { return isUnknownCommand(err) }

func isUnknownCommand(err error) bool { return strings.Contains(err.Error(), "unknown command") }

// place assigns a channel to a server, and lets all clients know.
func (c *fakeCluster) place(ch string, server int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner[ch], c.believed[ch] = server, server
}

// move moves a channel to another server. The previous server ends its subscriptions.
func (c *fakeCluster) move(ch string, to int) {
	c.mu.Lock()
	from := c.servers[max(c.owner[ch], 0)]
	c.owner[ch] = to
	c.mu.Unlock()
	from.Set(func() {
		for _, conn := range from.Conns {
			if conn.Subs[ch] {
				delete(conn.Subs, ch)
				conn.Out <- &redis.Subscription{Kind: "sunsubscribe", Channel: ch}
			}
		}
	})
}

func (c *fakeCluster) publish(ch string) {
	c.mu.Lock()
	s := c.servers[c.owner[ch]]
	c.mu.Unlock()
	s.Publish(ch)
}

// C2: there is one connection for each shard, however many channels there are.
func TestShardsShareOneConnectionEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 3)
		var listening []*Listener
		for i := range 100 {
			ch := fmt.Sprint("ch", i)
			c.place(ch, i%2)
			listening = append(listening, p.Join(ch))
		}
		for _, l := range listening {
			require.True(t, ready(l), "not ready")
			c.publish(l.Name())
			require.True(t, woken(l), "not woken")
		}
		for i, want := range []int{1, 1, 0} {
			assert.Equal(t, want, c.servers[i].Dials(), "connections of shard %d", i)
		}
		for _, l := range listening {
			l.Leave()
		}
		time.Sleep(idleTime + 2*p.idleTTL)
		synctest.Wait()
		assert.Empty(t, p.links, "links are left")
		assert.Empty(t, p.channels, "channels are left")
	})
}

// A channel is subscribed at the server to which the node that the client knew redirects it.
func TestShardsFollowARedirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.owner["x"] = 1
		l, other := p.Join("x"), p.Join("y")
		require.True(t, ready(other), "a redirected channel disturbs another one")
		require.False(t, ready(l), "ready although it was redirected")
		time.Sleep(reroutePause + 50*time.Millisecond)
		require.True(t, ready(l), "not ready after the redirection")
		c.publish("x")
		assert.True(t, woken(l), "not subscribed where the channel is")
	})
}

// L2: a channel whose slot has moved is subscribed on its new node, and its listeners are woken because they may have
// missed a message.
func TestShardsFollowASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.place("x", 0)
		l := subscribed(t, p, "x")
		require.False(t, woken(l), "woken without a reason")
		for _, to := range []int{1, 0, 1} {
			c.move("x", to)
			time.Sleep(2*reroutePause + 50*time.Millisecond)
			require.True(t, woken(l), "not woken after the slot has moved")
			c.publish("x")
			require.True(t, woken(l), "not subscribed after the slot has moved")
		}
		assert.Equal(t, 2, c.servers[0].Dials()+c.servers[1].Dials(), "connections")
	})
}

// A subscription leaves a master that has become a replica, which accepts subscriptions but delivers no messages. For
// a while no node knows the new master.
func TestShardsLeaveAReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l, other := p.Join("x"), p.Join("y")
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
		assert.True(t, woken(l), "not subscribed")
		assert.Equal(t, 1, c.servers[0].Count("unsubscribe x"), "UNSUBSCRIBEs on the replica")
		asked := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.stales
		}
		before := asked()
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, asked()-before, 25, "reloads in a quiet minute")
		assert.False(t, woken(other), "another channel was disturbed")
		assert.Equal(t, 1, c.servers[0].Count("subscribe y"), "another channel was disturbed")
	})
}

// While a listener needs a slot that no node serves, its node is looked for now and then, and found when it is back.
func TestShardsKeepLookingForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.owner["x"] = -1 // it has no node
		l := p.Join("x")
		time.Sleep(10 * time.Second)
		n := c.servers[0].Count("subscribe x")
		assert.GreaterOrEqual(t, n, 50, "SUBSCRIBEs in 10s")
		assert.LessOrEqual(t, n, 110, "SUBSCRIBEs in 10s")
		c.place("x", 1)
		time.Sleep(2 * reroutePause)
		assert.True(t, ready(l), "not found when the slot is back")

		for _, wasThere := range []bool{false, true} {
			c.place("y", 0)
			if !wasThere {
				c.move("y", -1)
			}
			l = p.Join("y")
			require.Equal(t, wasThere, ready(l), "ready or not?")
			c.move("y", -1)
			l.Leave()
			time.Sleep(2 * p.idleTTL)
			asked := c.servers[0].Count("subscribe y")
			c.place("y", 0)
			time.Sleep(time.Second)
			assert.Equal(t, asked, c.servers[0].Count("subscribe y"), "a channel without listeners is looked for")
			assert.Nil(t, p.channels["y"], "a channel without listeners is remembered")
		}
	})
}

// The answer to an UNSUBSCRIBE is not taken for the loss of a later channel of the same name.
func TestShardsLateAnswerIsNotOfALaterChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 1)
		c.servers[0].ConfirmAfter = time.Second
		l := p.Join("x")
		time.Sleep(2 * time.Second)
		l.Leave()
		time.Sleep(p.idleTTL + 100*time.Millisecond)
		l = p.Join("x")
		time.Sleep(5 * time.Second)
		assert.True(t, ready(l), "commands: %v", c.servers[0].Commands)
		assert.Equal(t, 1, c.servers[0].Count("unsubscribe x"), "commands: %v", c.servers[0].Commands)
		assert.Equal(t, 2, c.servers[0].Count("subscribe x"), "commands: %v", c.servers[0].Commands)
	})
}

// A redirection that answers the request for a listener that has left is not taken for the answer to a later listener
// of the same channel.
func TestShardsLateRedirectionIsNotOfALaterChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		s := c.servers[0]
		l := subscribed(t, p, "x")
		s.Set(func() { s.Silent = true }) // during a failover
		s.Cut()
		time.Sleep(100 * time.Millisecond)
		l.Leave()
		time.Sleep(2 * p.idleTTL)
		l = p.Join("x")
		c.move("x", 1)
		asked := s.Count("subscribe x") - 1
		s.Set(func() {
			s.Silent = false
			for range asked {
				s.Conns[len(s.Conns)-1].Out <- waketest.Error("MOVED 1 127.0.0.1:1")
			}
		})
		time.Sleep(10 * time.Second)
		assert.True(t, ready(l), "not ready")
		c.publish("x")
		assert.True(t, woken(l), "not subscribed")
		time.Sleep(2 * idleTime)
		synctest.Wait()
		assert.Len(t, p.links, 1, "links")
		assert.Len(t, p.links["node-1"].mine, 1, "channels of the link")
	})
}

// C3: a channel without listeners is forgotten after a failure, and not subscribed on another node.
func TestShardsForgetAnIdleChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l := subscribed(t, p, "x")
		l.Leave()
		c.place("x", 1)
		c.servers[0].Cut()
		time.Sleep(p.idleTTL + time.Second)
		synctest.Wait()
		assert.Empty(t, p.channels, "channels are remembered")
		assert.Zero(t, c.servers[1].Count("subscribe x"), "SUBSCRIBEs on the new node")
	})
}

// L2: when another node has taken over the slots of a failed master, the listener is woken and receives the messages
// of that node.
func TestShardsFollowAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l := subscribed(t, p, "x")
		c.servers[0].Set(func() { c.servers[0].Down = true })
		c.servers[0].Cut()
		time.Sleep(3 * time.Second)
		c.mu.Lock()
		c.owner["x"] = 1
		c.mu.Unlock()
		time.Sleep(2 * time.Second)
		require.True(t, woken(l), "not woken after the failover")
		c.publish("x")
		assert.True(t, woken(l), "not subscribed after the failover")
	})
}

// A server without sharded pub/sub is subscribed with plain SUBSCRIBE on a new connection.
func TestShardsFallBackToPlainPubSub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &waketest.Server{}
		_, p := newFakePubSub(t)
		routes := &refusingRouter{s: s}
		p.router = routes
		s.Refuse = func(string) error {
			if !routes.plain {
				return waketest.Error("ERR unknown command `ssubscribe`, with args beginning with: `x`, ")
			}
			return nil
		}
		l := p.Join("x")
		time.Sleep(time.Second)
		require.True(t, ready(l), "not ready")
		require.Equal(t, 2, s.Dials(), "connections")
		s.Publish("x")
		assert.True(t, woken(l), "not subscribed")
	})
}

// A refusingRouter uses plain pub/sub after the first refusal.
type refusingRouter struct {
	s     *waketest.Server
	plain bool
}

func (r *refusingRouter) Node(string) Node { return dialling("", r.s) }
func (r *refusingRouter) Reload()          {}

func (r *refusingRouter) Refused(err error) bool {
	unknown := isUnknownCommand(err)
	r.s.Set(func() { r.plain = r.plain || unknown })
	return unknown
}
