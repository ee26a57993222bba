package locktest

// Clusters, other types of Redis clients, and users with few permissions.

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	go func() { got <- l.Do(ctx, func(context.Context) error { return nil }) }()
	testredis.Await(b, "a waiter is subscribed", ClusterSoon, func() bool { return len(b.Subscribed()) > 0 })
	return got
}

// Types of users that embed those of go-redis.
type (
	OwnClient  struct{ *redis.Client }
	OwnCluster struct{ *redis.ClusterClient }
	OwnRing    struct{ *redis.Ring }
	OwnAny     struct{ redis.UniversalClient }
)

// WithSlots returns a ClusterClient that is told which servers have the slots, and asks no server for that. The client
// of redis.NewFailoverClusterClient is such a client; its Close leaves a goroutine of go-redis behind.
func WithSlots(t testing.TB, nodes func(ctx context.Context) ([]redis.ClusterNode, error)) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		RouteRandomly: true,
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			all, err := nodes(ctx)
			return []redis.ClusterSlot{{End: 16383, Nodes: all}}, err
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// ClusterClient returns a ClusterClient for the server at addr, which has all slots.
func ClusterClient(t testing.TB, addr string) *redis.ClusterClient {
	return WithSlots(t, func(context.Context) ([]redis.ClusterNode, error) {
		return []redis.ClusterNode{{Addr: addr}}, nil
	})
}

// AutoPipeliner returns the AutoPipeliner of rdb.
func AutoPipeliner(t testing.TB, rdb redis.UniversalClient) *redis.AutoPipeliner {
	auto, err := rdb.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, auto.Close()) })
	return auto
}

// The smallest set of permissions of a user whose locks are called lock:orders:..., as docs/security.md lists it.
var (
	SmallestKeys = []string{
		"~lock:orders:*", "~{lock:orders:*", "~redisson_lock_token:{lock:orders:*", "~redisson_lock_queue:{lock:orders:*",
		"~redisson_lock_timeout:{lock:orders:*", "~relock_*:{lock:orders:*",
	}
	SmallestChannels = []string{
		"&redisson_lock__channel:{lock:orders:*",
		"&redisson_rwlock:{lock:orders:*",
		"&redisson_sc:{lock:orders:*",
		"&relock_client:*",
	}
	SmallestCommands = []string{
		"+evalsha", "+eval", "+time", "+exists", "+del", "+pttl", "+pexpire", "+set", "+incr",
		"+hset", "+hget", "+hmget", "+hdel", "+hlen", "+hexists", "+hgetall", "+hrandfield",
		"+rpush", "+llen", "+lindex", "+lpos", "+lrange", "+lrem",
		"+zadd", "+zrem", "+zscore", "+zcard", "+zrangebyscore", "+zrevrange", "+zrank",
		"+get", "+incrby", "+zcount",
	}
	SmallestWakeups        = []string{"+publish", "+subscribe", "+unsubscribe"}
	SmallestClusterWakeups = []string{"+spublish", "+ssubscribe", "+sunsubscribe"}
	SmallestCluster        = []string{"+cluster|slots"}

	// Nothing fails without these, but each refusal is an entry in ACL LOG, and go-redis may log it.
	OptionalRights        = []string{"~relock_client:*", "+ping", "+info", "+type", "+pubsub|numsub"}
	OptionalClusterRights = []string{"+pubsub|shardnumsub", "+command", "+asking"} // beside the first four
)

// A Deployment is a Redis, or a Cluster, with users.
type Deployment struct {
	Admins []*redis.Client // of all nodes
	Client func(name, password string) redis.UniversalClient
}

// Deployment returns the deployment of s, the server of b.
func (b *Bench) Deployment(s *testredis.Server) *Deployment {
	return &Deployment{Admins: []*redis.Client{b.Rdb}, Client: func(name, password string) redis.UniversalClient {
		return s.Client(func(o *redis.Options) { o.Username, o.Password = name, password })
	}}
}

// User creates a user with these permissions and a Client of that user.
func (d *Deployment) User(b *Bench, rights []string, opts ...relock.Option) *relock.Client {
	b.Helper()
	const password = "correct-horse"
	name := fmt.Sprintf("user-%d", Benches.Add(1))
	args := []any{"acl", "setuser", name, "reset", "on", ">" + password}
	for _, right := range rights {
		args = append(args, right)
	}
	for _, admin := range d.Admins {
		b.Must(admin.Do(ctx, args...).Err())
	}
	return b.ClientOn(
		d.Client(name, password),
		append([]relock.Option{relock.WithPollInterval(time.Hour), relock.WithWatchdogTimeout(UserLease)}, opts...)...)
}

const UserLease = 2500 * time.Millisecond

var orders atomic.Int64

// OrderName returns a new name that the smallest set of permissions allows.
func OrderName() string { return fmt.Sprintf("lock:orders:%d", orders.Add(1)) }

// Refused reports whether Redis has refused a command to the user.
func Refused(err error) bool {
	return err != nil &&
		(strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "ACL failure in script") ||
			strings.Contains(err.Error(), "The user executing the script can't"))
}

// AwaitListener waits until a waiter of the Client of l listens, or has an answer.
func AwaitListener(t testing.TB, l relock.Locker, got <-chan error) {
	e := EngineOf(ClientOf(l))
	testredis.Await(t, "a waiter listens", ClusterSoon, func() bool {
		return e.Probe().Stats().Listeners > 0 || len(got) > 0
	})
}

// Subscribed reports whether c is subscribed to channel.
func Subscribed(c *relock.Client, channel string) bool {
	l := EngineOf(c).Hub().JoinConfirmed(channel)
	if l != nil {
		l.Leave()
	}
	return l != nil
}

func Without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(right string) bool { return right == one })
}
