package relock

// The wait queue in Redis, the line, in which processes wait for a lock. There is one test for each of its rules, in
// the order of line.go and internal/lua/line.lua.
//
// Rules: a manual client is one whose requests the test sends, one script at a time. No sleep of a waiter may end by
// itself: the clients of these tests have a poll interval of an hour, unless the test is about it.

// Tombstones: when a field leaves one, when the tombstone is removed, and what it costs other clients.
//
// Rules: a request that the proxy holds back may run late; until then its field has a tombstone.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/ticket"
	"github.com/relock-go/relock/internal/waitgroup"
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

func (b *bench) lineKey() string { return lineKey(b.name) }

func (b *bench) releaseChannel() string { return prefixName("redisson_lock__channel", b.name) }

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
		keys = append(keys, tokenKey(m.name))
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

// The lock passes from process to process in the order in which they entered the line.
func TestLineServesInOrderOfArrival(t *testing.T) {
	onEachLine(t, func(b *bench) {
		const n = 6
		start := time.Now()
		first := b.contender(WithPollInterval(time.Hour)).takes()
		var all []*lineClient
		order := make(chan int, n)
		var sections sync.WaitGroup
		for i := range n {
			c := b.contender(WithPollInterval(time.Hour)).joins()
			all = append(all, c)
			waitgroup.Go(&sections, func() {
				if assert.NoError(b, <-c.got) {
					order <- i
					assert.NoError(b, c.lock.Unlock(c.owner))
				}
			})
		}
		var ids []string
		for _, c := range all {
			ids = append(ids, c.client.ID())
		}
		require.Equal(b, ids, b.clientsInLine(), "the line")
		first.unlocks()
		sections.Wait()
		for i := range n {
			assert.Equal(b, i, <-order, "the section that came next")
		}
		most := int64(3)
		if time.Since(start) > time.Second {
			most++ // a request without an answer is sent again
		}
		for i, c := range all {
			assert.LessOrEqual(b, c.scripts.n.Load(), most, "scripts of client %d: two requests and a release", i)
		}
	})
}

// A critical section of a process that stays subscribed costs one request and one release, however many processes wait.
func TestLineCostsTwoScriptsASection(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	const clients, warm, sections = 6, 10, 60
	var ready, all sync.WaitGroup
	ready.Add(clients)
	begin := make(chan struct{})
	var order []int // guarded by the lock
	for i := range clients {
		c := b.contender()
		waitgroup.Go(&all, func() {
			visit := func() {
				assert.NoError(b, c.lock.Lock(c.owner))
				order = append(order, i)
				time.Sleep(2 * time.Millisecond) // the work, while the others enter the line
				assert.NoError(b, c.lock.Unlock(c.owner))
			}
			for range warm {
				visit()
			}
			ready.Done()
			<-begin
			for range sections {
				visit()
			}
		})
	}
	ready.Wait()
	before := b.scriptRuns()
	order = nil
	close(begin)
	all.Wait()
	runs := float64(b.scriptRuns()-before) / (clients * sections)
	b.Logf("%.2f scripts a section", runs)
	assert.LessOrEqual(b, runs, 2.2, "scripts a section")
	overtaken := 0
	for i := range len(order) - clients {
		round := slices.Clone(order[i : i+clients])
		slices.Sort(round)
		if len(slices.Compact(round)) < clients && i+clients < clients*(sections-1) {
			overtaken++
		}
	}
	assert.LessOrEqual(b, overtaken, clients*sections/10, "rounds in which a client came twice, and another one not")
}

// A grant for a request that was sent a moment ago is used without a further request.
func TestLineGrantIsHeldWithoutAsking(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		c := b.contender().joins()
		asked := c.settled()
		c.isGranted(c.placeOf(c.client.ID()).asked, 5000)
		c.gets()
		assert.Equal(b, asked, c.scripts.n.Load(), "scripts")
		c.unlocks()
		assert.Empty(b, b.holder(), "the record")
	})
}

// The validity of a grant begins when the request that it names was sent. A grant whose lease may have expired since is
// not used: the caller asks Redis, which returns the current holder.
func TestLineOldGrantIsNotBelieved(t *testing.T) {
	onEachLine(t, func(b *bench) {
		const lease = 500
		m := b.manual().takes()
		c := b.contender(WithWatchdogTimeout(lease * time.Millisecond)).joins()
		joined, asked := time.Now(), c.settled()
		p := c.placeOf(c.client.ID())
		require.Equal(b, lease, p.lease, "the lease of the place")
		testredis.Await(b, "a lease has passed", soon, func() bool { return time.Since(joined) > lease*time.Millisecond })
		c.tell(b.rdb, p.field, p.asked, lease) // it was delayed for that long; m holds the lock by now
		c.awaitScripts(asked + 1)
		c.waits()
		assert.Equal(b, m.field, b.holder(), "the holder")

		// If the record agrees with the message, the request confirms it, with the whole lease.
		p, asked = c.placeOf(c.client.ID()), c.settled()
		joined = time.Now()
		testredis.Await(b, "a lease has passed", soon, func() bool { return time.Since(joined) > lease*time.Millisecond })
		c.isGranted(p.asked, lease)
		c.gets()
		assert.Equal(b, asked+1, c.scripts.n.Load(), "scripts")
		c.unlocks()
	})
}

// A grant of which less than half of an explicit lease remains is confirmed by a request, which restores the lease.
func TestLineGrantOfALeaseThatIsNearlyOverIsConfirmed(t *testing.T) {
	onEachLine(t, func(b *bench) {
		const lease = 1000
		b.manual().takes()
		c := b.contender()
		go func() { c.got <- c.lock.LockLease(c.owner, lease*time.Millisecond) }()
		c.joined()
		joined, asked := time.Now(), c.settled()
		p := c.placeOf(c.client.ID())
		testredis.Await(
			b,
			"more than half of the lease has passed",
			soon,
			func() bool { return time.Since(joined) > lease*time.Millisecond*3/4 },
		)
		c.isGranted(p.asked, lease)
		c.gets()
		assert.Equal(b, asked+1, c.scripts.n.Load(), "scripts")
		guarded, err := c.lock.Guard(c.owner)
		b.must(err)
		stays(b, "hardly anything was left of the lease", guarded.Done(), lease*time.Millisecond/2)
		c.unlocks()
	})
}

// A grant with a number that the process has not sent is not used.
func TestLineGrantOfNoRequestIsNotBelieved(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual().takes()
		c := b.contender().joins()
		for _, by := range []uint64{1, 97, 1 << 63} {
			asked, p := c.settled(), c.placeOf(c.client.ID())
			c.tell(b.rdb, p.field, p.asked+by, 5000)
			c.awaitScripts(asked + 1)
			c.waits()
			assert.Equal(b, m.field, b.holder(), "the holder")
		}
		m.release(false)
		c.gets().unlocks()
	})
}

// A grant with a shorter lease than the caller asked for, or with a token that it did not ask for, is confirmed by a
// request.
func TestLineGrantOfOtherPropertiesIsConfirmed(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		c := b.contender().joins()
		asked, p := c.settled(), c.placeOf(c.client.ID())
		c.isGranted(p.asked, 1000)
		c.gets()
		assert.Equal(b, asked+1, c.scripts.n.Load(), "scripts")
		assert.Greater(b, b.pttl(), 5*time.Second, "the lease")
		c.unlocks()
	})
}

// A grant for a wait that has ended is released at once.
func TestLineGrantToAnUnknownWaitIsGivenBack(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		c := b.contender().joins()
		unknown := c.client.ID() + ":7:0999"
		ctx := context.Background()
		_, err := b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, b.name)
			p.HSet(ctx, b.name, unknown, 1)
			p.PExpire(ctx, b.name, time.Minute)
			c.tell(p, unknown, 1, 5000)
			return nil
		})
		b.must(err)
		c.gets() // the lock that was released
		assert.True(b, b.ended(unknown), "a request of the wait may run late")
		c.unlocks()
	})
}

// A message that arrives twice does not end the hold that it began.
func TestLineRepeatedMessageLeavesTheHold(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		c := b.contender().joins()
		p := c.placeOf(c.client.ID())
		defer c.client.engine.Probe().KeepSubscribed(c.releaseChannel() + ":" + c.client.ID())()
		first.release(false)
		c.gets()
		for i := range 3 { // the messages are read in order
			unknown := fmt.Sprintf("%s:7:0%d", c.client.ID(), 900+i)
			c.tell(b.rdb, p.field, p.asked, 5000)
			c.tell(b.rdb, unknown, 1, 5000)
			testredis.Await(b, "the message behind it is handled", soon, func() bool { return b.ended(unknown) })
		}
		assert.Equal(b, p.field, b.holder(), "the holder")
		assert.False(b, b.ended(p.field), "the field of the hold")
		c.unlocks()
		b.manual() // deletes the line with its tombstones
	})
}

// A release passes over a client whose connection is closed.
func TestLineSkipsADeadClient(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		dead := b.manual().joins() // it is not subscribed
		alive := b.contender().joins()
		asked := alive.settled()
		first.release(false)
		alive.gets()
		assert.Equal(b, asked, alive.scripts.n.Load(), "scripts of the next client")
		assert.Zero(b, b.placeOf(dead.id), "the place of the dead client")
		alive.unlocks()
		b.emptyLine()
	})
}

// A client whose connection was cut loses its entry, and enters the line again when it is connected again.
func TestLineClientWithoutConnectionComesBack(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	cut := b.contenderOn(b.proxy.Client()).joins()
	next := b.contender().joins()
	rule := b.proxy.On(testredis.Command("subscribe"), testredis.HoldRequest).Times(testredis.Always)
	b.proxy.CutAll()
	testredis.Await(b, "the server knows that the connection is gone", soon, func() bool {
		return b.hearers(b.releaseChannel()+":"+cut.client.ID()) == 0
	})
	first.unlocks()
	next.gets()
	cut.waits()
	rule.Release()
	cut.joined()
	next.unlocks()
	cut.gets().unlocks()
}

// A client that is subscribed and does not react delays the others by one provisional lease. Then it is passed over
// until it asks, and its next grant has the whole lease.
func TestLinePausedClientCostsOneLease(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		first := b.contender().takes()
		frozen := b.manual().listens().joins()
		next := b.contender(WithPollInterval(100 * time.Millisecond)).joins()
		first.unlocks()
		b.awaitHolder(frozen.id)
		assert.InDelta(b, 3500, b.pttl().Milliseconds(), 1500, "the provisional lease")
		b.must(b.rdb.PExpire(ctx, b.name, 100*time.Millisecond).Err()) // the provisional lease expires
		next.gets()
		assert.Equal(b, "suspect", b.placeOf(frozen.id).state, "the place of the frozen client")

		last := b.contender(WithPollInterval(100 * time.Millisecond)).joins()
		next.unlocks()
		last.gets() // and not the paused client
		assert.Equal(b, []string{frozen.id}, b.clientsInLine(), "the line")
		behind := b.manual().listens().joins()

		frozen.joins() // it asks
		assert.Equal(b, "confirmed", b.placeOf(frozen.id).state, "the place of the client that has asked")
		assert.Equal(b, []string{frozen.id, behind.id}, b.clientsInLine(), "the line")
		last.unlocks()
		assert.Equal(b, frozen.field, b.holder(), "the holder")
		assert.Greater(b, b.pttl(), 50*time.Second, "the lease of the grant")
		assert.Equal(b, int64(1), frozen.release(false)[0], "released")
	})
}

// The same applies if the grant came from a client that had been granted the lock itself.
func TestLineLapseOfALaterGrantIsNoticed(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		one, two, three := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		first.release(false)
		one.release(false)
		require.Equal(b, two.field, b.holder(), "the holder")
		require.NoError(b, b.rdb.Del(context.Background(), b.name).Err()) // the lease expires
		require.Equal(b, int64(1), three.ask(contract.Push)[0], "the lock is free")
		assert.Equal(b, []string{two.id}, b.clientsInLine(), "the line")
		assert.Equal(b, "suspect", b.placeOf(two.id).state, "the place whose grant was not used")
	})
}

// If two clients do not use their grants, each of them keeps its entry.
func TestLineTwoExpiriesLeaveTwoPlaces(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		one, two, three := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		lapse := func() { b.must(b.rdb.Del(context.Background(), b.name).Err()) }
		first.release(false)
		lapse()
		three.joins()
		require.Equal(b, two.field, b.holder(), "the holder")
		lapse()
		require.Equal(b, int64(1), three.ask(contract.Push)[0], "the lock is free")
		assert.Equal(b, []string{one.id, two.id}, b.clientsInLine(), "the line")
	})
}

// A client that asks after its grant has expired keeps its entry, even if no script has noticed the expiry.
func TestLineExpiredClientThatAsksKeepsItsPlace(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		lapses, next := b.manual().listens().joins(), b.manual().listens().joins()
		first.release(false)
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the lease expires
		other := b.manual().takes()                           // TryLock without a wait: its script does not read the line
		lapses.joins()
		assert.Equal(b, "confirmed", b.placeOf(lapses.id).state, "the place of the client that has asked")
		assert.Equal(b, []string{lapses.id, next.id}, b.clientsInLine(), "the line")

		other.release(false)
		require.Equal(b, lapses.field, b.holder(), "the holder")
		b.must(b.rdb.Del(context.Background(), b.name).Err())
		assert.Equal(b, int64(1), lapses.ask(contract.Push)[0], "the lock is free, and the client is first")
		assert.Equal(b, []string{next.id}, b.clientsInLine(), "the line")
	})
}

// A process whose lease expired without a release waits again, behind those that already wait.
func TestLineExpiredHolderWaitsAgainAtTheEnd(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		lapses := b.manual().listens()
		lapses.lease = 1000
		lapses.joins()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		first.release(false)
		require.Equal(b, lapses.field, b.holder(), "the holder")
		require.NoError(b, b.rdb.Del(context.Background(), b.name).Err()) // its second lease expires
		require.Equal(b, int64(0), two.ask(contract.Push)[0], "the second place overtakes the first one")
		require.Equal(b, one.field, b.holder(), "the holder")
		lapses.field = lapses.id + ":1:02" // another wait
		lapses.joins()
		assert.Equal(b, []string{two.id, lapses.id}, b.clientsInLine(), "the line")
		one.release(false)
		assert.Equal(b, two.field, b.holder(), "the holder")
	})
}

// x and {x} are two locks whose additional keys would be the same: a release of one grants nothing to a waiter of the
// other.
func TestLineOfANameInBracesIsItsOwn(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	for kind, lock := range map[string]func(c *Client, name string) Locker{
		"plain":  func(c *Client, name string) Locker { return c.NewLock(name) },
		"fenced": func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
		"fair":   func(c *Client, name string) Locker { return c.NewFairLock(name) },
		"write":  func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	} {
		for _, names := range [][2]string{{kind, "{" + kind + "}"}, {"{" + kind + "-2}", kind + "-2"}} {
			awaited, released := lock(b.client(), names[0]), lock(b.client(), names[1])
			b.must(awaited.Lock(ctx))
			b.must(released.Lock(ctx))
			waits := lock(b.client(), names[0])
			got := make(chan error, 1)
			go func() { got <- waits.Do(ctx, func(context.Context) error { return nil }) }()
			testredis.Await(t, "it waits", soon, func() bool { return b.rdb.Exists(ctx, lineKey(names[0])).Val() == 1 })
			before := b.rdb.HKeys(ctx, names[0]).Val()
			b.must(released.Unlock(ctx))
			assert.Zero(t, b.rdb.Exists(ctx, names[1]).Val(), "%s: the record of %s is there", kind, names[1])
			assert.Equal(t, before, b.rdb.HKeys(ctx, names[0]).Val(), "%s: the record of %s", kind, names[0])
			assert.Empty(t, got, "%s: two have %s", kind, names[0])
			b.must(awaited.Unlock(ctx))
			b.must(await(b, "the waiter of "+names[0], got))
		}
	}
}

