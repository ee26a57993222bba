package locks

// Hand-offs inside one process, and readers of one process that share a record, on a real Redis, as other processes see
// them. Their tests in bubbles are in internal/engine.
//
// Rules: the guards of a holder end before its successor holds the lock. A downgrade hands nothing off, and no reader
// shares a record while one of its readers waits to write.

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A read lock that an owner asks for while another of its goroutines unlocks the write lock is a downgrade: the next
// writer waits for it.
func TestHandoffNeverOfADowngradeUnderWay(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := locktest.NewLineBench(t, s.Addr()) // which knows the scripts: the request that was sent first runs first
	var reads atomic.Int64
	rdb := testredis.Client(t, b.Addr)
	var idle []*redis.Conn // so that it need not connect
	for range 4 {
		idle = append(idle, rdb.Conn())
		b.Must(idle[len(idle)-1].Ping(ctx).Err())
	}
	for _, conn := range idle {
		b.Must(conn.Close())
	}
	rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if len(cmd.Args()) > 1 && cmd.Args()[1] == record.Script("read_acquire").Digest() { // a writer that waits asks, too
			reads.Add(1)
		}
	}))
	rw := b.ClientOn(rdb, WithHandoffWindow(time.Hour)).NewRWLock(b.LockName)
	first, second := ContextWithOwner(ctx), ContextWithOwner(ctx)
	b.Must(rw.Write().Lock(first))
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(second) }()
	testredis.Await(b, "the next writer waits", locktest.Soon, func() bool { return b.WaitsInQueue(rw.Write()) })
	s.Freeze()
	reading := make(chan error, 1)
	go func() { reading <- rw.Read().Lock(first) }()
	testredis.Await(b, "the request of the reader is under way", locktest.Soon, func() bool { return reads.Load() > 0 })
	unlocked := make(chan error, 1)
	go func() { unlocked <- rw.Write().Unlock(first) }()
	time.Sleep(200 * time.Millisecond) // the Unlock waits for the owner mutex, which no call shows
	s.Thaw()
	b.Must(locktest.Await(b, "the reader is in", reading))
	b.Must(locktest.Await(b, "unlocked", unlocked))
	locktest.Stays(b, "a writer waits for the reader", got, 300*time.Millisecond)
	b.Must(rw.Read().Unlock(first))
	b.Must(locktest.Await(b, "the writer", got))
	b.Must(rw.Write().Unlock(second))
}

// A guard that another goroutine of the holder creates during the Unlock either fails or ends.
func TestHandoffEndsGuardsMadeMeanwhile(t *testing.T) {
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	l := b.Client(WithHandoffWindow(time.Hour)).NewLock(b.LockName)
	for range locktest.Full(10, 50) {
		first, second := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(l.Lock(first))
		got := make(chan error, 1)
		go func() { got <- l.Lock(second) }()
		testredis.Await(b, "the next owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(l) })
		made := make(chan []context.Context)
		many := make(chan struct{})
		go func() {
			var guards []context.Context
			for {
				g, err := l.Guard(first)
				if err != nil {
					made <- guards
					return
				}
				if guards = append(guards, g); len(guards) == 1000 {
					close(many)
				}
			}
		}()
		<-many
		b.Must(l.Unlock(first))
		b.Must(<-got)
		guards := <-made
		for _, g := range guards {
			require.Error(
				t,
				g.Err(),
				"one of %d guards of the holder before is alive while its successor holds the lock",
				len(guards),
			)
		}
		b.Must(l.Unlock(second))
	}
}

// A hand-off sets the lease that the successor asked for, even if the lease before was longer.
func TestHandoffSetsTheLeaseOfTheSuccessor(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	l := b.Client(WithHandoffWindow(time.Hour)).NewLock(b.LockName)
	first, second := ContextWithOwner(ctx), ContextWithOwner(ctx)
	b.Must(l.LockLease(first, time.Hour))
	b.Must(l.Lock(first))
	got := make(chan error, 1)
	go func() { got <- l.Lock(second) }()
	testredis.Await(b, "the next owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(l) })
	b.Must(l.Unlock(first))
	b.Must(l.Unlock(first))
	b.Must(locktest.Await(b, "handed over", got))
	ttl, err := l.TTL(second)
	b.Must(err)
	assert.LessOrEqual(
		t,
		ttl,
		30*time.Second,
		"a holder with the watchdog's lease of 30s has a record of %v: should it crash now, others wait so long",
		ttl,
	)
	b.Must(l.Unlock(second))
}

// L6: a waiter that may not subscribe acquires a lock that another process keeps busy, whether or not that process may
// publish.
func TestWaiterThatMayNotSubscribeGetsABusyLock(t *testing.T) {
	t.Parallel()
	for _, busy := range []string{"default", "nochannels"} {
		t.Run("busy as "+busy, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, testredis.Start(t).Addr())
			b.Must(
				b.Rdb.Do(
					ctx,
					"acl",
					"setuser",
					"nochannels",
					"on",
					"nopass",
					"~*",
					"resetchannels",
					"+@all",
				).Err(),
			)
			as := func(user string) func(*redis.Options) {
				return func(o *redis.Options) {
					if o.Username = user; user != "default" {
						o.Password = "any"
					}
				}
			}
			hot := b.ClientOn(testredis.Client(t, b.Addr, as(busy))).NewLock(b.LockName)
			waiter := b.ClientOn(testredis.Client(t, b.Addr, as("nochannels"))).NewLock(b.LockName)

			ctx, stop := context.WithCancel(ctx)
			var all sync.WaitGroup
			var sections atomic.Int64
			for range 8 {
				waitgroup.Go(&all, func() {
					for ctx.Err() == nil {
						_ = hot.Do(ctx, func(context.Context) error { sections.Add(1); time.Sleep(time.Millisecond); return nil })
					}
				})
			}
			var waits []time.Duration
			for range 4 {
				before := sections.Load()
				testredis.Await(b, "the lock is busy", locktest.Soon, func() bool { return sections.Load() > before+30 })
				start := time.Now()
				b.Must(waiter.Lock(context.Background()))
				waits = append(waits, time.Since(start).Round(time.Millisecond))
				assert.LessOrEqual(
					t,
					time.Since(start),
					testredis.Scale(start, 4*time.Second),
					"the wait of a waiter that may not subscribe",
				)
				b.Must(waiter.Unlock(context.Background()))
			}
			stop()
			all.Wait()
			t.Log(fmt.Sprint("waits ", waits))
		})
	}
}

