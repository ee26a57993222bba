package locktest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// ClusterSoon is how long a Cluster may take for an operation that should be immediate.
const ClusterSoon = 10 * time.Second

// SlotLocks are the locks whose keys share a slot, so that one request acquires them.
var SlotLocks = append(
	slices.Clone(RecordLocks),
	LockKind{Name: "multi of one slot", One: NewSlotMultiLock, Rival: NewSlotMultiLock},
)

func NewPlainLock(c *relock.Client, name string) relock.Locker { return c.NewLock(name) }

func NewFencedLock(c *relock.Client, name string) relock.Locker {
	return c.NewLock(name, relock.Fenced())
}

func NewSlotMultiLock(c *relock.Client, name string) relock.Locker {
	return c.NewMultiLock(c.NewLock("{"+name+"}1"), c.NewLock("{"+name+"}2"))
}

// A ClusterBench is a bench over a Cluster.
type ClusterBench struct {
	*Bench
	cluster *testredis.Cluster
	Admin   *redis.ClusterClient
}

func NewClusterBench(t *testing.T, cluster *testredis.Cluster) *ClusterBench {
	b := &ClusterBench{
		Bench:   &Bench{T: t, LockName: fmt.Sprintf("lock-%d", Benches.Add(1))},
		cluster: cluster,
		Admin:   cluster.Client(),
	}
	t.Cleanup(b.CheckNothingIsLeft)
	return b
}

// Client returns a client that is notified by messages, or that does not ask again for an hour.
func (b *ClusterBench) Client(opts ...relock.Option) *relock.Client {
	return b.ClientOn(
		b.cluster.Client(),
		append([]relock.Option{relock.WithPollInterval(time.Hour), relock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
}

// OnMasters returns what ask returns on all masters for keys with the bench's name.
func (b *ClusterBench) OnMasters(ask func(context.Context, *redis.Client) ([]string, error)) []string {
	ctx := context.Background()
	found := make(chan []string, 16)
	err := b.Admin.ForEachMaster(ctx, func(ctx context.Context, rdb *redis.Client) error {
		all, err := ask(ctx, rdb)
		found <- all
		return err
	})
	if err != nil {
		return []string{"unknown: " + err.Error()}
	}
	var names []string
	for range len(found) {
		names = append(names, <-found...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, b.LockName) })
}

func (b *ClusterBench) Keys() []string {
	return slices.DeleteFunc(b.OnMasters(func(ctx context.Context, rdb *redis.Client) ([]string, error) {
		return rdb.Keys(ctx, "*").Result()
	}), func(key string) bool {
		return strings.HasPrefix(key, "redisson_lock_token") || IsLeftFree(b.Admin, key)
	})
}

func (b *ClusterBench) Subscribed() []string {
	return b.OnMasters(func(ctx context.Context, rdb *redis.Client) ([]string, error) {
		return rdb.PubSubShardChannels(ctx, "*").Result()
	})
}

func (b *ClusterBench) CheckNothingIsLeft() {
	if b.Failed() {
		return
	}
	testredis.Await(b, "nothing of "+b.LockName+" is left in Redis", ClusterSoon, func() bool { return len(b.Keys()) == 0 })
	testredis.Await(b, "nothing of "+b.LockName+" is subscribed", ClusterSoon, func() bool { return len(b.Subscribed()) == 0 })
}

// StartWaiter locks and unlocks l on another goroutine, and returns when it waits in Redis.
func (b *ClusterBench) StartWaiter(l relock.Locker) <-chan error {
	b.Helper()
	testredis.Await(
		b,
		"the last waiter is not subscribed any more",
		ClusterSoon,
		func() bool { return len(b.Subscribed()) == 0 },
	)
	got := make(chan error, 1)
	go func() { got <- l.Do(context.Background(), func(context.Context) error { return nil }) }()
	testredis.Await(b, "a waiter is subscribed", ClusterSoon, func() bool { return len(b.Subscribed()) > 0 })
	return got
}
