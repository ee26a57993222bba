package locktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// The smallest set of permissions of a user whose locks are called lock:orders:..., as docs/security.md lists it.
var (
	SmallestKeys = []string{
		"~lock:orders:*", "~{lock:orders:*", "~redisson_lock_token:{lock:orders:*", "~redisson_lock_queue:{lock:orders:*",
		"~redisson_lock_timeout:{lock:orders:*", "~relock_lock_alive:{lock:orders:*", "~relock_rwlock_writers:{lock:orders:*",
		"~relock_line:{lock:orders:*",
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
		"+zadd", "+zrem", "+zscore", "+zcard", "+zmscore", "+zrangebyscore", "+zrevrange",
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
		b.Must(admin.Do(context.Background(), args...).Err())
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

// AwaitSubscribed waits until a waiter for l has subscribed, its subscription was refused, or it has an answer.
func AwaitSubscribed(t testing.TB, l relock.Locker, got <-chan error) {
	wakeups := EngineOf(ClientOf(l)).Hub()
	testredis.Await(t, "a waiter is subscribed", ClusterSoon, func() bool {
		return wakeups.Answered() || len(got) > 0
	})
}

func Without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(right string) bool { return right == one })
}
