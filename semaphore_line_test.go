package relock

// The line of a semaphore, in which processes wait for a permit.
//
// Rules: a release grants its permit to the process that has waited longest. A grant that is not used in time, that
// no process receives, or whose message is lost costs no permit. A Client has one place for all its callers.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A permitClient is a client of a semaphore whose requests the test sends.
type permitClient struct {
	*bench
	l     *semaphore
	id    string
	field string
	asked uint64
	hears *redis.PubSub // the channel of grants, or nil
}

const neverDue = 2_000_000 * time.Hour // a hand-off window that never ends

func (b *bench) permitClient(s *Semaphore) *permitClient {
	id := uuid.NewString()
	b.Cleanup(b.forget)
	return &permitClient{bench: b, l: s.record, id: id, field: id + ":1:01"}
}

func (c *permitClient) ask(line string) reply {
	c.Helper()
	c.asked++
	r, err := run(
		context.Background(),
		c.rdb,
		c.l.Acquire(contract.Attempt{Field: c.field, Lease: time.Minute, HoldCount: 1, Delivery: line, Asked: c.asked}),
	)
	c.must(err)
	return r
}

// takes acquires a permit that must be free.
func (c *permitClient) takes() *permitClient {
	c.Helper()
	require.Equal(c, int64(1), c.ask(contract.Barge)[0])
	return c
}

// listens subscribes to the channel of grants.
func (c *permitClient) listens() *permitClient {
	c.Helper()
	c.hears = c.subscribe(c.l.announce + ":" + c.id)
	return c
}

// joins waits in the line, with a delivery as in internal/lua/line.lua.
func (c *permitClient) joins(delivery string) *permitClient {
	c.Helper()
	require.Equal(c, int64(1), c.ask(delivery)[2]%4, "no place")
	return c
}

// gives releases the permit; the line may keep it for a hand-off window.
func (c *permitClient) gives(slice time.Duration) reply {
	c.Helper()
	call := c.l.Release(released(c.field, 0, false))
	call.Args[4] = milliseconds(slice)
	r, err := run(context.Background(), c.rdb, call)
	c.must(err)
	return r
}

// lease returns the remaining lease of the permit of c, or 0 if c has none.
func (c *permitClient) lease() time.Duration {
	c.Helper()
	ends, err := c.rdb.ZScore(context.Background(), c.l.keys[1], c.field).Result()
	if errors.Is(err, redis.Nil) {
		return 0
	}
	c.must(err)
	return time.Until(time.UnixMilli(int64(ends)))
}

// messages returns the messages that were sent to c and not returned before.
func (c *permitClient) messages() []string {
	c.Helper()
	return c.received(c.hears, c.l.announce+":"+c.id)
}

// A permitContender is an owner of a Client that asks for a permit.
type permitContender struct {
	*lineClient
	s     *Semaphore
	asked *atomic.Int64 // number of requests for a permit, without renewals, which depend on how long the test takes
}

func (b *bench) permitContender(opts ...Option) *permitContender {
	b.Helper()
	rdb, asked := testredis.Client(b, b.addr), new(atomic.Int64)
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if len(cmd.Args()) > 1 && cmd.Args()[1] == semaphoreAcquire.Digest() {
			asked.Add(1)
		}
	}))
	c := b.contenderOn(rdb, opts...)
	return &permitContender{c, c.client.NewSemaphore(b.name, 1), asked}
}

// requests returns how many requests for a permit the Client has sent, when it sends no more.
func (c *permitContender) requests() int64 {
	c.Helper()
	c.settled()
	return c.asked.Load()
}

// sibling returns another owner of the same Client.
func (c *permitContender) sibling() *permitContender {
	return &permitContender{c.lineClient.sibling(), c.s, c.asked}
}

func (c *permitContender) asks() *permitContender {
	go func() { c.got <- c.s.Lock(c.owner) }()
	return c
}

func (c *permitContender) joins() *permitContender {
	c.Helper()
	c.asks().joined()
	return c
}

func (c *permitContender) gets() *permitContender {
	c.Helper()
	c.lineClient.gets()
	return c
}

func (c *permitContender) unlocks() {
	c.Helper()
	c.must(c.s.Unlock(c.owner))
}

// onEachPermits runs test for a semaphore with a number of permits, on a miniredis and on a real Redis.
func onEachPermits(t *testing.T, permits int, test func(b *bench, s *Semaphore)) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		b := newLineBench(t, addr)
		s := b.client().NewSemaphore(b.name, permits)
		b.must(s.SetPermits(context.Background(), permits))
		test(b, s)
	})
}

