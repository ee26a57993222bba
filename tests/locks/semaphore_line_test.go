package locks

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
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A permitClient is a client of a semaphore whose requests the test sends.
type permitClient struct {
	*locktest.Bench
	l     contract.Record
	id    string
	field string
	asked uint64
	hears *redis.PubSub // the channel of grants, or nil
}

const neverDue = 2_000_000 * time.Hour // a hand-off window that never ends

func newPermitClient(b *locktest.Bench, s *Semaphore) *permitClient {
	id := uuid.NewString()
	b.Cleanup(b.Forget)
	return &permitClient{Bench: b, l: locktest.RecordOf(s), id: id, field: id + ":1:1"}
}

func (c *permitClient) ask(line string) send.Reply {
	c.Helper()
	c.asked++
	r, err := locktest.Run(
		ctx,
		c.Rdb,
		c.l.Acquire(contract.Attempt{Field: c.field, Lease: time.Minute, HoldCount: 1, Delivery: line, Asked: c.asked}),
	)
	c.Must(err)
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
	c.hears = c.Subscribe(locktest.AnnounceOf(c.l) + ":" + c.id)
	return c
}

// joins waits in the line, with a delivery as in internal/lua/line.lua.
func (c *permitClient) joins(delivery string) *permitClient {
	c.Helper()
	require.Equal(c, int64(1), c.ask(delivery)[2]%4, "no place")
	return c
}

// gives releases the permit; the line may keep it for a hand-off window.
func (c *permitClient) gives(slice time.Duration) send.Reply {
	c.Helper()
	call := c.l.Release(locktest.Released(c.field, 0, false))
	call.Args[3] = send.Milliseconds(slice)
	r, err := locktest.Run(ctx, c.Rdb, call)
	c.Must(err)
	return r
}

// lease returns the remaining lease of the permit of c, or 0 if c has none.
func (c *permitClient) lease() time.Duration {
	c.Helper()
	ends, err := c.Rdb.ZScore(ctx, locktest.KeysOf(c.l)[1], c.field).Result()
	if errors.Is(err, redis.Nil) {
		return 0
	}
	c.Must(err)
	return time.Until(time.UnixMilli(int64(ends)))
}

// messages returns the messages that were sent to c and not returned before.
func (c *permitClient) messages() []string {
	c.Helper()
	return received(c.Bench, c.hears, locktest.AnnounceOf(c.l)+":"+c.id)
}

// A permitContender is an owner of a Client that asks for a permit.
type permitContender struct {
	*lineClient
	s     *Semaphore
	asked *atomic.Int64 // number of requests for a permit, without renewals, which depend on how long the test takes
}

func newPermitContender(b *locktest.Bench, opts ...Option) *permitContender {
	b.Helper()
	rdb, asked := testredis.Client(b, b.Addr), new(atomic.Int64)
	rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if len(cmd.Args()) > 1 && cmd.Args()[1] == record.Script("semaphore_acquire").Digest() {
			asked.Add(1)
		}
	}))
	c := contenderOn(b, rdb, opts...)
	return &permitContender{c, c.client.NewSemaphore(b.LockName, 1), asked}
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
	c.Must(c.s.Unlock(c.owner))
}

// onEachPermits runs test for a semaphore with a number of permits, on a miniredis and on a real Redis.
func onEachPermits(t *testing.T, permits int, test func(b *locktest.Bench, s *Semaphore)) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		b := locktest.NewLineBench(t, addr)
		s := b.Client().NewSemaphore(b.LockName, permits)
		b.Must(s.SetPermits(ctx, permits))
		test(b, s)
	})
}

