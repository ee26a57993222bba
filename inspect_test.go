package relock

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

const (
	javaThread = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42"
	javaOther  = "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21:7"
)

func (b *bench) inspect(c *Client) Inspection {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.name)
	b.must(err)
	assert.Equal(b, b.name, i.Name, "name")
	assert.LessOrEqual(b, time.Since(i.At).Abs(), time.Minute, "age of the inspection")
	return i
}

// about reports whether d is close to want, and not greater.
func about(d, want time.Duration) bool { return d > want-10*time.Second && d <= want }

func TestInspectShowsAPlainLock(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		holder, looker := b.client(), b.client()
		i := b.inspect(looker)
		assert.Equal(t, TypeNone, i.Type, "before it is taken")
		assert.False(t, i.Held(), "before it is taken")
		assert.Zero(t, i.TTL, "before it is taken")
		assert.Nil(t, i.Holders, "before it is taken")
		assert.Nil(t, i.Waiters, "before it is taken")
		assert.Zero(t, i.Token, "before it is taken")

		lock, me := holder.NewLock(b.name, Fenced()), ContextWithOwner(context.Background())
		b.must(lock.Lock(me))
		b.must(lock.Lock(me))
		token, err := lock.Token(me)
		b.must(err)
		i = b.inspect(looker)
		assert.Equal(t, TypeLock, i.Type, "%+v", i)
		assert.True(t, i.Held(), "%+v", i)
		assert.Empty(t, i.Mode, "%+v", i)
		assert.True(t, about(i.TTL, 30*time.Second), "%+v", i)
		assert.Equal(t, token, i.Token, "%+v", i)
		assert.Nil(t, i.Waiters, "%+v", i)
		require.Len(t, i.Holders, 1)
		h := i.Holders[0]
		assert.Equal(t, holder.ID(), h.Client, "held by %+v", h)
		assert.Equal(t, engine.OwnerOf(me).String(), h.Owner, "held by %+v", h)
		assert.Equal(t, 2, h.HoldCount, "held by %+v", h)
		assert.Equal(t, i.TTL, h.Remaining, "held by %+v", h)
		assert.False(t, h.Write, "held by %+v", h)
		assert.Equal(t, []string{h.Field}, b.rdb.HKeys(me, b.name).Val(), "field")

		b.must(lock.Unlock(me))
		b.must(lock.Unlock(me))
		i = b.inspect(looker)
		assert.Equal(t, TypeNone, i.Type, "after it is released")
		assert.False(t, i.Held(), "after it is released")
		assert.Equal(t, token, i.Token, "after it is released")
	})
}

// A hand-off leaves the record in Redis unchanged: the record names the owner that acquired the lock there.
func TestInspectNamesTheFirstOwnerAfterAHandoff(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client(WithHandoffWindow(time.Minute))
	lock, first, second := c.NewLock(
		b.name,
	), ContextWithOwner(
		context.Background(),
	), ContextWithOwner(
		context.Background(),
	)
	b.must(lock.Lock(first))
	got := make(chan error, 1)
	go func() { got <- lock.Lock(second) }()
	testredis.Await(t, "one waits in the local queue", soon, func() bool { return b.waitsInQueue(lock) })
	b.must(lock.Unlock(first))
	b.must(<-got)
	b.must(lock.Lock(second))
	i := b.inspect(c)
	require.Len(t, i.Holders, 1)
	assert.Equal(t, engine.OwnerOf(first).String(), i.Holders[0].Owner)
	assert.Equal(t, 2, i.Holders[0].HoldCount)
	b.must(lock.Unlock(second))
	b.must(lock.Unlock(second))
}

func TestInspectShowsAFairQueue(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		lock, me := c.NewFairLock(b.name), ContextWithOwner(ctx)
		b.must(lock.Lock(me))
		i := b.inspect(c)
		assert.Equal(t, TypeLock, i.Type)
		assert.Len(t, i.Holders, 1)
		var waiters []Contender
		got := make(chan error, 2)
		wait := func() {
			t.Helper()
			w := ContextWithOwner(ctx)
			go func() {
				err := lock.Lock(w)
				if err == nil {
					err = lock.Unlock(w)
				}
				got <- err
			}()
			testredis.Await(t, "it waits", soon, func() bool { return len(b.inspect(c).Waiters) == len(waiters)+1 })
			waiters = append(waiters, Contender{Client: c.ID(), Owner: engine.OwnerOf(w).String()})
		}
		wait()
		java := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", javaThread).Err())
		b.must(
			b.rdb.ZAdd(
				ctx,
				"redisson_lock_timeout:{"+b.name+"}",
				redis.Z{Score: float64(java.UnixMilli()), Member: javaThread},
			).Err(),
		)
		waiters = append(waiters, contender(javaThread))
		wait()

		testredis.Await(t, "they can be granted the lock", soon, func() bool { return len(b.wishes()) == 2 })
		i = b.inspect(c)
		require.Equal(t, TypeFair, i.Type)
		require.Len(t, i.Holders, 1)
		require.Len(t, i.Waiters, 3)
		assert.Equal(t, 3, i.Waiting)
		assert.Equal(t, 1, i.Gone, "nobody is subscribed for Java")
		assert.False(t, i.QueueUnknown)
		assert.False(t, i.More)
		for n, w := range i.Waiters {
			assert.Equal(t, waiters[n].Client, w.Client, "waiter %d is %+v", n, w)
			assert.Equal(t, waiters[n].Owner, w.Owner, "waiter %d is %+v", n, w)
			if isJava := n == 1; isJava {
				assert.True(t, w.Deadline.Equal(java), "deadline of %+v", w)
				assert.True(t, w.AliveUntil.IsZero(), "heartbeat of %+v", w)
				assert.Equal(t, javaThread, w.Field)
				assert.True(t, w.Since.IsZero(), "%+v", w)
				assert.Equal(t, ReachableNo, w.Reachable, "nobody is subscribed to its channel")
			} else {
				b.showsNoNumber(w)
				assert.True(t, about(i.At.Sub(w.Since), 10*time.Second), "%+v at %v", w, i.At)
				assert.Equal(t, ReachableYes, w.Reachable)
				assert.False(t, w.Deadline.Before(i.At), "deadline of %+v at %v", w, i.At)
				assert.True(t, about(w.AliveUntil.Sub(i.At), fairLife), "heartbeat of %+v at %v", w, i.At)
			}
		}

		defer b.subscribe("redisson_lock__channel:{" + b.name + "}:" + javaThread).Close()
		assert.Equal(t, ReachableYes, b.inspect(c).Waiters[1].Reachable, "Java is subscribed")

		// A queue that its holder has left.
		b.must(b.rdb.Del(ctx, b.name).Err())
		i = b.inspect(c)
		assert.Equal(t, TypeFair, i.Type, "the holder is gone")
		if i.Held() { // by the first waiter, which polls
			assert.Equal(t, waiters[0].Owner, i.Holders[0].Owner, "the holder is gone")
		}
		b.must(b.rdb.LRem(ctx, "redisson_lock_queue:{"+b.name+"}", 1, javaThread).Err())
		b.must(b.rdb.ZRem(ctx, "redisson_lock_timeout:{"+b.name+"}", javaThread).Err())
		for range 2 {
			b.must(<-got)
		}
	})
}

