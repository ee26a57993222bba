package locks

// The line passes a lock on: in which order, what a grant is worth and costs, and what a message may claim.
//
// Rules: processes get the lock in the order of their arrival, and each hand-off costs two scripts. A grant is used
// only if the process has sent the request that it names and its lease has long enough left; every other grant is
// confirmed by a request, or released. What the scripts grant is in internal/lua/testdata, above all in turns.txt.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lock passes from process to process in the order in which they entered the line.
func TestLineServesInOrderOfArrival(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		const n = 6
		start := time.Now()
		first := contender(b, WithPollInterval(time.Hour)).takes()
		var all []*lineClient
		order := make(chan int, n)
		var sections sync.WaitGroup
		for i := range n {
			c := contender(b, WithPollInterval(time.Hour)).joins()
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
		require.Equal(b, ids, b.ClientsInLine(), "the line")
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
			assert.LessOrEqual(b, c.scripts.N.Load(), most, "scripts of client %d: two requests and a release", i)
		}
	})
}

// A grant for a request that was sent a moment ago is used without a further request.
func TestLineGrantIsHeldWithoutAsking(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		c := contender(b).joins()
		asked := c.settled()
		c.isGranted(placeOf(c.Bench, c.client.ID()).Asked, 5000)
		c.gets()
		assert.Equal(b, asked, c.scripts.N.Load(), "scripts")
		c.unlocks()
		assert.Empty(b, b.Holder(), "the record")
	})
}

// A grant with a number that the process has not sent is not used.
func TestLineGrantOfNoRequestIsNotBelieved(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		m := b.Manual().Takes()
		c := contender(b).joins()
		for _, by := range []uint64{1, 97, 1 << 63} {
			asked, p := c.settled(), placeOf(c.Bench, c.client.ID())
			c.tell(b.Rdb, p.Field, p.Asked+by, 5000)
			c.awaitScripts(asked + 1)
			c.waits()
			assert.Equal(b, m.Field, b.Holder(), "the holder")
		}
		m.Release(false)
		c.gets().unlocks()
	})
}

// A grant with a shorter lease than the caller asked for, or with a token that it did not ask for, is confirmed by a
// request.
func TestLineGrantOfOtherPropertiesIsConfirmed(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		c := contender(b).joins()
		asked, p := c.settled(), placeOf(c.Bench, c.client.ID())
		c.isGranted(p.Asked, 1000)
		c.gets()
		assert.Equal(b, asked+1, c.scripts.N.Load(), "scripts")
		assert.Greater(b, pttl(b), 5*time.Second, "the lease")
		c.unlocks()
	})
}

// A Client that was late for a grant asks for grants of the whole lease in later waits.
func TestLineGrantsToALateClientHaveTheWholeLease(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		m, c := b.Manual().Takes(), contender(b, WithWatchdogTimeout(20*time.Second)).joins()
		asked, p := c.settled(), placeOf(c.Bench, c.client.ID())
		require.Equal(b, 5000, p.Lease)
		late := contract.Attempt{HoldCount: 1, Delivery: contract.Defer, GrantLease: time.Minute}
		require.Len(b, locktest.RecordOf(c.lock).Acquire(late).Args, 2, "without a place it names no channel")
		c.tell(b.Rdb, p.Field, p.Asked+1, 5000) // it comes too late: m holds the lock by now
		c.awaitScripts(asked + 1)
		for _, lease := range []int{5000, 20_000, 20_000} { // the place that it has is not another one
			c.settled()
			require.Equal(b, lease, placeOf(c.Bench, c.client.ID()).Lease)
			m.Release(false)
			c.gets()
			m = b.Manual()
			m.Listens().Joins()
			c.unlocks()
			c.joins()
		}
		m.Release(false)
		c.gets().unlocks()
	})
}

