package testredis

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestSentinel(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	s := StartSentinel(t, 2, "--maxmemory", "64mb")
	if n := len(s.Addrs()); n != 3 || n != len(s.Sentinels()) {
		t.Errorf("%d sentinels at %v", n, s.Addrs())
	}
	master := s.Master()
	replicas := s.Replicas()
	if len(replicas) != 2 || slices.Contains(replicas, master) {
		t.Errorf("replicas of %v: %v", master, replicas)
	}
	for _, server := range append(replicas, master) {
		if got := server.Client().ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != "67108864" {
			t.Errorf("maxmemory is %q", got)
		}
	}
	c := s.Client(func(o *redis.FailoverOptions) { o.ClientName = "me" })
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := c.ClientGetName(ctx).Val(); got != "me" {
		t.Errorf("the client is called %q", got)
	}
	for _, r := range replicas {
		direct := r.Client()
		Await(t, "it gets to the replica", patience, func() bool { return direct.Get(ctx, "k").Val() == "v" })
	}
	s.Sentinels()[0].Kill()
	if s.Master() != master {
		t.Error("without one sentinel the primary is another")
	}
	s.Sentinels()[0].Restart() // it has its state in a file
	s.Settle()
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	s := StartSentinel(t, 1)
	c := s.Client()
	old, replica := s.Master(), s.Replicas()[0]
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old.AwaitReplicas("waited", 1)
	if got := s.Failover(); got != replica || s.Master() != replica {
		t.Errorf("the primary is %s", got.Addr())
	}
	Await(t, "the client gets to the new primary", patience, func() bool { return c.Get(ctx, "k").Val() == "v" })

	old.Restart()
	s.Settle()
	if got := s.Replicas(); len(got) != 1 || got[0] != old {
		t.Errorf("the replicas of the new primary: %v", got)
	}
	if got := s.FailoverAfter(replica.Freeze); got != old {
		t.Errorf("the primary is %s", got.Addr())
	}
	replica.Thaw()
	s.Settle()
	if got := s.Master(); got != old {
		t.Errorf("the primary is %s", got.Addr())
	}
}

// With two replicas, both cut off.
func TestSentinelRefuseReplicas(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	s := StartSentinel(t, 2)
	c := s.Client()
	master := s.Master()
	write := func(key string, timeout time.Duration) (replicas int) { return master.Write(key, 2, timeout) }
	if n := write("kept", patience); n != 2 {
		t.Fatalf("it reaches %d replicas", n)
	}
	master.RefuseReplicas()
	if n := write("lost", time.Millisecond); n != 0 {
		t.Errorf("it reaches %d replicas", n)
	}
	s.Failover()
	Await(t, "the client gets to the new primary", patience, func() bool { return c.Get(ctx, "kept").Val() == "v" })
	if err := c.Get(ctx, "lost").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("what reached no replica: %v", err)
	}
	master.Restart()
	s.Settle()
}
