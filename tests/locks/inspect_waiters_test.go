package locks

// What Inspect shows of the waiters of a lock.
//
// Rules: they are shown in the order in which they will be served, with what an operator needs to find them, and with
// nothing that makes a grant. Data of other programs are no waiter.

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspectShowsAFairQueue(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		lock, me := c.NewFairLock(b.LockName), ContextWithOwner(ctx)
		b.Must(lock.Lock(me))
		i := b.Inspect(c)
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
			testredis.Await(t, "it waits", locktest.Soon, func() bool { return len(b.Inspect(c).Waiters) == len(waiters)+1 })
			waiters = append(waiters, Contender{Client: c.ID(), Owner: engine.OwnerOf(w).String()})
		}
		b.Must(b.Rdb.HSet(ctx, record.PlacesKey(b.LockName), "", fmt.Sprint(time.Now().UnixMilli(), " 3600000")).Err()) // an outage
		wait()
		java := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		b.Must(b.Rdb.RPush(ctx, "redisson_lock_queue:{"+b.LockName+"}", locktest.JavaThread).Err())
		b.Must(
			b.Rdb.ZAdd(
				ctx,
				"redisson_lock_timeout:{"+b.LockName+"}",
				redis.Z{Score: float64(java.UnixMilli()), Member: locktest.JavaThread},
			).Err(),
		)
		waiters = append(waiters, Contender{Field: locktest.JavaThread, Client: locktest.JavaThread[:36], Owner: "thread 42"})
		wait()

		testredis.Await(t, "they can be granted the lock", locktest.Soon, func() bool { return len(b.FairPlaces()) == 2 })
		i = b.Inspect(c)
		require.Equal(t, TypeFair, i.Type)
		require.Len(t, i.Holders, 1)
		require.Len(t, i.Waiters, 3)
		assert.Equal(t, 3, i.Waiting)
		assert.Equal(t, 1, i.Gone, "nobody is subscribed for Java")
		assert.False(t, i.More)
		for n, w := range i.Waiters {
			assert.Equal(t, waiters[n].Client, w.Client, "waiter %d is %+v", n, w)
			assert.Equal(t, waiters[n].Owner, w.Owner, "waiter %d is %+v", n, w)
			if isJava := n == 1; isJava {
				assert.True(t, w.Deadline.Equal(java), "deadline of %+v", w)
				assert.True(t, w.AliveUntil.IsZero(), "heartbeat of %+v", w)
				assert.Equal(t, locktest.JavaThread, w.Field)
				assert.True(t, w.Since.IsZero(), "%+v", w)
				assert.Equal(t, ReachableNo, w.Reachable, "nobody is subscribed to its channel")
			} else {
				showsNoNumber(b, w)
				assert.True(t, about(i.At.Sub(w.Since), 10*time.Second), "%+v at %v", w, i.At)
				assert.Equal(t, ReachableYes, w.Reachable)
				assert.False(t, w.Deadline.Before(i.At), "deadline of %+v at %v", w, i.At)
				assert.True(t, about(w.AliveUntil.Sub(i.At), record.FairLife), "heartbeat of %+v at %v", w, i.At)
			}
		}

		defer b.Subscribe("redisson_lock__channel:{" + b.LockName + "}:" + locktest.JavaThread).Close()
		assert.Equal(t, ReachableYes, b.Inspect(c).Waiters[1].Reachable, "Java is subscribed")

		// A queue that its holder has left.
		b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		i = b.Inspect(c)
		assert.Equal(t, TypeFair, i.Type, "the holder is gone")
		if i.Held() { // by the first waiter, which polls
			assert.Equal(t, waiters[0].Owner, i.Holders[0].Owner, "the holder is gone")
		}
		b.Must(b.Rdb.LRem(ctx, "redisson_lock_queue:{"+b.LockName+"}", 1, locktest.JavaThread).Err())
		b.Must(b.Rdb.ZRem(ctx, "redisson_lock_timeout:{"+b.LockName+"}", locktest.JavaThread).Err())
		for range 2 {
			b.Must(<-got)
		}
	})
}