// showsNoNumber checks that nothing in w is part of what makes a grant.
func (b *bench) showsNoNumber(w Waiter) {
	b.Helper()
	n := strings.TrimPrefix(strings.TrimPrefix(w.Field, w.Client), ":")
	_, err := strconv.ParseInt(n, 10, 64)
	assert.NoError(b, err, "the field of %+v is not client:owner", w)
	text := fmt.Sprintf("%+v", w)
	line, err := b.rdb.HGetAll(context.Background(), b.lineKey()).Result()
	b.must(err)
	for field, value := range line {
		words := strings.Fields(value)
		if strings.HasPrefix(field, w.Client) && len(words) == 8 { // a place
			assert.NotContains(b, text, words[5])
			assert.NotContains(b, text, words[6])
		} else if strings.HasPrefix(field, w.Client) && len(words) == 4 { // a wish
			assert.NotContains(b, text, words[2])
			assert.NotContains(b, text, field)
		}
	}
}

// The processes in the wait queue of every type are shown in order, with what an operator needs to find them.
func TestInspectShowsTheWaitQueue(t *testing.T) {
	t.Parallel()
	for kind, one := range map[string]func(*Client, string) Locker{
		"lock":        func(c *Client, name string) Locker { return c.NewLock(name) },
		"fenced lock": func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
		"write":       func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
		"semaphore":   func(c *Client, name string) Locker { return c.NewSemaphore(name, 1) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			onEachServer(t, func(t *testing.T, addr string) {
				b := newBench(t, addr)
				ctx := ContextWithOwner(context.Background())
				holder := one(b.client(), b.name)
				b.must(holder.Lock(ctx))
				var waiting []Locker
				var got []<-chan error
				for range 3 {
					c := b.client(WithLabel("<b>orders</b>"))
					waiting = append(waiting, one(c, b.name))
					got = append(got, b.startWaiter(ctx, waiting[len(waiting)-1]))
					b.labelled(c)
					testredis.Await(t, "it waits", soon, func() bool {
						return len(b.places()) == len(waiting) && b.inspect(c).Waiters[len(waiting)-1].Reachable == ReachableYes
					})
				}
				begun := time.Now()
				i := b.inspect(b.client())
				require.Len(t, i.Waiters, 3)
				assert.Equal(t, 3, i.Waiting)
				assert.False(t, i.QueueUnknown)
				assert.False(t, i.More)
				assert.Len(t, i.Holders, 1)
				for n, w := range i.Waiters {
					assert.Equal(t, clientOf(waiting[n]).ID(), w.Client, "%+v", w)
					assert.Equal(t, engine.OwnerOf(ctx).String(), w.Owner)
					assert.Equal(t, "<b>orders</b>", w.Label)
					assert.NotEmpty(t, w.Host)
					assert.Equal(t, kind == "write", w.Write)
					assert.Equal(t, kind == "write", !w.AliveUntil.IsZero(), "a heartbeat")
					assert.True(t, w.Deadline.IsZero())
					assert.Zero(t, w.Since.Nanosecond())
					assert.True(t, about(i.At.Sub(w.Since), 10*time.Second), "%+v at %v", w, i.At)
					b.showsNoNumber(w)
				}
				// The first one is granted the lock, and waits no more; the others have their positions since then.
				b.must(holder.Unlock(ctx))
				b.must(<-got[0])
				after := b.inspect(b.client())
				require.Len(t, after.Waiters, 2)
				for n, w := range after.Waiters {
					assert.Equal(t, i.Waiters[n+1].Contender, w.Contender)
					assert.Equal(t, i.Waiters[n+1].Since, w.Since, "after %v", time.Since(begun))
				}
				// One more, which joins while the lock is held by a process that was granted it.
				waiting = append(waiting, one(b.client(), b.name))
				got = append(got, b.startWaiter(ctx, waiting[3]))
				testredis.Await(t, "it waits", soon, func() bool { return len(b.places()) == 3 })
				after = b.inspect(b.client())
				require.Len(t, after.Waiters, 3)
				assert.Equal(t, clientOf(waiting[3]).ID(), after.Waiters[2].Client)
				assert.True(t, about(after.At.Sub(after.Waiters[2].Since), 10*time.Second), "%+v", after.Waiters[2])
				b.showsNoNumber(after.Waiters[2])
				b.must(waiting[0].Unlock(ctx))
				for n := 1; n < 4; n++ {
					b.must(<-got[n])
					b.must(waiting[n].Unlock(ctx))
				}
			})
		})
	}
}