// L5: once a reader waits to write, other readers do not share its record.
func TestUpgradingReaderIsNotJoined(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		rw, elsewhere := b.Client(WithHandoffWindow(time.Hour)).NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName).Read()
		me, you := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(elsewhere.Lock(you))
		b.Must(rw.Read().Lock(me))
		got := make(chan error, 1)
		go func() { got <- rw.Write().Lock(me) }()
		testredis.Await(
			t,
			"a writer waits",
			locktest.Soon,
			func() bool { return b.Rdb.ZCard(me, "relock_rwlock_writers:{"+b.LockName+"}").Val() == 2 },
		)
		b.Tries(rw.Read(), false)
		b.Must(elsewhere.Unlock(you))
		b.MustBe(locktest.Await(b, "nobody but itself is in its way", got), ErrInvalid)
		b.Must(rw.Read().Unlock(me))
	})
}

// An owner that waits for the read lock and the write lock at the same time may be granted the write lock first. Its
// read lock is then a downgrade, which no other reader shares.
func TestReadOfAWriterAdmitsNoOtherReader(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	rw := b.Client(WithHandoffWindow(time.Hour)).NewRWLock(b.LockName)
	me, you, other := ContextWithOwner(
		ctx,
	), ContextWithOwner(
		ctx,
	), ContextWithOwner(
		ctx,
	)
	elsewhere := b.Client().NewRWLock(b.LockName)
	b.Must(elsewhere.Read().Lock(other))
	waits := func(l Locker, ctx context.Context) <-chan error {
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		return got
	}
	ctx, cancel := context.WithCancel(ContextWithOwner(ctx))
	first := waits(elsewhere.Write(), ctx) // the heartbeat of this writer keeps the readers waiting
	testredis.Await(b, "a writer's sign", time.Second, func() bool {
		return b.Rdb.Exists(me, "relock_rwlock_writers:{"+b.LockName+"}").Val() == 1
	})
	mine := waits(rw.Read(), me)
	testredis.Await(b, "a reader that asks", time.Second, func() bool { return b.Asks(rw.Read()) })
	yours := waits(rw.Read(), you)
	testredis.Await(b, "a second reader behind it", time.Second, func() bool { return b.WaitsInQueue(rw.Read()) })
	wrote := waits(rw.Write(), me)
	testredis.Await(b, "the sign of both writers", time.Second, func() bool {
		return b.Rdb.ZCard(me, "relock_rwlock_writers:{"+b.LockName+"}").Val() == 2
	})
	cancel()
	b.MustBe(<-first, context.Canceled)
	b.Must(elsewhere.Read().Unlock(other))
	b.Must(locktest.Await(b, "the writer", wrote))
	b.Must(locktest.Await(b, "its read", mine))
	locktest.Stays(b, "a reader beside a writer", yours, 100*time.Millisecond)
	ok, err := rw.Read().TryLock(you, 0, 0)
	assert.NoError(t, err, "a reader that comes later")
	assert.False(t, ok, "a reader that comes later")
	b.Must(rw.Write().Unlock(me))
	b.Must(locktest.Await(b, "a reader beside a reader", yours))
	b.Must(rw.Read().Unlock(me))
	b.Must(rw.Read().Unlock(you))
}

// A reader that asks for the write lock waits for the other readers, and fails when only its own read lock is left.
func TestUpgradeOfASharedReadWaitsForOthersAndIsRefused(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		rw := b.Client(WithHandoffWindow(time.Hour)).NewRWLock(b.LockName)
		me, you := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(rw.Read().Lock(me))
		b.Must(rw.Read().Lock(you))
		// The fields are the mode and one holder.
		require.Equal(t, int64(2), b.Rdb.HLen(me, b.LockName).Val(), "fields: the readers do not share")
		ok, err := rw.Write().TryLock(me, 0, 0)
		require.NoError(t, err, "beside another reader")
		require.False(t, ok, "beside another reader")
		got := make(chan error, 1)
		go func() { got <- rw.Write().Lock(me) }()
		locktest.Stays(b, "it waits for the other reader", got, 100*time.Millisecond)
		b.MustBe(rw.Write().Lock(you), ErrInvalid) // each would wait for the other
		b.Must(rw.Read().Unlock(you))
		b.MustBe(locktest.Await(b, "nobody but itself is in its way", got), ErrInvalid)
		b.Must(rw.Read().Unlock(me))
		b.Must(rw.Write().Lock(me))
		b.Must(rw.Write().Unlock(me))
	})
}
