package testredis

// A Redis Cluster of real processes.
//
// Rules: it is formed and changed with the commands that an operator would use,
// never behind its back. The state of the cluster is the state on which all nodes
// that answer agree, so every one of them gives a client the same answer.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const slotCount = 16384

// A Cluster is a Redis Cluster of one test.
type Cluster struct {
	t         testing.TB
	nodes     []*node
	finishing sync.Mutex // held while a migration finishes
}

// StartCluster starts masters that share the slots evenly, each with so many
// replicas, and waits until every node serves and knows all others. Only with
// three masters or more is one replaced when it fails. For the rest see Start.
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
				"--cluster-replica-validity-factor", "0", // a replica takes over however old its data are
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
		for _, other := range c.nodes[:i] { // without waiting for the gossip
			n.do("cluster", "meet", "127.0.0.1", other.port, busPort(other.port))
		}
	}
	for i, n := range c.nodes[masters:] {
		master := c.nodes[i%masters].id()
		Await(t, "a replica finds its master", atMost, func() bool {
			return n.admin.ClusterReplicate(context.Background(), master).Err() == nil
		})
	}
	c.Settle()
	return c
}

// busPort is where a node at port listens for other nodes. Like port, and unlike
// the default of Redis, it is below the ports of outgoing connections.
func busPort(port int) int { return port - 10000 }

// id is the name of the node in its cluster.
func (n *node) id() string {
	n.t.Helper()
	return n.do("cluster", "myid").(string)
}

// Nodes are all nodes, whatever their role is; at first the masters come first.
func (c *Cluster) Nodes() []*Server { return servers(c.nodes) }

// Addrs is where all nodes listen.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// Client returns a client of the cluster, with the defaults of go-redis where opts
// do not change them. With these it may ask a master that is dead for a minute
// (ClusterStateReloadInterval). It is closed when the test ends.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	o := &redis.ClusterOptions{Addrs: c.Addrs(), MaintNotificationsConfig: NoNotifications()}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}

// Settle waits until all nodes run, serve, and agree who has which slots and
// which replicas, and all replicas are linked: after StartCluster, or when those
// that were killed are back.
func (c *Cluster) Settle() {
	c.t.Helper()
	Await(c.t, "the cluster settles", atMost, func() bool {
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

// view is what the node knows of the cluster, in the same words on every node,
// and of how many nodes that work.
func (n *node) view() (view string, known int) {
	seen := map[string]bool{}
	var lines []string
	for _, r := range n.slots() {
		var all []string
		for _, other := range r.Nodes {
			all = append(all, other.Addr)
			seen[other.Addr] = true
		}
		slices.Sort(all[1:]) // the first is the master
		lines = append(lines, fmt.Sprint(r.Start, r.End, all))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), len(seen)
}

// slots is who has which slots; none if the node does not answer.
func (n *node) slots() []redis.ClusterSlot {
	//lint:ignore SA1019 it is what a ClusterClient asks, so what it says counts
	return n.admin.ClusterSlots(context.Background()).Val()
}

// state is what the node finds the cluster to be, "ok" or "fail"; "" if it does not answer.
func (n *node) state() string {
	_, after, _ := strings.Cut(n.admin.ClusterInfo(context.Background()).Val(), "cluster_state:")
	state, _, _ := strings.Cut(after, "\r\n")
	return state
}

// MasterOf waits until the nodes agree who has the slot of the key, and returns it.
func (c *Cluster) MasterOf(key string) *Server {
	c.t.Helper()
	return c.masterOf(c.slot(key)).Server
}

// ReplicasOf returns the replicas that a master, which must run, has now.
func (c *Cluster) ReplicasOf(master *Server) []*Server {
	c.t.Helper()
	var all []*Server
	for _, replica := range find(c.t, c.nodes, master).ruled().Nodes[1:] {
		all = append(all, at(c.nodes, replica.Addr).Server)
	}
	return all
}

// ruled is a range of slots whose master the node is, and finds itself to be.
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

// agreed is the node that has the slot in the eyes of all that answer, not asking one; or nil.
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

// slot is that of a key.
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

// BeginMigration begins to move the slot of the key to another master: keys that
// are there stay, and for all others clients are sent to the new master with
// -ASK, until finish moves the keys and the slot. One migration finishes at a time. Two
// masters that send each other keys wait for each other. Two that take a slot at once may
// take the same epoch for it, which leaves the others without an answer for good.
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
		for _, n := range []*node{target, source} { // until the source knows it too, it sends everybody on with -ASK
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

// FailoverAfter is Failover by another fault that ends the rule of a master, such
// as of.Freeze.
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

// NoNotifications keeps connections from asking for notes on maintenance, which no server of the tests sends. In
// go-redis 9.22 and
// 9.23 a Conn and its Client race for this setting.
func NoNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}