// A position is as old as it is: asking again does not make it younger, and a new position is new.
func TestInspectShowsSinceWhenAPositionIsHeld(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		m := b.manual().takes()
		one := b.manual().listens().joins()
		long := strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
		text := b.rdb.HGet(ctx, b.lineKey(), one.id).Val()
		b.must(b.rdb.HSet(ctx, b.lineKey(), one.id, text[:strings.LastIndexByte(text, ' ')+1]+long).Err())
		since := func() time.Time {
			i := b.inspect(b.client())
			require.Len(b, i.Waiters, 1)
			return i.Waiters[0].Since
		}
		assert.Equal(b, long, strconv.FormatInt(since().Unix(), 10))
		one.joins()
		assert.Equal(b, long, strconv.FormatInt(since().Unix(), 10), "after it has asked again")

		// A version that does not store the time.
		b.must(b.rdb.HSet(ctx, b.lineKey(), one.id, text[:strings.LastIndexByte(text, ' ')]).Err())
		assert.True(b, since().IsZero())
		one.joins()
		assert.True(b, since().IsZero(), "nobody knows")

		one.release(false)
		one.joins()
		assert.Less(b, time.Since(since()), time.Minute, "a new position")
		one.release(false)
		m.release(false)
		b.emptyLine()
	})
}

// The heartbeats of a waiter of a fair lock do not make its position younger.
func TestInspectShowsSinceWhenAFairWaiterWaits(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		lock, me, them := c.NewFairLock(b.name), ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.must(lock.Lock(me))
		got := make(chan error, 1)
		go func() { got <- lock.Lock(them) }()
		b.awaitWishes(1)
		for field, wish := range b.wishes() {
			words := strings.Fields(wish)
			require.Len(t, words, 4)
			words[3] = "1000000000"
			b.must(b.rdb.HSet(ctx, b.lineKey(), field, strings.Join(words, " ")).Err())
			testredis.Await(t, "a heartbeat", soon, func() bool { return strings.Fields(b.wishes()[field])[2] != words[2] })
		}
		i := b.inspect(c)
		require.Len(t, i.Waiters, 1)
		assert.EqualValues(t, 1_000_000_000, i.Waiters[0].Since.Unix())
		b.must(lock.Unlock(me))
		b.must(<-got)
		b.must(lock.Unlock(them))
	})
}

// Whether a grant would reach a waiter is what the script of a release would find.
func TestInspectShowsWhichWaitersCanBeReached(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual().takes()
		gone, listens, polls := b.manual().listens().joins(), b.manual().listens().joins(), b.manual()
		require.Equal(b, int64(1), polls.ask(contract.Poll)[2]%4)
		b.must(gone.hears.Close())
		testredis.Await(b, "it is gone", soon, func() bool { return b.hearers(gone.grants()) == 0 })
		i := b.inspect(b.client())
		require.Len(b, i.Waiters, 3)
		assert.Equal(b, 3, i.Waiting)
		assert.Equal(b, 1, i.Gone)
		for n, want := range []struct {
			id string
			Reachability
		}{{gone.id, ReachableNo}, {listens.id, ReachableYes}, {polls.id, ReachableUnknown}} {
			assert.Equal(b, want.id, i.Waiters[n].Client)
			assert.Equal(b, want.Reachability, i.Waiters[n].Reachable, "waiter %d", n)
		}
		m.release(false)
		listens.release(false)
		polls.release(false)
		b.emptyLine()
	})
}

// Data of other programs in the wait queue is no waiter, and of a key that is no wait queue the caller is told.
func TestInspectOfAStrangeWaitQueue(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		b := newBench(t, addr)
		c := b.client()
		const client, other = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10", "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21"
		b.must(b.rdb.HSet(ctx, b.lineKey(), "first", 2, "last", 7,
			2, "\x1b[31m\n", "\x1b[31m\n", "2 new push 1000 0 1 \x1b[31m\n:1:02 5", // no client
			3, client, client, "4 new push 1000 0 1 "+client+":1:02 5", // another number
			4, other, other, "4 new push 1000 0 1 "+client+":1:02 5", // the field of another client
			5, "x", 6, client, 7, "no place",
			"no place", "7 new push",
		).Err())
		i := b.inspect(c)
		assert.Equal(t, TypeNone, i.Type, "%+v", i)
		assert.Empty(t, i.Waiters)
		assert.Zero(t, i.Waiting)
		b.must(b.rdb.HSet(ctx, b.lineKey(), client, "6 \x1b push 1000 0 1 "+client+":1:02 5").Err())
		assert.Empty(t, b.inspect(c).Waiters, "a state that is no word")
		b.must(b.rdb.HSet(ctx, b.lineKey(), client, "6 new push 1000 0 1 "+client+":-3:02 99999999999999999999").Err())
		_, err := c.Inspect(ctx, b.name)
		assert.ErrorIs(t, err, errReply, "a time that is none")
		b.must(b.rdb.HSet(ctx, b.lineKey(), client, "6 new push 1000 0 1 "+client+":-3:02 9999999999999999").Err())
		i = b.inspect(c)
		require.Len(t, i.Waiters, 1)
		assert.Equal(t, TypeLock, i.Type)
		assert.False(t, i.Held())
		assert.Equal(t, Contender{Field: client + ":-3", Client: client, Owner: "owner 3"}, i.Waiters[0].Contender)
		assert.Equal(t, 9999, i.Waiters[0].Since.UTC().Year())
		b.must(b.rdb.HSet(ctx, b.lineKey(), client, "6 new push 1000 0 1 "+client+":-3:02:write 5").Err())
		assert.Equal(t, TypeReadWrite, b.inspect(c).Type)

		for _, strange := range []map[string]any{
			{"first": "many"}, {"first": -5}, {"first": 1, "last": 1e9}, {"last": "1e300"},
		} {
			b.must(b.rdb.Del(ctx, b.lineKey()).Err())
			b.must(b.rdb.HSet(ctx, b.lineKey(), strange).Err())
			_, err = c.Inspect(ctx, b.name)
			assert.ErrorIs(t, err, ErrNotALock, "%v", strange)
			assert.ErrorContains(t, err, shortName(b.lineKey()))
		}
		b.must(b.rdb.Set(ctx, b.lineKey(), "a string", 0).Err())
		_, err = c.Inspect(ctx, b.name)
		assert.ErrorIs(t, err, ErrNotALock)
		assert.ErrorContains(t, err, "holds a string")
		b.must(b.rdb.Del(ctx, b.lineKey()).Err())
	})
}