// A subscription at the former master is replaced. Otherwise the waiter would have no entry, and would always be
// overtaken.
func TestLineDeafClientSubscribesAnew(t *testing.T) {
	t.Parallel()
	before, now := testredis.Start(t), testredis.Start(t)
	b := newBench(t, now.Addr())
	ctx := ContextWithOwner(context.Background())
	var master atomic.Pointer[testredis.Server]
	master.Store(before)
	rdb := redis.NewClient(&redis.Options{
		Addr: "a name that moves", ReadTimeout: time.Second,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", master.Load().Addr())
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	old := newBench(t, before.Addr())
	old.name = b.name
	old.manual().takes()
	b.manual().takes()
	waits := b.clientOn(rdb).NewLock(b.name)
	got := make(chan error, 1)
	go func() { got <- waits.Lock(ctx) }()
	testredis.Await(
		t,
		"it stands in the line of the old master",
		soon,
		func() bool { return len(old.clientsInLine()) == 1 },
	)
	master.Store(now)
	// Except the connection of the subscription.
	b.must(old.rdb.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err())
	testredis.Await(
		t,
		"it stands in the line of the new master",
		2*soon,
		func() bool { return len(b.clientsInLine()) == 1 },
	)
	b.must(b.rdb.Del(ctx, b.name).Err())
	b.manual().listens().ask(contract.Push) // grants it
	b.must(await(b, "the waiter has the lock", got))
	b.must(waits.Unlock(ctx))
}

// A caller that waits with the entry of another caller of its process, and asks for a shorter lease, is not granted a
// longer one.
func TestLineShorterLeaseTakesNoPlaceOfALongerOne(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, next := b.contender().takes(), b.contender()
		short := ContextWithOwner(context.Background())
		ctx, cancel := context.WithCancel(next.owner)
		next.owner = ctx
		next.asks()
		testredis.Await(b, "it stands in the line", soon, func() bool { return len(b.clientsInLine()) == 1 })
		got := make(chan error, 1)
		go func() { got <- next.lock.LockLease(short, 2*time.Second) }()
		testredis.Await(b, "another caller waits behind it", soon, func() bool { return b.waitsInQueue(next.lock) })
		cancel()
		b.mustBe(await(b, "Lock", next.got), context.Canceled)
		first.unlocks()
		b.must(await(b, "LockLease", got))
		assert.LessOrEqual(b, b.pttl(), 2*time.Second, "the lease in Redis")
		b.must(next.lock.Unlock(short))
	})
}

// An entry with a high number is not far back if the numbers before it are missing. A client that is far back polls
// seldom, and would sleep while the lock is free.
func TestLineMissingNumbersAreNoPlaces(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		passing, last := b.manual().listens(), b.manual().listens()
		for range 150 {
			passing.field = fmt.Sprintf("%s:1:0%d", passing.id, passing.asked+1)
			passing.joins()
			passing.release(false)
		}
		answer := last.ask(contract.Push)[2]
		require.Equal(b, int64(1), answer%4, "no place")
		assert.Less(b, answer/4, int64(poller.NearHead/4), "places in front, of which there is one")
	})
}

// Clients that come and go behind one that waits for a long time do not make the scripts of the others slower, and do
// not change the order.
func TestLineClosesGaps(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		holder := b.manual().takes()
		granted, first, second := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		holder.release(false)
		require.Equal(b, granted.field, b.holder(), "the holder")
		b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err())
		passing, last := b.manual().listens(), b.manual().listens()
		comes := func(times int) {
			for n := range times {
				passing.field = fmt.Sprintf("%s:1:0%d", passing.id, passing.asked+1)
				passing.joins()
				if n == times/2 {
					last.joins()
				}
				passing.release(false)
			}
		}
		comes(300)
		span := func() int {
			numbers := b.rdb.HMGet(ctx, b.lineKey(), "first", "last").Val()
			first, err1 := strconv.Atoi(fmt.Sprint(numbers[0]))
			last, err2 := strconv.Atoi(fmt.Sprint(numbers[1]))
			b.must(errors.Join(err1, err2))
			return last - first
		}
		assert.Less(b, span(), 250, "numbers of the line")
		assert.Equal(b, []string{first.id, second.id, last.id}, b.clientsInLine(), "the line")

		b.must(b.rdb.Del(ctx, b.name).Err()) // the lease of the grant expires
		first.lease = 60 * minute
		first.ask(contract.Push)
		assert.Equal(b, first.field, b.holder(), "the holder")
		assert.Equal(b, []string{granted.id, second.id, last.id}, b.clientsInLine(), "the line")
		comes(300)
		assert.Less(b, span(), 250, "numbers of the line")
		granted.joins()
		assert.Equal(b, []string{granted.id, second.id, last.id}, b.clientsInLine(), "the line")
		for _, next := range []*manual{granted, second, last} {
			first.release(false)
			assert.Equal(b, next.field, b.holder(), "the holder")
			first = next
		}
		last.release(false)
	})
}

// A client that is paused for a long time does not make the scripts of the others slower.
func TestLinePausedClientCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	first := b.manual().takes()
	frozen := b.manual().listens().joins()
	first.release(false)
	b.awaitHolder(frozen.id)
	b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
	one, two := b.manual().listens(), b.manual().listens()
	next := func(m *manual) {
		m.field = fmt.Sprintf("%s:1:0%d", m.id, m.asked+1)
		m.joins()
	}
	require.Equal(b, int64(1), one.ask(contract.Push)[0], "the lock is free")
	require.Equal(b, "suspect", b.placeOf(frozen.id).state)
	commands := func() (n int) { // that the release of one sends
		next(two)
		n = b.commands(func() { one.release(false) })
		require.Equal(b, two.field, b.holder(), "the holder")
		one, two = two, one
		return n
	}
	at := commands()
	for range 200 {
		commands()
	}
	assert.LessOrEqual(b, commands(), at+2, "commands of a release, after 200 others; %d before", at)
}

// fillLine adds places of clients that poll to the line of a lock, with these numbers. more is what their fields have
// behind their numbers. It returns the clients.
func (b *bench) fillLine(from, to int, state, more string) (clients []string) {
	b.Helper()
	for n := from; n <= to; n++ {
		clients = append(clients, fmt.Sprintf("00000000-0000-0000-0000-%012d", n))
	}
	b.must(b.rdb.Eval(context.Background(), `for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		local client = string.format('00000000-0000-0000-0000-%012d', i)
		local place = i .. ' ' .. ARGV[3] .. ' poll 60000 0 1 ' .. client .. ':1:01' .. ARGV[4] .. ' 1'
		redis.call('hset', KEYS[1], i, client, client, place)
	end
	local first = math.min(tonumber(redis.call('hget', KEYS[1], 'first') or ARGV[1]), tonumber(ARGV[1]))
	return redis.call('hset', KEYS[1], 'first', first, 'last', ARGV[2], 'shared', redis.call('time')[1] * 1000)`,
		[]string{b.lineKey()}, from, to, state, more).Err())
	return clients
}

// Places that are passed over stay, and cost a run few commands, however many they are. Nothing is written as long as
// nothing moves.
func TestLinePlacesThatArePassedOverCostFewCommands(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	suspects := b.fillLine(1, 2000, "suspect", "")
	one, two := b.manual().listens(), b.manual().listens()
	for _, what := range []string{"first", "second"} {
		require.Equal(b, int64(1), one.ask(contract.Defer)[0], "the lock is free")
		written := b.commandRuns("hset")
		assert.Less(b, b.commands(func() { one.release(false) }), 200, "commands of the %s release", what)
		assert.LessOrEqual(b, b.commandRuns("hset")-written, 1, "writes to the line")
		require.Equal(b, suspects, b.clientsInLine())
	}
	require.Equal(b, int64(1), one.ask(contract.Defer)[0], "the lock is free")
	two.joins()
	assert.Less(b, b.commands(func() { one.release(false) }), 100, "commands of a release that passes them")
	require.Equal(b, two.field, b.holder(), "the holder")
	assert.Equal(b, suspects, b.clientsInLine())
	two.release(false)
}

// Where others pass such places all the time, the places keep their order, and the numbers that a run reads do not
// become more and more.
func TestLinePlacesThatArePassedOverKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for many, most := range map[int]int{3: 3 + 2, 100: 2*100 + 2} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			t.Parallel()
			b := newLineBench(t, testredis.StillMini(t).Addr())
			suspects := b.fillLine(1, many, "suspect", "")
			one, two := b.manual().listens(), b.manual().listens()
			require.Equal(b, int64(1), one.ask(contract.Defer)[0], "the lock is free")
			widest := 0
			for range 250 {
				two.field = fmt.Sprintf("%s:1:0%d", two.id, two.asked+1)
				two.joins()
				one.release(false)
				require.Equal(b, two.field, b.holder(), "the holder")
				numbers := b.rdb.HMGet(context.Background(), b.lineKey(), "first", "last").Val()
				first, err1 := strconv.Atoi(fmt.Sprint(numbers[0]))
				last, err2 := strconv.Atoi(fmt.Sprint(numbers[1]))
				b.must(errors.Join(err1, err2))
				widest = max(widest, last-first+1)
				one, two = two, one
			}
			assert.Equal(b, suspects, b.clientsInLine())
			assert.LessOrEqual(b, widest, most, "numbers of the line")
			one.release(false)
		})
	}
}

// suspect returns a client whose grant was not used in time, so that its place is the first one again. The lock is free.
func (b *bench) suspect() *manual {
	b.Helper()
	first := b.manual().takes()
	late, next := b.manual().listens().joins(), b.manual().listens()
	first.release(false)
	b.awaitHolder(late.id)
	b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
	require.Equal(b, int64(1), next.ask(contract.Push)[0], "the lock is free")
	require.Equal(b, "suspect", b.placeOf(late.id).state)
	b.must(b.rdb.Del(context.Background(), b.name).Err())
	return late
}

// A place that is passed over moves, and stays in the line: if a caller behind it, whose subscription is lost, takes
// the lock.
func TestLinePlaceThatMovesStaysWhenACallerLeaves(t *testing.T) {
	onEachLine(t, func(b *bench) {
		late := b.suspect()
		b.manual().takes()
		deaf := b.manual().joins()
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the lease of the holder expires
		require.Equal(b, int64(1), deaf.ask(contract.Push)[0], "the lock is free")
		assert.Equal(b, []string{late.id}, b.clientsInLine())
	})
}

// It moves in front of the place that was granted the lock last, whose number is missing, and which comes back if the
// lease of the grant has expired.
func TestLinePlaceThatMovesTakesNoNumberOfAGrant(t *testing.T) {
	onEachLine(t, func(b *bench) {
		late := b.suspect()
		holder := b.manual().takes()
		granted, next := b.manual().listens().joins(), b.manual().listens().joins()
		holder.release(false)
		b.awaitHolder(granted.id)
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
		holder = b.manual().takes()
		b.subscribe(b.releaseChannel())
		holder.releaseIn(0, false)
		require.Empty(b, b.holder(), "the lock is left free")
		b.manual().ask(contract.Defer)
		b.awaitHolder(next.id)
		assert.Equal(b, []string{late.id, granted.id}, b.clientsInLine())
	})
}

// The first suspects are told of a lock that stays free, and not more than a script can tell in a moment.
func TestLineTellsTheFirstSuspects(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	b.fillLine(1, 300, "suspect", "")
	m := b.manual()
	require.Equal(b, int64(1), m.ask(contract.Defer)[0], "the lock is free")
	first := b.subscribe(b.releaseChannel() + ":00000000-0000-0000-0000-000000000001")
	told := b.commandRuns("publish")
	m.release(false)
	assert.Equal(b, 100+1, b.commandRuns("publish")-told, "messages, one of them to all")
	assert.Equal(b, []string{"free"}, b.received(first, b.releaseChannel()+":00000000-0000-0000-0000-000000000001"))
}

// commandRuns returns how many commands with this name the server has run.
func (b *bench) commandRuns(name string) (n int) {
	b.Helper()
	stats, err := b.rdb.Info(context.Background(), "commandstats").Result()
	b.must(err)
	for _, line := range strings.Split(stats, "\r\n") {
		if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d,", &n); err == nil {
			return n
		}
	}
	return 0
}

// The entry of a process that may not subscribe and has crashed is removed, even while others use the line.
func TestLineForgetsADeadClientThatAsks(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		dead := b.manual()
		dead.ask(contract.Poll)
		first.release(false)
		require.Equal(b, dead.field, b.holder(), "the holder")
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
		for i := range 5 {
			m := b.manual().listens()
			require.Equal(b, int64(1), m.ask(contract.Push)[0], "the lock is free")
			m.release(false)
			b.Logf("after %d sections: %v", i, b.places())
		}
		assert.Empty(b, b.clientsInLine(), "the line")
	})
}

// A waiter asks before the line expires, however long its poll interval is.
func TestLineWaiterAsksBeforeTheLineForgetsIt(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		life, err := b.rdb.PTTL(context.Background(), b.lineKey()).Result()
		b.must(err)
		e := b.client().engine
		for _, left := range []time.Duration{-1, time.Second, 10 * time.Minute, time.Hour} {
			delay := e.Probe().SleepInLine(b.name, b.releaseChannel()+":"+e.ID, left)
			assert.Less(b, delay, life/2, "the sleep of a waiter with a place")
		}
	})
}

// The same applies to a process that is late by more than the provisional lease: it learns that the lock is free, and
// asks.
func TestLineLateClientIsToldOfAFreeLock(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		first := b.manual().takes()
		late := b.manual().listens().joins()
		first.release(false)
		b.awaitHolder(late.id)
		b.must(b.rdb.Del(ctx, b.name).Err()) // the lease expires
		other := b.manual().takes()          // TryLock without a wait: its script does not read the line
		require.Len(b, late.messages(), 1, "messages so far")
		other.release(false)
		assert.Equal(b, []string{"free"}, late.messages(), "messages")
		assert.Empty(b, b.holder(), "the holder")
		assert.Equal(b, int64(1), late.ask(contract.Push)[0], "the lock is free")
		late.release(false)
	})
}

// A release that runs twice passes the lock on once, and sends one message.
func TestLineRepeatedReleaseGrantsOnce(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		assert.Equal(b, reply{1, 0, 1}, first.release(false), "the release")
		for range 3 {
			assert.Equal(b, int64(-1), first.release(true)[0], "the repeated release")
		}
		assert.Len(b, one.messages(), 1, "messages to the first place")
		assert.Empty(b, two.messages(), "messages to the second place")
		assert.Equal(b, one.field, b.holder(), "the holder")
		assert.Equal(b, []string{two.id}, b.clientsInLine(), "the line")
	})
}