// A grant for a wait that has ended is released at once. One for a field that the Client has not made is forged: a caller to
// come will have it, or another process attaches it, so it is left alone.
func TestLineGrantToAWaitThatHasEndedIsReleased(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		c := contender(b).joins()
		asked := c.settled()
		grants := func(holder, to string) {
			_, err := b.Rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, b.LockName)
				p.HSet(ctx, b.LockName, holder, 1)
				p.PExpire(ctx, b.LockName, time.Minute)
				c.tell(p, holder, 1, 5000)
				c.tell(p, to, 1, 5000)
				return nil
			})
			b.Must(err)
		}
		ended, unmade := c.client.ID()+":7:1", c.client.ID()+":7:999"
		grants(unmade, ended)
		c.awaitScripts(asked + 1) // for the field that has ended
		c.settled()
		assert.Equal(b, unmade, b.Holder())
		grants(ended, unmade)
		c.gets() // the lock that was released
		c.unlocks()
	})
}

// A message that arrives twice does not end the hold that it began.
func TestLineRepeatedMessageLeavesTheHold(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		first := b.Manual().Takes()
		c := contender(b).joins()
		p := placeOf(c.Bench, c.client.ID())
		defer locktest.EngineOf(c.client).Hub().Join(c.ReleaseChannel() + ":" + c.client.ID()).Leave()
		first.Release(false)
		c.gets()
		asked := c.settled()
		for range 3 { // the messages are read in order
			asked++
			c.tell(b.Rdb, p.Field, p.Asked, 5000)
			c.tell(b.Rdb, c.client.ID()+":7:1", 1, 5000) // of a wait that has ended: it is rolled back
			c.awaitScripts(asked)
		}
		assert.Equal(b, p.Field, b.Holder(), "the holder")
		assert.False(b, slices.Contains(b.Tombstones(), p.Field), "the field of the hold")
		c.unlocks()
		b.Manual() // deletes the line with its tombstones
	})
}

// x and {x} are two locks whose additional keys would be the same: a release of one grants nothing to a waiter of the
// other.
func TestLineOfANameInBracesIsItsOwn(t *testing.T) {
	t.Parallel()
	b := locktest.NewLineBench(t, testredis.Start(t).Addr())
	for kind, lock := range map[string]func(c *Client, name string) Locker{
		"plain":  func(c *Client, name string) Locker { return c.NewLock(name) },
		"fenced": func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
		"fair":   func(c *Client, name string) Locker { return c.NewFairLock(name) },
		"write":  func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	} {
		for _, names := range [][2]string{{kind, "{" + kind + "}"}, {"{" + kind + "-2}", kind + "-2"}} {
			awaited, released := lock(b.Client(), names[0]), lock(b.Client(), names[1])
			b.Must(awaited.Lock(ctx))
			b.Must(released.Lock(ctx))
			waits := lock(b.Client(), names[0])
			got := make(chan error, 1)
			go func() { got <- waits.Do(ctx, func(context.Context) error { return nil }) }()
			testredis.Await(t, "it waits", locktest.Soon, func() bool {
				return b.Rdb.Exists(ctx, record.LineKeys(names[0])[0], record.WritersLineKeys(names[0])[0], record.PlacesKey(names[0])).Val() == 1
			})
			before := b.Rdb.HKeys(ctx, names[0]).Val()
			b.Must(released.Unlock(ctx))
			assert.Zero(t, b.Rdb.Exists(ctx, names[1]).Val(), "%s: the record of %s is there", kind, names[1])
			assert.Equal(t, before, b.Rdb.HKeys(ctx, names[0]).Val(), "%s: the record of %s", kind, names[0])
			assert.Empty(t, got, "%s: two have %s", kind, names[0])
			b.Must(awaited.Unlock(ctx))
			b.Must(locktest.Await(b, "the waiter of "+names[0], got))
		}
	}
}

// A grant draws the token, and its message contains it, so that no further request is needed.
func TestLineGrantBringsTheToken(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		first := b.Manual()
		first.Fenced = true
		before := first.Ask(contract.Barge)[2]
		next := contender(b).sibling(Fenced()).joins()
		asked := next.settled()
		first.Release(false)
		next.gets()
		assert.Equal(b, asked, next.scripts.N.Load(), "scripts")
		token, err := next.lock.Token(next.owner)
		b.Must(err)
		assert.Greater(b, token, before, "the token")
		next.unlocks()
	})
}

