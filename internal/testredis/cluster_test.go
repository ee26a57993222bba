package testredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// alert makes a client that notices a failover soon.
func alert(o *redis.ClusterOptions) {
	o.ClusterStateReloadInterval = 100 * time.Millisecond
	o.DialerRetries = 1
}

func TestCluster(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1, "--maxmemory", "64mb")
	if n := len(c.Nodes()); n != 6 || n != len(c.Addrs()) {
		t.Fatalf("%d nodes at %v", n, c.Addrs())
	}
	client := c.Client()
	owners := map[*Server]int{}
	for i := range 300 {
		key := fmt.Sprint("k", i)
		if err := client.Set(ctx, key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			owners[c.MasterOf(key)]++
		}
	}
	if len(owners) != 3 {
		t.Errorf("%d masters", len(owners))
	}
	for m, n := range owners {
		if n < 3 {
			t.Errorf("a master has %d of 30 keys", n)
		}
		replicas := c.ReplicasOf(m)
		if len(replicas) != 1 || !slices.Contains(c.Nodes(), replicas[0]) || owners[replicas[0]] > 0 {
			t.Errorf("replicas: %v", replicas)
		}
		if got := m.Client().ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != "67108864" {
			t.Errorf("maxmemory is %q", got)
		}
	}
}

func TestClusterOfOne(t *testing.T) {
	t.Parallel() // it mostly waits
	c := StartCluster(t, 1, 0)
	if got := c.MasterOf("k"); got != c.Nodes()[0] {
		t.Errorf("the master is %v", got)
	}
	if got := c.ReplicasOf(c.MasterOf("k")); len(got) > 0 {
		t.Errorf("replicas: %v", got)
	}
}

func TestMigrateSlot(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1)
	client := c.Client()
	for i := range 250 { // more than one MIGRATE takes
		if err := client.Set(ctx, fmt.Sprintf("{k}%d", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	from, to := c.MasterOf("{k}"), c.otherThan(c.MasterOf("{k}"))

	finish := c.BeginMigration("{k}", to)
	if got := c.MasterOf("{k}"); got != from {
		t.Errorf("meanwhile the master is %s", got.Addr())
	}
	if err := from.Client().Get(ctx, "{k}none").Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Errorf("a key that is not there: %v", err)
	}
	if err := client.Set(ctx, "{k}new", "v", 0).Err(); err != nil {
		t.Error(err)
	}
	if err := from.Client().Get(ctx, "{k}7").Err(); err != nil {
		t.Errorf("a key that is there: %v", err)
	}
	finish()

	if got := c.MasterOf("{k}"); got != to {
		t.Errorf("the master is %s", got.Addr())
	}
	if err := from.Client().Get(ctx, "{k}7").Err(); err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
		t.Errorf("the old master: %v", err)
	}
	for i := range 250 {
		if n, err := client.Get(ctx, fmt.Sprintf("{k}%d", i)).Int(); err != nil || n != i {
			t.Fatalf("%d: %d, %v", i, n, err)
		}
	}
	if v, err := client.Get(ctx, "{k}new").Result(); err != nil || v != "v" {
		t.Errorf("%q, %v", v, err)
	}
	c.MigrateSlot("{k}", from) // and back
	if got := c.MasterOf("{k}"); got != from {
		t.Errorf("the master is %s", got.Addr())
	}
}

// otherThan is a master that is not this one.
func (c *Cluster) otherThan(not *Server) *Server {
	for i := 0; ; i++ {
		if m := c.MasterOf(fmt.Sprint(i)); m != not {
			return m
		}
	}
}

func TestClusterFailover(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1)
	client := c.Client(alert)
	old := c.MasterOf("k")
	replica := c.ReplicasOf(old)[0]
	if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old.AwaitReplicas("{k}waited", 1)

	if got := c.Failover(old); got != replica || c.MasterOf("k") != replica {
		t.Errorf("the master is %s", got.Addr())
	}
	Await(t, "the client gets to the new master", patience, func() bool { return client.Get(ctx, "k").Val() == "v" })

	old.Restart()
	c.Settle()
	if got := c.ReplicasOf(replica); len(got) != 1 || got[0] != old {
		t.Errorf("the replicas of the new master: %v", got)
	}
	if got := c.FailoverAfter(replica, replica.Freeze); got != old {
		t.Errorf("the master is %s", got.Addr())
	}
	replica.Thaw()
	c.Settle()
	if got := c.MasterOf("k"); got != old {
		t.Errorf("the master is %s", got.Addr())
	}
}

// What a failover loses: what had not reached the replica, and WAIT knows.
func TestClusterRefuseReplicas(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1)
	client := c.Client(alert)
	master := c.MasterOf("k")
	write := func(key string) (replicas int) { return master.Write(key, 1, patience/50) }
	reached := func() bool { return write("{k}kept") == 1 }
	Await(t, "a write reaches the replica", patience, reached)
	master.RefuseReplicas()
	master.AcceptReplicas()
	Await(t, "a write reaches the replica again", patience, reached)
	master.RefuseReplicas()
	if n := write("{k}lost"); n != 0 {
		t.Errorf("it reaches %d replicas", n)
	}

	c.Failover(master)
	Await(t, "the client gets to the new master", patience, func() bool { return client.Get(ctx, "{k}kept").Val() == "v" })
	if err := client.Get(ctx, "{k}lost").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("what did not reach the replica: %v", err)
	}
}
