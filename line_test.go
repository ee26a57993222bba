package relock

// The wait queue in Redis, the line, in which processes wait for a lock. There is one test for each of its rules, in the
// files line_..., tombstones and poller. This file has their helpers.
//
// Rules: a manual client is one whose requests the test sends, one script at a time. No sleep of a waiter may end by
// itself: the clients of these tests have a poll interval of an hour, unless the test is about it.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const minute = 60_000 // ms

// onEachLine runs test on a miniredis and on a real Redis.
func onEachLine(t *testing.T, test func(b *bench)) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		test(newLineBench(t, addr))
	})
}

func newLineBench(t *testing.T, addr string) *bench {
	b := newBench(t, addr)
	b.opts = []Option{WithPollInterval(time.Hour)}
	for _, script := range allScripts() {
		// Loaded before, so that each request is one command.
		b.must(b.rdb.ScriptLoad(context.Background(), script.Source()).Err())
	}
	return b
}

func (b *bench) lineKey() string { return record.LineKey(b.name) }

func (b *bench) releaseChannel() string { return record.PrefixName("redisson_lock__channel", b.name) }

// A keptPlace is an entry of the line, as it is stored in Redis.
type keptPlace struct {
	number          int
	state, delivery string
	lease           int
	fenced          bool
	asked           uint64
	field           string
	since           int64 // epoch seconds
	client          string
}

// places returns the entries of the line, in order.
func (b *bench) places() (all []keptPlace) {
	b.Helper()
	line, err := b.rdb.HGetAll(context.Background(), b.lineKey()).Result()
	b.must(err)
	for number, client := range line {
		n, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		words := strings.Fields(line[client])
		if !assert.Len(b, words, 8, "the place of %s", client) || words[0] != number {
			continue
		}
		lease, err := strconv.Atoi(words[3])
		b.must(err)
		asked, err := strconv.ParseUint(words[5], 10, 64)
		b.must(err)
		since, err := strconv.ParseInt(words[7], 10, 64)
		b.must(err)
		all = append(all, keptPlace{n, words[1], words[2], lease, words[4] == "1", asked, words[6], since, client})
	}
	slices.SortFunc(all, func(a, b keptPlace) int { return a.number - b.number })
	return all
}

// placeOf returns the entry of client, or the zero entry.
func (b *bench) placeOf(client string) keptPlace {
	b.Helper()
	for _, p := range b.places() {
		if p.client == client {
			return p
		}
	}
	return keptPlace{}
}

// clientsInLine returns the clients that have an entry, in order.
func (b *bench) clientsInLine() (all []string) {
	b.Helper()
	for _, p := range b.places() {
		all = append(all, p.client)
	}
	return all
}

// holder returns the field in the record, or "".
func (b *bench) holder() string {
	b.Helper()
	fields, err := b.rdb.HKeys(context.Background(), b.name).Result()
	b.must(err)
	require.LessOrEqual(b, len(fields), 1, "fields of the record")
	return strings.Join(fields, "")
}

func (b *bench) awaitHolder(client string) {
	b.Helper()
	testredis.Await(b, client+" has the record", soon, func() bool { return strings.HasPrefix(b.holder(), client) })
}

func (b *bench) pttl() time.Duration {
	b.Helper()
	d, err := b.rdb.PTTL(context.Background(), b.name).Result()
	b.must(err)
	return d
}

// ended reports whether field can no longer acquire the lock.
func (b *bench) ended(field string) bool {
	b.Helper()
	over, err := b.rdb.HGet(context.Background(), b.lineKey(), "over").Result()
	if !errors.Is(err, redis.Nil) {
		b.must(err)
	}
	return slices.Contains(strings.Fields(over), field)
}

// emptyLine waits until no client has an entry; tombstones may be left.
func (b *bench) emptyLine() {
	b.Helper()
	testredis.Await(b, "the line is empty", soon, func() bool { return onlyTombstones(b.rdb, b.lineKey()) })
}

// A manual is a client whose requests the test sends.
type manual struct {
	*bench
	id     string
	field  string
	lease  int // in milliseconds
	fenced bool
	asked  int
	hears  *redis.PubSub // the channel of grants, or nil
}