// Every script that finds the lock free grants it to the first entry, and only its first run does.
func TestLineScriptThatFindsTheLockFreeGrants(t *testing.T) {
	for what, script := range map[string]func(b *bench, waiter *manual){
		"a release of a hold that is gone": func(b *bench, _ *manual) { b.manual().release(true) },
		"a place that is given up":         func(b *bench, waiter *manual) { waiter.release(true) },
		"a newcomer":                       func(b *bench, _ *manual) { b.manual().ask(contract.Defer) },
		"a newcomer that names no channel": func(b *bench, _ *manual) {
			m := b.manual()
			m.run(lockAcquire, m.field, minute, 1)
		},
		"a newcomer that joins":    func(b *bench, _ *manual) { b.manual().listens().joins() },
		"a client that asks again": func(b *bench, waiter *manual) { waiter.ask(contract.Push) },
	} {
		t.Run(what, func(t *testing.T) {
			onEachLine(t, func(b *bench) {
				b.manual().takes()
				one, two, three := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
				b.must(b.rdb.Del(context.Background(), b.name).Err())
				script(b, three)
				script(b, three)
				assert.Len(b, one.messages(), 1, "messages to the first place")
				assert.Empty(b, two.messages(), "messages to the second place")
				assert.Equal(b, one.field, b.holder(), "the holder")
			})
		})
	}
}

// grantee returns a client that the line has granted the lock.
func (b *bench) grantee() *manual {
	b.Helper()
	first, next := b.manual().takes(), b.manual().listens().joins()
	require.Equal(b, reply{1, 0, 1}, first.release(false), "the release that grants the lock")
	require.Equal(b, next.field, b.holder(), "the holder")
	return next
}

// Behind a holder that the line granted the lock, the rules of joining are the same as behind any other holder.
func TestLineJoinsBehindAGrantedHolder(t *testing.T) {
	for what, test := range map[string]func(b *bench, holder *manual){
		"a subscribed client has a place": func(b *bench, _ *manual) {
			one, two := b.manual().listens(), b.manual().listens()
			assert.Equal(b, int64(1), one.ask(contract.Push)[2], "the standing of the first one")
			assert.Equal(b, int64(1+4), two.ask(contract.Push)[2], "the standing of the second one")
			assert.Equal(b, int64(1), one.ask(contract.Push)[2], "the standing of the first one, which asks again")
			assert.Equal(b, []string{one.id, two.id}, b.clientsInLine(), "the line")
		},
		"a client whose subscription is lost has none": func(b *bench, _ *manual) {
			assert.Equal(b, int64(3), b.manual().ask(contract.Push)[2], "the standing")
			assert.Empty(b, b.clientsInLine(), "the line")
		},
		"a client that polls has a place": func(b *bench, _ *manual) {
			assert.Equal(b, int64(1), b.manual().ask(contract.Poll)[2], "the standing")
		},
		"a client that does not wait has none": func(b *bench, _ *manual) {
			for _, delivery := range []string{contract.Defer, contract.Barge} {
				assert.Equal(b, []int64{0, 0}, []int64{b.manual().ask(delivery)[0], b.manual().ask(delivery)[2]}, delivery)
			}
			assert.Empty(b, b.clientsInLine(), "the line")
		},
		"a field that has ended has none": func(b *bench, _ *manual) {
			over := b.manual().listens()
			over.release(true)
			assert.Equal(b, int64(0), over.ask(contract.Push)[2], "the standing")
			assert.Empty(b, b.clientsInLine(), "the line")
		},
		"the holder itself is told that it holds the lock": func(b *bench, holder *manual) {
			for _, delivery := range []string{contract.Push, contract.Defer, contract.Barge} {
				assert.Equal(b, int64(1), holder.ask(delivery)[0], delivery)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			onEachLine(t, func(b *bench) { test(b, b.grantee()) })
		})
	}
}

// A release by a holder that took the lock past the line leaves the place of an earlier grant, which has expired, in
// the line.
func TestLineReleaseKeepsThePlaceOfAnExpiredGrant(t *testing.T) {
	onEachLine(t, func(b *bench) {
		late := b.grantee()
		two := b.manual().listens().joins()
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // its lease expires
		passes := b.manual().takes()
		assert.Equal(b, reply{1, 0, 1}, passes.release(false), "the release")
		assert.Equal(b, two.field, b.holder(), "the holder")
		assert.Equal(b, "suspect", b.placeOf(late.id).state, "the place whose grant has expired")
	})
}

// A request that runs after its wait has ended neither acquires the lock nor enters the line.
func TestLineEndedFieldNeitherTakesNorJoins(t *testing.T) {
	onEachLine(t, func(b *bench) {
		for _, delivery := range []string{contract.Barge, contract.Defer, contract.Push, contract.Poll} {
			over := b.manual()
			over.release(true)
			assert.Equal(b, int64(0), over.ask(delivery)[0], "%s: a free lock", delivery)
			assert.Empty(b, b.holder(), "%s: the holder", delivery)
			other := b.manual().takes()
			assert.NotEqual(b, int64(1), over.ask(delivery)[2], "%s: a busy lock", delivery)
			assert.Empty(b, b.clientsInLine(), "%s: the line", delivery)
			other.release(false)
			assert.Empty(b, b.holder(), "%s: the holder", delivery)
		}
	})
}

// When an entry is given up, its field gets a tombstone, and so does the field of a hold.
func TestLineGiveUpEndsTheField(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, waiter := b.manual().takes(), b.manual().listens().joins()
		waiter.release(true)
		assert.Empty(b, b.clientsInLine(), "the line")
		waiter.ask(contract.Push)
		assert.Empty(b, b.clientsInLine(), "the line")
		first.release(true)
		assert.Equal(b, int64(0), first.ask(contract.Barge)[0], "the field of a hold that was released")
		assert.Empty(b, b.holder(), "the holder")
	})
}

// A later wait of a client replaces its earlier wait in its entry, and a request of the earlier one has no effect.
func TestLineLaterWaitReplacesTheEarlierOne(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		earlier := one.field
		one.field = one.id + ":2:02"
		one.joins()
		assert.Equal(b, []string{one.id, two.id}, b.clientsInLine(), "the line")
		assert.Equal(b, one.field, b.placeOf(one.id).field, "the field of the place")
		later := one.field
		one.field = earlier
		assert.Equal(b, int64(0), one.ask(contract.Push)[2], "the earlier wait has a place")
		assert.Equal(b, later, b.placeOf(one.id).field, "the field of the place")
		first.release(false)
		assert.Equal(b, later, b.holder(), "the holder")
	})
}

// A request of a caller that has given up, and that Redis runs late, leaves nothing.
func TestLineAskThatRunsLateLeavesNothing(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	late.givesUpAsking(rule)
	testredis.Await(b, "the wait has ended in Redis", soon, func() bool {
		return b.rdb.HExists(context.Background(), b.lineKey(), "over").Val()
	})
	before := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", soon, func() bool { return b.scriptRuns() > before })
	assert.Empty(b, b.clientsInLine(), "the line")
	first.unlocks()
	assert.Empty(b, b.holder(), "the holder")
	b.manual()
}

// The rollback of a request whose outcome is unknown also buries the field, because the rollback of the caller may
// arrive later.
func TestLineUndoOfAnUnansweredRequestEndsTheField(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
	rule := b.proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	ends := func(late string) testredis.Match {
		return func(cmd []string) bool { return calls(lockRelease)(cmd) && cmd[len(cmd)-1] == late }
	}
	open, closed := b.proxy.On(
		ends("0"),
		testredis.DelayRequest(0),
	).Times(
		testredis.Always,
	), b.proxy.On(
		ends("1"),
		testredis.DelayRequest(0),
	).Times(
		testredis.Always,
	)
	late.givesUpAsking(rule)
	testredis.Await(b, "the undo of the request", soon, func() bool { return open.Count()+closed.Count() > 1 })
	assert.Zero(b, open.Count(), "undos after which the request may still take the lock")
	rule.Release()
	first.unlocks()
	b.emptyLine()
	b.manual()
}

// asksIn matches requests for the lock by their place in the line: see line.go.
func asksIn(delivery string) testredis.Match {
	return func(cmd []string) bool { return calls(lockAcquire)(cmd) && slices.Contains(cmd, delivery) }
}

// A caller that gives up leaves its entry to the next caller of its process.
func TestLineCallerThatGivesUpLeavesItsPlace(t *testing.T) {
	t.Parallel()
	for what, wait := range map[string]func(ctx context.Context, l *Lock) error{
		"ctx": func(ctx context.Context, l *Lock) error { return l.Lock(ctx) },
		"time": func(ctx context.Context, l *Lock) error {
			got, err := l.TryLock(ctx, 1500*time.Millisecond, 0)
			if err == nil && !got {
				err = context.Canceled
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			onEachLine(t, func(b *bench) {
				first := b.contender().takes()
				leaves := b.contender()
				ctx, cancel := context.WithCancel(leaves.owner)
				go func() { leaves.got <- wait(ctx, leaves.lock) }()
				leaves.joined()
				p := b.placeOf(leaves.client.ID())
				stayer := leaves.sibling().asks()
				testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(stayer.lock) })
				other := b.contender().joins()
				if what == "ctx" {
					cancel()
				}
				b.mustBe(await(b, "the caller gives up", leaves.got), context.Canceled)
				cancel()
				testredis.Await(b, "the other owner asks", soon, func() bool { return b.placeOf(p.client).asked != p.asked })
				assert.Equal(b, []string{p.client, other.client.ID()}, b.clientsInLine(), "the line")
				assert.Equal(b, p.number, b.placeOf(p.client).number, "the number of the place")
				first.unlocks()
				stayer.gets()
				other.waits()
				stayer.unlocks()
				other.gets().unlocks()
				b.emptyLine()
			})
		})
	}
}

// The last caller of a process that gives up removes the entry.
func TestLineLastCallerGivesUpThePlace(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		one := b.contender()
		ctx, cancel := context.WithCancel(one.owner)
		one.owner = ctx
		one.joins()
		two := one.sibling()
		two.owner = ContextWithOwner(ctx)
		two.asks()
		testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(two.lock) })
		other := b.contender().joins()
		cancel() // both callers
		b.mustBe(await(b, "one", one.got), context.Canceled)
		b.mustBe(await(b, "two", two.got), context.Canceled)
		testredis.Await(
			b,
			"the place is given up",
			soon,
			func() bool { return slices.Equal(b.clientsInLine(), []string{other.client.ID()}) },
		)
		first.unlocks()
		other.gets().unlocks()
		b.emptyLine()
	})
}

// A grant for a caller that has left goes to the next caller of its process, even if this caller has not asked yet.
func TestLineGrantAfterACallerHasLeftGoesToTheNext(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	leaves := b.contenderOn(b.proxy.Client())
	ctx, cancel := context.WithCancel(leaves.owner)
	leaves.owner = ctx
	leaves.joins()
	stayer := leaves.sibling().asks()
	testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(stayer.lock) })
	other := b.contender().joins()
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	cancel()
	await(b.bench, "the other owner asks", rule.Fired())
	first.unlocks()
	b.awaitHolder(leaves.client.ID())
	stays(b, "another client has the lock", other.got, 200*time.Millisecond)
	assert.True(b, strings.HasPrefix(b.holder(), leaves.client.ID()), "the lock was given back")
	rule.Release()
	stayer.gets()
	other.waits()
	stayer.unlocks()
	other.gets().unlocks()
}

// A caller that bypasses the local queue, because Redis has not answered the caller ahead, acquires a free lock and
// does not enter the line: a grant that came too late to be used would leave the lock unused while the caller waits in
// the local queue.
func TestLineCallerPastTheLocalQueueDoesNotJoin(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	}
	for what, lock := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const lease = 2 * time.Second
			b := newFaultBenchOn(t, testredis.Start(t))
			b.opts = []Option{WithPollInterval(time.Hour)}
			ctx := context.Background()
			first := lock(b.direct, b.name)
			b.must(first.Lock(ctx))
			c := b.bench.clientOn(
				b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }),
				WithWatchdogTimeout(lease),
			)
			l := lock(c, b.name)
			hears := c.engine.Hub().Join(l.(known).inside().record.Grants(contract.Attempt{})) // as an earlier wait has left it
			defer hears.Leave()
			testredis.Await(b, "the channel of grants is subscribed", soon, hears.Confirmed)

			rule := b.proxy.On(anyOf(lockAcquire, writeAcquire), testredis.DropRequest).Times(testredis.Always)
			var owners []context.Context
			var got []chan error
			for i := range 3 {
				owners, got = append(owners, ContextWithOwner(ctx)), append(got, make(chan error, 1))
				go func() { got[i] <- l.Lock(owners[i]) }()
				testredis.Await(
					b,
					"the callers wait in order",
					soon,
					func() bool { return b.asks(l.(known)) && b.waitersInQueue(l.(known)) == i },
				)
			}
			require.Error(b, await(b.bench, "the caller in front has no answer", got[0]))
			rule.Release()
			testredis.Await(
				b,
				"the last caller waits in the local queue again",
				soon,
				func() bool { return b.waitersInQueue(l.(known)) == 1 },
			)
			testredis.Await(b, "the caller in front has a place", soon, func() bool { return b.placeOf(c.ID()).delivery != "" })
			joined := time.Now()
			testredis.Await(b, "a grant is too old to be used", 2*soon, func() bool { return time.Since(joined) > lease })

			start := time.Now()
			b.must(first.Unlock(ctx))
			b.must(await(b.bench, "the caller in front has the lock", got[1]))
			assert.Less(b, time.Since(start), testredis.Scale(start, lease/2), "the lock was granted and not used")
			b.must(l.Unlock(owners[1]))
			b.must(await(b.bench, "the last caller has the lock", got[2]))
			b.must(l.Unlock(owners[2]))
		})
	}
}

// A caller that has bypassed the local queue and takes over the entry of another caller asks with the field of that
// entry from then on. Its own field is buried: a late request with it would acquire the lock for no caller.
func TestLineFieldOfACallerThatTakesOverAPlaceEnds(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	ctx := context.Background()
	first := b.contender().takes()
	front := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }))
	second, third := front.sibling(), front.sibling()
	gives, cancel := context.WithCancel(second.owner)
	defer cancel()
	second.owner = gives

	var held atomic.Value // the field of the request that runs late
	own := fmt.Sprintf("%s:%d:", front.client.ID(), engine.OwnerOf(third.owner))
	late := b.proxy.On(func(cmd []string) bool {
		at := slices.IndexFunc(cmd, func(arg string) bool { return strings.HasPrefix(arg, own) })
		if at >= 0 && calls(lockAcquire)(cmd) {
			held.CompareAndSwap(nil, cmd[at])
		}
		return at >= 0
	}, testredis.HoldRequest)
	down := b.proxy.On(calls(lockAcquire), testredis.DropRequest).Times(testredis.Always)
	for i, c := range []*lineClient{front, second, third} {
		c.asks()
		testredis.Await(
			b,
			"the callers wait in order",
			soon,
			func() bool { return b.asks(c.lock) && b.waitersInQueue(c.lock) == i },
		)
	}
	require.Error(b, await(b.bench, "the caller in front has no answer", front.got))
	await(b.bench, "the last caller asks past the local queue", late.Fired())
	down.Release()
	testredis.Await(
		b,
		"the last caller waits in the local queue again",
		soon,
		func() bool { return b.waitersInQueue(third.lock) == 1 },
	)
	second.joined()
	cancel()
	b.mustBe(await(b.bench, "the second caller gives up", second.got), context.Canceled)
	testredis.Await(
		b,
		"the field of the last caller has ended",
		soon,
		func() bool { return b.ended(held.Load().(string)) },
	)
	first.unlocks()
	third.gets().unlocks()
	late.Release()
	b.must(b.direct.NewLock(b.name).Lock(ctx))
	b.must(b.direct.NewLock(b.name).Unlock(ctx))
	b.forget()
}