func TestInspectShowsReadersAndWriters(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(), b.client()
		rw, me, them := c.NewRWLock(b.name), ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.must(rw.Write().Lock(me))
		b.must(rw.Read().LockLease(me, time.Hour))
		i := b.inspect(other)
		require.Equal(t, TypeReadWrite, i.Type)
		require.Equal(t, "write", i.Mode)
		require.Len(t, i.Holders, 2)
		require.True(t, i.Held())
		w, r := i.Holders[0], i.Holders[1]
		assert.True(t, w.Write, "the writer is %+v", w)
		assert.Equal(t, c.ID(), w.Client, "the writer is %+v", w)
		assert.Equal(t, engine.OwnerOf(me).String(), w.Owner, "the writer is %+v", w)
		assert.Equal(t, 1, w.HoldCount, "the writer is %+v", w)
		assert.NotEqual(t, w.Owner, w.Field, "the writer is %+v", w)
		assert.True(t, strings.HasSuffix(w.Field, ":write"), "the writer is %+v", w)
		assert.False(t, r.Write, "the reader is %+v", r)
		assert.Equal(t, c.ID(), r.Client, "the reader is %+v", r)
		assert.Equal(t, engine.OwnerOf(me).String(), r.Owner, "the reader is %+v", r)
		assert.Equal(t, 1, r.HoldCount, "the reader is %+v", r)
		assert.True(t, about(r.Remaining, time.Hour), "the reader is %+v", r)
		b.must(rw.Write().Unlock(me))

		b.must(other.NewRWLock(b.name).Read().LockLease(them, time.Minute))
		b.must(b.rdb.HSet(ctx, b.name, javaThread, 2, javaOther, 1).Err())
		b.must(b.rdb.Set(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:2", 1, 10*time.Minute).Err())
		i = b.inspect(other)
		leases := map[string]time.Duration{}
		for _, h := range i.Holders {
			assert.False(t, h.Write, "a writer")
			leases[h.Client+" "+h.Owner] = h.Remaining
		}
		assert.Equal(t, "read", i.Mode)
		assert.Len(t, i.Holders, 4)
		assert.True(t, about(i.TTL, time.Hour))
		assert.True(t, about(leases[c.ID()+" "+engine.OwnerOf(me).String()], time.Hour))
		assert.True(t, about(leases[other.ID()+" "+engine.OwnerOf(them).String()], time.Minute))
		assert.True(t, about(leases[javaThread[:36]+" thread 42"], 10*time.Minute))
		assert.Zero(t, leases[javaOther[:36]+" thread 7"])
		b.must(b.rdb.HDel(ctx, b.name, javaThread, javaOther).Err())
		b.must(b.rdb.Del(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:2").Err())

		writer, got := ContextWithOwner(ctx), make(chan error, 1)
		go func() { got <- other.NewRWLock(b.name).Write().Lock(writer) }()
		testredis.Await(t, "a writer waits", soon, func() bool { return len(b.inspect(c).Waiters) == 1 })
		waiter := b.inspect(c).Waiters[0]
		assert.Equal(t, other.ID(), waiter.Client, "the waiting writer is %+v", waiter)
		assert.Equal(t, engine.OwnerOf(writer).String(), waiter.Owner, "the waiting writer is %+v", waiter)
		assert.True(t, waiter.Deadline.IsZero(), "the waiting writer is %+v", waiter)
		assert.True(t, waiter.Write, "the waiting writer is %+v", waiter)
		assert.False(t, waiter.AliveUntil.Before(time.Now()), "the waiting writer is %+v", waiter)
		b.must(rw.Read().Unlock(me))
		b.must(other.NewRWLock(b.name).Read().Unlock(them))
		b.must(<-got)
		b.must(other.NewRWLock(b.name).Write().Unlock(writer))
	})
}

// A reader that waits for the write lock, too, is one waiter.
func TestInspectShowsAnUpgradingReaderAsOneWaiter(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client()
	rw, reader := c.NewRWLock(b.name), ContextWithOwner(context.Background())
	other := b.client().NewRWLock(b.name).Read()
	b.must(rw.Read().Lock(reader))
	b.must(other.Lock(reader))
	ctx, giveUp := context.WithCancel(reader)
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(ctx) }()
	testredis.Await(
		t,
		"a reader waits to write",
		soon,
		func() bool { return b.rdb.ZCard(ctx, "relock_rwlock_writers:{"+b.name+"}").Val() == 2 },
	)
	i := b.inspect(c)
	require.Len(t, i.Waiters, 1)
	assert.Equal(t, engine.OwnerOf(reader).String(), i.Waiters[0].Owner)
	assert.True(t, i.Waiters[0].Write)
	assert.Equal(t, 1, i.Waiting)
	assert.Len(t, i.Holders, 2)
	giveUp()
	b.mustBe(<-got, context.Canceled)
	b.must(rw.Read().Unlock(reader))
	b.must(other.Unlock(reader))
}

// Inspect only reads, in one request, for any name; and in another request the labels of the clients that it finds.
func TestInspectOnlyReads(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	c, ctx := b.client(), context.Background()
	rw := c.NewRWLock(b.name + "-rw").Read()
	b.must(c.NewLock(b.name + "-lock").Lock(ctx))
	b.must(rw.Lock(ctx))
	them, other := ContextWithOwner(ctx), b.client(WithPollInterval(time.Hour)).NewLock(b.name+"-lock")
	waiting := b.startWaiter(them, other)
	testredis.Await(t, "one waits", soon, func() bool {
		i, err := c.Inspect(ctx, b.name+"-lock") // now the server knows the script
		return err == nil && i.Waiting == 1 && i.Waiters[0].Reachable == ReachableYes
	})
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	names := []string{
		b.name + "-lock",
		b.name + "-rw",
		b.name + "\x00\xff\n%",
		b.name + "{",
		"{" + b.name + "}:y",
		b.name + strings.Repeat("x", 100_000),
	}
	for _, name := range names {
		i, err := c.Inspect(ctx, name)
		if assert.NoError(t, err) {
			assert.Equal(t, name, i.Name)
		}
	}
	for line := range strings.Lines(b.rdb.Info(ctx, "commandstats").Val()) {
		command, _, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !found {
			continue
		}
		assert.Contains(
			t,
			[]string{
				"evalsha",
				"hgetall",
				"hget",
				"hrandfield",
				"pttl",
				"time",
				"lrange",
				"zrangebyscore",
				"get",
				"hmget",
				"pubsub|numsub",
				"hello",
				"config|resetstat",
			},
			command,
			"it sends %s",
			line,
		)
		if command == "evalsha" {
			assert.Contains(t, line, "calls="+strconv.Itoa(len(names))+",", "one call for each name")
		}
	}
	b.must(rw.Unlock(ctx))
	b.must(c.NewLock(b.name + "-lock").Unlock(ctx))
	b.must(<-waiting)
	b.must(other.Unlock(them))
}

// The permissions of a user that may only inspect, as docs/security.md lists them.
func TestInspectNeedsTheDocumentedPermissions(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	d := b.deployment(s)
	ctx := context.Background()
	rw := b.client().NewRWLock("lock:orders:" + b.name).Read()
	b.must(rw.Lock(ctx))
	commands := []string{
		"+evalsha",
		"+eval",
		"+hgetall",
		"+hget",
		"+hrandfield",
		"+pttl",
		"+lrange",
		"+zrangebyscore",
		"+get",
		"+time",
	}
	const line = "~relock_line:{lock:orders:*"
	keys := without(smallestKeys, line)
	rights := slices.Concat(keys, commands)
	i, err := d.user(b, rights).Inspect(ctx, rw.Name())
	require.NoError(t, err)
	assert.Len(t, i.Holders, 1)
	for _, right := range slices.Concat(keys, commands[2:]) {
		_, err := d.user(b, without(rights, right)).Inspect(ctx, rw.Name())
		assert.True(t, refused(err), "without %s: %v", right, err)
	}
	b.must(rw.Unlock(ctx))

	// What is needed to see who waits.
	lock := b.client().NewLock("lock:orders:" + b.name + "-2")
	b.must(lock.Lock(ctx))
	them, other := ContextWithOwner(ctx), b.client(WithPollInterval(time.Hour)).NewLock(lock.Name())
	got := b.startWaiter(them, other)
	all := slices.Concat(rights, []string{line, "+hmget", "+pubsub|numsub"})
	waiter := func(rights []string) (w Waiter) {
		i, err := d.user(b, rights).Inspect(ctx, lock.Name())
		require.NoError(t, err)
		assert.False(t, i.QueueUnknown)
		if assert.Equal(t, len(i.Waiters), i.Waiting) && len(i.Waiters) > 0 {
			w = i.Waiters[0]
		}
		return w
	}
	testredis.Await(t, "one waits", soon, func() bool { return waiter(all).Reachable == ReachableYes })
	assert.False(t, waiter(all).Since.IsZero())
	assert.Equal(t, ReachableUnknown, waiter(without(all, "+pubsub|numsub")).Reachable)
	for _, right := range []string{line, "+hmget"} {
		i, err := d.user(b, without(all, right)).Inspect(ctx, lock.Name())
		require.NoError(t, err, "without %s", right)
		assert.True(t, i.QueueUnknown, "without %s", right)
		assert.Empty(t, i.Waiters)
		assert.Len(t, i.Holders, 1)
	}
	b.must(lock.Unlock(ctx))
	b.must(<-got)
	b.must(other.Unlock(them))
}

// A Client that may not read one wait queue goes on using those of its own locks.
func TestInspectWithoutTheQueueSlowsNoLockDown(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	ctx := context.Background()
	rights := slices.Concat(smallestKeys, smallestChannels, smallestCommands, smallestWakeups)
	rights = append(rights, "~users:*", "~{users:*", "~redisson_lock_token:{users:*", "~redisson_lock_queue:{users:*",
		"~redisson_lock_timeout:{users:*",
		"~relock_lock_alive:{users:*", "~relock_rwlock_writers:{users:*")
	c := b.deployment(s).user(b, rights)
	holder := b.client().NewLock("users:1")
	b.must(holder.Lock(ctx))
	i, err := c.Inspect(ctx, "users:1")
	b.must(err)
	require.True(t, i.QueueUnknown)
	assert.Len(t, i.Holders, 1)
	b.must(holder.Unlock(ctx))

	mine := c.NewLock(orderName())
	b.must(mine.Lock(ctx))
	i, err = c.Inspect(ctx, mine.Name())
	b.must(err)
	assert.False(t, i.QueueUnknown)
	require.Len(t, i.Holders, 1)
	assert.True(t, engine.UsesLine(i.Holders[0].Field), "its locks pass along their wait queues")
	b.must(mine.Unlock(ctx))
}

func TestInspectReportsKeysThatAreNoLock(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		for text, make := range map[string]func(b *bench) error{
			`" holds a string that`: func(b *bench) error { return b.rdb.Set(ctx, b.name, "a string", 0).Err() },
			`" holds a set that`:    func(b *bench) error { return b.rdb.SAdd(ctx, b.name, "a set").Err() },
			`"redisson_lock_queue:{`: func(b *bench) error {
				return b.rdb.Set(ctx, "redisson_lock_queue:{"+b.name+"}", "a string", 0).Err()
			},
			`"relock_lock_alive:{`: func(b *bench) error {
				return b.rdb.RPush(ctx, "relock_lock_alive:{"+b.name+"}", "a list").Err()
			},
			`holds a hash that is not a lock (field "colour")`: func(b *bench) error {
				return b.rdb.HSet(ctx, b.name, "colour", "red", javaThread, 7).Err()
			},
			`holds a hash that is not a lock (field "n")`: func(b *bench) error { return b.rdb.HSet(ctx, b.name, "n", 0).Err() },
			`holds a hash that is not a lock (field "mode")`: func(b *bench) error {
				return b.rdb.HSet(ctx, b.name, "mode", "dark"+strings.Repeat("!", 500), "n", math.MaxInt64).Err()
			},
			`holds a token counter that is not a number`: func(b *bench) error {
				return b.rdb.Set(ctx, "redisson_lock_token:{"+b.name+"}", "many", 0).Err()
			},
		} {
			b := newBench(t, addr)
			b.must(make(b))
			_, err := b.client().Inspect(ctx, b.name)
			assert.ErrorIs(t, err, ErrNotALock, text)
			assert.ErrorContains(t, err, text, text)
			assert.ErrorContains(t, err, strconv.Quote(b.name), text)
			require.Error(t, err, text)
			assert.LessOrEqual(t, len(err.Error()), 300, text)
			b.forget()
		}
	})
}

