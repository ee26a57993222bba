package testredis

// A Redis Cluster of real processes.
//
// Rules: it is formed and changed only with the commands that an operator would use. The state of the cluster is the
// state on which all nodes that answer agree, so that every one of them gives a client the same answer.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const slotCount = 16384

// A Cluster is a Redis Cluster that belongs to one test.
type Cluster struct {
	t         testing.TB
	nodes     []*node
	finishing sync.Mutex // held while a migration finishes
}

// StartCluster starts masters that share the slots evenly, each with the given number of replicas, and waits until
// every node serves and knows all others. With fewer than three masters there is no failover. For everything else see
// Start.
func StartCluster(t testing.TB, masters, replicas int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for range masters * (1 + replicas) {
		c.nodes = append(c.nodes, newNode(launch(t, func(port int) []string {
			return append([]string{
				"--cluster-enabled", "yes",
				"--cluster-port", strconv.Itoa(busPort(port)),
				"--cluster-config-file", "nodes.conf",
				"--cluster-announce-ip", "127.0.0.1",
				"--cluster-node-timeout", "2000",
				"--cluster-replica-validity-factor", "0", // a replica takes over even if its data is old
				"--cluster-allow-replica-migration", "no", // and stays with its master
				"--repl-diskless-sync-delay", "0",
				"--repl-ping-replica-period", "1", // CLUSTER SLOTS omits a replica until it has received something
			}, args...)
		})))
	}
	for i, n := range c.nodes {
		n.do("cluster", "set-config-epoch", i+1)
		if i < masters {
			n.do("cluster", "addslotsrange", slotCount*i/masters, slotCount*(i+1)/masters-1)
		}
	}
	c.meet()
	for i, n := range c.nodes[masters:] {
		master := c.nodes[i%masters].id()
		Await(t, "a replica finds its master", atMost, func() bool {
			return n.admin.ClusterReplicate(context.Background(), master).Err() == nil
		})
	}
	met := time.Now()
	c.settle(func() {
		if time.Since(met) > againTime {
			c.meet()
			met = time.Now()
		}
	})
	return c
}

// againTime is how long the nodes of a new cluster have to settle before they are made to meet again.
const againTime = 15 * time.Second

// meet introduces all nodes to each other, instead of waiting for the gossip. A node that does not answer within the
// node timeout, as on a busy machine, is forgotten by the one that was to meet it.
func (c *Cluster) meet() {
	for i, n := range c.nodes {
		for _, other := range c.nodes[:i] {
			n.do("cluster", "meet", "127.0.0.1", other.port, busPort(other.port))
		}
	}
}

// busPort returns the port on which a node with this client port listens for other nodes. Like the client port, and
// unlike the default of Redis, it is below the range of outgoing connections.
func busPort(port int) int { return port - 10000 }

// id returns the ID of the node in its cluster.
func (n *node) id() string {
	n.t.Helper()
	return n.do("cluster", "myid").(string)
}

// Nodes returns all nodes, regardless of their roles. At first the masters come first.
func (c *Cluster) Nodes() []*Server { return servers(c.nodes) }

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// Client returns a client of the cluster, with the defaults of go-redis unless opts change them. With these it may
// send requests to a dead master for a minute (ClusterStateReloadInterval). It is closed when the test ends.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	o := &redis.ClusterOptions{Addrs: c.Addrs(), MaintNotificationsConfig: NoNotifications()}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}

// Settle waits until all nodes run and serve, agree which node has which slots and replicas, and all replicas are
// linked. Tests call it after nodes that were killed have been restarted.
func (c *Cluster) Settle() {
	c.t.Helper()
	c.settle(func() {})
}

// settle is Settle. It calls again before each look. If it waits in vain, it logs the view of each node.
func (c *Cluster) settle(again func()) {
	c.t.Helper()
	defer func() {
		if !c.t.Failed() {
			return
		}
		for _, n := range c.nodes {
			c.t.Logf("%s is in state %q, and knows\n%s", n.Addr(), n.state(), n.admin.ClusterNodes(context.Background()).Val())
		}
	}()
	Await(c.t, "the cluster settles", atMost, func() bool {
		again()
		var common string
		for _, n := range c.nodes {
			view, known := n.view()
			if common == "" {
				common = view
			}
			if view != common || known != len(c.nodes) || n.state() != "ok" || !n.linked() {
				return false
			}
		}
		return true
	})
}

// view returns what the node knows about the cluster, as a text that is the same on every node, and the number of
// working nodes that it knows.
func (n *node) view() (view string, known int) {
	seen := map[string]bool{}
	var lines []string
	for _, r := range n.slots() {
		var all []string
		for _, other := range r.Nodes {
			all = append(all, other.Addr)
			seen[other.Addr] = true
		}
		slices.Sort(all[1:]) // the first one is the master
		lines = append(lines, fmt.Sprint(r.Start, r.End, all))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), len(seen)
}