// A caller that takes over the entry of another one gets the lease and the token that it asks for itself.
func TestLineCallerThatTakesOverAPlaceHasItsOwnWish(t *testing.T) {
	for what, held := range map[string]bool{"asks in time": false, "asks after the grant": true} {
		t.Run(what, func(t *testing.T) {
			b := newFaultBench(t)
			b.opts = []Option{WithPollInterval(time.Hour)}
			first := b.contender().takes()
			leaves := b.contenderOn(b.proxy.Client())
			ctx, cancel := context.WithCancel(leaves.owner)
			leaves.owner = ctx
			leaves.joins()
			stayer := leaves.sibling(Fenced())
			go func() { stayer.got <- stayer.lock.LockLease(stayer.owner, 20*time.Second) }()
			testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(stayer.lock) })
			p := b.placeOf(leaves.client.ID())
			if held {
				rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
				cancel()
				await(b.bench, "the other owner asks", rule.Fired())
				first.unlocks()
				rule.Release()
			} else {
				cancel()
				testredis.Await(b, "the other owner asks", soon, func() bool { return b.placeOf(p.client).asked != p.asked })
				assert.True(b, b.placeOf(p.client).fenced, "the place is fenced")
				first.unlocks()
			}
			stayer.gets()
			assert.InDelta(b, 19, b.pttl().Seconds(), 1.1, "the lease")
			token, err := stayer.lock.Token(stayer.owner)
			b.must(err)
			assert.NotZero(b, token, "the token")
			guarded, err := stayer.lock.Guard(stayer.owner)
			b.must(err)
			assert.NoError(b, guarded.Err(), "the hold")
			stayer.unlocks()
		})
	}
}

// A newcomer that waits enters the line at the end, whatever the state of the lock is.
func TestLineNewcomerGoesToTheEnd(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		first := b.manual().listens().joins()
		b.must(b.rdb.Del(context.Background(), b.name).Err())
		newcomer := b.contender().joins()
		assert.Equal(b, first.field, b.holder(), "the holder")
		assert.Len(b, first.messages(), 1, "messages to the first place")
		newcomer.waits()
		first.release(false)
		newcomer.gets().unlocks()
	})
}

// A lock that is passed on is never free: a TryLock without a wait does not acquire it meanwhile.
func TestLineTryLockNeverGetsInBetween(t *testing.T) {
	onEachLine(t, func(b *bench) {
		const n = 8
		first := b.contender().takes()
		var sections sync.WaitGroup
		var served atomic.Int32
		for range n {
			c := b.contender().joins()
			waitgroup.Go(&sections, func() {
				if assert.NoError(b, <-c.got) && served.Add(1) < n {
					time.Sleep(5 * time.Millisecond)
					assert.NoError(b, c.lock.Unlock(c.owner))
				}
			})
		}
		var tries sync.WaitGroup
		begun := make(chan struct{})
		var tried int
		waitgroup.Go(&tries, func() {
			l := b.client().NewLock(b.name)
			for ; served.Load() < n; tried++ {
				ok, err := l.TryLock(context.Background(), 0, 0)
				assert.NoError(b, err)
				if !assert.False(b, ok, "TryLock got in between") {
					_, _ = l.ForceUnlock(context.Background()) // passes to the next entry
				}
				if tried == 0 {
					close(begun)
				}
			}
		})
		<-begun
		first.unlocks()
		sections.Wait()
		tries.Wait()
		b.Logf("%d tries", tried)
		_, err := first.lock.ForceUnlock(context.Background())
		b.must(err)
	})
}

// javaHolder is a field of Redisson.
func javaHolder() string { return uuid.NewString() + ":1" }

var (
	javaTakes = redis.NewScript(
		"if redis.call('exists', KEYS[1]) == 0 then redis.call('hset', KEYS[1], ARGV[1], 1); redis.call('pexpire', " +
			"KEYS[1], 30000); return 1 end return 0",
	)
	javaGives = redis.NewScript(
		"if redis.call('hdel', KEYS[1], ARGV[1]) == 1 then redis.call('publish', KEYS[2], '0') end return 0",
	)
	javaGetsIt = redis.NewScript(
		"redis.call('del', KEYS[1]); redis.call('hset', KEYS[1], ARGV[1], 1); redis.call('pexpire', KEYS[1], 30000); " +
			"return redis.call('publish', ARGV[2], 'free')",
	)
)

func (b *bench) javaReleases(field string) {
	b.Helper()
	b.must(javaGives.Run(context.Background(), b.rdb, []string{b.name, b.releaseChannel()}, field).Err())
}

// A release by a client that does not know the line notifies the waiters.
func TestLineWaitersHearARedissonHolder(t *testing.T) {
	onEachLine(t, func(b *bench) {
		java := javaHolder()
		n, err := javaTakes.Run(context.Background(), b.rdb, []string{b.name}, java).Int()
		b.must(err)
		require.Equal(b, 1, n, "Redisson has the lock")
		one := b.contender().asks()
		testredis.Await(b, "the waiter hears Redisson's channel", soon, func() bool {
			return b.hearers(b.releaseChannel()) == 1
		})
		two := b.contender().asks()
		testredis.Await(b, "the waiters hear Redisson's channel", soon, func() bool {
			return b.hearers(b.releaseChannel()) == 2
		})
		one.settled()
		two.settled()
		b.javaReleases(java)
		select {
		case err := <-one.got:
			b.must(err)
			two.waits()
			one.unlocks()
			two.gets().unlocks()
		case err := <-two.got:
			b.must(err)
			one.waits()
			two.unlocks()
			one.gets().unlocks()
		case <-time.After(soon):
			require.Fail(b, "no waiter noticed the release")
		}
	})
}

// A waiter that entered the line while a process of this version held the lock is notified when a release leaves the
// lock free for Redisson.
func TestLineFirstPlaceFollowsARedissonHolder(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		one := b.contender().joins()
		two := b.contender().joins()
		asked := one.settled()
		java := javaHolder()
		n, err := javaGetsIt.Run(
			context.Background(),
			b.rdb,
			[]string{b.name},
			java,
			b.releaseChannel()+":"+one.client.ID(),
		).Int()
		b.must(err)
		require.Equal(b, 1, n, "subscribers that were told")
		one.awaitScripts(asked + 1)
		testredis.Await(b, "the first place hears Redisson's channel", soon, func() bool {
			return b.hearers(b.releaseChannel()) == 1
		})
		one.settled()
		b.javaReleases(java)
		one.gets()
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// A release to which Redisson is subscribed leaves the lock free for every client once in each hand-off window, and not
// more often.
func TestLineSharesTheLockOnceInAWindow(t *testing.T) {
	onEachLine(t, func(b *bench) {
		redisson := b.subscribe(b.releaseChannel())
		first := b.manual().takes()
		one, two, three := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		release := func(m *manual) reply {
			return m.releaseIn(time.Minute, false)
		}
		endSlice := func() { b.must(b.rdb.HSet(context.Background(), b.lineKey(), "shared", 1).Err()) }
		assert.Equal(b, reply{1, 0, 1}, release(first), "a release in the first slice of the line")
		assert.Equal(b, one.field, b.holder(), "the holder")
		endSlice()
		assert.Equal(b, reply{1, 1, 0}, release(one), "the first release of the next slice")
		assert.Empty(b, b.holder(), "the holder")
		_, err := redisson.ReceiveTimeout(context.Background(), soon)
		b.must(err)
		assert.Equal(b, []string{"free"}, two.messages(), "messages to the first place")
		assert.Empty(b, three.messages(), "messages to the second place")
		assert.Equal(b, int64(1), two.ask(contract.Push)[0], "the first place takes the free lock")
		assert.Equal(b, reply{1, 0, 1}, release(two), "the second release of the slice")
		assert.Equal(b, three.field, b.holder(), "the holder")
		endSlice()
		b.manual().listens().joins()
		assert.Equal(b, int64(1), release(three)[1], "connections that heard the release of the slice after it")
	})
}

// If the clock of Redis was set back, the time of the last free release is in the future. Then the next release is
// free, and the window starts again.
func TestLineSharesTheLockAfterItsClockWasSetBack(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.subscribe(b.releaseChannel()) // a subscription of Redisson
		first := b.manual().takes()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		later := time.Now().Add(10 * time.Minute).UnixMilli()
		b.must(b.rdb.HSet(context.Background(), b.lineKey(), "shared", later).Err())
		assert.Equal(b, reply{1, 1, 0}, first.releaseIn(time.Minute, false), "the first release after the jump")
		assert.Equal(b, []string{"free"}, one.messages(), "messages to the first place")
		assert.Equal(b, int64(1), one.ask(contract.Push)[0], "the first place takes the free lock")
		assert.Equal(b, reply{1, 0, 1}, one.releaseIn(time.Minute, false), "the second release of the slice")
		assert.Equal(b, two.field, b.holder(), "the holder")
	})
}

// The same applies to a MultiLock, and to Redisson, if processes always wait for the lock.
func TestLineStarvesNobodyAfterItsClockWasSetBack(t *testing.T) {
	t.Parallel()
	server := testredis.StartJumpy(t)
	b := newLineBench(t, server.Addr())
	b.opts = nil // a MultiLock polls once in each poll interval
	server.Jump(time.Hour)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var sections atomic.Int64
	for range 3 {
		c := b.contender()
		waitgroup.Go(&all, func() {
			for c.lock.Lock(ctx) == nil {
				sections.Add(1)
				time.Sleep(time.Millisecond)
				assert.NoError(b, c.lock.Unlock(context.WithoutCancel(ctx)))
			}
		})
	}
	testredis.Await(b, "the line is busy", soon, func() bool { return sections.Load() > 100 })
	server.Jump(-time.Hour)
	begun := sections.Load()
	testredis.Await(b, "the line is busy after the jump", soon, func() bool { return sections.Load() > begun+100 })
	c, me := b.client(), ContextWithOwner(context.Background())
	multi := c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-b"))
	for range 5 {
		got, err := multi.TryLock(me, 5*time.Second, 0)
		b.must(err)
		require.True(b, got, "the MultiLock waits in vain beside the line")
		b.must(multi.Unlock(me))
	}
}

// A free release also removes the entries of dead clients. With replicas each release of a lock that is used seldom is
// a free one, and no other script reads the line.
func TestLineFreeReleaseForgetsTheDead(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.subscribe(b.releaseChannel())
		first := b.manual().takes()
		b.manual().joins() // and does not subscribe
		living := b.manual().listens().joins()
		b.manual().joins()
		first.releaseIn(0, false)
		assert.Empty(b, b.holder(), "the holder")
		assert.Equal(b, []string{"free"}, living.messages(), "messages to the first place that hears")
		assert.Equal(b, living.id, b.clientsInLine()[0], "the first place")
		living.releaseIn(0, false) // it gives up
		b.emptyLine()
	})
}

// Redisson gets its share of a lock for which processes of this version always wait.
func TestLineRedissonGetsItsShare(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var sections atomic.Int64
	for range 3 {
		c := b.contender()
		waitgroup.Go(&all, func() {
			for c.lock.Lock(ctx) == nil {
				sections.Add(1)
				time.Sleep(time.Millisecond)
				assert.NoError(b, c.lock.Unlock(ctx))
			}
		})
	}
	redisson, java := b.subscribe(b.releaseChannel()), javaHolder()
	messages := redisson.Channel()
	turns := 0
	start := time.Now()
	for turns < 20 && time.Since(start) < soon {
		n, err := javaTakes.Run(ctx, b.rdb, []string{b.name}, java).Int()
		b.must(err)
		if n == 1 {
			turns++
			b.javaReleases(java)
			continue
		}
		select {
		case <-messages:
		case <-time.After(time.Second):
		}
	}
	took := time.Since(start)
	stop()
	all.Wait()
	b.Logf("%d turns of Redisson and %d sections in %v", turns, sections.Load(), took)
	assert.Equal(b, 20, turns, "turns of Redisson")
	assert.LessOrEqual(
		b,
		sections.Load(),
		int64(20*8*15),
		"sections of 1ms beside 20 turns of Redisson: it has at least half of one in four slices",
	)
}

// A MultiLock does not enter the lines of its locks. It is notified like the waiters of one lock, and gets its turn.
func TestLineAndAMultiLockWakeEachOther(t *testing.T) {
	onEachLine(t, func(b *bench) {
		c, me := b.client(), ContextWithOwner(context.Background())
		multi := c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-b"))
		b.must(multi.Lock(me))
		one, two := b.contender().joins(), b.contender().joins()
		b.must(multi.Unlock(me))
		one.gets()
		two.waits()
		got := make(chan error, 1)
		go func() { got <- multi.Lock(me) }()
		testredis.Await(b, "the MultiLock hears releases", soon, func() bool {
			return b.hearers(b.releaseChannel()) > 0
		})
		one.unlocks()
		for range 2 { // a release to which the MultiLock is subscribed is free
			select {
			case err := <-two.got:
				b.must(err)
				two.unlocks()
			case err := <-got:
				b.must(err)
				b.must(multi.Unlock(me))
			case <-time.After(soon):
				require.Fail(b, "nobody has the lock")
			}
		}
	})
}

// An entry that a caller has left belongs to a wait that continues.
func TestLineLeftPlaceIsInUse(t *testing.T) {
	onEachLine(t, func(b *bench) {
		c := b.contender().takes()
		field := c.client.ID() + ":9:099"
		assert.False(b, c.client.engine.Probe().Uses(b.name, field), "a field of no wait")
		c.client.engine.Probe().LeavePlace(c.lock.inside().lock, field)
		assert.True(b, c.client.engine.Probe().Uses(b.name, field), "the field of a place that was left")
		c.client.engine.Probe().LeavePlace(c.lock.inside().lock, "")
		c.unlocks()
	})
}

// Tokens grow from hold to hold, even if they come with a grant.
func TestLineTokensGrow(t *testing.T) {
	onEachLine(t, func(b *bench) {
		var all sync.WaitGroup
		var tokens []int64 // guarded by the lock
		for range 4 {
			c := b.contender()
			l := c.client.NewLock(b.name, Fenced())
			waitgroup.Go(&all, func() {
				for range 10 {
					assert.NoError(b, l.Lock(c.owner))
					token, err := l.Token(c.owner)
					assert.NoError(b, err)
					tokens = append(tokens, token)
					assert.NoError(b, l.Unlock(c.owner))
				}
			})
		}
		all.Wait()
		require.Len(b, tokens, 40)
		for i := range tokens[1:] {
			assert.Greater(b, tokens[i+1], tokens[i], "token %d", i+1)
		}
	})
}

// A grant draws the token, and its message contains it, so that no further request is needed.
func TestLineGrantBringsTheToken(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual()
		first.fenced = true
		before := first.ask(contract.Barge)[2]
		next := b.contender().sibling(Fenced()).joins()
		asked := next.settled()
		first.release(false)
		next.gets()
		assert.Equal(b, asked, next.scripts.n.Load(), "scripts")
		token, err := next.lock.Token(next.owner)
		b.must(err)
		assert.Greater(b, token, before, "the token")
		next.unlocks()
	})
}

// A client without tokens passes the lock to one that asks for tokens, and the other way round.
func TestLinePassesBetweenFencedAndUnfenced(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		fenced := b.contender().sibling(Fenced()).joins()
		last := b.contender().joins()
		first.unlocks()
		fenced.gets()
		token, err := fenced.lock.Token(fenced.owner)
		b.must(err)
		assert.NotZero(b, token, "the token")
		fenced.unlocks()
		last.gets().unlocks()
	})
}

