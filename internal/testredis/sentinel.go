package testredis

// A primary with replicas, monitored by three sentinels, all of which are real processes.
//
// Rules: as for a Cluster, it is set up with commands, and the state is the one on which all sentinels that answer
// agree. Two of them are enough for a failover.

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const masterName = "main"

// A Sentinel is a primary, its replicas and their sentinels, which belong to one test.
type Sentinel struct {
	t         testing.TB
	nodes     []*node
	sentinels []*node
}

// StartSentinel starts a primary with the given number of replicas and three sentinels, and waits until all are
// linked and the sentinels know all of them. args are passed to the primary and the replicas. For everything else see
// Start.
func StartSentinel(t testing.TB, replicas int, args ...string) *Sentinel {
	t.Helper()
	s, began := &Sentinel{t: t}, time.Now()
	for range 1 + replicas {
		s.nodes = append(s.nodes, newNode(Start(t, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)))
	}
	primary := s.nodes[0]
	for _, n := range s.nodes[1:] {
		n.do("replicaof", "127.0.0.1", primary.port)
	}
	Await(t, "the replicas are linked", atMost, func() bool {
		return !slices.ContainsFunc(s.nodes, func(n *node) bool { return !n.linked() })
	})
	// A primary that has no time to answer must not count as down: on a busy machine it has more time.
	down := Scale(began, time.Second).Milliseconds()
	for range 3 {
		n := newNode(Start(t, "--sentinel"))
		s.sentinels = append(s.sentinels, n)
		n.do("sentinel", "debug", "info-period", 500, "publish-period", 200) // instead of 10 s and 2 s
		n.do("sentinel", "monitor", masterName, "127.0.0.1", primary.port, 2)
		n.do("sentinel", "set", masterName, "down-after-milliseconds", down, "failover-timeout", 3*down)
	}
	s.Settle()
	return s
}

// MasterName returns the name that the sentinels use for the primary.
func (s *Sentinel) MasterName() string { return masterName }

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return addrs(s.sentinels) }

// Sentinels returns the sentinels.
func (s *Sentinel) Sentinels() []*Server { return servers(s.sentinels) }

// Client returns a client that asks the sentinels for the primary. It is closed when the test ends.
func (s *Sentinel) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	o := &redis.FailoverOptions{MasterName: masterName, SentinelAddrs: s.Addrs()}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewFailoverClient(o)
	s.t.Cleanup(func() { _ = c.Close() }) // a test may have closed it already
	return c
}

// Master waits until the sentinels agree which server is the primary, and returns it.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	var master *node
	Await(s.t, "the sentinels agree on a primary", atMost, func() bool {
		master = s.agreed()
		return master != nil
	})
	return master.Server
}

// Replicas returns all servers except the primary.
func (s *Sentinel) Replicas() []*Server {
	s.t.Helper()
	master := s.Master()
	return slices.DeleteFunc(servers(s.nodes), func(r *Server) bool { return r == master })
}

// agreed returns the primary in the view of all sentinels that answer, or nil if they disagree.
func (s *Sentinel) agreed() *node {
	var master *node
	for _, n := range s.sentinels {
		addr, err := n.admin.Do(context.Background(), "sentinel", "get-master-addr-by-name", masterName).StringSlice()
		if err != nil {
			continue
		}
		named := at(s.nodes, addr[0]+":"+addr[1])
		if master != nil && named != master {
			return nil
		}
		master = named
	}
	return master
}

// Settle waits until all servers run and replicate the primary on which the sentinels agree, and every sentinel
// considers all others as working. Tests call it after servers that were killed have been restarted.
func (s *Sentinel) Settle() {
	s.t.Helper()
	Await(s.t, "the sentinels and all replicas follow one primary", atMost, func() bool {
		master := s.agreed()
		if master == nil || master.replication("role") != "master" {
			return false
		}
		for _, n := range s.nodes {
			if n != master && (n.replication("master_port") != strconv.Itoa(master.port) || !n.linked()) {
				return false
			}
		}
		for _, n := range s.sentinels {
			if n.sees("replicas", "slave") != len(s.nodes)-1 || n.sees("sentinels", "sentinel") != len(s.sentinels)-1 {
				return false
			}
		}
		return true
	})
}

// sees returns the number of replicas or sentinels that a sentinel considers as working. One that it has not
// inspected yet has no run ID, and does not count.
func (n *node) sees(which, flags string) int {
	ctx := context.Background()
	cmd := redis.NewMapStringStringSliceCmd(ctx, "sentinel", which, masterName)
	_ = n.admin.Process(ctx, cmd) // after an error it sees none
	count := 0
	for _, other := range cmd.Val() {
		if other["flags"] == flags && other["runid"] != "" {
			count++
		}
	}
	return count
}

// Failover kills the primary and waits until the sentinels have promoted a replica.
func (s *Sentinel) Failover() *Server {
	s.t.Helper()
	return s.FailoverAfter(s.Master().Kill)
}

// FailoverAfter is like Failover, with another fault that makes the primary fail, such as Freeze.
func (s *Sentinel) FailoverAfter(fault func()) *Server {
	s.t.Helper()
	old := find(s.t, s.nodes, s.Master())
	fault()
	var master *node
	Await(s.t, "a replica takes over", atMost, func() bool {
		master = s.agreed()
		return master != nil && master != old && master.replication("role") == "master"
	})
	return master.Server
}