func TestInspectRefusesInvalidCalls(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c, ctx := b.client(), context.Background()
	for name, want := range map[string]string{"": "the name is empty", strings.Repeat("x", longestName+1): "bytes"} {
		_, err := c.Inspect(ctx, name)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, want)
	}
	_, err := (*Client)(nil).Inspect(ctx, b.name)
	assert.ErrorIs(t, err, ErrInvalid)
	//lint:ignore SA1012 that is what is tested
	_, err = c.Inspect(nil, b.name)
	assert.ErrorIs(t, err, ErrInvalid)
	ended, end := context.WithCancel(ctx)
	end()
	_, err = c.Inspect(ended, b.name)
	assert.ErrorIs(t, err, context.Canceled)
	b.must(c.Close())
	_, err = c.Inspect(ctx, b.name)
	assert.ErrorIs(t, err, ErrClosed)
}

func TestContenderReadsAnyField(t *testing.T) {
	const client = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10"
	for field, want := range map[string]Contender{
		client + ":7:1":     {Client: client, Owner: "goroutine 7"},
		client + ":-7:12":   {Client: client, Owner: "owner 7"},
		client + ":-7:01+2": {Client: client, Owner: "owner 7"},
		client + ":42":      {Client: client, Owner: "thread 42"},
		client + ":42:tx9":  {Client: client, Owner: "thread 42"},
		client:              {Owner: client},
		client + ":":        {Owner: client + ":"},
		client + ":x":       {Owner: client + ":x"},
		client + "7:7":      {Owner: client + "7:7"},
		"{" + client + "}":  {Owner: "{" + client + "}"},
		"somebody":          {Owner: "somebody"},
		"":                  {},
	} {
		want.Field = field
		assert.Equal(t, want, contender(field), field)
	}
}