// A waiter whose answer is lost or late is granted the lock all the same, and does not sleep while the lock is free.
func TestLineLostAnswerOfARequestLosesNoGrant(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]testredis.Fault{
		"closed": testredis.LoseReply, "silent": testredis.StallReply, "late": testredis.DelayReply(500 * time.Millisecond),
	} {
		for _, meanwhile := range []string{"nothing", "released", "cut and released"} {
			t.Run(what+", "+meanwhile, func(t *testing.T) {
				b := locktest.NewFaultBench(t)
				b.Opts = []Option{WithPollInterval(time.Hour)}
				first := contender(b.Bench).takes()
				one := contenderOn(b.Bench, b.Proxy.Client())
				rule := b.Proxy.On(asksIn(contract.Push), fault)
				one.asks()
				if what == "late" { // it has fired when the answer comes
					one.joined()
				} else {
					locktest.Await(b.Bench, "the answer is lost", rule.Fired())
				}
				switch meanwhile {
				case "released":
					first.unlocks()
				case "cut and released":
					channel := b.ReleaseChannel() + ":" + one.client.ID()
					again := b.Proxy.On(testredis.Command("subscribe"), testredis.HoldRequest).Times(testredis.Always)
					b.Must(b.Rdb.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
					testredis.Await(b, "the subscription is gone", locktest.Soon, func() bool {
						return b.Hearers(channel) == 0
					})
					first.unlocks()
					again.Release()
				default:
					one.settled()
					first.unlocks()
				}
				one.gets().unlocks()
				b.Must(b.Rdb.Del(ctx, b.LineKeys()...).Err())
			})
		}
	}
}

// With synced replicas a grant is confirmed by a request, because the replicas have to confirm each hold.
func TestLineGrantIsConfirmedForReplicas(t *testing.T) {
	t.Parallel()
	b := locktest.NewLineBench(t, testredis.Start(t).Addr())
	b.Manual().Takes()
	c := contender(b, WithSyncedReplicas(1, 100*time.Millisecond)).joins()
	asked := c.settled()
	c.isGranted(placeOf(c.Bench, c.client.ID()).Asked, 5000)
	b.MustBe(locktest.Await(b, "Lock", c.got), ErrNotSynced) // there are no replicas
	assert.GreaterOrEqual(b, c.scripts.N.Load(), asked+1, "scripts")
	testredis.Await(b, "the lock is released", locktest.Soon, func() bool { return b.Holder() == "" })
}

// A forged grant that names the hold of another Client does not release it: only the Client that a field belongs to is
// ever told of a grant to it.
func TestForgedGrantReleasesNoHoldOfAnotherClient(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for name, newLock := range map[string]func(c *Client, name string) Locker{
			"lock":      func(c *Client, name string) Locker { return c.NewLock(name) },
			"fair":      func(c *Client, name string) Locker { return c.NewFairLock(name) },
			"write":     func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
			"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 1) },
		} {
			t.Run(name, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				held := newLock(b.Client(), b.LockName)
				b.Must(held.Lock(ctx))
				c := b.Client()
				record := locktest.RecordOf(newLock(c, b.LockName))
				field := locktest.EngineOf(locktest.ClientOf(held)).Probe().Look(locktest.RecordOf(held), engine.OwnerOf(ctx)).Field + record.Traits().Suffix
				locktest.EngineOf(c).Probe().HearGrant(record, fmt.Sprintf("grant %s 1 5000 0", field))
				b.Must(c.Close()) // waits for what the message has begun
				b.Holds(held, 1)
				b.Must(held.Unlock(ctx))
			})
		}
	})
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
			b := locktest.NewBench(t, testredis.Start(t).Addr())
			c := b.Client()
			s := c.NewSemaphore(b.LockName, 10)
			hold, err := s.AcquireN(ctx, 3)
			b.Must(err)
			field := locktest.EngineOf(c).Probe().Look(locktest.SeveralOf(s, 3), locktest.OwnerOf(hold)).Field
			at := strings.LastIndexByte(field, ':') + 1
			number, err := strconv.Atoi(strings.TrimSuffix(field[at:], "+3"))
			b.Must(err)
			message := fmt.Sprintf("grant %s 1 5000 0", forged(field[:at], number))
			locktest.EngineOf(c).Probe().HearGrant(locktest.RecordOf(s), message)
			b.Must(c.Close())
			assert.EqualValues(t, 3, b.Rdb.ZCard(ctx, record.PermitsKey(b.LockName)).Val(), message)
			b.Must(hold.Release(ctx))
		})
	}
}