// A user that may not publish, not subscribe, or not use the keys of the line acquires locks, and passes them to
// others.
func TestLineWithoutARight(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for what, lack := range map[string]struct {
		rights []string
		warned string // the log when the user waits; "" if nothing is logged
	}{
		"publish":   {[]string{"allkeys", "allchannels", "allcommands", "-publish"}, ""},
		"subscribe": {[]string{"allkeys", "allchannels", "allcommands", "-subscribe"}, "refuses the subscription"},
		"channels":  {[]string{"allkeys", "resetchannels", "allcommands"}, "refuses the subscription"},
		"line": {[]string{"~lock-*", "~redisson_lock_token:*", "allchannels", "allcommands"},
			"refuses the keys of the wait queues"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s.Addr())
			d := b.deployment(s)
			var logged lockedBuffer
			opts := []Option{WithPollInterval(300 * time.Millisecond), WithWatchdogTimeout(30 * time.Second)}
			user := d.user(b, lack.rights, append(opts, WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))...)
			other := []*Client{b.client(opts...), b.client(opts...)}
			ctx, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			first := b.manual().takes()
			var all sync.WaitGroup
			var inside atomic.Int32
			for _, c := range []*Client{user, other[0], user, other[1]} {
				waitgroup.Go(&all, func() {
					l, me := c.NewLock(b.name), ContextWithOwner(ctx)
					for range 5 {
						if !assert.NoError(b, l.Lock(me), "Lock without the right to %s", what) {
							return
						}
						assert.Equal(b, int32(1), inside.Add(1), "owners inside")
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						assert.NoError(b, l.Unlock(me))
					}
				})
			}
			testredis.Await(b, "the user waits", soon, func() bool {
				return b.asks(user.NewLock(b.name)) && (lack.warned == "" || logged.String() != "")
			})
			first.release(false)
			all.Wait()
			log := logged.String()
			assert.Equal(b, map[bool]int{true: 1}[lack.warned != ""], strings.Count(log, "level="), "logged: %s", log)
			assert.Contains(b, log, lack.warned, "logged")
		})
	}
}

// A script of a user that may not publish grants nothing, and removes no entry.
func TestLineUserWithoutPublishLeavesAllPlaces(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	b.must(
		b.rdb.Do(
			context.Background(),
			"acl",
			"setuser",
			"quiet",
			"on",
			">secret",
			"allkeys",
			"allchannels",
			"allcommands",
			"-publish",
		).Err(),
	)
	bench := *b
	quiet := b.manual()
	quiet.bench = &bench
	quiet.rdb = server.Client(func(o *redis.Options) { o.Username, o.Password = "quiet", "secret" })
	first := b.manual().takes()
	one, two := b.manual().listens().joins(), b.manual().listens().joins()
	first.release(false)
	b.must(b.rdb.Del(context.Background(), b.name).Err()) // the lease of the first grant expires
	quiet.release(true)
	assert.Equal(b, []string{one.id, two.id}, b.clientsInLine(), "the line")
	assert.Equal(b, "suspect", b.placeOf(one.id).state, "the place whose grant was not used")
	b.manual().release(true)
	assert.Equal(b, two.field, b.holder(), "the holder")
}

// A user that may not publish cannot notify waiters of its release, and they poll once in each poll interval. The user
// leaves the lock to them for that time, even if it has only one goroutine, and if there are several permits.
func TestLineUserWithoutPublishLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	d := b.deployment(server)
	user := d.user(b, []string{"allkeys", "allchannels", "allcommands", "-publish"})
	t.Cleanup(func() { b.must(b.rdb.FlushAll(context.Background()).Err()) }) // a semaphore leaves its number of permits
	for kind, newLock := range map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		// In addition to a MultiLock, which has no entry.
		"multi":     func(c *Client, name string) Locker { return c.NewLock(name) },
		"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 2) },
	} {
		for goroutines := range 2 {
			t.Run(fmt.Sprint(kind, goroutines+1), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprint(b.name, kind, goroutines)
				other, busy := newLock(b.client(), name), newLock(user, name)
				ctx, stop := context.WithCancel(context.Background())
				section, most := time.Millisecond, int64(300)
				if kind == "multi" { // the MultiLock has to be notified of each release
					section, most = 15*time.Millisecond, 100
				}
				var sections atomic.Int64
				var all sync.WaitGroup
				if kind == "semaphore" && goroutines == 0 { // otherwise the permits are enough for all
					require.NoError(t, other.Lock(ContextWithOwner(context.Background())))
				}
				for range goroutines + 1 {
					waitgroup.Go(&all, func() {
						for me := ContextWithOwner(ctx); busy.Lock(me) == nil; sections.Add(1) {
							time.Sleep(section)
							assert.NoError(t, busy.Unlock(me))
						}
					})
				}
				if kind == "multi" {
					c := b.client()
					beside := c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-beside"))
					waitgroup.Go(&all, func() {
						for me := ContextWithOwner(ctx); beside.Lock(me) == nil; {
							assert.NoError(t, beside.Unlock(me))
						}
					})
				}
				testredis.Await(t, "the user has the lock", soon, func() bool { return sections.Load() > 0 })
				before, me := sections.Load(), ContextWithOwner(context.Background())
				require.NoError(t, other.Lock(me))
				assert.Less(t, sections.Load()-before, most, "sections of the user, while the other one waited")
				stop()
				all.Wait()
				assert.NoError(t, other.Unlock(me))
			})
		}
	}
}

// A user that may not use the keys of the line is notified of a release as before the line existed.
func TestLineUserWithoutItsKeysHearsReleases(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := newLineBench(t, s.Addr())
	d := b.deployment(s)
	user := d.user(
		b,
		[]string{"~lock-*", "allchannels", "allcommands"},
		WithWatchdogTimeout(30*time.Second),
	).NewLock(
		b.name,
	)
	first := b.contender().takes()
	got := make(chan error, 1)
	me := ContextWithOwner(context.Background())
	go func() { got <- user.Lock(me) }()
	awaitSubscribed(t, user, got)
	time.Sleep(300 * time.Millisecond) // until the attempt after the subscription has ended: no permission tells
	first.unlocks()
	b.must(await(b, "the user hears of the release", got))
	b.must(user.Unlock(me))
}

// A hold that ends without a release is noticed within the poll interval, and the first entry is served first.
func TestLineNoticesARecordThatIsGone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.opts = []Option{WithPollInterval(300 * time.Millisecond)}
		b.manual().takes()
		one, two := b.contender().joins(), b.contender().joins()
		gone := time.Now()
		b.must(b.rdb.Del(context.Background(), b.name).Err())
		one.gets()
		assert.LessOrEqual(b, time.Since(gone), soon/2, "after DEL")
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// The waiters know when the lease of the current holder expires.
func TestLineNoticesTheEndOfALease(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual()
		m.lease = 2000 // enough for both to join
		m.takes()
		one, two := b.contender().joins(), b.contender().joins()
		one.gets()
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// ForceUnlock passes the lock on to the first entry.
func TestLineForceUnlockPassesTheLockOn(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual().takes()
		one, two := b.contender().joins(), b.contender().joins()
		asked := one.settled()
		ok, err := b.client().NewLock(b.name).ForceUnlock(context.Background())
		b.must(err)
		assert.True(b, ok, "ForceUnlock")
		one.gets()
		assert.Equal(b, asked, one.scripts.n.Load(), "scripts")
		two.waits()
		assert.Equal(b, int64(-1), m.release(false)[0], "the release of the hold before")
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// A release whose answer is lost is sent again, and passes the lock on once.
func TestLineLostAnswerOfAReleaseGrantsOnce(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]testredis.Fault{"closed": testredis.LoseReply, "silent": testredis.StallReply} {
		t.Run(what, func(t *testing.T) {
			b := newFaultBench(t)
			b.opts = []Option{WithPollInterval(time.Hour)}
			first := b.contenderOn(b.proxy.Client()).takes()
			one, two := b.manual().listens().joins(), b.manual().listens().joins()
			rule := b.proxy.On(calls(lockRelease), fault).Times(2)
			first.unlocks()
			assert.NotZero(b, rule.Count(), "answers that were lost")
			assert.Len(b, one.messages(), 1, "messages to the first place")
			assert.Empty(b, two.messages(), "messages to the second place")
			assert.Equal(b, one.field, b.holder(), "the holder")
		})
	}
}

// A waiter whose answer is lost or late is granted the lock all the same, and does not sleep while the lock is free.
func TestLineLostAnswerOfARequestLosesNoGrant(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]testredis.Fault{
		"closed": testredis.LoseReply, "silent": testredis.StallReply, "late": testredis.DelayReply(500 * time.Millisecond),
	} {
		for _, meanwhile := range []string{"nothing", "released", "cut and released"} {
			t.Run(what+", "+meanwhile, func(t *testing.T) {
				b := newFaultBench(t)
				b.opts = []Option{WithPollInterval(time.Hour)}
				first := b.contender().takes()
				one := b.contenderOn(b.proxy.Client())
				rule := b.proxy.On(asksIn(contract.Push), fault)
				one.asks()
				if what == "late" { // it has fired when the answer comes
					one.joined()
				} else {
					await(b.bench, "the answer is lost", rule.Fired())
				}
				switch meanwhile {
				case "released":
					first.unlocks()
				case "cut and released":
					channel := b.releaseChannel() + ":" + one.client.ID()
					again := b.proxy.On(testredis.Command("subscribe"), testredis.HoldRequest).Times(testredis.Always)
					b.must(b.rdb.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Err())
					testredis.Await(b, "the subscription is gone", soon, func() bool {
						return b.hearers(channel) == 0
					})
					first.unlocks()
					again.Release()
				default:
					one.settled()
					first.unlocks()
				}
				one.gets().unlocks()
				b.must(b.rdb.Del(context.Background(), b.lineKey()).Err())
			})
		}
	}
}

// A late answer "busy" does not hide a message that arrived before it.
func TestLineLateAnswerHidesNoMessage(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	one := b.contenderOn(b.proxy.Client())
	b.proxy.On(asksIn(contract.Push), testredis.DelayReply(300*time.Millisecond))
	one.asks().joined()
	first.unlocks() // the message arrives before the answer
	one.gets()
	assert.Equal(b, int64(2), one.scripts.n.Load(), "scripts")
	one.unlocks()
}

// Close removes the entry.
func TestLineCloseGivesUpThePlace(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		closes := b.contender().joins()
		second := closes.sibling().asks()
		testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(second.lock) })
		next := b.contender().joins()
		b.must(closes.client.Close())
		b.mustBe(await(b, "Lock", closes.got), ErrClosed)
		b.mustBe(await(b, "Lock", second.got), ErrClosed)
		assert.Equal(b, []string{next.client.ID()}, b.clientsInLine(), "the line after Close")
		first.unlocks()
		next.gets().unlocks()
		b.emptyLine()
	})
}

// With synced replicas a grant is confirmed by a request, because the replicas have to confirm each hold.
func TestLineGrantIsConfirmedForReplicas(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	b.manual().takes()
	c := b.contender(WithSyncedReplicas(1, 100*time.Millisecond)).joins()
	asked := c.settled()
	c.isGranted(c.placeOf(c.client.ID()).asked, 5000)
	b.mustBe(await(b, "Lock", c.got), ErrNotSynced) // there are no replicas
	assert.GreaterOrEqual(b, c.scripts.n.Load(), asked+1, "scripts")
	testredis.Await(b, "the lock is given back", soon, func() bool { return b.holder() == "" })
}

// A line that no client enters expires.
func TestLineHasALease(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		d, err := b.rdb.PTTL(context.Background(), b.lineKey()).Result()
		b.must(err)
		assert.InDelta(b, 295, d.Seconds(), 6, "the lease of the line")
	})
}

// A line with nothing but tombstones expires a minute after the last of them, even if it had entries before.
func TestLineOfTombstonesEndsWithThem(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, waiter := b.manual().takes(), b.manual().listens().joins()
		waiter.release(true)
		first.release(false)
		require.True(b, b.ended(waiter.field), "the field has a tombstone")
		d, err := b.rdb.PTTL(context.Background(), b.lineKey()).Result()
		b.must(err)
		assert.InDelta(b, 55, d.Seconds(), 6, "the lease of the line")
	})
}

// A lock for which no other process waits costs no key, no subscription, and two scripts.
func TestLineCostsAnUncontendedLockNothing(t *testing.T) {
	onEachLine(t, func(b *bench) {
		c := b.contender()
		for range 3 {
			c.takes()
			assert.Equal(b, []string{b.name}, b.keys(), "keys")
			c.unlocks()
			assert.Empty(b, b.keys(), "keys")
		}
		assert.Equal(b, int64(6), c.scripts.n.Load(), "scripts")
		assert.Empty(b, b.rdb.PubSubChannels(context.Background(), "*"+b.name+"*").Val(), "channels")
	})
}

// withoutLine are the permissions of a user that may do everything with the locks of a bench, except use their line.
var withoutLine = []string{
	"~lock-*",
	"~{lock-*",
	"~redisson_lock_*",
	"~relock_lock_alive:*",
	"~relock_rwlock_writers:*",
	"allchannels",
	"allcommands",
}

// The field of the first hold of a Client already shows whether its user may use the line.
func TestLineFieldOfTheFirstHoldSaysWhetherTheUserMayUseTheLine(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newLineBench(t, server.Addr())
	d := b.deployment(server)
	all := []string{"~*", "allchannels", "allcommands"}
	for _, kind := range recordLocks {
		for _, may := range []bool{true, false} {
			rights := all
			if !may {
				rights = withoutLine
			}
			ctx, name := ContextWithOwner(
				context.Background(),
			), fmt.Sprintf(
				"%s-%s-%t",
				b.name,
				strings.ReplaceAll(kind.name, " ", "-"),
				may,
			)
			c := d.user(b, rights)
			l := kind.one(c, name)
			got, err := l.TryLock(ctx, 0, 0)
			require.NoError(b, err, kind.name)
			require.True(b, got, "%s, may use the line: %t", kind.name, may)
			i, err := b.client().Inspect(ctx, name)
			b.must(err)
			require.Len(b, i.Holders, 1, kind.name)
			// The first request of a reader that may use the key of the line is a release: writers look.
			if kind.name != "read" || may {
				assert.Equal(
					b,
					may,
					engine.UsesLine(strings.TrimSuffix(i.Holders[0].Field, writeSuffix)),
					"%s: %s",
					kind.name,
					i.Holders[0].Field,
				)
			}
			b.must(l.Unlock(ctx))
		}
	}
}

// A MultiLock of a user without the line works, and its fields show it from the first one on.
func TestLineMultiLockOfAUserWithoutTheLine(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newLineBench(t, server.Addr())
	d := b.deployment(server)
	for what, locks := range map[string]func(c *Client) []Locker{
		"plain": func(c *Client) []Locker { return []Locker{c.NewLock(b.name + "-1"), c.NewLock(b.name+"-2", Fenced())} },
		"others": func(c *Client) []Locker {
			return []Locker{newWriteLock(c, b.name+"-3"), c.NewFairLock(b.name + "-4"), c.NewLock(b.name + "-5")}
		},
		"semaphore": func(c *Client) []Locker { return []Locker{c.NewSemaphore(b.name+"-6", 1), c.NewLock(b.name + "-7")} },
	} {
		c, ctx := d.user(b, withoutLine), ContextWithOwner(context.Background())
		all := locks(c)
		l := c.NewMultiLock(all...)
		got, err := l.TryLock(ctx, 0, 0)
		require.NoError(b, err, what)
		require.True(b, got, what)
		for _, one := range all {
			i, err := b.client().Inspect(ctx, one.Name())
			b.must(err)
			require.Len(b, i.Holders, 1, one.Name())
			assert.False(
				b,
				engine.UsesLine(strings.TrimSuffix(i.Holders[0].Field, writeSuffix)),
				"%s: %s",
				one.Name(),
				i.Holders[0].Field,
			)
		}
		b.must(l.Unlock(ctx))
	}
}

