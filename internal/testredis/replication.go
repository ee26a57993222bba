package testredis

// Common parts of servers that replicate, in a Cluster and behind a Sentinel.
//
// Rules: roles change, so nothing here remembers them; a test asks who has them
// now. A server that is killed or paused has no say in the answer.

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// atMost is for what must happen, on a slow machine and at the second attempt too.
const atMost = 3 * time.Minute // a Sentinel on a busy machine does nothing for half a minute, now and then (its TILT mode)

// RefuseReplicas cuts the replicas of this server off: nothing that is written
// from now on reaches one of them, and WAIT counts none, while all keep running.
// They need all data again, because the replication has another ID, and wait for
// these for a day. A replica that may not replicate would ask again at once, for ever.
func (s *Server) RefuseReplicas() {
	s.t.Helper()
	s.replicas("config", "set", "repl-diskless-sync-delay", 24*60*60)
	s.replicas("debug", "change-repl-id")
	s.replicas("client", "kill", "type", "replica")
}

// AcceptReplicas ends RefuseReplicas; so does a Restart.
func (s *Server) AcceptReplicas() {
	s.t.Helper()
	s.replicas("config", "set", "repl-diskless-sync-delay", 0)
}

// replicas changes what replicas get from this server.
func (s *Server) replicas(command ...any) {
	s.t.Helper()
	if err := s.peek().Do(context.Background(), command...).Err(); err != nil {
		s.t.Fatalf("change what replicas get: %v: %v", command, err)
	}
}

// Write sets key on this server, and returns how many replicas have confirmed that,
// and with it all that was written before, within the time. A WAIT of another
// connection than that of the write would count any replica.
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

// AwaitReplicas waits until so many replicas have all that was written before. key
// is of a slot of this server, if it is in a Cluster; it is gone afterwards.
func (s *Server) AwaitReplicas(key string, replicas int) {
	s.t.Helper()
	Await(s.t, "the replicas have what was written", atMost, func() bool {
		return s.Write(key, replicas, time.Second) >= replicas
	})
	if err := s.Client().Del(context.Background(), key).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// peek makes a client that asks once and does not wait long for a dead server.
func (s *Server) peek() *redis.Client {
	s.t.Helper()
	return s.Client(func(o *redis.Options) {
		o.MaxRetries = -1
		o.DialerRetries = 1
		o.DialTimeout = time.Second
		o.ReadTimeout = 2 * time.Second
	})
}

// A node is a server among others.
type node struct {
	*Server
	admin *redis.Client // to look into it and to set it up
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

// replication is a field of INFO replication; "" if there is no answer.
func (n *node) replication(field string) string {
	return n.admin.InfoMap(context.Background(), "replication").Item("Replication", field)
}

// linked tells whether the node answers and has all that its master has, if it is a replica.
func (n *node) linked() bool {
	switch n.replication("role") {
	case "master":
		return true
	case "slave":
		return n.replication("master_link_status") == "up"
	}
	return false
}

// servers is what the test sees of nodes.
func servers(nodes []*node) []*Server {
	all := make([]*Server, len(nodes))
	for i, n := range nodes {
		all[i] = n.Server
	}
	return all
}

// addrs is where nodes listen.
func addrs(nodes []*node) []string {
	all := make([]string, len(nodes))
	for i, n := range nodes {
		all[i] = n.Addr()
	}
	return all
}

// at is the node that listens at addr, or nil.
func at(nodes []*node, addr string) *node {
	for _, n := range nodes {
		if n.Addr() == addr {
			return n
		}
	}
	return nil
}

// find is the node of a server, which must be one of them.
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