// manual returns a client with a field of its own. The keys are deleted at the end of the test.
func (b *bench) manual() *manual {
	id := uuid.NewString()
	b.Cleanup(b.forget)
	return &manual{bench: b, id: id, field: id + ":1:01", lease: minute}
}

func (m *manual) run(s *luaScript, args ...any) reply {
	m.Helper()
	keys := []string{m.name, m.lineKey()}
	if m.fenced {
		keys = append(keys, record.TokenKey(m.name))
	}
	r, err := run(context.Background(), m.rdb, call{Script: s, Keys: keys, Args: args})
	m.must(err)
	return r
}

// ask asks for the lock; delivery is as in internal/lua/lock_acquire.lua.
func (m *manual) ask(delivery string) reply {
	m.Helper()
	m.asked++
	return m.run(lockAcquire, m.field, m.lease, 1, delivery, 1, m.asked, m.releaseChannel(), "publish")
}

// takes acquires a lock that must be free.
func (m *manual) takes() *manual {
	m.Helper()
	r := m.ask(contract.Barge)
	require.Equal(m, int64(1), r[0], "the lock is not free")
	return m
}

// joins enters the line. Without a channel of grants the client is not subscribed from then on.
func (m *manual) joins() *manual {
	m.Helper()
	if m.hears == nil {
		s := m.subscribe(m.grants())
		defer testredis.Await(m, "it does not listen any more", soon, func() bool { return m.hearers(m.grants()) == 0 })
		defer func() { _ = s.Close() }()
	}
	require.Equal(m, int64(1), m.ask(contract.Push)[2]%4, "no place")
	return m
}

// release releases the lock or leaves the line. The hand-off window never ends, so that the lock passes to the first
// entry.
func (m *manual) release(late bool) reply {
	m.Helper()
	return m.releaseIn(time.Since(time.Unix(0, 0))*2, late)
}

func (m *manual) releaseIn(slice time.Duration, late bool) reply {
	m.Helper()
	return m.run(lockRelease, m.field, m.releaseChannel(), "publish", slice.Milliseconds(), 0, late)
}

func (m *manual) grants() string { return m.releaseChannel() + ":" + m.id }

// listens subscribes to the channel of grants.
func (m *manual) listens() *manual {
	m.Helper()
	m.hears = m.subscribe(m.grants())
	return m
}

// subscribe returns a subscription that Redis has confirmed.
func (b *bench) subscribe(channel string) *redis.PubSub {
	b.Helper()
	s := b.rdb.Subscribe(context.Background(), channel)
	b.Cleanup(func() { _ = s.Close() })
	_, err := s.Receive(context.Background())
	b.must(err)
	return s
}

// messages returns the messages that were sent to m and not returned before.
func (m *manual) messages() []string {
	m.Helper()
	return m.received(m.hears, m.grants())
}

// received returns the messages of hears, a subscription to channel, that were not returned before.
func (b *bench) received(hears *redis.PubSub, channel string) (all []string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	b.must(b.rdb.Publish(ctx, channel, "the end").Err())
	for {
		got, err := hears.ReceiveMessage(ctx)
		b.must(err)
		if got.Payload == "the end" {
			return all
		}
		all = append(all, got.Payload)
	}
}

// A scriptCounter counts the scripts that a client sends, and those that are answered. It does not count the renewals
// of the watchdog. They are due at fixed times, so that a test on a slow machine sees more of them.
type scriptCounter struct {
	counter
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
		if strings.HasPrefix(cmd.Name(), "eval") && !isRun(cmd, renewScript, readRenew, semaphoreRenew) {
			scripts++
		}
	}
	c.n.Add(scripts)
	return func() { c.answered.Add(scripts) }
}

// isRun reports whether cmd runs one of these scripts.
func isRun(cmd redis.Cmder, scripts ...*luaScript) bool {
	args := cmd.Args()
	return len(args) > 1 && slices.ContainsFunc(scripts, func(s *luaScript) bool {
		return args[1] == s.Digest() || args[1] == s.Source()
	})
}