func (b *bench) rwReleases() string { return prefixName("redisson_rwlock", b.name) }

// rw runs a script of a read/write lock.
func (m *manual) rw(s *luaScript, args ...any) reply {
	m.Helper()
	r, err := run(
		context.Background(),
		m.rdb,
		call{Script: s, Keys: []string{m.name, prefixName("relock_rwlock_writers", m.name), m.lineKey()}, Args: args},
	)
	m.must(err)
	return r
}

// writes asks for the write lock with the second field of m.
func (m *manual) writes(delivery string) reply {
	m.Helper()
	return m.rw(
		writeAcquire,
		m.id+":1:02",
		m.lease,
		1,
		suffixName(m.name, ""),
		"",
		0,
		delivery,
		1,
		false,
		m.rwReleases(),
		"publish",
	)
}

// endsWriting releases the write lock, or removes its entry. The hand-off window never ends.
func (m *manual) endsWriting() reply {
	m.Helper()
	return m.rw(
		writeRelease,
		m.id+":1:02",
		0,
		suffixName(m.name, ""),
		false,
		"",
		m.rwReleases(),
		"publish",
		neverDue.Milliseconds(),
		false,
	)
}

func (m *manual) reads() reply {
	m.Helper()
	return m.rw(readAcquire, m.id+":1:03", m.lease, 1, suffixName(m.name, ""), "", m.rwReleases(), "publish")
}

func (m *manual) endsReading() reply {
	m.Helper()
	return m.rw(
		readRelease,
		m.id+":1:03",
		0,
		suffixName(m.name, ""),
		true,
		m.rwReleases(),
		"publish",
		neverDue.Milliseconds(),
	)
}

// A plain lock and a write lock of one name have one line. A release of either grants the lock to the first entry,
// whichever of the two it is for, on its channel.
func TestLinePassesBetweenPlainAndWriteLocks(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		writer := b.contender()
		write := writer.client.NewRWLock(b.name).Write()
		go func() { writer.got <- write.Lock(writer.owner) }()
		writer.joined()
		next := b.contender().joins()
		reader := b.contender()
		read := reader.client.NewRWLock(b.name).Read()
		require.Equal(b, []string{writer.client.ID(), next.client.ID()}, b.clientsInLine(), "the line")

		first.unlocks()
		writer.gets()
		next.waits()
		b.must(write.Unlock(writer.owner))
		next.gets()
		b.tries(read, false)
		next.unlocks()
		b.emptyLine()

		// The last reader passes it on, too.
		b.must(read.Lock(reader.owner))
		next.joins()
		b.must(read.Unlock(reader.owner))
		next.gets().unlocks()
		b.emptyLine()
	})
}

// A client has one entry. While it belongs to a wait for the plain lock, a wait for the write lock has none: it is
// notified of the free lock once in each hand-off window, and acquires it ahead of the line. The same applies the other
// way round.
func TestLineClientWithAPlaceForTheOtherLockIsAGuest(t *testing.T) {
	onEachLine(t, func(b *bench) {
		releases := b.subscribe(b.rwReleases())
		m, first := b.manual().listens(), b.manual().takes()
		m.joins()
		require.Equal(b, int64(2), m.writes(contract.Push)[2], "only the channel says when the lock is free")
		assert.Equal(b, m.field, b.placeOf(m.id).field, "the place")
		assert.Equal(b, reply{1, 1, 0}, first.releaseIn(0, false), "the release is told beside the line")
		assert.Equal(b, []string{"0"}, b.received(releases, b.rwReleases()))
		assert.Equal(b, []string{"free"}, m.messages())
		require.Equal(b, int64(1), m.writes(contract.Push)[0], "the guest takes the free lock")
		assert.Equal(b, m.field, b.placeOf(m.id).field, "the place")
		b.must(releases.Close())
		testredis.Await(
			b,
			"nobody hears the channel of the write lock",
			soon,
			func() bool { return b.hearers(b.rwReleases()) == 0 },
		)
		assert.Equal(b, reply{1, 0, 1}, m.endsWriting(), "the lock passes to the place")
		assert.Equal(b, m.field, b.holder(), "the holder")
		assert.Len(b, m.messages(), 1, "the grant")

		writer := b.manual()
		writer.hears = b.subscribe(b.rwReleases() + ":" + writer.id)
		require.Equal(b, int64(1), writer.writes(contract.Push)[2], "a place for the write lock")
		require.Equal(b, int64(2), writer.ask(contract.Push)[2], "a guest")
		assert.Equal(b, writer.id+":1:02:write", b.placeOf(writer.id).field, "the place")
		assert.Equal(b, reply{1, 0, 1}, m.release(false))
		assert.Len(b, b.received(writer.hears, b.rwReleases()+":"+writer.id), 1, "the grant")
		assert.Equal(b, int64(2), writer.ask(contract.Push)[2], "the place is that of the hold")
		assert.Equal(b, int64(1), writer.endsWriting()[0])
		b.emptyLine()
	})
}

// The rest of the entry of a lost hold does not count as a guest.
func TestLineRestOfALostHoldMakesNoGuest(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		m := b.manual().listens()
		b.must(b.rdb.HSet(context.Background(), b.lineKey(), m.id, "7 new push 60000 0 1 "+m.id+":1:0900:write").Err())
		assert.Equal(b, int64(1), m.ask(contract.Push)[2]%4, "a place")
		assert.Equal(b, m.field, b.placeOf(m.id).field, "the place")
	})
}

// A release of the plain lock notifies readers, and writers without an entry, even if no process has an entry in the
// line. A reader that is not subscribed leaves nothing behind.
func TestLineNotesThatReadersListen(t *testing.T) {
	onEachLine(t, func(b *bench) {
		lineExists := func() bool { return b.rdb.Exists(context.Background(), b.lineKey()).Val() == 1 }
		m, other := b.manual().takes(), b.manual()
		require.Equal(b, int64(0), other.reads()[0], "a plain lock is held")
		require.Equal(b, int64(0), other.writes(contract.Barge)[0], "a plain lock is held")
		assert.False(b, lineExists(), "there is a line")

		listens := b.subscribe(b.rwReleases())
		for _, asks := range []func() reply{other.reads, func() reply { return other.writes(contract.Barge) }} {
			require.Equal(b, int64(0), asks()[0], "a plain lock is held")
			assert.Positive(b, b.rdb.PTTL(context.Background(), b.lineKey()).Val(), "the lease of the line")
			assert.Equal(b, reply{1, 1, 0}, m.release(false), "connections that were told")
			assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()))
			assert.False(b, lineExists(), "there is a line")
			m.takes()
		}
		require.Equal(b, int64(0), other.reads()[0], "a plain lock is held")
		next := b.manual().listens().joins()
		assert.Equal(b, reply{1, 0, 1}, m.releaseIn(time.Minute, false), "a release in the first slice of the line")
		last := b.manual().listens().joins()
		assert.Equal(b, reply{1, 1, 0}, next.releaseIn(0, false), "a release in the next slice")
		assert.Equal(b, int64(1), last.ask(contract.Push)[0], "the first place takes the free lock")
		last.release(false)
		b.emptyLine()
	})
}

// The release of the plain lock still notifies readers after a process that waited for the lock has left, whether it came
// before or behind them, and after the hold was renamed.
func TestLineThatEndsBesideAHolderStillTellsReaders(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m, other := b.manual().takes(), b.manual()
		listens := b.subscribe(b.rwReleases())
		reads := func() { require.Equal(b, int64(0), other.reads()[0], "a plain lock is held") }
		leaves := func(waiter *manual) { require.Equal(b, int64(-1), waiter.release(false)[0], "the waiter leaves") }
		for name, happens := range map[string]func(){
			"a waiter comes and goes behind the reader": func() {
				reads()
				leaves(b.manual().listens().joins())
			},
			"the reader comes behind a waiter that leaves": func() {
				waiter := b.manual().listens().joins()
				reads()
				leaves(waiter)
			},
			"a writer comes and goes behind the reader": func() {
				reads()
				waiter := b.manual()
				waiter.hears = b.subscribe(b.rwReleases() + ":" + waiter.id)
				require.Equal(b, int64(1), waiter.writes(contract.Push)[2]%4, "a place for the write lock")
				waiter.endsWriting()
			},
			"the hold is renamed": func() {
				reads()
				from := m.field
				m.field = m.id + ":1:07"
				require.Equal(b, int64(1), m.run(lockRename, from, m.field, m.lease, 0, 0, false)[0])
			},
		} {
			happens()
			b.received(listens, b.rwReleases())
			assert.Equal(b, reply{1, 1, 0}, m.release(false), "connections that were told: %s", name)
			assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()), name)
			assert.Zero(b, b.rdb.Exists(context.Background(), b.lineKey()).Val(), "there is a line: %s", name)
			m.takes()
		}
	})
}

// An entry for the write lock does not hide from a waiter for the plain lock, which has lost its own entry, that the
// lock is free.
func TestLinePlaceOfAWriterIsNoneOfThePlainLock(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		m := b.manual().listens()
		isWoken := func() bool {
			found, err := b.rdb.EvalSha(
				context.Background(),
				freeInspect.Digest(),
				[]string{b.name, b.lineKey()},
				1,
				m.id,
				" ",
			).Int64Slice()
			b.must(err)
			return len(found) > 0
		}
		m.joins()
		assert.False(b, isWoken(), "a waiter with a place")
		m.release(false)
		assert.True(b, isWoken(), "a waiter without a place")
		m.hears = b.subscribe(b.rwReleases() + ":" + m.id)
		require.Equal(b, int64(1), m.writes(contract.Push)[2]%4, "a place for the write lock")
		assert.True(b, isWoken(), "a waiter for the plain lock, with a place for the write lock")
		m.endsWriting()
	})
}

// A process that has released the lock leaves no entry behind, whichever way its release takes.
func TestLineReleaseRemovesTheEntryOfItsHold(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual().takes()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		m.release(false)
		require.Equal(b, one.field, b.holder())
		assert.True(b, b.rdb.HExists(context.Background(), b.lineKey(), one.id).Val(), "while it holds the lock")
		one.release(false)
		require.Equal(b, two.field, b.holder())
		assert.False(b, b.rdb.HExists(context.Background(), b.lineKey(), one.id).Val(), "after its release")
		two.release(false)
		b.emptyLine()
	})
}

// Readers that were kept out by an entry are notified when its waiter leaves.
func TestLinePlaceThatLeavesTellsReaders(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, second := b.manual(), b.manual()
		require.Equal(b, int64(1), first.reads()[0])
		m := b.manual().listens().joins()
		require.Equal(b, int64(0), second.reads()[0], "a reader, while another one reads")
		listens := b.subscribe(b.rwReleases())
		assert.Equal(b, int64(-1), m.release(true)[0], "the waiter leaves")
		assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()))
		assert.Equal(b, int64(1), second.reads()[0], "a reader, while another one reads")
	})
}

// An entry of a client that polls, and is not subscribed, may be that of a process that has crashed: it keeps no reader
// out.
func TestLinePlaceThatAsksHoldsOffNoReader(t *testing.T) {
	onEachLine(t, func(b *bench) {
		require.Equal(b, int64(1), b.manual().reads()[0])
		require.Equal(b, int64(1), b.manual().ask(contract.Poll)[2], "a place")
		assert.Equal(b, int64(1), b.manual().reads()[0], "a reader, while another one reads")
	})
}

// A forced release also notifies the waiters for the other lock of the name.
func TestForcedReleaseTellsThoseBeside(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		b.manual().takes()
		require.Equal(b, int64(0), b.manual().reads()[0], "a plain lock is held")
		listens := b.subscribe(b.rwReleases())
		require.Equal(b, int64(0), b.manual().reads()[0], "a plain lock is held")
		freed, err := b.client().NewLock(b.name).ForceUnlock(ctx)
		b.must(err)
		assert.True(b, freed)
		assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()))
	})
}

// The place of a grant that has expired comes back, although the hold that followed is released by force.
func TestForcedReleaseKeepsThePlaceOfAnExpiredGrant(t *testing.T) {
	for name, record := range map[string]func(*Client, string) contract.Record{
		"lock":  recordOfLock,
		"write": recordOfWriter,
	} {
		t.Run(name, func(t *testing.T) {
			onEachLine(t, func(b *bench) {
				b.Cleanup(b.forget)
				ctx := context.Background()
				one, late, other := b.client(), b.client(), b.client()
				does := func(what call, first int64) reply {
					b.Helper()
					r, err := run(ctx, b.rdb, what)
					b.must(err)
					require.Equal(b, first, r[0])
					return r
				}
				does(record(one, b.name).Acquire(attemptOf(one)), 1)
				b.subscribe(record(late, b.name).Grants(attemptOf(late)))
				does(record(late, b.name).Acquire(attemptOf(late)), 0)
				r := does(record(one, b.name).Release(released(attemptOf(one).Field, 0, false)), 1)
				require.Equal(b, int64(1), r[2], "it is granted")
				b.must(b.rdb.Del(ctx, b.name).Err()) // the provisional lease expires
				barges := attemptOf(other)
				barges.Delivery = contract.Barge
				does(record(other, b.name).Acquire(barges), 1)
				does(record(other, b.name).Force(), 1)
				assert.Equal(b, "suspect", b.placeOf(late.ID()).state, "the place of the client")
			})
		})
	}
}

// Readers do not share while processes wait for the plain lock. Otherwise they could keep it busy forever.
func TestLineOfThePlainLockHoldsOffReaders(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, second := b.manual(), b.manual()
		require.Equal(b, int64(1), first.reads()[0])
		m := b.manual().listens().joins()
		assert.Equal(b, int64(0), second.reads()[0], "a reader, while another one reads")
		assert.Equal(b, int64(1), first.reads()[0], "the reader itself, once more")

		require.NoError(b, m.hears.Close()) // an entry that cannot be granted the lock
		testredis.Await(b, "it does not listen any more", soon, func() bool { return b.hearers(m.grants()) == 0 })
		assert.Equal(b, int64(1), second.reads()[0], "a reader, while another one reads")
		assert.Equal(b, int64(1), second.endsReading()[0])

		m.listens().joins()
		assert.Equal(b, int64(0), second.reads()[0], "a reader, while another one reads")
		assert.Equal(b, reply{1, 0, 1}, first.endsReading(), "the last reader passes the lock on")
		assert.Equal(b, m.field, b.holder(), "the holder")
	})
}

// If no client has an entry, all that are subscribed to the channel of the other lock are notified, too.
func TestLineWithoutPlacesTellsTheOtherLock(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		m := b.manual().listens().joins()
		first.release(false)
		plain, rw := b.subscribe(b.releaseChannel()), b.subscribe(b.rwReleases())
		assert.Equal(b, reply{1, 2, 0}, m.release(false), "connections that were told")
		assert.Equal(b, []string{"0"}, b.received(plain, b.releaseChannel()))
		assert.Equal(b, []string{"0"}, b.received(rw, b.rwReleases()))
	})
}