func TestParseRecordsRefusesBadReplies(t *testing.T) {
	list := func(all ...any) []any { return all }
	good := list(
		int64(1),
		int64(2),
		list("f", "1", int64(2)),
		int64(1),
		list("f", "1.5e3", "0", "", int64(-1), "g", "-inf", "9e15", "99999999999999999", int64(1)),
		int64(3),
		int64(1),
		"",
		"",
		list("f", "1.5e3"),
	)
	r, err := parseRecords(good)
	require.NoError(t, err)
	assert.Len(t, r.entries, 1)
	require.Len(t, r.waiters, 2)
	f, g := r.waiters[0], r.waiters[1]
	assert.EqualValues(t, 1500, f.Deadline.UnixMilli())
	assert.True(t, f.AliveUntil.IsZero())
	assert.True(t, f.Since.IsZero())
	assert.Equal(t, ReachableUnknown, f.Reachable)
	assert.EqualValues(t, 1, g.Deadline.UnixMilli())
	assert.Equal(t, 9999, g.AliveUntil.UTC().Year())
	assert.Equal(t, 9999, g.Since.UTC().Year())
	assert.Equal(t, ReachableYes, g.Reachable)
	assert.EqualValues(t, 1500, r.permits["f"])
	for _, bad := range []any{nil, int64(1), "", list(), good[:9]} {
		_, err := parseRecords(bad)
		assert.ErrorIs(t, err, errReply, "%v", bad)
	}
	for i := range good {
		for _, part := range []any{nil, true, list("f"), list("f", "many"), list("f", "nan"), list(int64(1), "1", int64(2)),
			list(list())} {
			bad := slices.Clone(good)
			bad[i] = part
			_, err := parseRecords(bad)
			assert.ErrorIs(t, err, errReply, "part %d: %v", i, part)
		}
	}
}