// slots returns the assignment of the slots to nodes, or nothing if the node does not answer.
func (n *node) slots() []redis.ClusterSlot {
	//lint:ignore SA1019 a ClusterClient uses this command, so its answer is the one that counts
	return n.admin.ClusterSlots(context.Background()).Val()
}

// state returns the state of the cluster in the view of the node, "ok" or "fail", or "" if the node does not answer.
func (n *node) state() string {
	_, after, _ := strings.Cut(n.admin.ClusterInfo(context.Background()).Val(), "cluster_state:")
	state, _, _ := strings.Cut(after, "\r\n")
	return state
}

// MasterOf waits until the nodes agree which of them has the slot of the key, and returns it.
func (c *Cluster) MasterOf(key string) *Server {
	c.t.Helper()
	return c.masterOf(c.slot(key)).Server
}

// ReplicasOf returns the current replicas of a master, which must be running.
func (c *Cluster) ReplicasOf(master *Server) []*Server {
	c.t.Helper()
	var all []*Server
	for _, replica := range find(c.t, c.nodes, master).ruled().Nodes[1:] {
		all = append(all, at(c.nodes, replica.Addr).Server)
	}
	return all
}

// ruled returns a range of slots of which the node is the master in its own view.
func (n *node) ruled() redis.ClusterSlot {
	n.t.Helper()
	for _, r := range n.slots() {
		if r.Nodes[0].Addr == n.Addr() {
			return r
		}
	}
	n.t.Fatalf("%s is no master of a slot", n.Addr())
	return redis.ClusterSlot{}
}

func (c *Cluster) masterOf(slot int) *node {
	c.t.Helper()
	var master *node
	Await(c.t, "the nodes agree on a master", atMost, func() bool {
		master = c.agreed(slot, nil)
		return master != nil
	})
	return master
}

// agreed returns the node that has the slot in the view of all nodes that answer, except without, or nil if they
// disagree.
func (c *Cluster) agreed(slot int, without *node) *node {
	var master *node
	for _, n := range c.nodes {
		if n == without {
			continue
		}
		for _, r := range n.slots() {
			if slot < r.Start || slot > r.End {
				continue
			}
			named := at(c.nodes, r.Nodes[0].Addr)
			if master != nil && named != master {
				return nil
			}
			master = named
		}
	}
	return master
}

// slot returns the slot of a key.
func (c *Cluster) slot(key string) int {
	c.t.Helper()
	var slot int64
	Await(c.t, "a node answers", atMost, func() bool {
		return slices.ContainsFunc(c.nodes, func(n *node) bool {
			var err error
			slot, err = n.admin.ClusterKeySlot(context.Background(), key).Result()
			return err == nil
		})
	})
	return int(slot)
}

// MigrateSlot moves the slot of the key, with all its keys, to another master.
func (c *Cluster) MigrateSlot(key string, to *Server) {
	c.t.Helper()
	c.BeginMigration(key, to)()
}

// BeginMigration starts to move the slot of the key to another master. Existing keys stay, and for all others clients
// are redirected to the new master with -ASK, until finish moves the keys and the slot. Migrations finish one at a
// time. Two masters that send keys to each other would wait for each other. Two masters that take a slot at the same
// time could use the same epoch for it, and the other nodes would never agree.
func (c *Cluster) BeginMigration(key string, to *Server) (finish func()) {
	c.t.Helper()
	slot := c.slot(key)
	source, target := c.masterOf(slot), find(c.t, c.nodes, to)
	target.do("cluster", "setslot", slot, "importing", source.id())
	source.do("cluster", "setslot", slot, "migrating", target.id())
	return func() {
		c.t.Helper()
		c.finishing.Lock()
		defer c.finishing.Unlock()
		for {
			keys := source.do("cluster", "getkeysinslot", slot, 100).([]any)
			if len(keys) == 0 {
				break
			}
			source.do(append([]any{"migrate", "127.0.0.1", target.port, "", 0, 2000, "keys"}, keys...)...)
		}
		// The source must know it, too, because until then it continues to redirect clients with -ASK.
		for _, n := range []*node{target, source} {
			n.do("cluster", "setslot", slot, "node", target.id())
		}
		Await(c.t, "all know the new master of the slot", atMost, func() bool { return c.agreed(slot, nil) == target })
	}
}

// Failover kills a master and waits until one of its replicas serves in its place.
func (c *Cluster) Failover(of *Server) *Server {
	c.t.Helper()
	return c.FailoverAfter(of, of.Kill)
}

// FailoverAfter is like Failover, with another fault that makes the master fail, such as of.Freeze.
func (c *Cluster) FailoverAfter(of *Server, fault func()) *Server {
	c.t.Helper()
	old := find(c.t, c.nodes, of)
	had := old.ruled()
	fault()
	var master *node
	Await(c.t, "a replica takes over", atMost, func() bool {
		master = c.agreed(had.Start, old)
		return master != nil && master != old && !slices.ContainsFunc(c.nodes, func(n *node) bool {
			return n != old && n.state() == "fail"
		})
	})
	return master.Server
}

// NoNotifications prevents connections from requesting notifications about maintenance, which no server in the tests
// sends.
func NoNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}