// A plain lock and a read/write lock of one name exclude each other, and neither starves the callers of the other.
func TestLineServesTwoTypesOfOneName(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	plain := func(c *Client, name string) Locker { return c.NewLock(name) }
	write := func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }
	read := func(c *Client, name string) Locker { return c.NewRWLock(name).Read() }
	for name, mix := range map[string]struct {
		other    func(c *Client, name string) Locker
		together bool // each Client asks for both
		shared   bool // the other lock does not exclude itself
	}{
		"write":                     {other: write},
		"write of the same Clients": {other: write, together: true},
		"read":                      {other: read, shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, server.Addr())
			ctx, stop := context.WithTimeout(context.Background(), 2*soon) // a limit for a caller that is starved
			defer stop()
			var all sync.WaitGroup
			var inside atomic.Int32 // number of readers; negative for another holder
			var turns [2][8]atomic.Int64
			var longest [2]time.Duration
			var mu sync.Mutex // guards longest
			works := func(l Locker, kind, i int) {
				for {
					asked := time.Now()
					err := l.Lock(ctx)
					mu.Lock()
					longest[kind] = max(longest[kind], time.Since(asked))
					mu.Unlock()
					if err != nil {
						return
					}
					if mix.shared && kind == 1 {
						assert.Positive(t, inside.Add(1), "a reader beside another holder")
						inside.Add(-1)
					} else {
						assert.True(t, inside.CompareAndSwap(0, -1000), "a holder beside another one")
						inside.Store(0)
					}
					turns[kind][i].Add(1)
					assert.NoError(t, l.Unlock(context.WithoutCancel(ctx)))
				}
			}
			for n := range 2 {
				c := b.client()
				d := c
				if !mix.together {
					d = b.client()
				}
				for i := range 4 {
					waitgroup.Go(&all, func() { works(plain(c, b.name), 0, 4*n+i) })
					waitgroup.Go(&all, func() { works(mix.other(d, b.name), 1, 4*n+i) })
				}
			}
			least := func(kind int) int64 {
				n := turns[kind][0].Load()
				for i := range turns[kind] {
					n = min(n, turns[kind][i].Load())
				}
				return n
			}
			enough := time.Now().Add(full(time.Second, 10*time.Second))
			for ctx.Err() == nil && (time.Now().Before(enough) || min(least(0), least(1)) < 20) {
				time.Sleep(10 * time.Millisecond)
			}
			stop()
			all.Wait()
			for kind := range turns {
				t.Logf("type %d: at least %d turns each, longest wait %v", kind, least(kind), longest[kind].Round(time.Millisecond))
				assert.GreaterOrEqual(t, least(kind), int64(20), "turns of a caller of type %d", kind)
			}
		})
	}
}

// onLinedLocks runs test for each type of lock whose processes wait in a line.
func onLinedLocks(t *testing.T, test func(b *faultBench, k faultLock)) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		if k.lined() {
			test(b, k)
		}
	})
}

// tombstones returns how many fields of the locks of b have a tombstone.
func (b *bench) tombstones() (n int) {
	b.Helper()
	ctx := context.Background()
	lines, err := b.rdb.Keys(ctx, "relock_line:*"+b.name+"*").Result()
	b.must(err)
	for _, line := range lines {
		if over, err := b.rdb.HGet(ctx, line, "over").Result(); err != redis.Nil {
			b.must(err)
			n += len(strings.Fields(over)) / 2
		}
	}
	return n
}

// lines returns the keys of the lines of the locks of b.
func (b *bench) lines() []string {
	b.Helper()
	keys, err := b.rdb.Keys(context.Background(), "relock_line:*"+b.name+"*").Result()
	b.must(err)
	return keys
}

// patient returns a client over the proxy that waits for each answer without a limit.
func (b *faultBench) patient(opts ...Option) *Client {
	return b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }), opts...)
}

// leaves gives up l as soon as ready is closed: its request is in flight then.
func (b *faultBench) leaves(l Locker, ready <-chan struct{}) {
	b.Helper()
	ctx, cancel := context.WithCancel(ContextWithOwner(context.Background()))
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	await(b.bench, "the request is under way", ready)
	cancel()
	b.mustBe(await(b.bench, "Lock", got), context.Canceled)
}

// The answer to the last request of a field removes its tombstone, because no request can run late any more.
func TestTombstoneGoesWithTheLastAnswer(t *testing.T) {
	onLinedLocks(t, func(b *faultBench, k faultLock) {
		rule := b.proxy.On(k.takes, testredis.HoldRequest)
		b.leaves(k.one(b.patient(), b.name), rule.Fired())
		testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() > 0 })
		rule.Release()
		testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
		got, err := k.one(b.direct, b.name).TryLock(ContextWithOwner(context.Background()), 0, 0)
		b.must(err)
		assert.True(b, got, "the request has taken the lock")
		b.forget()
	})
}

// A request was sent twice, and one of both was answered: the other one may still run.
func TestTombstoneStaysWhileAnotherTryMayRun(t *testing.T) {
	b := newFaultBench(t)
	first := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	again := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	drops := b.proxy.On(calls(tombstoneRemove), testredis.DelayRequest(0)).Times(testredis.Always)
	b.leaves(b.patient().NewLock(b.name), again.Fired())
	testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() == 1 })
	ran := b.scriptRuns()
	again.Release()
	testredis.Await(b, "the second request has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Never(b, func() bool { return b.tombstones() == 0 }, 100*time.Millisecond, 5*time.Millisecond, "the tombstone")
	assert.Zero(b, drops.Count(), "requests that take the tombstone away")
	first.Release()
	testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
	assert.Empty(b, b.holder(), "the holder")
}

// If the connection has failed, no answer arrives for the request, which may run for as long as the tombstone lasts.
func TestTombstoneOfALostRequestStays(t *testing.T) {
	b := newFaultBench(t)
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	drops := b.proxy.On(calls(tombstoneRemove), testredis.DelayRequest(0)).Times(testredis.Always)
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }))
	b.leaves(c.NewLock(b.name), rule.Fired())
	testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() == 1 })
	b.must(c.Close()) // waits for the request
	assert.Zero(b, drops.Count(), "requests that take the tombstone away")
	ran := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Empty(b, b.holder(), "the holder")
	assert.Equal(b, 1, b.tombstones())
	b.must(b.rdb.Del(context.Background(), b.lineKey()).Err())
}

// A hold was released by force, and a request that asked for it may still run, although no answer to it will arrive: it
// acquires the lock for no owner.
func TestForcedReleaseOfAHoldWithALostRequestLeavesATombstone(t *testing.T) {
	b := newFaultBench(t)
	ctx := ContextWithOwner(context.Background())
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }))
	l := c.NewLock(b.name)
	b.must(l.LockLease(ctx, time.Hour)) // the second try
	guarded, err := l.Guard(ctx)
	b.must(err)
	_, err = b.direct.NewLock(b.name).ForceUnlock(ctx)
	b.must(err)
	_, err = l.HoldCount(ctx) // asks Redis
	b.must(err)
	<-guarded.Done()
	testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() == 1 })
	ran := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Empty(b, b.holder(), "the holder")
	b.must(b.rdb.Del(context.Background(), b.lineKey()).Err())
}

// A service whose callers have a time limit leaves nothing that lasts.
func TestCallersThatLeaveLeaveNoTombstone(t *testing.T) {
	onLinedLocks(t, func(b *faultBench, k faultLock) {
		l := k.one(b.patient(), b.name)
		slow := b.proxy.On(k.takes, testredis.DelayReply(20*time.Millisecond)).Times(testredis.Always)
		for range 30 {
			before := slow.Count()
			ready := make(chan struct{})
			go func() {
				defer close(ready)
				testredis.Await(b, "the request has run", soon, func() bool { return slow.Count() > before })
			}()
			ctx, cancel := context.WithCancel(ContextWithOwner(context.Background()))
			got := make(chan error, 1)
			go func() { got <- l.Lock(ctx) }()
			await(b.bench, "the request is under way", ready)
			cancel()
			if err := await(b.bench, "Lock", got); err == nil {
				b.must(l.Unlock(ctx))
			} else {
				b.mustBe(err, context.Canceled)
			}
		}
		testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
	})
}

// The next caller of the process gets the entry, and the field, of a caller that left while it asked. When all requests
// have been answered, its release leaves no tombstone.
func TestTombstoneIsNotInherited(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	ctx, cancel := context.WithCancel(late.owner)
	late.owner = ctx
	late.asks()
	await(b.bench, "the request that joins is under way", rule.Fired())
	next := late.sibling().asks()
	testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(next.lock) })
	cancel()
	b.mustBe(await(b.bench, "Lock", late.got), context.Canceled)
	next.joined()
	rule.Release()
	testredis.Await(b, "all is answered", soon, func() bool { return late.client.engine.Probe().Stats().Late == 0 })
	first.unlocks()
	next.gets().unlocks()
	assert.Empty(b, b.lines(), "the line")
}

// A grant that arrives after its wait has ended is released. If all requests of the wait were answered, none can run
// late.
func TestLateGrantOfAnAnsweredWaitLeavesNoTombstone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		c := b.contender()
		ctx, cancel := context.WithCancel(c.owner)
		c.owner = ctx
		c.joins()
		p := c.placeOf(c.client.ID())
		cancel()
		b.mustBe(await(b, "Lock", c.got), context.Canceled)
		testredis.Await(b, "the place is given up", soon, func() bool { return len(b.clientsInLine()) == 0 })
		ran := c.settled()
		hears := func(field string) {
			c.client.engine.Probe().HearGrant(c.lock.record, fmt.Sprintf("grant %s %d 5000 0", field, p.asked))
			ran++
			c.awaitScripts(ran)
			c.settled()
		}
		hears(p.field)
		assert.False(b, b.ended(p.field), "a tombstone")
		unknown := c.client.ID() + ":1:0999"
		hears(unknown)
		assert.True(b, b.ended(unknown), "of this field the process knows nothing")
	})
}

// A forged grant that names the hold of another Client does not release it: only the Client that a field belongs to is
// ever told of a grant to it.
func TestForgedGrantReleasesNoHoldOfAnotherClient(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		for name, newLock := range map[string]func(c *Client, name string) Locker{
			"lock":      func(c *Client, name string) Locker { return c.NewLock(name) },
			"fair":      func(c *Client, name string) Locker { return c.NewFairLock(name) },
			"write":     func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
			"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 1) },
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, addr)
				ctx := context.Background()
				held := newLock(b.client(), b.name)
				b.must(held.Lock(ctx))
				holder, c := insideOf(held), b.client()
				record := insideOf(newLock(c, b.name)).record
				field := holder.client.engine.HeldField(holder.record, engine.OwnerOf(ctx)) + record.Traits().Suffix
				c.engine.Probe().HearGrant(record, fmt.Sprintf("grant %s 1 5000 0", field))
				b.must(c.Close()) // waits for what the message has begun
				b.holds(held, 1)
				b.must(held.Unlock(ctx))
			})
		}
	})
}

// The same for a hold that the Client itself has detached.
func TestForgedGrantReleasesNoDetachedHold(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client()
	l := c.NewLock(b.name)
	hold, err := l.Acquire(ctx)
	b.must(err)
	text, err := hold.Detach(ctx, time.Minute)
	b.must(err)
	detached, err := ticket.Decode(text)
	b.must(err)
	c.engine.Probe().HearGrant(l.record, fmt.Sprintf("grant %s 1 5000 0", detached.ID))
	b.must(c.Close())
	hold, err = b.client().Attach(ctx, text)
	b.must(err)
	b.must(hold.Release(ctx))
}

// The same for some of the permits of a hold.
func TestForgedGrantReleasesNoPermitOfAHold(t *testing.T) {
	for name, forged := range map[string]func(before string, number int) string{
		"one of them":            func(before string, n int) string { return fmt.Sprint(before, n+1) },
		"the last, and others":   func(before string, n int) string { return fmt.Sprint(before, n+2, "+5") },
		"all of them, and more":  func(before string, n int) string { return fmt.Sprint(before, n, "+4") },
		"zeros before a number":  func(before string, n int) string { return fmt.Sprint(before, "00", n, "+2") },
		"those in front, and it": func(before string, n int) string { return fmt.Sprint(before, n-1, "+2") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, testredis.Start(t).Addr())
			ctx := context.Background()
			c := b.client()
			s := c.NewSemaphore(b.name, 10)
			hold, err := s.AcquireN(ctx, 3)
			b.must(err)
			several, err := s.several(3)
			b.must(err)
			field := c.engine.HeldField(several.record, hold.owner())
			at := strings.LastIndexByte(field, ':') + 2 // behind the mark of a Client that uses the line
			number := int(numberOf(strings.TrimSuffix(field, "+3")))
			message := fmt.Sprintf("grant %s 1 5000 0", forged(field[:at], number))
			c.engine.Probe().HearGrant(s.record, message)
			b.must(c.Close())
			assert.EqualValues(t, 3, b.rdb.ZCard(ctx, permitsKey(b.name)).Val(), message)
			b.must(hold.Release(ctx))
		})
	}
}

// buryOthers adds tombstones of other fields to the line at key.
func (b *bench) buryOthers(key string, n int) {
	b.Helper()
	ctx := context.Background()
	if n == 0 {
		b.must(b.rdb.Del(ctx, key).Err())
		return
	}
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s:%d:0%d %d", uuid.NewString(), i, i, time.Now().Add(time.Minute).UnixMilli()))
	}
	b.must(b.rdb.HSet(ctx, key, "over", strings.Join(all, " ")).Err())
	b.must(b.rdb.PExpire(ctx, key, time.Minute).Err())
}

// commands returns how many commands Redis runs while do runs, including those in scripts.
func (b *bench) commands(do func()) int {
	b.Helper()
	ctx := context.Background()
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	do()
	stats, err := b.rdb.Info(ctx, "commandstats").Result()
	b.must(err)
	all := 0
	for _, line := range strings.Split(stats, "\r\n") {
		var calls int
		name, rest, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscanf(rest, "calls=%d,", &calls); err == nil && name != "cmdstat_config|resetstat" {
			all += calls
		}
	}
	return all
}

// The tombstones of others cost one command for a lock for which no process waits: it checks that none of them is for
// the caller.
func TestTombstonesOfOthersCostOneCommand(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	for what, l := range map[string]Locker{
		"plain": b.client().NewLock(b.name + "1"), "fenced": b.client().NewLock(b.name+"2", Fenced()),
		"write": newWriteLock(b.client(), b.name+"3"), "semaphore": b.client().NewSemaphore(b.name+"4", 3),
	} {
		ctx := ContextWithOwner(context.Background())
		section := func() {
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
		}
		section() // the connections are open, and the permits are set
		free := b.commands(section)
		for _, n := range []int{1, 100} {
			b.buryOthers(lineKey(l.Name()), n)
			assert.LessOrEqual(b, b.commands(section), free+1, "%s: commands with %d tombstones, %d without", what, n, free)
			assert.Equal(b, []string{"over"}, b.rdb.HKeys(ctx, lineKey(l.Name())).Val(), "%s: the line", what)
		}
		b.buryOthers(lineKey(l.Name()), 0)
	}
}

// A line in which no client has an entry any more has its tombstones, and nothing else.
func TestLineThatEndsLeavesItsTombstonesAlone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, waiter, other := b.manual().takes(), b.manual().listens().joins(), b.manual().listens().joins()
		waiter.release(true)
		other.release(false)
		first.release(false)
		keys, err := b.rdb.HKeys(context.Background(), b.lineKey()).Result()
		b.must(err)
		assert.Equal(b, []string{"over"}, keys)
		assert.True(b, b.ended(waiter.field))
	})
}