func TestInspectWorksOnACluster(t *testing.T) {
	t.Parallel()
	b := newClusterBench(t, testredis.StartCluster(t, 3, 0))
	c, ctx := b.client(), context.Background()
	for _, name := range []string{b.name, "{" + b.name + "}:x", b.name + "-c"} {
		lock := c.NewLock(name)
		b.must(lock.Lock(ctx))
		i, err := c.Inspect(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, TypeLock, i.Type)
		assert.Len(t, i.Holders, 1)
		waits := b.client().NewLock(name)
		got := b.startWaiter(waits)
		testredis.Await(t, "one waits, and is subscribed in its shard", clusterSoon, func() bool {
			i, err := c.Inspect(ctx, name)
			return err == nil && i.Waiting == 1 && i.Waiters[0].Reachable == ReachableYes
		})
		b.must(lock.Unlock(ctx))
		b.must(<-got)
		b.must(second(waits.ForceUnlock(ctx)))

		rw := c.NewRWLock(name).Read()
		b.must(rw.LockLease(ctx, time.Hour))
		i, err = c.Inspect(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, TypeReadWrite, i.Type)
		require.Len(t, i.Holders, 1)
		assert.True(t, about(i.Holders[0].Remaining, time.Hour), "lease %v", i.Holders[0].Remaining)
		b.must(rw.Unlock(ctx))
	}
	_, err := c.Inspect(ctx, "{}"+b.name)
	assert.ErrorIs(t, err, ErrInvalid, "its keys are in several slots")
}

// The result of Inspect is bounded, and costs no more than linear time.
func TestInspectShowsSomeOfVeryMany(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client()
	begin, check := b.watchBusy(mostBusy)
	const many = mostShown + 2000
	const field = `local field = string.format('00000000-0000-4000-8000-%012d', i) .. ':7:01' `
	inTime := func(what string) Inspection {
		begin()
		i := b.inspect(c)
		check(what)
		assert.True(t, i.More, what)
		return i
	}

	const inLine = 1500
	place := `redis.call('hset', KEYS[1], i, client, client, i .. ' new push 30000 0 1 ' .. client .. ':7:01' .. ` +
		`ARGV[2] .. ' 1') `
	fill := func(suffix string) {
		b.must(b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do local client = string.format('00000000-0000-4000-8000-%012d', i) "+place+
				"end redis.call('hset', KEYS[1], 'first', 1, 'last', ARGV[1]) return 1",
			[]string{b.lineKey()},
			inLine,
			suffix,
		).Err())
	}
	for kind, lock := range map[string]Locker{
		"lock": c.NewLock(b.name), "write": c.NewRWLock(b.name).Write(), "semaphore": c.NewSemaphore(b.name, 1),
	} {
		me := ContextWithOwner(ctx)
		b.must(lock.LockLease(me, time.Hour))
		fill(map[string]string{"write": ":write"}[kind])
		i := inTime("the wait queue of a " + kind)
		assert.Len(t, i.Holders, 1, kind)
		require.Len(t, i.Waiters, mostWaiters, kind)
		assert.Equal(t, inLine, i.Waiting, kind)
		assert.Equal(t, mostWaiters, i.Gone, "of those that are listed")
		for n, w := range i.Waiters {
			require.Equal(t, fmt.Sprintf("00000000-0000-4000-8000-%012d", n+1), w.Client, kind)
			require.Equal(t, ReachableNo, w.Reachable, kind)
			require.EqualValues(t, 1, w.Since.Unix(), kind)
		}
		b.must(b.rdb.Del(ctx, b.name, b.lineKey(), permitsKey(b.name)).Err())
		b.forget()
	}

	ends := time.Now().Add(time.Hour).UnixMilli()
	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[2], ARGV[2] + i, field) end redis.call('set', KEYS[1], "+
				"5) return 1",
			[]string{b.name, permitsKey(b.name)},
			many,
			ends,
		).Err(),
	)
	i := inTime("permits")
	assert.Equal(t, TypeSemaphore, i.Type)
	assert.Len(t, i.Holders, mostShown)
	assert.Equal(t, 5, i.Available)
	assert.Equal(t, "00000000-0000-4000-8000-000000000001", i.Holders[0].Client, "the first to expire")
	assert.Equal(t, ends+many, i.At.Add(i.TTL).UnixMilli(), "the longest lease")
	_, err := c.Inspect(ctx, b.name)
	b.must(err)

	expired := time.Now().Add(-time.Hour).UnixMilli() // Java's clock may be ahead: all permits that have expired are free
	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[1], ARGV[2] + i, field .. '2') end return 1",
			[]string{permitsKey(b.name)},
			many,
			expired,
		).Err(),
	)
	i = inTime("permits that have expired")
	assert.Equal(t, 5+many, i.Available)
	assert.Len(t, i.Holders, mostShown)
	b.must(b.rdb.ZRemRangeByScore(ctx, permitsKey(b.name), strconv.FormatInt(time.Now().UnixMilli(), 10), "+inf").Err())
	begin()
	i = b.inspect(c)
	assert.Equal(t, 5+many, i.Available)
	assert.Empty(t, i.Holders)
	assert.False(t, i.Ambiguous)
	check("permits that have all expired")
	b.must(b.rdb.Del(ctx, b.name, permitsKey(b.name)).Err())

	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('rpush', KEYS[1], field) redis.call('zadd', KEYS[2], i, field) end "+
				"return 1",
			[]string{queueKey(b.name), prefixName("redisson_lock_timeout", b.name)},
			many,
		).Err(),
	)
	i = inTime("waiters")
	assert.Equal(t, TypeFair, i.Type)
	assert.Len(t, i.Waiters, mostWaiters)
	assert.Equal(t, many, i.Waiting)
	b.forget()

	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[1], ARGV[2], field) end return 1",
			[]string{writersKey(b.name)},
			many,
			ends,
		).Err(),
	)
	i = inTime("writers")
	assert.Equal(t, TypeReadWrite, i.Type)
	assert.Len(t, i.Waiters, mostWaiters)
	assert.Equal(t, mostShown+1, i.Waiting, "they are counted up to that number")
	b.forget()
}

