package relock

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// fakeCluster is fake servers that have slots: a channel is a slot. Whoever asks
// it where a channel is hears what was true when reload was last called.
type fakeCluster struct {
	servers []*fakeServer

	mu       sync.Mutex // guards below
	owner    map[string]int
	believed map[string]int
	stales   int
	knownAt  time.Time // who asks before then hears the old story
	tolerant bool      // replicas take subscriptions
	plain    bool      // the servers know no sharded pub/sub
}

func newFakeCluster(t *testing.T, servers int) (*fakeCluster, *pubsub) {
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
	p := newPubSub(c, slog.New(slog.DiscardHandler))
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

func (c *fakeCluster) refused(err error) bool { return (&shards{}).refused(err) }

// place puts a channel on a server, and lets everybody know.
func (c *fakeCluster) place(ch string, server int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner[ch], c.believed[ch] = server, server
}

// move moves a channel to another server; the one that had it tells its subscribers.
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
func TestShardsHaveAConnectionEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 3)
		var listening []*listener
		for i := range 100 {
			ch := fmt.Sprint("ch", i)
			c.place(ch, i%2)
			listening = append(listening, p.join(ch))
		}
		for _, l := range listening {
			if !ready(l) {
				t.Fatal("not ready")
			}
			c.publish(l.channel.name)
			if !woken(l) {
				t.Fatal("not woken")
			}
		}
		for i, want := range []int{1, 1, 0} {
			if n := c.servers[i].dials(); n != want {
				t.Errorf("shard %d: %d connections, want %d", i, n, want)
			}
		}
		for _, l := range listening {
			l.leave()
		}
		time.Sleep(p.idle + 2*p.linger)
		synctest.Wait()
		if len(p.links) != 0 || len(p.channels) != 0 {
			t.Errorf("%d links and %d channels are left", len(p.links), len(p.channels))
		}
	})
}

// The node that the client knew of does not have the channel.
func TestShardsFollowARedirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.owner["x"] = 1
		l, other := p.join("x"), p.join("y")
		if !ready(other) {
			t.Fatal("a redirected channel disturbs another one")
		}
		if ready(l) {
			t.Fatal("ready although it was redirected")
		}
		time.Sleep(p.reroute + 50*time.Millisecond)
		if !ready(l) {
			t.Fatal("not ready after the redirection")
		}
		c.publish("x")
		if !woken(l) {
			t.Error("not subscribed where the channel is")
		}
	})
}

// L2: a channel whose slot has moved is subscribed where it is now, and its
// listeners are woken: they may have missed a message.
func TestShardsFollowASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.place("x", 0)
		l := p.join("x")
		if !ready(l) || woken(l) {
			t.Fatal("not ready, or woken without a reason")
		}
		for _, to := range []int{1, 0, 1} {
			c.move("x", to)
			time.Sleep(2*p.reroute + 50*time.Millisecond)
			if !woken(l) {
				t.Fatal("not woken after the slot has moved")
			}
			c.publish("x")
			if !woken(l) {
				t.Fatal("deaf after the slot has moved")
			}
		}
		if n := c.servers[0].dials() + c.servers[1].dials(); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// A master that became a replica takes subscriptions, but hears nothing; and for a
// while nobody knows better.
func TestShardsLeaveAReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l, other := p.join("x"), p.join("y")
		if !ready(l) || !ready(other) {
			t.Fatal("not ready")
		}
		c.mu.Lock()
		c.tolerant, c.knownAt = true, time.Now().Add(2500*time.Millisecond)
		c.mu.Unlock()
		c.move("x", 1)
		time.Sleep(time.Second)
		woken(l)
		time.Sleep(4 * time.Second)
		if !woken(l) {
			t.Error("not woken when it was subscribed where it belongs")
		}
		c.publish("x")
		if !woken(l) {
			t.Error("deaf")
		}
		if n := c.servers[0].count("unsubscribe x"); n != 1 {
			t.Errorf("unsubscribed %d times where it does not belong", n)
		}
		asked := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.stales
		}
		before := asked()
		time.Sleep(time.Minute)
		if n := asked() - before; n > 25 {
			t.Errorf("asked %d times in a quiet minute", n)
		}
		if woken(other) || c.servers[0].count("subscribe y") != 1 {
			t.Error("another channel was disturbed")
		}
	})
}

// A slot that nobody has for a while is asked for now and then, not all the time.
func TestShardsKeepLookingForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		c.owner["x"] = -1 // nobody
		l := p.join("x")
		time.Sleep(10 * time.Second)
		if n := c.servers[0].count("subscribe x"); n < 50 || n > 110 {
			t.Errorf("asked %d times in 10s", n)
		}
		c.place("x", 1)
		time.Sleep(2 * p.reroute)
		if !ready(l) {
			t.Error("not found when it is there again")
		}

		for _, wasThere := range []bool{false, true} {
			c.place("y", 0)
			if !wasThere {
				c.move("y", -1)
			}
			l = p.join("y")
			if ready(l) != wasThere {
				t.Fatal("ready or not?")
			}
			c.move("y", -1)
			l.leave()
			time.Sleep(2 * p.linger)
			asked := c.servers[0].count("subscribe y")
			c.place("y", 0)
			time.Sleep(time.Second)
			if n := c.servers[0].count("subscribe y"); n != asked || p.channels["y"] != nil {
				t.Error("looked for although nobody listens any more")
			}
		}
	})
}

