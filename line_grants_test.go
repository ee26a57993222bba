package relock

// The line passes a lock on: in which order, what a grant is worth and costs, and what a message may claim.
//
// Rules: processes get the lock in the order of their arrival, and each hand-off costs two scripts. A grant is used
// only if the process has sent the request that it names and its lease has long enough left; every other grant is
// confirmed by a request, or released. A release that runs twice, or whose answer is lost, grants once.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/ticket"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
func TestLineGrantToAnUnknownWaitIsReleased(t *testing.T) {
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
			testredis.Await(t, "it waits", soon, func() bool { return b.rdb.Exists(ctx, record.LineKey(names[0])).Val() == 1 })
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
	testredis.Await(b, "the lock is released", soon, func() bool { return b.holder() == "" })
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
			assert.EqualValues(t, 3, b.rdb.ZCard(ctx, record.PermitsKey(b.name)).Val(), message)
			b.must(hold.Release(ctx))
		})
	}
}