// Inspect rejects what the methods of a semaphore reject, names the same key, and reports what it cannot tell apart.
func TestInspectAndSemaphoreAgree(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		past, future := float64(1), float64(time.Now().Add(time.Hour).UnixMilli())
		for what, put := range map[string]func(b *bench, key string) error{
			"a list":   func(b *bench, key string) error { return b.rdb.RPush(ctx, key, "a").Err() },
			"a hash":   func(b *bench, key string) error { return b.rdb.HSet(ctx, key, "a", 1).Err() },
			"a string": func(b *bench, key string) error { return b.rdb.Set(ctx, key, "a", 0).Err() },
			"a zset, of the past": func(b *bench, key string) error {
				return b.rdb.ZAdd(ctx, key, redis.Z{Score: past, Member: "alice"}).Err()
			},
			"a zset, of the future": func(b *bench, key string) error {
				return b.rdb.ZAdd(ctx, key, redis.Z{Score: future, Member: "alice"}).Err()
			},
			"a zset with a permit among all": func(b *bench, key string) error {
				return b.rdb.ZAdd(ctx, key, redis.Z{Score: future, Member: javaThread + ":017"},
					redis.Z{Score: past, Member: "alice"}).Err()
			},
		} {
			b := newBench(t, addr)
			key := permitsKey(b.name)
			b.must(b.rdb.Set(ctx, b.name, 3, 0).Err())
			b.must(put(b, key))
			before := b.content(key)
			c := b.client()
			s := c.NewSemaphore(b.name, 3)
			for method, err := range map[string]error{
				"Inspect": second(c.Inspect(ctx, b.name)), "Holders": second(s.Holders(ctx)), "Available": second(s.Available(ctx)),
				"Permits": second(s.Permits(ctx)), "TryLock": second(s.TryLock(ctx, 0, 0)), "IsLocked": second(s.IsLocked(ctx)),
				"ForceUnlock": second(s.ForceUnlock(ctx)), "SetPermits": s.SetPermits(ctx, 5),
			} {
				require.ErrorIs(t, err, ErrNotALock, "%s, %s", what, method)
				assert.ErrorContains(
					t,
					err,
					"the key "+shortName(key)+" holds a "+b.rdb.Type(ctx, key).Val(),
					"%s, %s",
					what,
					method,
				)
			}
			assert.Equal(t, before, b.content(key), what)
			assert.Equal(t, "3", b.rdb.Get(ctx, b.name).Val(), what)
			b.must(b.rdb.Del(ctx, b.name, key).Err())
		}

		// The number of an RCountDownLatch, or of any counter.
		b := newBench(t, addr)
		c := b.client()
		b.must(b.rdb.Set(ctx, b.name, 3, 0).Err())
		i := b.inspect(c)
		assert.Equal(t, TypeSemaphore, i.Type)
		assert.True(t, i.Ambiguous)
		assert.Equal(t, 3, i.Available)
		s, me := c.NewSemaphore(b.name, 10), ContextWithOwner(ctx)
		n, err := s.Permits(ctx)
		b.must(err)
		assert.Equal(t, 3, n, "the number in Redis counts")
		b.must(s.Lock(me))
		assert.False(t, b.inspect(c).Ambiguous, "a permit is taken")
		b.must(s.Unlock(me))
		assert.True(t, b.inspect(c).Ambiguous)
		b.must(b.rdb.Del(ctx, b.name).Err())
		assert.False(t, b.inspect(c).Ambiguous, "there is nothing")
	})
}

// A waiter for several permits is a waiter of this package like any other, and has the number that it wants.
func TestInspectShowsHowManyPermitsAWaiterWants(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		b := newBench(t, addr)
		all, err := b.client().NewSemaphore(b.name, 3).AcquireN(ctx, 3)
		b.must(err)
		wants, got := []int{2, 1}, make(chan error, 2)
		for i, n := range wants {
			c := b.client(WithLabel(fmt.Sprint("wants-", n)))
			go func() {
				h, err := c.NewSemaphore(b.name, 3).AcquireN(ctx, n)
				got <- cmp.Or(err, h.Release(ctx))
			}()
			var w Waiter
			testredis.Await(t, "the waiter is shown with its label", soon, func() bool {
				in, err := b.client().Inspect(ctx, b.name)
				b.must(err)
				if len(in.Waiters) <= i {
					return false
				}
				w = in.Waiters[i]
				return w.Label != ""
			})
			assert.Equal(t, n, w.Permits)
			assert.Equal(t, fmt.Sprint("wants-", n), w.Label)
			assert.Equal(t, c.ID(), w.Client)
			assert.NotContains(t, w.Owner, "thread")
			assert.Regexp(t, "^"+c.ID()+`:-?\d+$`, w.Field, "no number, with which it could be granted permits")
		}
		b.must(all.Release(ctx))
		for range wants {
			b.must(<-got)
		}
	})
}