// showsNoNumber checks that nothing in w is part of what makes a grant.
func showsNoNumber(b *locktest.Bench, w Waiter) {
	b.Helper()
	n := strings.TrimPrefix(strings.TrimPrefix(w.Field, w.Client), ":")
	_, err := strconv.ParseInt(n, 10, 64)
	assert.NoError(b, err, "the field of %+v is not client:owner", w)
	text := fmt.Sprintf("%+v", w)
	line, err := b.Rdb.HGetAll(ctx, b.WaitsKey()).Result()
	b.Must(err)
	for field, value := range line {
		words := strings.Fields(value)
		if strings.HasPrefix(field, w.Client) && len(words) == 6 { // a place
			assert.NotContains(b, text, words[3])
			assert.NotContains(b, text, words[4])
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
			locktest.OnEachServer(t, func(t *testing.T, addr string) {
				b := locktest.NewBench(t, addr)
				ctx := ContextWithOwner(ctx)
				holder := one(b.Client(), b.LockName)
				b.Must(holder.Lock(ctx))
				var waiting []Locker
				var got []<-chan error
				for range 3 {
					c := b.Client(WithLabel("<b>orders</b>"))
					waiting = append(waiting, one(c, b.LockName))
					got = append(got, b.StartWaiter(ctx, waiting[len(waiting)-1]))
					labelled(b, c)
					testredis.Await(t, "it waits", locktest.Soon, func() bool {
						return len(b.Places()) == len(waiting) && b.Inspect(c).Waiters[len(waiting)-1].Reachable == ReachableYes
					})
				}
				begun := time.Now()
				i := b.Inspect(b.Client())
				require.Len(t, i.Waiters, 3)
				assert.Equal(t, 3, i.Waiting)
				assert.False(t, i.More)
				assert.Len(t, i.Holders, 1)
				for n, w := range i.Waiters {
					assert.Equal(t, locktest.ClientOf(waiting[n]).ID(), w.Client, "%+v", w)
					assert.Equal(t, engine.OwnerOf(ctx).String(), w.Owner)
					assert.Equal(t, "<b>orders</b>", w.Label)
					assert.NotEmpty(t, w.Host)
					assert.Equal(t, kind == "write", w.Write)
					assert.Equal(t, kind == "write", !w.AliveUntil.IsZero(), "a heartbeat")
					assert.True(t, w.Deadline.IsZero())
					assert.Zero(t, w.Since.Nanosecond())
					assert.True(t, about(i.At.Sub(w.Since), 10*time.Second), "%+v at %v", w, i.At)
					showsNoNumber(b, w)
				}
				// The first one is granted the lock, and waits no more; the others have their positions since then.
				b.Must(holder.Unlock(ctx))
				b.Must(<-got[0])
				after := b.Inspect(b.Client())
				require.Len(t, after.Waiters, 2)
				for n, w := range after.Waiters {
					assert.Equal(t, i.Waiters[n+1].Contender, w.Contender)
					assert.Equal(t, i.Waiters[n+1].Since, w.Since, "after %v", time.Since(begun))
				}
				// One more, which joins while the lock is held by a process that was granted it.
				waiting = append(waiting, one(b.Client(), b.LockName))
				got = append(got, b.StartWaiter(ctx, waiting[3]))
				testredis.Await(t, "it waits", locktest.Soon, func() bool { return len(b.Places()) == 3 })
				after = b.Inspect(b.Client())
				require.Len(t, after.Waiters, 3)
				assert.Equal(t, locktest.ClientOf(waiting[3]).ID(), after.Waiters[2].Client)
				assert.True(t, about(after.At.Sub(after.Waiters[2].Since), 10*time.Second), "%+v", after.Waiters[2])
				showsNoNumber(b, after.Waiters[2])
				b.Must(waiting[0].Unlock(ctx))
				for n := 1; n < 4; n++ {
					b.Must(<-got[n])
					b.Must(waiting[n].Unlock(ctx))
				}
			})
		})
	}
}

// Whether a grant would reach a waiter is what the script of a release would find.
func TestInspectShowsWhichWaitersCanBeReached(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		m := b.Manual().Takes()
		gone, listens, polls := b.Manual().Listens().Joins(), b.Manual().Listens().Joins(), b.Manual()
		require.Equal(b, int64(1), polls.Ask(contract.Poll)[2]%4)
		b.Must(gone.Hears.Close())
		testredis.Await(b, "it is gone", locktest.Soon, func() bool { return b.Hearers(gone.Grants()) == 0 })
		i := b.Inspect(b.Client())
		require.Len(b, i.Waiters, 3)
		assert.Equal(b, 3, i.Waiting)
		assert.Equal(b, 1, i.Gone)
		for n, want := range []struct {
			id string
			Reachability
		}{{gone.ID, ReachableNo}, {listens.ID, ReachableYes}, {polls.ID, ReachableUnknown}} {
			assert.Equal(b, want.id, i.Waiters[n].Client)
			assert.Equal(b, want.Reachability, i.Waiters[n].Reachable, "waiter %d", n)
		}
		m.Release(false)
		listens.Release(false)
		polls.Release(false)
		emptyLine(b)
	})
}