// A release grants its permit to the process that has waited longest. It sends one message, and that process sends no
// request.
func TestSemaphoreReleaseGrantsThePermit(t *testing.T) {
	onEachPermits(t, 2, func(b *locktest.Bench, s *Semaphore) {
		m, other := newPermitClient(b, s).takes(), newPermitClient(b, s).takes()
		first, second := newPermitContender(b).joins(), newPermitContender(b).joins()
		silent := newPermitClient(b, s).listens().joins(contract.Push)
		last := newPermitContender(b).joins()
		require.Equal(
			b,
			[]string{first.client.ID(), second.client.ID(), silent.id, last.client.ID()},
			b.ClientsInLine(),
			"the line",
		)
		asked := []int64{first.requests(), second.requests(), last.requests()}
		require.NotContains(b, asked, int64(0))

		require.Equal(b, send.Reply{1, 0, 1}, m.gives(neverDue))
		first.gets()
		second.waits()
		require.Equal(b, send.Reply{1, 0, 1}, other.gives(neverDue))
		second.gets()
		assert.Equal(b, asked, []int64{first.asked.Load(), second.asked.Load(), last.asked.Load()}, "requests")
		first.unlocks()
		assert.Equal(b, []string{fmt.Sprintf("grant %s 1 5000 0", silent.field)}, silent.messages())
		assert.InDelta(b, 3500, silent.lease().Milliseconds(), 1500, "the provisional lease")
		last.waits()
		require.Equal(b, send.Reply{1, 0, 1}, silent.gives(neverDue))
		last.gets()
		assert.Equal(b, asked[2], last.asked.Load(), "requests")
		require.Zero(b, b.Permits(2))
		last.unlocks()
		second.unlocks()
		emptyLine(b)
	})
}

// A grant whose message is lost is found when the process asks, within the poll interval.
func TestSemaphoreLostMessageLosesNoGrant(t *testing.T) {
	onEachPermits(t, 1, func(b *locktest.Bench, s *Semaphore) {
		m := newPermitClient(b, s).takes()
		c := newPermitContender(b, WithPollInterval(300*time.Millisecond)).joins()
		p := placeOf(b, c.client.ID())
		_, err := b.Rdb.TxPipelined(ctx, func(r redis.Pipeliner) error {
			r.ZRem(ctx, locktest.KeysOf(m.l)[1], m.field)
			r.ZAdd(ctx, locktest.KeysOf(m.l)[1], redis.Z{Score: float64(time.Now().Add(5 * time.Second).UnixMilli()), Member: p.Field})
			r.ZRem(ctx, b.LineKeys()[0], p.Client)
			return nil
		})
		b.Must(err)
		c.gets().unlocks()
		require.Equal(b, 1, b.Permits(1))
	})
}

// A Client has one entry at a time, for the first of its callers. Each grant is for one caller. A message that arrives
// twice, or for no caller, changes nothing for the others.
func TestSemaphoreClientHasOnePlaceForManyCallers(t *testing.T) {
	onEachPermits(t, 3, func(b *locktest.Bench, s *Semaphore) {
		var taken []*permitClient
		for range 3 {
			taken = append(taken, newPermitClient(b, s).takes())
		}
		all := []*permitContender{newPermitContender(b).joins()}
		c := all[0]
		for n := 1; n < 4; n++ {
			all = append(all, c.sibling().asks())
			testredis.Await(b, "it waits in this process", locktest.Soon, func() bool { return b.WaitersInQueue(c.s) == n })
		}
		other := newPermitContender(b).joins()
		require.Equal(b, []string{c.client.ID(), other.client.ID()}, b.ClientsInLine(), "the line")
		first := placeOf(b, c.client.ID())
		taken[0].gives(neverDue)
		all[0].gets()
		testredis.Await(b, "the next caller has the place at the end", locktest.Soon, func() bool {
			return slices.Equal([]string{other.client.ID(), c.client.ID()}, b.ClientsInLine())
		})
		assert.NotEqual(b, first.Field, placeOf(b, c.client.ID()).Field)
		taken[1].gives(neverDue)
		other.gets()
		taken[2].gives(neverDue)
		all[1].gets()
		c.joined()

		tell := func(field string, asked uint64) {
			b.Must(
				b.Rdb.Publish(ctx, locktest.AnnounceOf(locktest.RecordOf(c.s))+":"+c.client.ID(), fmt.Sprintf("grant %s %d 5000 0", field, asked)).Err(),
			)
		}
		ran := c.settled()
		tell(first.Field, first.Asked)
		tell(c.client.ID()+":7:1", 1)
		c.awaitScripts(ran + 1) // the message behind it was handled
		require.Zero(b, b.Permits(3))
		other.unlocks()
		all[2].gets()
		c.joined()
		all[0].unlocks()
		all[3].gets()
		for _, c := range all[1:] {
			c.unlocks()
		}
		require.Equal(b, 3, b.Permits(3))
		emptyLine(b)
	})
}

