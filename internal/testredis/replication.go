package testredis

// Common parts of servers that replicate, in a Cluster and behind Sentinels.
//
// Rules: roles change, so they are not stored here; a test asks for the current ones. The answer of a server that is
// killed or paused is not needed for that.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// atMost is the time limit for events that must happen, also on a slow machine and at a second attempt.
// Now and then, a Sentinel on a busy machine does nothing for half a minute (its TILT mode).
const atMost = 3 * time.Minute

// RefuseReplicas cuts off the replicas of this server: data that is written from now on reaches none of them, and
// WAIT counts none, while all keep running. The replicas need all data again, because the replication has a new ID,
// and wait a day for it. A replica without the permission to replicate would ask again at once, forever.
func (s *Server) RefuseReplicas() {
	s.t.Helper()
	s.replicas("config", "set", "repl-diskless-sync-delay", 24*60*60)
	s.replicas("debug", "change-repl-id")
	s.replicas("client", "kill", "type", "replica")
}

// AcceptReplicas ends RefuseReplicas, as a Restart does.
func (s *Server) AcceptReplicas() {
	s.t.Helper()
	s.replicas("config", "set", "repl-diskless-sync-delay", 0)
}

// replicas runs a command that changes what replicas receive from this server.
func (s *Server) replicas(command ...any) {
	s.t.Helper()
	Await(s.t, fmt.Sprintf("the server has run %v", command), atMost, func() bool {
		return s.peek().Do(context.Background(), command...).Err() == nil // Sentinel closes connections when it changes roles
	})
}

// Write sets key on this server, and returns how many replicas have confirmed this write, and all earlier ones,
// within the time. The WAIT uses the connection of the write, because on any other connection it would count all
// replicas.
func (s *Server) Write(key string, replicas int, within time.Duration) int {
	s.t.Helper()
	ctx := context.Background()
	pipe := s.Client(func(o *redis.Options) { o.ReadTimeout = within + 5*time.Second }).Pipeline()
	pipe.Set(ctx, key, "v", 0)
	confirmed := pipe.Do(ctx, "wait", replicas, within.Milliseconds())
	if _, err := pipe.Exec(ctx); err != nil {
		s.t.Fatalf("write %s and wait for replicas: %v", key, err)
	}
	n, err := confirmed.Int()
	if err != nil {
		s.t.Fatalf("WAIT: %v", err)
	}
	return n
}

// AwaitReplicas waits until this number of replicas has all data that was written before. In a Cluster the slot of
// key must belong to this server. The key is deleted at the end.
func (s *Server) AwaitReplicas(key string, replicas int) {
	s.t.Helper()
	Await(s.t, "the replicas have what was written", atMost, func() bool {
		return s.Write(key, replicas, time.Second) >= replicas
	})
	if err := s.Client().Del(context.Background(), key).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// peek returns a client that makes one attempt and does not wait long for a dead server.
func (s *Server) peek() *redis.Client {
	s.t.Helper()
	return s.Client(func(o *redis.Options) {
		o.MaxRetries = -1
		o.DialerRetries = 1
		o.DialTimeout = time.Second
		o.ReadTimeout = 2 * time.Second
	})
}

// A node is a server that is part of a topology.
type node struct {
	*Server
	admin *redis.Client // to inspect it and to set it up
}

func newNode(s *Server) *node { return &node{Server: s, admin: s.peek()} }

// do runs a command that must not fail.
func (n *node) do(args ...any) any {
	n.t.Helper()
	v, err := n.admin.Do(context.Background(), args...).Result()
	if err != nil {
		n.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// replication returns a field of INFO replication, or "" if there is no answer.
func (n *node) replication(field string) string {
	return n.admin.InfoMap(context.Background(), "replication").Item("Replication", field)
}

// linked reports whether the node answers and, if it is a replica, has all data of its master.
func (n *node) linked() bool {
	switch n.replication("role") {
	case "master":
		return true
	case "slave":
		return n.replication("master_link_status") == "up"
	}
	return false
}

// servers returns the servers of nodes.
func servers(nodes []*node) []*Server {
	all := make([]*Server, len(nodes))
	for i, n := range nodes {
		all[i] = n.Server
	}
	return all
}

// addrs returns the addresses of nodes.
func addrs(nodes []*node) []string {
	all := make([]string, len(nodes))
	for i, n := range nodes {
		all[i] = n.Addr()
	}
	return all
}

// at returns the node that listens at addr, or nil.
func at(nodes []*node, addr string) *node {
	for _, n := range nodes {
		if n.Addr() == addr {
			return n
		}
	}
	return nil
}

// find returns the node of a server, which must be one of nodes.
func find(t testing.TB, nodes []*node, s *Server) *node {
	t.Helper()
	for _, n := range nodes {
		if n.Server == s {
			return n
		}
	}
	t.Fatalf("%s is no server of this topology", s.Addr())
	return nil
}