// The answer to an unsubscription must not be taken for the loss of a later
// channel of the same name.
func TestShardsLateAnswerIsNotMistaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 1)
		c.servers[0].confirmAfter = time.Second
		l := p.join("x")
		time.Sleep(2 * time.Second)
		l.leave()
		time.Sleep(p.linger + 100*time.Millisecond)
		l = p.join("x")
		time.Sleep(5 * time.Second)
		if !ready(l) || c.servers[0].count("unsubscribe x") != 1 || c.servers[0].count("subscribe x") != 2 {
			t.Errorf("commands: %v", c.servers[0].commands)
		}
	})
}

// A connection was lost, and the answer on the next one comes when the listener
// of before has gone and another one is there: it is not for that one.
func TestShardsLateRedirectionIsNotMistaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		s := c.servers[0]
		l := p.join("x")
		if !ready(l) {
			t.Fatal("not ready")
		}
		s.set(func() { s.silent = true }) // for a moment: it fails over
		s.cut()
		time.Sleep(100 * time.Millisecond)
		l.leave()
		time.Sleep(2 * p.linger)
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
		if !ready(l) {
			t.Error("not ready")
		}
		c.publish("x")
		if !woken(l) {
			t.Error("deaf")
		}
		time.Sleep(2 * p.idle)
		synctest.Wait()
		if n := len(p.links); n != 1 || p.links["node-1"].size != 1 {
			t.Errorf("%d links", n)
		}
	})
}

// A channel that nobody listens to any more does not move.
func TestShardsForgetAnIdleChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l := p.join("x")
		if !ready(l) {
			t.Fatal("not ready")
		}
		l.leave()
		c.place("x", 1)
		c.servers[0].cut()
		time.Sleep(p.linger + time.Second)
		synctest.Wait()
		if len(p.channels) != 0 || c.servers[1].count("subscribe x") != 0 {
			t.Errorf("%d channels are remembered", len(p.channels))
		}
	})
}

// A master is gone, and another node has its slots.
func TestShardsFollowAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := newFakeCluster(t, 2)
		l := p.join("x")
		if !ready(l) {
			t.Fatal("not ready")
		}
		c.servers[0].set(func() { c.servers[0].down = true })
		c.servers[0].cut()
		time.Sleep(3 * time.Second)
		c.mu.Lock()
		c.owner["x"] = 1
		c.mu.Unlock()
		time.Sleep(2 * time.Second)
		if !woken(l) {
			t.Fatal("not woken after the failover")
		}
		c.publish("x")
		if !woken(l) {
			t.Error("deaf after the failover")
		}
	})
}

func TestShardsThatCannotPublish(t *testing.T) {
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
		if !ready(l) || s.dials() != 2 {
			t.Fatalf("not ready, or %d connections", s.dials())
		}
		s.publish("x")
		if !woken(l) {
			t.Error("deaf")
		}
	})
}

// refusingRouter connects otherwise after the first refusal, as shards does.
type refusingRouter struct {
	s     *fakeServer
	plain bool
}

func (r *refusingRouter) node(string) node { return node{dial: r.s.dial} }
func (r *refusingRouter) moves() bool      { return true }
func (r *refusingRouter) reload()          {}

func (r *refusingRouter) refused(err error) bool {
	unknown := (&shards{}).refused(err)
	r.s.set(func() { r.plain = r.plain || unknown })
	return unknown
}

// Random joins, leaves, cuts and moves: when nothing has moved for a moment,
// whoever listens hears every message of its channel.
func TestShardsRandomly(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) { shardsRandomly(t, seed) })
	}
}

func shardsRandomly(t *testing.T, seed int) {
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
			time.Sleep(time.Duration(rng.IntN(int(2 * p.linger))))
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
				if !ready(l) {
					t.Fatalf("seed %d step %d: %s is not ready", seed, step, l.channel.name)
				}
				if got := woken(l); got != (l.channel.name == name) {
					t.Fatalf("seed %d step %d: listener of %s woken %v by a message on %s", seed, step, l.channel.name, got, name)
				}
			}
		}
	}
	for _, l := range listening {
		l.leave()
	}
	time.Sleep(2*p.linger + 5*time.Second)
	synctest.Wait()
	size := 0
	for _, l := range p.links {
		size += l.size + len(l.idling) + len(l.pending) + len(l.wanted) + len(l.homeless)
	}
	if len(p.channels) != 0 || size != 0 {
		t.Errorf("seed %d: %d channels are left, and %d places in the lists", seed, len(p.channels), size)
	}
}