// A release grants its permit to the process that has waited longest. It sends one message, and that process sends no
// request.
func TestSemaphoreReleaseGrantsThePermit(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
		first, second := b.permitContender().joins(), b.permitContender().joins()
		silent := b.permitClient(s).listens().joins(contract.Push)
		last := b.permitContender().joins()
		require.Equal(
			b,
			[]string{first.client.ID(), second.client.ID(), silent.id, last.client.ID()},
			b.clientsInLine(),
			"the line",
		)
		asked := []int64{first.requests(), second.requests(), last.requests()}
		require.NotContains(b, asked, int64(0))

		require.Equal(b, reply{1, 0, 1}, m.gives(neverDue))
		first.gets()
		second.waits()
		require.Equal(b, reply{1, 0, 1}, other.gives(neverDue))
		second.gets()
		assert.Equal(b, asked, []int64{first.asked.Load(), second.asked.Load(), last.asked.Load()}, "requests")
		first.unlocks()
		assert.Equal(b, []string{fmt.Sprintf("grant %s 1 5000 0", silent.field)}, silent.messages())
		assert.InDelta(b, 3500, silent.lease().Milliseconds(), 1500, "the provisional lease")
		last.waits()
		require.Equal(b, reply{1, 0, 1}, silent.gives(neverDue))
		last.gets()
		assert.Equal(b, asked[2], last.asked.Load(), "requests")
		require.Zero(b, b.permits(2))
		last.unlocks()
		second.unlocks()
		b.emptyLine()
	})
}

// A critical section costs one request and one release, however many processes wait.
func TestSemaphoreCostsTwoScriptsASection(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	b.must(b.client().NewSemaphore(b.name, 1).SetPermits(context.Background(), 2))
	const clients, warm, sections = 8, 10, 50
	var ready, all sync.WaitGroup
	ready.Add(clients)
	begin := make(chan struct{})
	for range clients {
		c := b.permitContender()
		waitgroup.Go(&all, func() {
			for n := range warm + sections {
				if n == warm {
					ready.Done()
					<-begin
				}
				assert.NoError(b, c.s.Lock(c.owner))
				time.Sleep(2 * time.Millisecond) // the work
				assert.NoError(b, c.s.Unlock(c.owner))
			}
		})
	}
	ready.Wait()
	before := b.scriptRuns()
	close(begin)
	all.Wait()
	runs := float64(b.scriptRuns()-before) / (clients * sections)
	b.Logf("%.2f scripts a section", runs)
	assert.LessOrEqual(b, runs, 2.2, "scripts a section")
}

// A grant whose message is lost is found when the process asks, within the poll interval.
func TestSemaphoreLostMessageLosesNoGrant(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		m := b.permitClient(s).takes()
		c := b.permitContender(WithPollInterval(300 * time.Millisecond)).joins()
		p := b.placeOf(c.client.ID())
		ctx := context.Background()
		_, err := b.rdb.TxPipelined(ctx, func(r redis.Pipeliner) error {
			r.ZRem(ctx, m.l.keys[1], m.field)
			r.ZAdd(ctx, m.l.keys[1], redis.Z{Score: float64(time.Now().Add(5 * time.Second).UnixMilli()), Member: p.field})
			r.HDel(ctx, b.lineKey(), fmt.Sprint(p.number))
			return nil
		})
		b.must(err)
		c.gets().unlocks()
		require.Equal(b, 1, b.permits(1))
	})
}

// A Client has one entry at a time, for the first of its callers. Each grant is for one caller. A message that arrives
// twice, or for no caller, changes nothing for the others.
func TestSemaphoreClientHasOnePlaceForManyCallers(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		var taken []*permitClient
		for range 3 {
			taken = append(taken, b.permitClient(s).takes())
		}
		all := []*permitContender{b.permitContender().joins()}
		c := all[0]
		for n := 1; n < 4; n++ {
			all = append(all, c.sibling().asks())
			testredis.Await(b, "it waits in this process", soon, func() bool { return b.waitersInQueue(c.s) == n })
		}
		other := b.permitContender().joins()
		require.Equal(b, []string{c.client.ID(), other.client.ID()}, b.clientsInLine(), "the line")
		first := b.placeOf(c.client.ID())
		taken[0].gives(neverDue)
		all[0].gets()
		testredis.Await(b, "the next caller has the place at the end", soon, func() bool {
			return slices.Equal([]string{other.client.ID(), c.client.ID()}, b.clientsInLine())
		})
		assert.NotEqual(b, first.field, b.placeOf(c.client.ID()).field)
		taken[1].gives(neverDue)
		other.gets()
		taken[2].gives(neverDue)
		all[1].gets()
		c.joined()

		ctx := context.Background()
		tell := func(field string, asked uint64) {
			b.must(
				b.rdb.Publish(ctx, c.s.record.announce+":"+c.client.ID(), fmt.Sprintf("grant %s %d 5000 0", field, asked)).Err(),
			)
		}
		unknown := c.client.ID() + ":7:0999"
		tell(first.field, first.asked)
		tell(unknown, 1)
		testredis.Await(b, "the message behind it is handled", soon, func() bool { return b.ended(unknown) })
		require.Zero(b, b.permits(3))
		other.unlocks()
		all[2].gets()
		c.joined()
		all[0].unlocks()
		all[3].gets()
		for _, c := range all[1:] {
			c.unlocks()
		}
		require.Equal(b, 3, b.permits(3))
		b.emptyLine()
	})
}

