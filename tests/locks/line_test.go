package locks

// The wait queue in Redis, the line, in which processes wait for a lock. There is one test for each of its rules, in the
// files line_..., tombstones and poller. This file has their helpers.
//
// Rules: a manual client is one whose requests the test sends, one script at a time. No sleep of a waiter may end by
// itself: the clients of these tests have a poll interval of an hour, unless the test is about it.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/require"
)

// onEachLine runs test on a miniredis and on a real Redis.
func onEachLine(t *testing.T, test func(b *locktest.Bench)) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		test(locktest.NewLineBench(t, addr))
	})
}

// placeOf returns the entry of client, or the zero entry.
func placeOf(b *locktest.Bench, client string) locktest.KeptPlace {
	b.Helper()
	for _, p := range b.Places() {
		if p.Client == client {
			return p
		}
	}
	return locktest.KeptPlace{}
}

func awaitHolder(b *locktest.Bench, client string) {
	b.Helper()
	testredis.Await(b, client+" has the record", locktest.Soon, func() bool { return strings.HasPrefix(b.Holder(), client) })
}

func pttl(b *locktest.Bench) time.Duration {
	b.Helper()
	d, err := b.Rdb.PTTL(ctx, b.LockName).Result()
	b.Must(err)
	return d
}

// emptyLine waits until no client has an entry; tombstones may be left.
func emptyLine(b *locktest.Bench) {
	b.Helper()
	testredis.Await(b, "the line is empty", locktest.Soon, func() bool { return len(b.Places()) == 0 })
}

// received returns the messages of hears, a subscription to channel, that were not returned before.
func received(b *locktest.Bench, hears *redis.PubSub, channel string) (all []string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(ctx, locktest.Soon)
	defer cancel()
	b.Must(b.Rdb.Publish(ctx, channel, "the end").Err())
	for {
		got, err := hears.ReceiveMessage(ctx)
		b.Must(err)
		if got.Payload == "the end" {
			return all
		}
		all = append(all, got.Payload)
	}
}

// A scriptCounter counts the scripts that a client sends, and those that are answered. It does not count the renewals
// of the watchdog. They are due at fixed times, so that a test on a slow machine sees more of them.
type scriptCounter struct {
	locktest.Counter
	answered atomic.Int64
}

func (c *scriptCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer c.begins(cmd)()
		return next(ctx, cmd)
	}
}

func (c *scriptCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer c.begins(cmds...)()
		return next(ctx, cmds)
	}
}

// begins counts those of cmds that are scripts as sent, and answered counts them as answered.
func (c *scriptCounter) begins(cmds ...redis.Cmder) (answered func()) {
	scripts := int64(0)
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") && !isRun(cmd, record.Script("renew"), record.Script("read_renew"), record.Script("semaphore_renew")) {
			scripts++
		}
	}
	c.N.Add(scripts)
	return func() { c.answered.Add(scripts) }
}

// isRun reports whether cmd runs one of these scripts.
func isRun(cmd redis.Cmder, scripts ...*send.Script) bool {
	args := cmd.Args()
	return len(args) > 1 && slices.ContainsFunc(scripts, func(s *send.Script) bool {
		return args[1] == s.Digest() || args[1] == s.Source()
	})
}

// A lineClient is an owner of a Client that asks for the lock.
type lineClient struct {
	*locktest.Bench
	client  *Client
	lock    *Lock
	owner   context.Context
	scripts *scriptCounter // of the client of c and its siblings
	got     chan error
}

// contender returns an owner of a new Client.
func contender(b *locktest.Bench, opts ...Option) *lineClient {
	b.Helper()
	return contenderOn(b, testredis.Client(b, b.Addr), opts...)
}

func contenderOn(b *locktest.Bench, rdb *redis.Client, opts ...Option) *lineClient {
	b.Helper()
	scripts := &scriptCounter{}
	rdb.AddHook(scripts)
	c := b.ClientOn(rdb, opts...)
	return &lineClient{b, c, c.NewLock(b.LockName), ContextWithOwner(ctx), scripts, make(chan error, 1)}
}