// If callers of one process find all permits held at the same time, all of them get one in the end, even if no sleep
// ends by itself.
func TestSemaphoreCallersThatFindItBusyTogetherAllGetIn(t *testing.T) {
	onEachPermits(t, 2, func(b *locktest.Bench, s *Semaphore) {
		c := newPermitContender(b)
		for range locktest.Full(5, 50) {
			m, other := newPermitClient(b, s).takes(), newPermitClient(b, s).takes()
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
			require.Equal(b, 2, b.Permits(2))
		}
	})
}

// A caller that asked before another one, and waits behind it in the process, has an entry of its own after the other
// one was granted a permit.
func TestSemaphoreCallerThatAskedFirstHasAPlaceAfterAnother(t *testing.T) {
	b := locktest.NewFaultBench(t)
	s := b.Direct.NewSemaphore(b.LockName, 2)
	m, other := newPermitClient(b.Bench, s).takes(), newPermitClient(b.Bench, s).takes()
	c := b.ClientOn(b.Proxy.Client(), WithPollInterval(time.Hour)).NewSemaphore(b.LockName, 2)
	first, late := b.Proxy.On(
		locktest.Calls(record.Script("semaphore_acquire")),
		testredis.DelayReply(100*time.Millisecond),
	), b.Proxy.On(
		locktest.Calls(record.Script("semaphore_acquire")),
		testredis.DelayReply(900*time.Millisecond),
	)
	o := owners(3)
	asks := func(owner context.Context) <-chan error {
		got := make(chan error, 1)
		go func() { got <- c.Lock(owner) }()
		return got
	}
	one := asks(o[0])
	locktest.Await(b.Bench, "the first one asks", first.Fired())
	two := asks(o[1])
	locktest.Await(b.Bench, "the second one asks beside the first one", late.Fired())
	waiting := func(n int) {
		testredis.Await(b, "they wait in this process", locktest.Soon, func() bool { return b.WaitersInQueue(c) == n })
	}
	testredis.Await(b, "the first one has found no permit free", locktest.Soon, func() bool { return locktest.Look(c).Busy })
	three := asks(o[2])
	waiting(1)
	waiting(2) // the second one has its answer
	testredis.Await(b, "the place of the first one", locktest.Soon, func() bool { return len(b.Places()) == 1 })
	m.gives(neverDue)
	b.Must(locktest.Await(b.Bench, "the first one", one))
	testredis.Await(b, "the place of the third one", locktest.Soon, func() bool { return len(b.Places()) == 1 })
	other.gives(neverDue)
	b.Must(locktest.Await(b.Bench, "the third one", three))
	testredis.Await(b, "the place of the second one", locktest.Soon, func() bool { return len(b.Places()) == 1 })
	b.Must(c.Unlock(o[0]))
	b.Must(locktest.Await(b.Bench, "the second one", two))
	b.Must(c.Unlock(o[1]))
	b.Must(c.Unlock(o[2]))
	require.Equal(b, 2, b.Permits(2))
}

// If one caller of a process has found no permit free, and waits for one in Redis, the others wait behind it and send
// no requests.
func TestSemaphoreCallersBehindABusyOneAskNothing(t *testing.T) {
	b := locktest.NewFaultBench(t)
	s := b.Direct.NewSemaphore(b.LockName, 1)
	m := newPermitClient(b.Bench, s).takes()
	c := b.ClientOn(b.Proxy.Client(), WithPollInterval(time.Hour)).NewSemaphore(b.LockName, 1)
	o := owners(10)
	got := make(chan error, len(o))
	asks := func(owner context.Context) { go func() { got <- c.Lock(owner) }() }
	asks(o[0])
	testredis.Await(b, "the first one stands in the line and hears", locktest.Soon, func() bool {
		all := b.Places()
		return len(all) == 1 && all[0].Delivery == contract.Push
	})
	asked := b.Proxy.On(locktest.Calls(record.Script("semaphore_acquire")), testredis.DelayReply(0)).Times(testredis.Always)
	for _, owner := range o[1:] {
		asks(owner)
	}
	testredis.Await(b, "the others wait in this process", locktest.Soon, func() bool { return b.WaitersInQueue(c) == len(o)-1 })
	assert.Zero(b, asked.Count(), "requests of those behind")
	m.gives(neverDue)
	for range o {
		b.Must(locktest.Await(b.Bench, "one of them", got))
		for _, owner := range o {
			if held, err := c.IsHeld(owner); err == nil && held {
				b.Must(c.Unlock(owner))
			}
		}
	}
	require.Equal(b, 1, b.Permits(1))
}