// A caller that gives up leaves the entry of its process to the next one.
func TestSemaphoreCallerThatGivesUpLeavesItsPlace(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		m := b.permitClient(s).takes()
		first := b.permitContender()
		second := first.sibling()
		var cancel context.CancelFunc
		first.owner, cancel = context.WithCancel(first.owner)
		defer cancel()
		first.joins()
		second.asks()
		testredis.Await(b, "the second one waits", soon, func() bool {
			return b.waitersInQueue(second.s) == 1
		})
		other := b.permitContender().joins()
		cancel()
		b.mustBe(await(b, "the first one comes back", first.got), context.Canceled)
		second.settled()
		require.Equal(b, []string{first.client.ID(), other.client.ID()}, b.clientsInLine(), "the line")
		m.gives(neverDue)
		second.gets()
		other.waits()
		second.unlocks()
		other.gets().unlocks()
		require.Equal(b, 1, b.permits(1))
	})
}

// If callers of one process find all permits held at the same time, all of them get one in the end, even if no sleep
// ends by itself.
func TestSemaphoreCallersThatFindItBusyTogetherAllGetIn(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		c := b.permitContender()
		for range full(5, 50) {
			m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
			var all sync.WaitGroup
			for _, owner := range owners(8) {
				waitgroup.Go(&all, func() {
					if assert.NoError(b, c.s.Lock(owner)) {
						assert.NoError(b, c.s.Unlock(owner))
					}
				})
			}
			time.Sleep(time.Millisecond)
			m.gives(0)
			other.gives(0)
			all.Wait()
			require.Equal(b, 2, b.permits(2))
		}
	})
}

// A caller that asked before another one, and waits behind it in the process, has an entry of its own after the other
// one was granted a permit.
func TestSemaphoreCallerThatAskedFirstHasAPlaceAfterAnother(t *testing.T) {
	b := newFaultBench(t)
	s := b.direct.NewSemaphore(b.name, 2)
	m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
	c := b.clientOn(b.proxy.Client(), WithPollInterval(time.Hour)).NewSemaphore(b.name, 2)
	first, late := b.proxy.On(
		calls(semaphoreAcquire),
		testredis.DelayReply(100*time.Millisecond),
	), b.proxy.On(
		calls(semaphoreAcquire),
		testredis.DelayReply(400*time.Millisecond),
	)
	o := owners(3)
	asks := func(owner context.Context) <-chan error {
		got := make(chan error, 1)
		go func() { got <- c.Lock(owner) }()
		return got
	}
	one := asks(o[0])
	await(b.bench, "the first one asks", first.Fired())
	two := asks(o[1])
	await(b.bench, "the second one asks beside the first one", late.Fired())
	waiting := func(n int) {
		testredis.Await(b, "they wait in this process", soon, func() bool { return b.waitersInQueue(c) == n })
	}
	testredis.Await(b, "the first one has found no permit free", soon, func() bool {
		_, _, busy := waitersOf(c)
		return busy
	})
	three := asks(o[2])
	waiting(1)
	waiting(2) // the second one has its answer
	testredis.Await(b, "the place of the first one", soon, func() bool { return len(b.places()) == 1 })
	m.gives(neverDue)
	b.must(await(b.bench, "the first one", one))
	testredis.Await(b, "the place of the third one", soon, func() bool { return len(b.places()) == 1 })
	other.gives(neverDue)
	b.must(await(b.bench, "the third one", three))
	testredis.Await(b, "the place of the second one", soon, func() bool { return len(b.places()) == 1 })
	b.must(c.Unlock(o[0]))
	b.must(await(b.bench, "the second one", two))
	b.must(c.Unlock(o[1]))
	b.must(c.Unlock(o[2]))
	require.Equal(b, 2, b.permits(2))
}

// If one caller of a process has found no permit free, and waits for one in Redis, the others wait behind it and send
// no requests.
func TestSemaphoreCallersBehindABusyOneAskNothing(t *testing.T) {
	b := newFaultBench(t)
	s := b.direct.NewSemaphore(b.name, 1)
	m := b.permitClient(s).takes()
	c := b.clientOn(b.proxy.Client(), WithPollInterval(time.Hour)).NewSemaphore(b.name, 1)
	o := owners(10)
	got := make(chan error, len(o))
	asks := func(owner context.Context) { go func() { got <- c.Lock(owner) }() }
	asks(o[0])
	testredis.Await(b, "the first one stands in the line and hears", soon, func() bool {
		all := b.places()
		return len(all) == 1 && all[0].delivery == contract.Push
	})
	asked := b.proxy.On(calls(semaphoreAcquire), testredis.DelayReply(0)).Times(testredis.Always)
	for _, owner := range o[1:] {
		asks(owner)
	}
	testredis.Await(b, "the others wait in this process", soon, func() bool { return b.waitersInQueue(c) == len(o)-1 })
	assert.Zero(b, asked.Count(), "requests of those behind")
	m.gives(neverDue)
	for range o {
		b.must(await(b.bench, "one of them", got))
		for _, owner := range o {
			if held, err := c.IsHeld(owner); err == nil && held {
				b.must(c.Unlock(owner))
			}
		}
	}
	require.Equal(b, 1, b.permits(1))
}