// Data of other programs in the wait queue is no waiter, and of a key that is no wait queue the caller is told.
func TestInspectOfAStrangeWaitQueue(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		const client, other = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10", "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21"
		order, waits := b.LineKeys()[0], b.WaitsKey()
		for n, member := range []string{"\x1b[31m\n", client, other, "x", "no place"} {
			b.Must(b.Rdb.ZAdd(ctx, order, redis.Z{Score: float64(n), Member: member}).Err())
		}
		b.Must(b.Rdb.HSet(ctx, waits,
			"\x1b[31m\n", "push 1000 0 1 \x1b[31m\n:1:2 5", // no client
			client, "4 push 1000 0 1 "+client+":1:2 5", // no place
			other, "push 1000 0 1 "+client+":1:2 5", // the field of another client
			"no place", "push",
		).Err())
		i := b.Inspect(c)
		assert.Equal(t, TypeNone, i.Type, "%+v", i)
		assert.Empty(t, i.Waiters)
		assert.Zero(t, i.Waiting)
		b.Must(b.Rdb.HSet(ctx, waits, client, "\x1b 1000 0 1 "+client+":1:2 5").Err())
		assert.Empty(t, b.Inspect(c).Waiters, "a delivery that is no word")
		b.Must(b.Rdb.HSet(ctx, waits, client, "push 1000 0 1 "+client+":-3:2 99999999999999999999").Err())
		i = b.Inspect(c)
		require.Len(t, i.Waiters, 1)
		assert.Equal(t, TypeLock, i.Type)
		assert.False(t, i.Held())
		assert.Equal(t, Contender{Field: client + ":-3", Client: client, Owner: "owner 3"}, i.Waiters[0].Contender)
		b.Must(b.Rdb.HSet(ctx, waits, client, "push 1000 0 1 "+client+":-3:2:write 5").Err())
		assert.Equal(t, TypeReadWrite, b.Inspect(c).Type)

		for _, key := range []string{waits, order} {
			b.Must(b.Rdb.Set(ctx, key, "a string", 0).Err())
			_, err := c.Inspect(ctx, b.LockName)
			assert.ErrorIs(t, err, ErrNotALock)
			assert.ErrorContains(t, err, send.ShortName(key)+" holds a string")
			b.Must(b.Rdb.Del(ctx, key).Err())
		}
	})
}

// A reader that waits for the write lock, too, is one waiter.
func TestInspectShowsAnUpgradingReaderAsOneWaiter(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	rw, reader := c.NewRWLock(b.LockName), ContextWithOwner(ctx)
	other := b.Client().NewRWLock(b.LockName).Read()
	b.Must(rw.Read().Lock(reader))
	b.Must(other.Lock(reader))
	ctx, giveUp := context.WithCancel(reader)
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(ctx) }()
	testredis.Await(
		t,
		"a reader waits to write",
		locktest.Soon,
		func() bool { return b.Rdb.ZCard(ctx, "relock_rwlock_writers:{"+b.LockName+"}").Val() == 2 },
	)
	i := b.Inspect(c)
	require.Len(t, i.Waiters, 1)
	assert.Equal(t, engine.OwnerOf(reader).String(), i.Waiters[0].Owner)
	assert.True(t, i.Waiters[0].Write)
	assert.Equal(t, 1, i.Waiting)
	assert.Len(t, i.Holders, 2)
	giveUp()
	b.MustBe(<-got, context.Canceled)
	b.Must(rw.Read().Unlock(reader))
	b.Must(other.Unlock(reader))
}

// A waiter for several permits is a waiter of this package like any other, and has the number that it wants.
func TestInspectShowsHowManyPermitsAWaiterWants(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		all, err := b.Client().NewSemaphore(b.LockName, 3).AcquireN(ctx, 3)
		b.Must(err)
		wants, got := []int{2, 1}, make(chan error, 2)
		for i, n := range wants {
			c := b.Client(WithLabel(fmt.Sprint("wants-", n)))
			go func() {
				h, err := c.NewSemaphore(b.LockName, 3).AcquireN(ctx, n)
				got <- cmp.Or(err, h.Release(ctx))
			}()
			var w Waiter
			testredis.Await(t, "the waiter is shown with its label", locktest.Soon, func() bool {
				in, err := b.Client().Inspect(ctx, b.LockName)
				b.Must(err)
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
		b.Must(all.Release(ctx))
		for range wants {
			b.Must(<-got)
		}
	})
}