// sibling returns another owner of the same Client.
func (c *lineClient) sibling(opts ...LockOption) *lineClient {
	return &lineClient{
		c.Bench,
		c.client,
		c.client.NewLock(c.LockName, opts...),
		ContextWithOwner(ctx),
		c.scripts,
		make(chan error, 1),
	}
}

// asks calls Lock in a goroutine.
func (c *lineClient) asks() *lineClient {
	go func() { c.got <- c.lock.Lock(c.owner) }()
	return c
}

// givesUpAsking calls Lock in a goroutine, and cancels it while rule holds back the request that enters the line.
func (c *lineClient) givesUpAsking(rule *testredis.Rule) {
	c.Helper()
	ctx, cancel := context.WithCancel(c.owner)
	c.owner = ctx
	c.asks()
	locktest.Await(c.Bench, "the request that joins is under way", rule.Fired())
	cancel()
	c.MustBe(locktest.Await(c.Bench, "Lock", c.got), context.Canceled)
}

// joins calls Lock in a goroutine, and returns when the Client has an entry in the line.
func (c *lineClient) joins() *lineClient {
	c.Helper()
	return c.asks().joined()
}

// joined waits until the Client has an entry, and the reply of Redis has arrived.
func (c *lineClient) joined() *lineClient {
	c.Helper()
	testredis.Await(c, "the client has a place", locktest.Soon, func() bool {
		if len(c.got) > 0 {
			require.Fail(c, "Lock came back", "%v", <-c.got)
		}
		return placeOf(c.Bench, c.client.ID()).Delivery != ""
	})
	return c
}

// gets waits until the lock is held.
func (c *lineClient) gets() *lineClient {
	c.Helper()
	c.Must(locktest.Await(c.Bench, "Lock", c.got))
	return c
}

// waits checks that the lock is not held.
func (c *lineClient) waits() {
	c.Helper()
	locktest.Stays(c, "Lock came back", c.got, 100*time.Millisecond)
}

func (c *lineClient) takes() *lineClient {
	c.Helper()
	c.Must(c.lock.Lock(c.owner))
	return c
}

func (c *lineClient) unlocks() {
	c.Helper()
	c.Must(c.lock.Unlock(c.owner))
}

// isGranted writes the record of c, and sends the message of a grant for the request number asked.
func (c *lineClient) isGranted(asked uint64, lease int) {
	c.Helper()
	field := placeOf(c.Bench, c.client.ID()).Field
	_, err := c.Rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, c.LockName)
		p.HSet(ctx, c.LockName, field, 1)
		p.PExpire(ctx, c.LockName, time.Duration(lease)*time.Millisecond)
		c.tell(p, field, asked, lease)
		return nil
	})
	c.Must(err)
}

// tell sends the message of a grant.
func (c *lineClient) tell(p redis.Cmdable, field string, asked uint64, lease int) {
	p.Publish(
		ctx,
		c.ReleaseChannel()+":"+c.client.ID(),
		fmt.Sprintf("grant %s %d %d 0", field, asked, lease),
	)
}

// awaitScripts waits until the Client of c has sent a number of scripts.
func (c *lineClient) awaitScripts(n int64) {
	c.Helper()
	testredis.Await(c, fmt.Sprintf("%d scripts", n), locktest.Soon, func() bool { return c.scripts.N.Load() >= n })
}

// settled returns how many scripts the Client has sent, when all of them are answered and it sends no more.
func (c *lineClient) settled() int64 {
	c.Helper()
	n, since := c.scripts.N.Load(), time.Now()
	testredis.Await(c, "the client has stopped asking", locktest.Soon, func() bool {
		if now := c.scripts.N.Load(); now != n || now != c.scripts.answered.Load() {
			n, since = now, time.Now()
		}
		return time.Since(since) > 50*time.Millisecond
	})
	return n
}