// A line and the wishes of a fair lock of the same name share a key. The wishes stay when the last place of the line
// goes, however it goes, and so the fair lock passes to its next waiter.
func TestLineThatEndsLeavesTheWishesOfAFairLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	for kind, of := range map[string]func(c *Client, name string) contract.Record{
		"lock": recordOfLock, "fenced": recordOfFenced, "write": recordOfWriter,
	} {
		for ends, leave := range map[string]func(l contract.Record, a contract.Attempt) call{
			"gives up": func(l contract.Record, a contract.Attempt) call { return l.RollBack(a) },
			"gives up, and its request may still run": func(l contract.Record, a contract.Attempt) call {
				a.Late = true
				return l.RollBack(a)
			},
			"is renamed": func(l contract.Record, a contract.Attempt) call {
				return l.Rename(contract.Rename{From: a.Field, To: a.Field + "0", Lease: time.Minute, Late: true})
			},
		} {
			t.Run(kind+" "+ends, func(t *testing.T) {
				b := newReleaseBench(t, s, releaseKind{name: "fair", mine: recordOfFair, wait: recordOfFair})
				l, a := of(b.dead, b.name), attemptOf(b.dead)
				b.prepare("subscribed")
				wish := b.rdb.HGet(ctx, lineKey(b.name), attemptOf(b.alive).Field).Val()
				require.NotEmpty(t, wish)
				a.Delivery = contract.Poll
				b.does(l.Acquire(a), 0)
				require.Contains(t, b.rdb.HKeys(ctx, lineKey(b.name)).Val(), "last", "it has a place")

				b.eval(b.rdb, leave(l, a))
				left := b.rdb.HGetAll(ctx, lineKey(b.name)).Val()
				delete(left, "over")
				assert.Equal(t, map[string]string{attemptOf(b.alive).Field: wish}, left)
				assert.Positive(t, b.rdb.PTTL(ctx, lineKey(b.name)).Val())
				assert.Equal(t, []any{int64(1), int64(0), int64(1)},
					b.eval(b.rdb, b.kind.mine(b.me, b.name).Release(released(attemptOf(b.me).Field, 0, false))))
				assert.Equal(t, []string{attemptOf(b.alive).Field}, b.holders())
			})
		}
	}
}

// docs/limits.md says how many fields of a lock can have a tombstone: the last ones. The request of an earlier one may
// acquire the lock if it runs late.
func TestTombstonesOfALockAreLimited(t *testing.T) {
	t.Parallel()
	const most = 100
	page, err := os.ReadFile("docs/limits.md")
	require.NoError(t, err)
	assert.Regexp(t, fmt.Sprintf(`(?m)^\| requests of callers that have left, .* \| %d in a minute \|`, most), string(page))
	s := testredis.Start(t)
	for name, of := range map[string]func(c *Client, name string) contract.Record{
		"lock": recordOfLock, "fair": recordOfFair, "write": recordOfWriter, "semaphore": recordOfSemaphore,
	} {
		t.Run(name, func(t *testing.T) {
			b := newReleaseBench(t, s, releaseKind{name: name, mine: of, wait: of})
			l, fields := of(b.me, b.name), []string{}
			for i := range most + 1 {
				a := attemptOf(b.me)
				a.Field, a.Late = fmt.Sprintf("%s:%d:0%d", b.me.ID(), i, i+1), true
				b.does(l.RollBack(a), -1)
				fields = append(fields, a.Field)
			}
			for i, first := range map[int]int64{most: 0, 1: 0, 0: 1} {
				a := attemptOf(b.me)
				a.Field = fields[i]
				b.does(l.Acquire(a), first)
			}
		})
	}
}

// Row 25: Redis is out of memory. Whatever ends a field leaves its tombstone all the same: a request that runs late, when
// Redis has memory again, acquires nothing, and takes no detached hold from its ticket.
func TestTombstoneNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--maxmemory-policy", "noeviction")
	for name, of := range map[string]func(c *Client, name string) contract.Record{
		"lock": recordOfLock, "fair": recordOfFair, "read": recordOfReader, "write": recordOfWriter,
		"semaphore": recordOfSemaphore,
	} {
		t.Run(name, func(t *testing.T) {
			b := newReleaseBench(t, s, releaseKind{name: name, mine: of, wait: of})
			l, a := of(b.me, b.name), attemptOf(b.me)
			a.Delivery, a.Late = contract.Barge, true
			detached := a
			detached.Field = b.me.ID() + ":0:0123456789012345"
			withoutMemory := func(c call, first int64) {
				b.must(b.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
				b.does(c, first)
				b.must(b.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
			}
			attach := contract.Rename{From: detached.Field, To: a.Field, Lease: time.Minute, Ends: math.MaxInt64 >> 10}
			detach := contract.Rename{From: a.Field, To: detached.Field, Lease: time.Minute, Late: true}
			b.must(b.rdb.FlushDB(t.Context()).Err())
			if name != "read" { // an attempt of a reader has no tombstone
				withoutMemory(l.RollBack(a), -1)
				b.does(l.Acquire(a), 0)
				b.must(b.rdb.FlushDB(t.Context()).Err())
				withoutMemory(l.Rename(detach), -1)
				b.does(l.Acquire(a), 0)
				b.must(b.rdb.FlushDB(t.Context()).Err())
			} else {
				split := contract.Rename{From: a.Field, To: detached.Field, Lease: time.Minute, Splits: true}
				b.does(l.Acquire(a), 1)
				withoutMemory(l.Release(released(detached.Field, 0, false)), -1)
				b.does(l.Rename(split), -1)
				b.must(b.rdb.FlushDB(t.Context()).Err())
			}
			b.does(l.Acquire(detached), 1)
			withoutMemory(l.Rename(detach), 1) // an Attach gives up before its request has run
			b.does(l.Rename(attach), -1)
		})
	}
}

// A tombstone is removed alone, and the line is deleted with the last one.
func TestTombstoneIsTakenAwayAlone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		all := []*manual{b.manual(), b.manual(), b.manual()}
		for _, m := range all {
			m.release(true)
		}
		undo := func(m *manual) int64 {
			r, err := run(ctx, b.rdb, call{Script: tombstoneRemove, Keys: []string{b.lineKey()}, Args: []any{m.field}})
			b.must(err)
			return r[0]
		}
		for i, m := range []*manual{all[1], all[0], all[2]} {
			require.Equal(b, 3-i, b.tombstones())
			assert.Equal(b, int64(-1), undo(b.manual()), "a field without a tombstone")
			assert.Equal(b, int64(1), undo(m))
			assert.Equal(b, int64(-1), undo(m), "again")
			assert.False(b, b.ended(m.field))
		}
		assert.Empty(b, b.lines(), "the line")

		first := b.manual().takes()
		waiter, gone := b.manual().listens().joins(), b.manual().listens().joins()
		gone.release(true)
		assert.Equal(b, int64(1), undo(gone))
		assert.Equal(b, []string{waiter.id}, b.clientsInLine(), "the line")
		first.release(false)
		assert.Equal(b, waiter.field, b.holder(), "the holder")
	})
}

// A field with a tombstone neither acquires a free lock nor enters the line, and the tombstones of others do not affect
// it.
func TestTombstoneAmongOthersIsSeen(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ended, other := b.manual(), b.manual()
		b.buryOthers(b.lineKey(), 50)
		ended.release(true)
		for range 20 {
			b.manual().release(true)
		}
		assert.Equal(b, int64(0), ended.ask(contract.Barge)[0], "a free lock")
		assert.Empty(b, b.holder())
		assert.Equal(b, int64(1), other.ask(contract.Barge)[0], "another field")
		other.release(false)
		assert.Equal(b, 71, b.tombstones())
	})
}

// L1: a record that disappears without a release delays its waiters by the poll interval at most, wherever they are in
// the line.
func TestWaitersNoticeALockThatBecomesFreeByItself(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		b.must(b.client().NewLock(b.name).LockLease(ctx, time.Minute))
		var waiters []<-chan error
		for range 3 {
			got := make(chan error, 1)
			l := b.client().NewLock(b.name)
			go func() {
				got <- l.Do(ctx, func(context.Context) error { return nil })
			}()
			waiters = append(waiters, got)
		}
		testredis.Await(t, "all stand in the line", soon, func() bool {
			return b.rdb.HGet(ctx, "relock_line:{"+b.name+"}", "last").Val() == "3"
		})
		start := time.Now()
		b.must(b.rdb.Del(ctx, b.name).Err())
		for _, got := range waiters {
			b.must(await(b, "a waiter comes in", got))
		}
		assert.Less(t, time.Since(start), testredis.Scale(start, 4*time.Second))
	})
}

// If a line is deleted while others continue to use the lock, or loses an entry, its waiters ask within a poll
// interval. The lock is never free, so only the missing entry shows it.
func TestPollerNoticesALostPlace(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, kind := range []struct {
			name string
			lock func(c *Client, name string) Locker
		}{
			{"plain", func(c *Client, name string) Locker { return c.NewLock(name) }},
			{"write", func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }},
		} {
			t.Run(kind.name, func(t *testing.T) {
				b := newBench(t, addr)
				ctx := context.Background()
				held := kind.lock(b.client(), b.name)
				b.must(held.Lock(ctx))
				waits := b.client()
				got := make(chan error, 1)
				go func() {
					got <- kind.lock(waits, b.name).Do(ctx, func(context.Context) error { return nil })
				}()
				stands := func() bool { return b.rdb.HExists(ctx, b.lineKey(), waits.ID()).Val() }
				testredis.Await(t, "it stands in the line", soon, stands)
				b.must(b.rdb.Del(ctx, b.lineKey()).Err())
				testredis.Await(t, "it stands in the line again", soon, stands)
				b.must(held.Unlock(ctx))
				b.must(await(b, "the waiter has the lock", got))
			})
		}
	})
}

// A waiter that has an entry learns that a Java service holds the lock by now: only Redisson's channel announces when
// it is free.
func TestPollerNoticesAHolderWithoutALine(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.opts = nil
		first := b.manual().takes()
		waits := b.contender().joins()
		b.must(b.rdb.HDel(context.Background(), b.name, first.field).Err())
		b.must(b.rdb.HSet(context.Background(), b.name, javaThread, 1).Err())
		testredis.Await(
			b,
			"the waiter hears Redisson's channel",
			soon,
			func() bool { return b.hearers(b.releaseChannel()) == 1 },
		)
		b.javaReleases(javaThread)
		waits.gets().unlocks()
	})
}

// L1: a waiter whose subscription has silently failed is granted the lock without being notified. It notices within a
// poll interval, long before the connection is given up, even if its process waits for more locks than are checked each
// time.
func TestPollerNoticesAGrantThatNoMessageBrought(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	}
	for what, lock := range kinds {
		for _, locks := range []int{1, 150} {
			t.Run(fmt.Sprint(what, locks), func(t *testing.T) {
				t.Parallel()
				// A connection that stays silent for three seconds is given up, which wakes everybody. On a busy machine
				// that may come first; such a round shows nothing about the poller.
				start := time.Now()
				for range 5 {
					if silentGrants(t, lock, locks) {
						return
					}
				}
				if slow := testredis.Scale(start, time.Second); slow > 2*time.Second {
					t.Skip("the machine is too slow: what takes a second took ", slow)
				}
				require.Fail(t, "in five rounds, the connection was given up before all waiters noticed their grants")
			})
		}
	}
}

// silentGrants lets a Client wait for a number of locks, and grants them when nothing arrives on its subscription any
// more. It returns false if that connection was given up before all waiters had noticed that they have their locks.
func silentGrants(t *testing.T, lock func(c *Client, name string) Locker, locks int) bool {
	const delay = 200 * time.Millisecond
	b := newFaultBenchOn(t, testredis.Start(t))
	ctx := context.Background()
	waits := b.bench.clientOn(b.proxy.Client(), WithPollInterval(delay))
	var held []Locker
	got := make(chan error, locks)
	var all sync.WaitGroup
	for i := range locks {
		name := fmt.Sprint(b.name, i)
		held = append(held, lock(b.direct, name))
		b.must(held[i].Lock(ctx))
		waitgroup.Go(&all, func() {
			l, owner := lock(waits, name), ContextWithOwner(ctx)
			got <- l.Lock(owner)
			assert.NoError(t, l.Unlock(owner))
		})
	}
	testredis.Await(t, "all stand in their lines", 2*soon, func() bool {
		return len(b.rdb.Keys(ctx, "relock_line:{"+b.name+"*").Val()) == locks
	})
	subscribers := func() []string {
		clients, err := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
		b.must(err)
		return regexp.MustCompile(`(?m)^id=\d+`).FindAllString(clients, -1)
	}
	b.hears(b.direct)
	before := subscribers()
	silent := b.proxy.On(testredis.Command("ping"), testredis.StallReply)
	await(b.bench, "the subscription is silent", silent.Fired())
	for _, l := range held {
		b.must(l.Unlock(ctx))
	}
	for range locks {
		b.must(await(b.bench, "a waiter notices that it has the lock", got))
	}
	after := subscribers()
	all.Wait()
	return slices.Equal(before, after)
}

// C4: waiters whose locks stay held cost one request for many of them.
func TestIdleWaitersShareALook(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	const locks = 300
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	held := b.client()
	rdb := s.Client()
	var asks, looks atomic.Int64
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		args := fmt.Sprint(cmd.Args()...)
		switch {
		case strings.Contains(args, freeInspect.Digest()):
			looks.Add(1)
		case strings.Contains(args, lockAcquire.Digest()):
			asks.Add(1)
		}
	}))
	waits := b.clientOn(rdb, WithPollInterval(200*time.Millisecond))
	for i := range locks {
		name := fmt.Sprint(b.name, "-", i)
		b.must(held.NewLock(name).Lock(ctx))
		go func() { _ = waits.NewLock(name).Lock(ctx) }()
	}
	testredis.Await(t, "all stand in their lines", 2*soon, func() bool {
		return len(b.rdb.Keys(ctx, "relock_line:{"+b.name+"-*").Val()) == locks
	})
	testredis.Await(t, "the lookout looks", soon, func() bool { return looks.Load() > 2 })
	asked, looked, start := asks.Load(), looks.Load(), time.Now()
	testredis.Await(t, "the lookout looks on", soon, func() bool { return looks.Load() >= looked+8 })
	assert.Less(t, looks.Load()-looked, int64(2*(time.Since(start)/(200*time.Millisecond)+2)), "looks")
	assert.Zero(t, asks.Load()-asked, "requests of waiters")
	cancel()
	for i := range locks {
		_, err := held.NewLock(fmt.Sprint(b.name, "-", i)).ForceUnlock(context.Background())
		require.NoError(t, err)
	}
}

// Each entry ahead counts.
func TestLineSaysHowManyAreInFront(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		for n := range 3 {
			assert.Equal(b, int64(1+4*n), b.manual().listens().joins().ask(contract.Push)[2])
		}
		b.must(b.rdb.Del(context.Background(), b.name, b.lineKey()).Err())
	})
}

// C1: the goroutine of the poller ends when no caller waits.
func TestPollerEndsWithItsWaiters(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client(WithPollInterval(50 * time.Millisecond))
	l := c.engine.Probe().Poller()
	running := func() bool { r, _ := l.Running(); return r }
	b.must(b.rdb.HSet(context.Background(), b.name, javaThread+":01", 1).Err())
	b.must(b.rdb.HSet(context.Background(), b.lineKey(), c.ID(), "a place").Err())
	wake := make(chan struct{}, 1)
	stop := l.Watch(b.name, poller.Waiter{Wake: wake})
	other := l.Watch(b.name, poller.Waiter{Wake: make(chan struct{}, 1)})
	assert.True(t, running())
	other()
	time.Sleep(150 * time.Millisecond)
	assert.True(t, running())
	assert.Empty(t, wake, "a waiter is woken although the lock is held")
	b.must(b.rdb.Del(context.Background(), b.name, b.lineKey()).Err())
	await(b, "the waiter is woken", wake)
	stop()
	testredis.Await(t, "the goroutine ends", soon, func() bool { return !running() })
	_, locks := l.Running()
	assert.Zero(t, locks)
}