// A lineClient is an owner of a Client that asks for the lock.
type lineClient struct {
	*bench
	client  *Client
	lock    *Lock
	owner   context.Context
	scripts *scriptCounter // of the client of c and its siblings
	got     chan error
}

// contender returns an owner of a new Client.
func (b *bench) contender(opts ...Option) *lineClient {
	b.Helper()
	return b.contenderOn(testredis.Client(b, b.addr), opts...)
}

func (b *bench) contenderOn(rdb *redis.Client, opts ...Option) *lineClient {
	b.Helper()
	scripts := &scriptCounter{}
	rdb.AddHook(scripts)
	c := b.clientOn(rdb, opts...)
	return &lineClient{b, c, c.NewLock(b.name), ContextWithOwner(context.Background()), scripts, make(chan error, 1)}
}

// sibling returns another owner of the same Client.
func (c *lineClient) sibling(opts ...LockOption) *lineClient {
	return &lineClient{
		c.bench,
		c.client,
		c.client.NewLock(c.name, opts...),
		ContextWithOwner(context.Background()),
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
	await(c.bench, "the request that joins is under way", rule.Fired())
	cancel()
	c.mustBe(await(c.bench, "Lock", c.got), context.Canceled)
}

// joins calls Lock in a goroutine, and returns when the Client has an entry in the line.
func (c *lineClient) joins() *lineClient {
	c.Helper()
	return c.asks().joined()
}

// joined waits until the Client has an entry, and the reply of Redis has arrived.
func (c *lineClient) joined() *lineClient {
	c.Helper()
	testredis.Await(c, "the client has a place", soon, func() bool {
		if len(c.got) > 0 {
			require.Fail(c, "Lock came back", "%v", <-c.got)
		}
		return c.placeOf(c.client.ID()).delivery != ""
	})
	return c
}

// gets waits until the lock is held.
func (c *lineClient) gets() *lineClient {
	c.Helper()
	c.must(await(c.bench, "Lock", c.got))
	return c
}

// waits checks that the lock is not held.
func (c *lineClient) waits() {
	c.Helper()
	stays(c, "Lock came back", c.got, 100*time.Millisecond)
}

func (c *lineClient) takes() *lineClient {
	c.Helper()
	c.must(c.lock.Lock(c.owner))
	return c
}

func (c *lineClient) unlocks() {
	c.Helper()
	c.must(c.lock.Unlock(c.owner))
}

// isGranted writes the record of c, and sends the message of a grant for the request number asked.
func (c *lineClient) isGranted(asked uint64, lease int) {
	c.Helper()
	field := c.placeOf(c.client.ID()).field
	_, err := c.rdb.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
		p.Del(context.Background(), c.name)
		p.HSet(context.Background(), c.name, field, 1)
		p.PExpire(context.Background(), c.name, time.Duration(lease)*time.Millisecond)
		c.tell(p, field, asked, lease)
		return nil
	})
	c.must(err)
}

// tell sends the message of a grant.
func (c *lineClient) tell(p redis.Cmdable, field string, asked uint64, lease int) {
	p.Publish(
		context.Background(),
		c.releaseChannel()+":"+c.client.ID(),
		fmt.Sprintf("grant %s %d %d 0", field, asked, lease),
	)
}

// awaitScripts waits until the Client of c has sent a number of scripts.
func (c *lineClient) awaitScripts(n int64) {
	c.Helper()
	testredis.Await(c, fmt.Sprintf("%d scripts", n), soon, func() bool { return c.scripts.n.Load() >= n })
}

// settled returns how many scripts the Client has sent, when all of them are answered and it sends no more.
func (c *lineClient) settled() int64 {
	c.Helper()
	n, since := c.scripts.n.Load(), time.Now()
	testredis.Await(c, "the client has stopped asking", soon, func() bool {
		if now := c.scripts.n.Load(); now != n || now != c.scripts.answered.Load() {
			n, since = now, time.Now()
		}
		return time.Since(since) > 50*time.Millisecond
	})
	return n
}
