package relock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

func newReadLock(c *Client, name string) Locker  { return c.NewRWLock(name).Read() }
func newWriteLock(c *Client, name string) Locker { return c.NewRWLock(name).Write() }

func TestWriteLock(t *testing.T) { testLocker(t, newWriteLock) }

func TestReadLock(t *testing.T) {
	suite{newLock: newReadLock, rival: newWriteLock, shared: true}.run(t)
}

func TestFencedWriteLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() })
}

func TestWriteLockTokensGrow(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name, Fenced())
		var last int64
		for range 3 {
			b.must(l.Write().Lock(ctx))
			token, err := l.Write().Token(ctx)
			assert.NoError(t, err)
			assert.Greater(t, token, last, "a token is greater than the one before")
			last = token
			b.must(l.Write().Unlock(ctx))
		}
	})
}

func TestReadersShare(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		first, second, write := c.NewRWLock(
			b.name,
		).Read(), b.client().NewRWLock(
			b.name,
		).Read(), b.client().NewRWLock(
			b.name,
		).Write()
		b.tries(first, true)
		b.tries(second, true)
		ok, err := elsewhere(func() pair[bool] { return pairOf(first.TryLock(ctx, 0, 50*time.Millisecond)) }).get()
		assert.NoError(t, err)
		assert.True(t, ok, "another goroutine")
		b.tries(write, false)
		b.isLocked(first, true)
		b.isLocked(write, false)
		b.must(first.Unlock(ctx))
		b.tries(write, false)
		b.must(second.Unlock(ctx))
		ok, err = write.TryLock(ctx, soon, 0)
		require.NoError(t, err)
		require.True(t, ok, "the writer gets in once the third read lease has expired")
		b.isLocked(first, false)
		b.isLocked(write, true)
		b.tries(first, false)
		b.must(write.Unlock(ctx))
	})
}

// A writer may also acquire the read lock and keep it. Waiting readers acquire the lock when the write lock is
// released.
func TestDowngradeLetsReadersIn(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name)
		other := b.client(WithPollInterval(time.Hour)).NewRWLock(b.name)
		b.must(l.Write().Lock(ctx))
		b.must(l.Read().Lock(ctx))
		b.must(l.Read().Lock(ctx))
		b.holds(l.Write(), 1)
		b.holds(l.Read(), 2)
		b.isLocked(other.Write(), true)
		b.isLocked(other.Read(), true)
		owners := []context.Context{ContextWithOwner(ctx), ContextWithOwner(ctx), ContextWithOwner(ctx)}
		var readers []<-chan error
		for _, o := range owners {
			readers = append(readers, b.startWaiter(o, other.Read()))
		}
		b.must(l.Write().Unlock(ctx))
		for _, got := range readers {
			b.must(await(b, "every waiting reader comes in", got))
		}
		b.holds(l.Read(), 2)
		b.isLocked(other.Write(), false)
		b.tries(other.Write(), false)
		b.must(l.Read().Unlock(ctx))
		b.must(l.Read().Unlock(ctx))
		for _, o := range owners {
			b.must(other.Read().Unlock(o))
		}
	})
}

// The release of a write lock was not confirmed by Redis. The read lock inside it, which is renewed, does not keep the
// write lock alive.
func TestReadLockDoesNotKeepAnUnconfirmedWriteLock(t *testing.T) {
	t.Parallel()
	ends := map[string]func(b *bench, l *RWLock, ctx context.Context){
		"Unlock": func(b *bench, l *RWLock, ctx context.Context) {
			assert.Error(b, l.Write().Unlock(ctx), "Unlock reports a release that Redis did not confirm")
		},
		"lease": func(b *bench, l *RWLock, ctx context.Context) {
			guarded, err := l.Write().Guard(ctx)
			b.must(err)
			await(b, "the lease runs out", guarded.Done())
			time.Sleep(100 * time.Millisecond) // the attempt to remove the rest fails meanwhile
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mini := testredis.Mini(t)
			b := newBench(t, mini.Addr())
			ctx := context.Background()
			l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
			if name == "lease" {
				b.must(l.Write().LockLease(ctx, 1500*time.Millisecond))
			} else {
				b.must(l.Write().Lock(ctx))
			}
			b.must(l.Read().Lock(ctx))
			mini.SetError("MISCONF it cannot save to disk")
			end(b, l, ctx)
			mini.SetError("")
			within, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			b.must(other.Read().Lock(within))
			b.holds(l.Read(), 1)
			b.must(other.Read().Unlock(within))
			b.must(l.Read().Unlock(ctx))
		})
	}
}

func TestWriterMayReleaseItsReadLockFirst(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.must(l.Write().Lock(ctx))
		b.must(l.Read().LockLease(ctx, time.Minute))
		b.must(l.Write().Lock(ctx)) // inside the write lock it is not an upgrade
		b.must(l.Read().Unlock(ctx))
		b.tries(other.Read(), false)
		b.must(l.Write().Unlock(ctx))
		b.tries(other.Read(), false)
		b.must(l.Write().Unlock(ctx))
		b.tries(other.Read(), true)
		b.must(other.Read().Unlock(ctx))
	})
}

// B21: an upgrade waits while other owners read, and fails when only its own read lock blocks it.
func TestUpgradeFailsWhenOnlyItsOwnReadIsInTheWay(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.must(l.Read().Lock(ctx))
		for _, err := range []error{l.Write().Lock(ctx), second(l.Write().TryLock(ctx, 0, 0))} {
			assert.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, "itself")
		}
		b.must(other.Read().Lock(ctx))
		b.tries(l.Write(), false)
		owner := ContextWithOwner(ctx)
		b.must(l.Read().Lock(owner))
		got := b.startWaiter(owner, l.Write())
		b.must(l.Read().Unlock(ctx))
		select {
		case err := <-got:
			assert.Fail(t, "it did not wait for the other reader", err)
		case <-time.After(50 * time.Millisecond):
		}
		b.must(other.Read().Unlock(ctx))
		b.mustBe(await(b, "no other owner reads", got), ErrInvalid)
		b.must(l.Read().Unlock(owner))
		b.tries(other.Read(), true) // no waiting writer is left behind
		b.must(other.Read().Unlock(ctx))
	})
}

// Every read hold has a lease of its own.
func TestReadLeasesAreIndependent(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		long, short, write := b.client().NewRWLock(
			b.name,
		).Read(), b.client().NewRWLock(
			b.name,
		).Read(), b.client().NewRWLock(
			b.name,
		).Write()
		b.must(long.LockLease(ctx, time.Minute))
		b.must(short.LockLease(ctx, time.Second))
		ttl, err := long.TTL(ctx)
		b.must(err)
		assert.GreaterOrEqual(t, ttl, 50*time.Second, "a short reader cut the long lease")
		b.must(short.Unlock(ctx))
		ttl, err = long.TTL(ctx)
		b.must(err)
		assert.GreaterOrEqual(t, ttl, 50*time.Second, "a short reader cut the long lease when it left")
		b.tries(write, false)
		b.must(long.Unlock(ctx))

		// The long reader leaves; the lease of the short reader stays.
		b.must(long.LockLease(ctx, time.Hour))
		b.must(short.LockLease(ctx, 300*time.Millisecond))
		b.must(long.Unlock(ctx))
		start := time.Now()
		b.must(write.Lock(ctx))
		assert.LessOrEqual(t, time.Since(start), soon, "time that the writer waited")
		b.must(write.Unlock(ctx))
	})
}

// A reader that has crashed does not block longer than its lease because other readers continue.
func TestWriterEvictsDeadReaders(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		dead, living, write := b.client().NewRWLock(
			b.name,
		).Read(), b.client().NewRWLock(
			b.name,
		).Read(), b.client().NewRWLock(
			b.name,
		).Write()
		b.must(dead.LockLease(ctx, 200*time.Millisecond))
		b.must(living.LockLease(ctx, time.Hour)) // keeps the hash alive
		owner := ContextWithOwner(ctx)
		got := b.startWaiter(owner, write)
		testredis.Await(t, "the dead reader is evicted", soon, func() bool { return b.rdb.HLen(ctx, b.name).Val() == 2 })
		b.must(living.Unlock(ctx))
		b.must(await(b, "the writer gets the lock", got))
		b.mustBe(dead.Unlock(ctx), ErrLockLost)
		b.must(write.Unlock(owner))
	})
}

func TestReadWatchdogRenewsItsOwnHoldOnly(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		const lease = time.Second
		kept := b.client(WithWatchdogTimeout(lease)).NewRWLock(b.name).Read()
		dead := b.client().NewRWLock(b.name).Read()
		b.must(kept.Lock(ctx))
		b.must(kept.Lock(ctx))
		b.must(dead.LockLease(ctx, lease))
		guarded, err := kept.Guard(ctx)
		b.must(err)
		field := func(client *Client) string { return client.ID() }
		select {
		case <-guarded.Done():
			require.NoError(t, context.Cause(guarded), "the hold is lost")
		case <-time.After(3 * lease):
		}
		leases := b.rdb.Keys(ctx, "{"+b.name+"}:*:rwlock_timeout:*").Val()
		for _, key := range leases {
			assert.NotContains(t, key, field(dead.client), "the lease of a dead reader is kept alive")
		}
		assert.Len(t, leases, 2, "leases")
		b.must(kept.Unlock(ctx))
		b.must(kept.Unlock(ctx))
	})
}

// B19: the lease of a write lock is not added to the remaining one.
func TestWriteLeaseDoesNotAddUp(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		w := b.client().NewRWLock(b.name).Write()
		for range 5 {
			b.must(w.Lock(ctx))
		}
		ttl, err := w.TTL(ctx)
		if assert.NoError(t, err) {
			assert.LessOrEqual(t, ttl, 30*time.Second, "TTL")
		}
		for range 5 {
			b.must(w.Unlock(ctx))
		}
	})
}

// Releasing the write lock notifies all readers of all processes at the same time.
func TestWriteReleaseWakesAllReaders(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		w := b.client().NewRWLock(b.name).Write()
		b.must(w.Lock(ctx))
		var inside atomic.Int64
		all := make(chan struct{})
		var wg sync.WaitGroup
		const clients, readers = 3, 12
		for range clients {
			r := b.client(WithPollInterval(time.Hour)).NewRWLock(b.name).Read()
			for range readers / clients {
				waitgroup.Go(&wg, func() {
					if !assert.NoError(t, r.Lock(ctx)) {
						return
					}
					if inside.Add(1) == readers {
						close(all)
					}
					<-all // all of them at the same time
					assert.NoError(t, r.Unlock(ctx))
				})
			}
		}
		testredis.Await(t, "the readers of all clients wait", soon, func() bool {
			return b.hearers("redisson_rwlock:{"+b.name+"}") == clients
		})
		b.must(w.Unlock(ctx))
		await(b, "all readers are in", all)
		wg.Wait()
	})
}

// L5: relock readers that arrive without a pause do not starve a writer.
func TestWriterIsNotStarved(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	const reading = 50 * time.Millisecond
	var reads atomic.Int64
	for range 2 {
		r := b.client().NewRWLock(b.name).Read()
		for range 8 { // enough for one of them to be reading at any time
			waitgroup.Go(&wg, func() {
				for ctx.Err() == nil {
					if err := r.Lock(ctx); err != nil {
						continue
					}
					reads.Add(1)
					time.Sleep(reading)
					assert.NoError(t, r.Unlock(ctx))
				}
			})
		}
	}
	w := b.client().NewRWLock(b.name).Write()
	for range 10 {
		before := reads.Load()
		testredis.Await(t, "the readers are at it", soon, func() bool { return reads.Load() > before+8 })
		start := time.Now()
		b.must(w.Lock(context.Background()))
		assert.LessOrEqual(t, time.Since(start), reading+soon/2, "time that the writer waited")
		b.must(w.Unlock(context.Background()))
	}
	cancel()
	wg.Wait()
}

// Writers that arrive without a pause do not starve readers.
func TestReadersAreNotStarved(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 {
		w := b.client().NewRWLock(b.name).Write()
		for range 3 {
			waitgroup.Go(&wg, func() {
				for ctx.Err() == nil {
					if w.Lock(ctx) == nil {
						time.Sleep(time.Millisecond)
						assert.NoError(t, w.Unlock(ctx))
					}
				}
			})
		}
	}
	r := b.client().NewRWLock(b.name).Read()
	for range 10 {
		deadline, done := context.WithTimeout(context.Background(), 2*soon)
		if assert.NoError(t, r.Lock(deadline)) {
			b.must(r.Unlock(context.Background()))
		}
		done()
	}
	cancel()
	wg.Wait()
}

// When a writer gives up, the readers that waited for it acquire the lock.
func TestWriterThatGivesUpLetsReadersIn(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		reading := b.client().NewRWLock(b.name).Read()
		b.must(reading.Lock(ctx))
		waiting, cancel := context.WithCancel(ctx)
		writer := b.startWaiter(waiting, b.client().NewRWLock(b.name).Write())
		testredis.Await(t, "the writer has said that it waits", soon, func() bool {
			return b.rdb.Exists(ctx, "relock_rwlock_writers:{"+b.name+"}").Val() == 1
		})
		owner := ContextWithOwner(ctx)
		late := b.client(WithPollInterval(time.Hour)).NewRWLock(b.name).Read()
		b.tries(late, false)
		b.tries(reading, true) // an owner that already reads may acquire the read lock again
		got := b.startWaiter(owner, late)
		cancel()
		b.mustBe(await(b, "the writer gives up", writer), context.Canceled)
		b.must(await(b, "the reader comes in", got))
		b.must(late.Unlock(owner))
		b.must(reading.Unlock(ctx))
		b.must(reading.Unlock(ctx))
	})
}

// The record.
func TestRWLockWritesRedissonsRecord(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name)
		messages := b.rdb.Subscribe(ctx, "redisson_rwlock:{"+b.name+"}")
		defer messages.Close()
		_, err := messages.Receive(ctx)
		b.must(err)
		b.must(l.Read().Lock(ctx))
		b.must(l.Read().Lock(ctx))
		record := b.rdb.HGetAll(ctx, b.name).Val()
		var field string
		for f := range record {
			if f != "mode" {
				field = f
			}
		}
		assert.Equal(t, map[string]string{"mode": "read", field: "2"}, record)
		for _, i := range []string{"1", "2"} {
			key := "{" + b.name + "}:" + field + ":rwlock_timeout:" + i
			v, ttl := b.rdb.Get(ctx, key).Val(), b.rdb.PTTL(ctx, key).Val()
			assert.Equal(t, "1", v, key)
			assert.Positive(t, ttl, key)
			assert.LessOrEqual(t, ttl, 30*time.Second, key)
		}
		b.must(l.Read().Unlock(ctx))
		assert.Len(t, b.keys(), 2, "keys")
		b.must(l.Read().Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if assert.NoError(t, err) {
			assert.Equal(t, "0", m.Payload, "the last reader says")
		}
		b.must(l.Write().Lock(ctx))
		record = b.rdb.HGetAll(ctx, b.name).Val()
		for f, v := range record {
			if f != "mode" {
				assert.True(t, strings.HasSuffix(f, ":write"), "field %s", f)
				assert.Equal(t, "1", v, "levels")
			}
		}
		assert.Len(t, record, 2)
		assert.Equal(t, "write", record["mode"])
		b.must(l.Write().Unlock(ctx))
		m, err = messages.ReceiveMessage(ctx)
		if assert.NoError(t, err) {
			assert.Equal(t, "1", m.Payload, "the writer says")
		}
	})
}

// Java's readers and writers are respected, and crashed ones are evicted.
func TestRWRecordOfAJavaClientIsRespected(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client(WithPollInterval(50 * time.Millisecond)).NewRWLock(b.name)
		b.must(b.rdb.HSet(ctx, b.name, "mode", "read", javaThread, 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		lease := "{" + b.name + "}:" + javaThread + ":rwlock_timeout:1"
		b.must(b.rdb.Set(ctx, lease, 1, time.Minute).Err())
		b.tries(l.Write(), false)
		b.tries(l.Read(), true)
		b.must(l.Read().Unlock(ctx))
		assert.True(t, b.rdb.HExists(ctx, b.name, javaThread).Val(), "the release of a reader removed the Java reader")
		b.must(b.rdb.PExpire(ctx, lease, 100*time.Millisecond).Err())
		b.must(l.Write().Lock(ctx)) // when its lease has expired
		b.must(l.Write().Unlock(ctx))
		b.must(b.rdb.HSet(ctx, b.name, "mode", "write", javaThread+":write", 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.tries(l.Read(), false)
		b.tries(l.Write(), false)
		b.must(b.rdb.PExpire(ctx, b.name, 100*time.Millisecond).Err())
		b.must(l.Read().Lock(ctx))
		b.must(l.Read().Unlock(ctx))
	})
}

// A plain lock and a read/write lock of one name are not held at the same time.
func TestRWLockAndPlainLockExcludeEachOther(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		plain, rw := b.client().NewLock(b.name), b.client().NewRWLock(b.name)
		b.must(plain.Lock(ctx))
		b.tries(rw.Read(), false)
		b.tries(rw.Write(), false)
		b.isLocked(rw.Write(), false)
		b.must(plain.Unlock(ctx))
		b.must(rw.Read().Lock(ctx))
		b.tries(plain, false)
		b.must(rw.Read().Unlock(ctx))
	})
}

// A write lease that expires with a read lock inside has ended, whatever keeps the record alive.
func TestWriteLeaseExpiresAroundAReadLock(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.must(l.Write().LockLease(ctx, time.Second))
		b.must(l.Read().Lock(ctx))
		ok, err := other.Read().TryLock(ctx, soon, 0)
		require.NoError(t, err)
		require.True(t, ok, "another reader")
		b.must(other.Read().Unlock(ctx))
		b.mustBe(second(l.Write().TryLock(ctx, soon, 0)), ErrInvalid)
		b.must(l.Read().Unlock(ctx))
		ok, err = other.Write().TryLock(ctx, soon, 0)
		require.NoError(t, err)
		require.True(t, ok, "another writer")
		b.must(other.Write().Unlock(ctx))
	})
}

// Two readers that both ask for the write lock would wait for each other: all but one get an error.
func TestUpgradersDoNotBlockEachOther(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name)
		one, two := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.must(l.Read().Lock(one))
		b.must(l.Read().Lock(two))
		results := make(chan error, 2)
		for _, owner := range []context.Context{one, two} {
			go func() {
				err := l.Write().Lock(owner)
				if err != nil {
					err = errors.Join(err, l.Read().Unlock(owner))
				}
				results <- err
			}()
		}
		refused := 0
		for range 2 {
			if err := await(b, "an upgrader is refused", results); errors.Is(err, ErrInvalid) {
				refused++
			} else {
				assert.NoError(t, err)
			}
		}
		assert.NotZero(t, refused, "no upgrader was refused")
		for _, half := range []Locker{l.Write(), l.Read()} {
			for _, owner := range []context.Context{one, two} {
				if n, err := half.HoldCount(owner); n > 0 && err == nil {
					b.must(half.Unlock(owner))
				}
			}
		}
	})
}

// A waiting upgrade also fails when its owner acquires the read lock later, in another goroutine.
func TestUpgradeFailsWhenItsOwnerReadsLater(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		owner := ContextWithOwner(ctx)
		l, other := b.client(WithPollInterval(50*time.Millisecond)).NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.must(other.Read().Lock(ctx))
		got := b.startWaiter(owner, l.Write())
		b.must(b.rdb.Del(ctx, "relock_rwlock_writers:{"+b.name+"}").Err()) // so that the reader acquires the lock
		testredis.Await(t, "the reader comes in", soon, func() bool {
			ok, err := l.Read().TryLock(owner, 0, 0)
			if !ok {
				b.rdb.Del(ctx, "relock_rwlock_writers:{"+b.name+"}")
			}
			return ok && err == nil
		})
		b.must(other.Read().Unlock(ctx))
		b.mustBe(await(b, "the writer is told", got), ErrInvalid)
		b.must(l.Read().Unlock(owner))
	})
}

func TestForceUnlockFreesItsHalfOnly(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		force := func(l Locker, want bool) {
			t.Helper()
			freed, err := l.ForceUnlock(ctx)
			require.NoError(t, err)
			require.Equal(t, want, freed)
		}
		b.must(l.Write().Lock(ctx))
		force(l.Read(), false)
		b.must(l.Read().Lock(ctx))
		b.isLocked(l.Read(), true)
		force(l.Read(), true)
		b.mustBe(l.Read().Unlock(ctx), ErrLockLost)
		b.holds(l.Write(), 1)
		b.tries(other.Read(), false)

		b.must(l.Read().Lock(ctx))
		guarded, err := l.Read().Guard(ctx)
		b.must(err)
		force(other.Write(), true)
		b.mustBe(l.Write().Unlock(ctx), ErrLockLost)
		b.holds(l.Read(), 1)
		assert.NoError(t, guarded.Err(), "ForceUnlock of the write lock freed the read lock")
		b.tries(other.Write(), false)
		force(other.Write(), false)
		b.must(l.Read().Unlock(ctx))
	})
}

// If the write lock is released by force, the record lasts no longer than the readers that its owner leaves, whatever
// lease the writer had: a Java writer waits for the end of the record.
func TestForceUnlockOfAWriterLeavesNoLeaseOfItsOwn(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		for name, left := range map[string]time.Duration{"a reader": time.Minute, "a dead reader": 0} {
			ctx, l := ContextWithOwner(context.Background()), b.client().NewRWLock(b.name)
			b.must(l.Write().LockLease(ctx, time.Hour))
			b.must(l.Read().LockLease(ctx, time.Minute))
			if left == 0 {
				b.must(b.rdb.Del(ctx, b.rdb.Keys(ctx, "{"+b.name+"}*:rwlock_timeout:*").Val()...).Err())
			}
			freed, err := b.client().NewRWLock(b.name).Write().ForceUnlock(ctx)
			b.must(err)
			assert.True(t, freed)
			assert.LessOrEqual(t, b.rdb.PTTL(ctx, b.name).Val(), left, name)
			b.mustBe(l.Write().Unlock(ctx), ErrLockLost)
			if left > 0 {
				b.must(l.Read().Unlock(ctx))
			}
		}
	})
}

// So it is with readers, if some of them are released by force.
func TestForceUnlockOfSomeReadersLeavesNoLeaseOfTheirs(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, c := context.Background(), b.client()
		l := c.NewRWLock(b.name).Read().record
		does := func(what call, first int64) {
			t.Helper()
			r, err := run(ctx, b.rdb, what)
			b.must(err)
			require.Equal(t, first, r[0])
		}
		forced, other := attemptOf(c), attemptOf(c)
		forced.Lease, other.Field = time.Hour, c.ID()+":2:02"
		for name, left := range map[string]time.Duration{"a reader": other.Lease, "a dead reader": 0} {
			does(l.Acquire(forced), 1)
			does(l.Acquire(other), 1)
			if left == 0 {
				b.must(b.rdb.Del(ctx, "{"+b.name+"}:"+other.Field+":rwlock_timeout:1").Err())
			}
			does(l.Force(forced.Field), 1)
			assert.LessOrEqual(t, b.rdb.PTTL(ctx, b.name).Val(), left, name)
			does(l.RollBack(other), map[bool]int64{true: 1, false: -1}[left > 0])
		}
	})
}

// A reader of relock has one lease that counts, whatever its hold count is: many such readers are released by force,
// too.
func TestForceUnlockReleasesDeepReaders(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name).Read()
		const most = 6
		for i := range most {
			reader := fmt.Sprintf("%s:%d:0%d", l.client.ID(), i, i)
			b.must(b.rdb.HSet(ctx, b.name, "mode", "read", reader, mostHoldCount).Err())
			for _, n := range []int{1, mostHoldCount} {
				b.must(b.rdb.Set(ctx, fmt.Sprint("{", b.name, "}:", reader, ":rwlock_timeout:", n), 1, time.Minute).Err())
			}
		}
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.tries(b.client().NewRWLock(b.name).Write(), false)
		freed, err := l.ForceUnlock(ctx)
		b.must(err)
		assert.True(t, freed)
		for _, key := range b.keys() {
			assert.Regexp(t, ":rwlock_timeout:10000$", key, "only what expires is left")
		}
		b.forget()
	})
}

// IsLocked of a read lock counts readers whose lease has not expired.
func TestReadIsLockedCountsLiveReaders(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name)
		b.must(l.Write().Lock(ctx))
		b.must(l.Read().LockLease(ctx, 50*time.Millisecond))
		testredis.Await(t, "the read lease ends", soon, func() bool {
			locked, err := l.Read().IsLocked(ctx)
			return err == nil && !locked
		})
		b.must(l.Write().Unlock(ctx))
	})
}

// Whatever the hold count of a reader is, each call costs Redis the same: acquiring, releasing, renewing and
// inspecting.
func TestEveryLevelOfAReaderCostsTheSame(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	rw, rival := b.client(WithWatchdogTimeout(time.Hour)).NewRWLock(b.name), b.client().NewRWLock(b.name).Write()
	read := rw.Read()
	cost := func(what string, f func()) (commands int) {
		b.must(b.rdb.ConfigResetStat(ctx).Err())
		f()
		for line := range strings.Lines(b.rdb.Info(ctx, "commandstats").Val()) {
			_, calls, found := strings.Cut(strings.TrimSpace(line), ":calls=")
			if calls, _, _ = strings.Cut(calls, ","); found && !strings.Contains(line, "config") {
				n, err := strconv.Atoi(calls)
				b.must(err)
				commands += n
			}
		}
		return commands
	}
	lease := time.Hour
	costs := func() (all []int) {
		lease += time.Minute // so that there is always work to do
		renew := []call{read.record.Renew(b.fieldOf(read), lease, false)}
		for what, f := range []func(){
			func() { b.must(read.Lock(ctx)) },
			func() { b.must(read.Unlock(ctx)) },
			func() {
				replies, errs := read.client.engine.Probe().Sender().All(ctx, renew)
				b.must(errs[0])
				require.EqualValues(t, 1, replies[0][0])
			},
			func() { b.tries(rival, false) },
			func() { b.isLocked(read, true) },
			func() { b.inspect(rw.read.client) },
		} {
			all = append(all, cost(strconv.Itoa(what), f))
		}
		return all
	}
	const deep = 1000
	for range 3 {
		b.must(read.Lock(ctx))
	}
	costs() // the server loads the scripts
	shallow := costs()
	for range deep {
		b.must(read.Lock(ctx))
	}
	assert.InDeltaSlice(t, shallow, costs(), 2) // a lease that is already as long, to the millisecond, is not set
	for range deep + 3 {
		b.must(read.Unlock(ctx))
	}
}

// fieldOf returns the field of the only reader.
func (b *bench) fieldOf(l *ReadLock) string {
	for _, field := range b.rdb.HKeys(context.Background(), b.name).Val() {
		if field != "mode" {
			return field
		}
	}
	require.Fail(b, "no reader holds "+l.Name())
	return ""
}

// Java respects the longest lease of a reader's acquires that the hash counts.
func TestJavaSeesTheLeaseOfANestedReader(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		b := newBench(t, addr)
		ctx := context.Background()
		const lease = 2 * time.Second
		read := b.client(WithWatchdogTimeout(lease)).NewRWLock(b.name).Read()
		const deep = 3
		for range deep {
			b.must(read.Lock(ctx))
		}
		field := b.fieldOf(read)
		longest := func(levels int) (longest time.Duration) {
			for i := levels; i > 0; i-- {
				longest = max(longest, b.rdb.PTTL(ctx, "{"+b.name+"}:"+field+":rwlock_timeout:"+strconv.Itoa(i)).Val())
			}
			return longest
		}
		for levels := deep; levels > 0; levels-- { // each for longer than a lease
			assert.Equal(t, strconv.Itoa(levels), b.rdb.HGet(ctx, b.name, field).Val())
			for end := time.Now().Add(lease); time.Now().Before(end); time.Sleep(lease / 20) {
				require.Positive(t, longest(levels), "at level %d", levels)
			}
			b.must(read.Unlock(ctx))
		}
		assert.Empty(t, b.keys())

		// A longer lease of an inner acquire becomes the lease of the hold.
		b.must(read.LockLease(ctx, 10*lease))
		b.must(read.LockLease(ctx, time.Hour))
		field = b.fieldOf(read)
		b.must(read.Unlock(ctx))
		assert.Greater(t, longest(1), 50*time.Minute)
		b.must(read.Unlock(ctx))
	})
}

// S5: a write lease expires while its owner's request for the read lock is in flight. The read lock keeps the record
// alive, and the ended write hold does not keep other readers out.
func TestWriteLeaseThatEndsDuringTheReadIsOver(t *testing.T) {
	b := newFaultBench(t)
	for half, acquire := range map[string]*luaScript{"read": readAcquire, "write": writeAcquire} {
		ctx := context.Background()
		l, other := b.shaky().NewRWLock(b.name), b.direct.NewRWLock(b.name)
		b.proxy.On(calls(acquire), testredis.DelayReply(400*time.Millisecond))
		b.must(l.Write().LockLease(ctx, 200*time.Millisecond))
		b.must(l.Read().Lock(ctx))
		ok, err := other.Read().TryLock(ctx, soon, 0)
		b.must(err)
		require.True(t, ok, "another reader is kept out (%s)", half)
		b.must(other.Read().Unlock(ctx))
		b.must(l.Read().Unlock(ctx))
	}
}

// Acquiring the read lock inside the write lock never waits for another caller of the owner: a goroutine of the owner
// that waits in the local queue behind another reader asks Redis itself as soon as the owner holds the write lock.
func TestReadInsideWriteNeverWaitsForItsOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, d, w := b.client(WithPollInterval(time.Hour)), b.client(), b.client()
	rw := c.NewRWLock(b.name)
	x, y := ContextWithOwner(ctx), ContextWithOwner(ctx)
	b.must(d.NewRWLock(b.name).Read().Lock(ctx))
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { _ = w.NewRWLock(b.name).Write().Lock(waits) }() // from now on new readers wait
	writers := prefixName("relock_rwlock_writers", b.name)
	testredis.Await(b, "the writer waits", soon, func() bool { return b.rdb.ZCard(ctx, writers).Val() == 1 })

	lock := func(l Locker, owner context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			err := l.Lock(owner)
			if err == nil {
				time.Sleep(10 * time.Millisecond)
				err = l.Unlock(owner)
			}
			done <- err
		}()
		return done
	}
	front := lock(rw.Read(), y)
	testredis.Await(b, "another owner is in front", soon, func() bool { return b.asks(rw.Read()) })
	behind := lock(rw.Read(), x)
	testredis.Await(b, "a reader of the owner waits behind it", soon, func() bool { return b.waitsInQueue(rw.Read()) })
	writes := make(chan error, 1)
	go func() { writes <- rw.Write().Lock(x) }()
	testredis.Await(b, "the owner waits to write", soon, func() bool { return b.rdb.ZCard(ctx, writers).Val() == 2 })
	cancel()
	// If the lock passed to the writer that is leaving, readers would have their chance before the next writer.
	testredis.Await(b, "the first writer has left", soon, func() bool { return b.rdb.ZCard(ctx, writers).Val() == 1 })
	b.must(d.NewRWLock(b.name).Read().Unlock(ctx))
	b.must(await(b, "the owner writes", writes))
	inside, end := context.WithTimeout(x, soon)
	defer end()
	b.must(rw.Read().Lock(inside))
	b.must(await(b, "its other reader reads", behind))
	b.must(rw.Read().Unlock(x))
	b.must(rw.Write().Unlock(x))
	b.must(await(b, "the other owner reads", front))
}

// Acquiring the write lock inside the read lock fails at once, even if a goroutine of the owner waits to write behind
// another writer.
func TestWriteInsideReadIsRefusedWhileItsOwnerWaitsToWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	rw, d := b.client(WithPollInterval(time.Hour)).NewRWLock(b.name), b.client().NewRWLock(b.name)
	tried := 0 // rounds in which the owner read before the writer ahead of it wrote
	for round := 0; tried < 2 && round < 40; round++ {
		x, y := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.must(d.Write().Lock(ctx))
		front, refused := make(chan error, 1), make(chan error, 1)
		go func() {
			err := rw.Write().Lock(y)
			if err == nil {
				err = rw.Write().Unlock(y)
			}
			front <- err
		}()
		testredis.Await(b, "a writer is in front", soon, func() bool { return b.asks(rw.Write()) })
		behind, cancel := context.WithCancel(x)
		go func() {
			err := rw.Write().Lock(behind)
			if err == nil {
				err = rw.Write().Unlock(x)
			}
			refused <- err
		}()
		testredis.Await(b, "the owner waits behind it", soon, func() bool { return b.waitsInQueue(rw.Write()) })
		reads := make(chan error, 1)
		go func() { reads <- rw.Read().Lock(x) }()
		time.Sleep(20 * time.Millisecond) // it asks Redis by then; no call shows that
		b.must(d.Write().Unlock(ctx))
		b.must(await(b, "the owner reads", reads))
		written := false
		select {
		case <-front: // the writer was first
			written = true
		default:
			tried++
			inside, end := context.WithTimeout(x, soon)
			ok, err := rw.Write().TryLock(inside, soon, 0)
			if assert.False(t, ok) && ctx.Err() == nil && err != nil {
				b.mustBe(err, ErrInvalid)
			}
			assert.NoError(t, inside.Err(), "the writer waits for itself")
			end()
		}
		cancel()
		b.must(rw.Read().Unlock(x))
		<-refused
		if !written {
			b.must(await(b, "the writer in front", front)) // before the next round
		}
		b.rdb.Del(ctx, b.name)
	}
	assert.Positive(t, tried, "the owner was never first")
}

// A lineBench has a real server, and clients whose attempts for the write lock it counts.
type lineBench struct {
	*bench
	line, releases string // the key of the line, and the channel of the lock
	asked          atomic.Int64
}

func newRWLineBench(t *testing.T) *lineBench {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	for _, script := range allScripts() {
		b.must(b.rdb.ScriptLoad(context.Background(), script.Source()).Err()) // so that an attempt is one command
	}
	return &lineBench{bench: b, line: lineKey(b.name), releases: prefixName("redisson_rwlock", b.name)}
}

func (b *lineBench) rw(opts ...LockOption) *RWLock {
	rdb := testredis.Client(b, b.addr)
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == writeAcquire.Digest() {
			b.asked.Add(1)
		}
	}))
	return b.clientOn(rdb, WithPollInterval(time.Hour), WithHandoffWindow(time.Minute)).NewRWLock(b.name, opts...)
}

// waits starts a writer, and returns when it has an entry in the line.
func (b *lineBench) waits(ctx context.Context, l *WriteLock) <-chan error {
	b.Helper()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	b.awaitPlace(l)
	return got
}

func (b *lineBench) awaitPlace(l *WriteLock) {
	b.Helper()
	testredis.Await(b, "the writer stands in the line", soon, func() bool {
		line := b.rdb.HGetAll(context.Background(), b.line).Val()
		for number, client := range line {
			if client == l.client.ID() {
				return strings.HasPrefix(line[client], number+" ")
			}
		}
		return false
	})
}

// listeners returns how many connections are subscribed to the channel of the lock.
func (b *lineBench) listeners() int64 {
	return b.hearers(b.releases)
}

// joinsDead adds an entry for a client that does not exist to the line.
func (b *lineBench) joinsDead() (client string) {
	b.Helper()
	ctx := context.Background()
	l := b.client().NewRWLock(b.name).Write()
	e := l.client.engine
	attempt := contract.Attempt{
		Field:     e.Probe().NewField(1),
		Lease:     time.Minute,
		HoldCount: 1,
		Delivery:  contract.Push,
		Asked:     1,
	}
	s := b.subscribe(l.client.grantChannel(b.releases))
	defer testredis.Await(
		b,
		"it does not listen any more",
		soon,
		func() bool { return b.hearers(l.client.grantChannel(b.releases)) == 0 },
	)
	defer func() { _ = s.Close() }()
	r, err := run(ctx, b.rdb, l.record.Acquire(attempt))
	b.must(err)
	require.EqualValues(b, 1, r[2]%4, "it has a place")
	return e.ID
}

// With one script a writer passes the lock to the first writer of another process, whose Lock returns without a
// request.
func TestWriterPassesToTheNextWriter(t *testing.T) {
	for name, opts := range map[string][]LockOption{"plain": nil, "fenced": {Fenced()}} {
		t.Run(name, func(t *testing.T) {
			b := newRWLineBench(t)
			ctx := ContextWithOwner(context.Background())
			from, to := b.rw(opts...).Write(), b.rw(opts...).Write()
			b.must(from.Lock(ctx))
			var last, asked int64
			for range 5 {
				got := b.waits(ctx, to)
				before := b.asked.Load()
				b.must(from.Unlock(ctx))
				b.must(await(b.bench, "the next writer has the lock", got))
				asked += b.asked.Load() - before
				record := b.rdb.HGetAll(ctx, b.name).Val()
				assert.Len(t, record, 2, "%v", record)
				assert.Equal(t, "write", record["mode"])
				for field := range record {
					if field != "mode" {
						assert.Equal(t, to.client.ID(), field[:36])
						assert.True(t, strings.HasSuffix(field, ":write"), field)
					}
				}
				held, err := to.IsHeld(ctx)
				b.must(err)
				assert.True(t, held)
				assert.Zero(t, b.rdb.Exists(ctx, "relock_rwlock_writers:{"+b.name+"}").Val(), "no writer waits")
				if name == "fenced" {
					token, err := to.Token(ctx)
					b.must(err)
					assert.Greater(t, token, last)
					last = token
				}
				from, to = to, from
			}
			b.must(from.Unlock(ctx))
			assert.LessOrEqual(t, asked, int64(1), "attempts after the release; a heartbeat may have been due")
		})
	}
}

// A granted writer whose lease is short at first renews it, and holds the lock for as long as it needs.
func TestGrantedWriterRenews(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, to := b.rw().Write(), b.rw().Write()
	b.must(from.Lock(ctx))
	got := b.waits(ctx, to)
	b.must(from.Unlock(ctx))
	b.must(await(b.bench, "the next writer has the lock", got))
	testredis.Await(
		t,
		"the grant is confirmed",
		soon,
		func() bool { return b.rdb.PTTL(ctx, b.name).Val() > 2*engine.ProvisionalLease },
	)
	b.must(to.Unlock(ctx))
}

// The last reader passes the lock to the first writer: when it unlocks, and when a writer or a reader finds that the
// others have crashed.
func TestLastReaderPassesToTheFirstWriter(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	one, two, dead, write := b.rw(Fenced()).Read(), b.rw(Fenced()).Read(), b.rw(Fenced()).Read(), b.rw(Fenced()).Write()
	asked := int64(0)
	for range 5 {
		b.must(dead.LockLease(ctx, 100*time.Millisecond))
		b.must(one.Lock(ctx))
		b.must(two.Lock(ctx))
		got := b.waits(ctx, write)
		time.Sleep(100 * time.Millisecond)
		b.must(one.Unlock(ctx))
		assert.Equal(t, "read", b.rdb.HGet(ctx, b.name, "mode").Val())
		before := b.asked.Load()
		b.must(two.Unlock(ctx))
		b.must(await(b.bench, "the writer has the lock", got))
		asked += b.asked.Load() - before
		assert.Zero(t, b.rdb.Exists(ctx, "relock_rwlock_writers:{"+b.name+"}").Val(), "no writer waits")
		b.must(write.Unlock(ctx))
		_ = dead.Unlock(ctx)
	}
	assert.LessOrEqual(t, asked, int64(1), "attempts after the release; a heartbeat may have been due")
}

// The lock passes over a writer whose process has crashed.
func TestDeadWriterIsPassedOver(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, to := b.rw().Write(), b.rw().Write()
	for range 2 {
		b.must(from.Lock(ctx))
		dead := b.joinsDead()
		got := b.waits(ctx, to)
		before := b.asked.Load()
		b.must(from.Unlock(ctx))
		b.must(await(b.bench, "the living writer has the lock", got))
		assert.LessOrEqual(t, b.asked.Load()-before, int64(1), "attempts after the release; a heartbeat may have been due")
		assert.False(t, b.rdb.HExists(ctx, b.line, dead).Val(), "the dead client has a place")
		b.must(to.Unlock(ctx))
	}
	b.rdb.Del(ctx, "relock_rwlock_writers:{"+b.name+"}") // the heartbeat of the writer that has crashed
}

// A writer that gives up removes its entry. If the lock is free by then, it passes the lock on.
func TestWriterThatGivesUpPassesOn(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	first, second := b.rw().Write(), b.rw().Write()
	asked := int64(0)
	for range 3 {
		b.must(b.rdb.HSet(ctx, b.name, "mode", "write", b.client().engine.Probe().NewField(1)+":write", 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		waiting, cancel := context.WithCancel(ctx)
		leaves := b.waits(waiting, first)
		got := b.waits(ctx, second)
		b.must(b.rdb.Del(ctx, b.name).Err())
		before := b.asked.Load()
		cancel()
		b.mustBe(await(b.bench, "the first writer gives up", leaves), context.Canceled)
		b.must(await(b.bench, "the second writer has the lock", got))
		asked += b.asked.Load() - before
		assert.False(t, b.rdb.HExists(ctx, b.line, first.client.ID()).Val(), "the first one has a place")
		b.must(second.Unlock(ctx))
	}
	assert.LessOrEqual(t, asked, int64(2), "attempts after the undo; heartbeats may have been due")
}

// A forced release passes the lock on.
func TestForceUnlockPassesToTheFirstWriter(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, to := b.rw(), b.rw().Write()
	asked := int64(0)
	for _, half := range []Locker{from.Read(), from.Write(), from.Read(), from.Write()} {
		b.must(half.Lock(ctx))
		got := b.waits(ctx, to)
		before := b.asked.Load()
		freed, err := half.ForceUnlock(ctx)
		b.must(err)
		assert.True(t, freed)
		b.must(await(b.bench, "the writer has the lock", got))
		asked += b.asked.Load() - before
		b.mustBe(half.Unlock(ctx), ErrLockLost)
		b.must(to.Unlock(ctx))
	}
	assert.LessOrEqual(t, asked, int64(1), "attempts after the release; a heartbeat may have been due")
}

// If a reader is subscribed to the channel, a writer leaves the lock free for it, every time, and notifies the first
// writer, too. So does the last reader.
func TestWriterLeavesTheLockToReadersThatWait(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, to, read := b.rw(), b.rw().Write(), b.rw().Read()
	told := b.rdb.Subscribe(ctx, b.releases, to.record.Grants(contract.Attempt{}))
	defer told.Close()
	for range 2 {
		_, err := told.Receive(ctx)
		b.must(err)
	}
	for _, half := range []Locker{from.Write(), from.Write(), from.Read()} {
		b.must(half.Lock(ctx))
		writes := b.waits(ctx, to)
		reads := make(chan error, 1)
		go func() { reads <- read.Lock(ctx) }()
		testredis.Await(t, "the reader waits", soon, func() bool { return b.asks(read) && b.listeners() == 2 })
		b.must(half.Unlock(ctx))
		message := "1"
		if half == from.Read() {
			message = "0"
		}
		for range 2 {
			within, done := context.WithTimeout(ctx, soon)
			m, err := told.ReceiveMessage(within)
			done()
			b.must(err)
			assert.Equal(t, map[bool]string{true: message, false: "free"}[m.Channel == b.releases], m.Payload)
		}
		for range 2 {
			select {
			case err := <-reads:
				b.must(err)
				b.must(read.Unlock(ctx))
			case err := <-writes:
				b.must(err)
				b.must(to.Unlock(ctx))
			case <-time.After(soon):
				require.Fail(t, "the lock is free, and neither has it")
			}
		}
		for err := error(nil); err == nil; { // the messages of these
			_, err = told.ReceiveTimeout(ctx, 100*time.Millisecond)
		}
	}
}

// A writer that crashed before the clock of Redis was set back keeps no reader out: its heartbeat is later than that of
// any live writer can be. A live writer does.
func TestReaderIsNotHeldOffByAHeartbeatOfTheFuture(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b, ctx := newBench(t, addr), context.Background()
		writers := prefixName("relock_rwlock_writers", b.name)
		read := b.client().NewRWLock(b.name).Read()
		b.Cleanup(func() { b.rdb.Del(ctx, writers) })
		beats := func(client string, in time.Duration) {
			b.must(
				b.rdb.ZAdd(ctx, writers, redis.Z{Score: float64(time.Now().Add(in).UnixMilli()), Member: client + ":1:01"}).Err(),
			)
		}
		beats(uuid.NewString(), 10*time.Minute)
		beats(uuid.NewString(), -time.Minute)
		b.tries(read, true)
		b.must(read.Unlock(ctx))

		beats(uuid.NewString(), writerLife)
		b.tries(read, false)
	})
}

// Readers that both ask for the write lock make each other fail. One that has crashed, with a heartbeat in the future,
// does not count.
func TestUpgradeIsNotRefusedForAHeartbeatOfTheFuture(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b, ctx := newBench(t, addr), context.Background()
		dead, l := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.Cleanup(func() { b.rdb.Del(ctx, prefixName("relock_rwlock_writers", b.name)) })
		b.must(dead.Read().Lock(ctx))
		b.must(l.Read().Lock(ctx))
		for _, field := range b.rdb.HKeys(ctx, b.name).Val() {
			if strings.HasPrefix(field, dead.read.client.ID()) {
				b.must(b.rdb.ZAdd(ctx, prefixName("relock_rwlock_writers", b.name),
					redis.Z{Score: float64(time.Now().Add(10 * time.Minute).UnixMilli()), Member: field}).Err())
			}
		}
		b.tries(l.Write(), false)
		b.must(dead.Read().Unlock(ctx))
		b.must(l.Read().Unlock(ctx))
	})
}

// Writers that pass the lock to each other let readers in between, and readers that follow each other let writers in.
func TestReadersAndWritersOfManyProcessesTakeTurns(t *testing.T) {
	b := newRWLineBench(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*soon) // a limit for a caller that is starved
	defer cancel()
	enough := time.Now().Add(full(time.Second/2, 10*time.Second))
	var all sync.WaitGroup
	var inside atomic.Int64 // number of readers, or -1 for a writer
	turns := make([]atomic.Int64, 6)
	for i := range turns {
		rw := b.rw()
		half := Locker(rw.Write())
		if i >= 3 {
			half = rw.Read()
		}
		waitgroup.Go(&all, func() {
			for ctx.Err() == nil {
				if half.Lock(ctx) != nil {
					continue
				}
				if i < 3 {
					assert.True(t, inside.CompareAndSwap(0, -1), "a writer is alone")
				} else {
					assert.Positive(t, inside.Add(1), "no writer beside readers")
				}
				time.Sleep(time.Millisecond)
				if i < 3 {
					inside.Store(0)
				} else {
					inside.Add(-1)
				}
				turns[i].Add(1)
				assert.NoError(t, half.Unlock(context.Background()))
			}
		})
	}
	for ctx.Err() == nil { // a machine that is busy needs longer for ten turns
		time.Sleep(10 * time.Millisecond)
		least := turns[0].Load()
		for i := range turns {
			least = min(least, turns[i].Load())
		}
		if time.Now().After(enough) && least >= 10 {
			cancel()
		}
	}
	all.Wait()
	for i := range turns {
		assert.GreaterOrEqual(t, turns[i].Load(), int64(10), "turns of %d; the first three write", i)
	}
}

// While a holder does not know the line, a writer listens to the channel of the lock, which is the only one on which
// this holder announces its release.
func TestWriterIsWokenByAHolderThatKnowsNoLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	relock := b.client().engine.Probe().NewField(1)
	for name, record := range map[string][]any{
		"a writer":                     {"mode", "write", javaThread + ":write", 1},
		"a reader":                     {"mode", "read", javaThread, 1},
		"a reader beside a relock one": {"mode", "read", relock, 1, javaThread, 1},
	} {
		b.must(b.rdb.HSet(ctx, b.name, record...).Err())
		for i := 1; i < len(record); i++ {
			if field, ok := record[i].(string); ok {
				b.must(b.rdb.Set(ctx, "{"+b.name+"}:"+field+":rwlock_timeout:1", 1, time.Minute).Err())
			}
		}
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		write := b.rw().Write()
		got := b.waits(ctx, write)
		testredis.Await(t, "the writer hears the channel", soon, func() bool { return b.listeners() == 1 })
		asked := b.asked.Load()
		testredis.Await(t, "it has asked since", soon, func() bool { return b.asked.Load() > asked })
		time.Sleep(50 * time.Millisecond) // the answer has arrived
		b.must(b.rdb.Del(ctx, append(b.rdb.Keys(ctx, "*rwlock_timeout*").Val(), b.name)...).Err())
		start := time.Now()
		b.must(b.rdb.Publish(ctx, b.releases, "0").Err())
		b.must(await(b.bench, "the writer has the lock", got))
		assert.Less(t, time.Since(start), testredis.Scale(start, writerHeartbeat/2), name)
		b.must(write.Unlock(ctx))
	}
}

// A newcomer that finds the lock free enters the line at the end, and grants the lock to the first writer.
func TestNewWriterLetsTheLineGoFirst(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, first, second := b.rw().Write(), b.rw().Write(), b.rw().Write()
	asked := int64(0)
	for range 3 {
		b.must(from.Lock(ctx))
		got := b.waits(ctx, first)
		b.must(b.rdb.Del(ctx, b.name).Err())
		before := b.asked.Load()
		last := b.waits(ctx, second)
		b.must(await(b.bench, "the first writer has the lock", got))
		asked += b.asked.Load() - before
		assert.EqualValues(t, 1, b.rdb.ZCard(ctx, "relock_rwlock_writers:{"+b.name+"}").Val(), "writers that wait")
		b.must(first.Unlock(ctx))
		b.must(await(b.bench, "the newcomer has the lock", last))
		b.must(second.Unlock(ctx))
		b.mustBe(from.Unlock(ctx), ErrLockLost)
	}
	assert.LessOrEqual(t, asked, int64(3*2+1), "attempts: two of the newcomer; a heartbeat may have been due")
}

// A writer whose owner acquires the read lock has no entry in the line: the line grants nothing to it.
func TestUpgraderStandsInNoLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	rw, other := b.rw(), b.rw()
	owner := ContextWithOwner(ctx)
	b.must(other.Read().Lock(ctx))
	b.must(rw.Read().Lock(owner))
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(owner) }()
	testredis.Await(t, "the upgrader waits", soon, func() bool { return b.listeners() == 1 })
	assert.Zero(t, b.rdb.Exists(ctx, b.line).Val(), "there is a line")
	b.must(other.Read().Unlock(ctx))
	b.mustBe(await(b.bench, "the upgrader is refused", got), ErrInvalid)
	b.must(rw.Read().Unlock(owner))

	// Its owner reads later.
	b.must(other.Read().Lock(ctx))
	go func() { got <- rw.Write().Lock(owner) }()
	b.awaitPlace(rw.Write())
	testredis.Await(t, "the reader comes in", soon, func() bool {
		b.rdb.Del(ctx, "relock_rwlock_writers:{"+b.name+"}")
		ok, err := rw.Read().TryLock(owner, 0, 0)
		return ok && err == nil
	})
	testredis.Await(t, "the upgrader has left the line", soon, func() bool { return b.rdb.Exists(ctx, b.line).Val() == 0 })
	b.must(other.Read().Unlock(ctx))
	b.mustBe(await(b.bench, "the upgrader is refused", got), ErrInvalid)
	b.must(rw.Read().Unlock(owner))
}

// A lock works for a user that may not use the line, and its writers wait without it.
func TestWriterWithoutTheRightToTheLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	b.must(b.rdb.Do(ctx, "acl", "setuser", "alice", "reset", "on", ">pass", "allcommands", "allchannels",
		"~"+b.name, "~{"+b.name+"}:*", "~relock_rwlock_writers:{"+b.name+"}", "~redisson_lock_token:{"+b.name+"}").Err())
	rdb := redis.NewClient(&redis.Options{Addr: b.addr, Username: "alice", Password: "pass"})
	defer rdb.Close()
	alice, bob := b.clientOn(rdb).NewRWLock(b.name, Fenced()), b.rw(Fenced())
	for _, half := range []Locker{alice.Read(), alice.Write()} {
		b.must(half.Lock(ctx))
		got := b.waits(ctx, bob.Write())
		b.must(half.Unlock(ctx))
		b.must(await(b.bench, "the writer has the lock", got))
		waits := b.startWaiter(ctx, half)
		b.must(bob.Write().Unlock(ctx))
		b.must(await(b.bench, "the user has the lock", waits))
		b.must(half.Unlock(ctx))
	}
}

// A writer that may not subscribe keeps its entry, and polls often only while the lock changes hands.
func TestWriterThatMayNotSubscribeStandsInTheLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	b.must(
		b.rdb.Do(
			ctx,
			"acl",
			"setuser",
			"alice",
			"reset",
			"on",
			">pass",
			"allcommands",
			"-subscribe",
			"allchannels",
			"allkeys",
		).Err(),
	)
	rdb := redis.NewClient(&redis.Options{Addr: b.addr, Username: "alice", Password: "pass"})
	defer rdb.Close()
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == writeAcquire.Digest() {
			b.asked.Add(1)
		}
	}))
	from, to := b.rw().Write(), b.clientOn(rdb).NewRWLock(b.name).Write()
	b.must(from.Lock(ctx))
	got := b.waits(ctx, to)
	before := b.asked.Load()
	time.Sleep(2 * writerHeartbeat)
	// An answer that is late by some milliseconds looks like a renewal, after which the writer polls often for a
	// moment.
	assert.LessOrEqual(
		t,
		b.asked.Load()-before,
		int64(75),
		"attempts; without the heartbeat as a limit they are more than 90",
	)
	b.must(from.Unlock(ctx))
	assert.True(
		t,
		strings.HasPrefix(strings.Join(b.rdb.HKeys(ctx, b.name).Val(), " "), "mode "+to.client.ID()),
		"it is granted the lock",
	)
	b.must(await(b.bench, "the writer has the lock", got))
	b.must(to.Unlock(ctx))
}

// A request of an earlier wait that runs late does not get the entry of a later wait of its process.
func TestEarlierWriterDoesNotTakeTheLaterPlace(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	held, l := b.rw().Write(), b.client().NewRWLock(b.name).Write()
	b.must(held.Lock(ctx))
	e := l.client.engine
	listens := b.subscribe(l.client.grantChannel(b.releases))
	defer func() { _ = listens.Close() }()
	earlier, later := e.Probe().NewField(1), e.Probe().NewField(1)
	for _, step := range []struct {
		field string
		place int64
	}{{earlier, 1}, {later, 1}, {earlier, 0}, {later, 1}} {
		r, err := run(
			ctx,
			b.rdb,
			l.record.Acquire(
				contract.Attempt{Field: step.field, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1},
			),
		)
		b.must(err)
		assert.Equal(t, step.place, r[2], "of %s", step.field)
		assert.Contains(
			t,
			b.rdb.HGet(ctx, b.line, e.ID).Val()+" ",
			map[bool]string{true: earlier, false: later}[step.field == earlier && step.place == 1],
		)
	}
	b.must(held.Unlock(ctx))
	b.rdb.Del(ctx, b.name, b.line, "relock_rwlock_writers:{"+b.name+"}")
}

// Readers of a lock that has very many of them come and go, and writers ask for it, at the cost of a few commands. The
// lease of the record is still that of the reader who lives longest, and the last one frees the lock.
func TestRWLockOfManyReadersCostsFewCommands(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	b.Cleanup(b.forget)
	read, write := b.client().NewRWLock(b.name).Read().record, b.client().NewRWLock(b.name).Write()
	const many = 1000
	reader := func(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d:1:01", n) }
	leaseKey := func(n int) string { return suffixName(b.name, reader(n)+":rwlock_timeout:1") }
	pipe := b.rdb.Pipeline()
	pipe.HSet(ctx, b.name, "mode", "read")
	pipe.PExpire(ctx, b.name, 3*time.Minute)
	for n := range many {
		pipe.HSet(ctx, b.name, reader(n), 1)
		pipe.Set(ctx, leaseKey(n), 1, map[bool]time.Duration{true: 3 * time.Minute, false: time.Minute}[n == 0])
	}
	b.must(second(pipe.Exec(ctx)))
	leaves := func(n int) int {
		b.Helper()
		return b.commands(func() {
			r, err := run(ctx, b.rdb, read.Release(released(reader(n), 0, false)))
			b.must(err)
			require.Equal(b, int64(1), r[0])
		})
	}
	lease := func() time.Duration { return b.rdb.PTTL(ctx, b.name).Val() }

	b.tries(write, false)
	assert.Less(t, b.commands(func() { b.tries(write, false) }), 100, "commands of a writer that asks")
	assert.Less(t, leaves(1), 100, "commands of a reader that leaves")
	assert.Greater(t, lease(), 2*time.Minute, "the lease is that of the first one")
	leaves(0)
	assert.LessOrEqual(t, lease(), time.Minute, "the lease is that of another one")
	assert.Less(t, leaves(2), 100, "commands of a reader that leaves")
	assert.Positive(t, lease())

	for n := 4; n < many; n++ {
		b.must(b.rdb.Del(ctx, leaseKey(n)).Err())
	}
	leaves(3)
	assert.Zero(t, b.rdb.Exists(ctx, b.name).Val(), "all others are dead, and the lock is free")
	b.tries(write, true)
	b.must(write.Unlock(ctx))
}

// An attempt of a reader that Redis runs late, after its rollback, its release or its Detach, acquires nothing: no
// process would release it.
func TestReadAttemptThatRunsLateAcquiresNothing(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for name, ends := range map[string]func(b *bench, sends func(call) int64, l *readLock, late contract.Attempt){
			"rolled back": func(b *bench, sends func(call) int64, l *readLock, late contract.Attempt) {
				assert.EqualValues(b, -1, sends(l.RollBack(late)))
			},
			"released": func(b *bench, sends func(call) int64, l *readLock, late contract.Attempt) {
				assert.EqualValues(b, 1, sends(l.Acquire(late)))
				assert.EqualValues(b, 1, sends(l.Release(late.AsRelease())))
			},
			"detached": func(b *bench, sends func(call) int64, l *readLock, late contract.Attempt) {
				assert.EqualValues(b, 1, sends(l.Acquire(late)))
				to := contract.Rename{From: late.Field, To: late.Field + "1", Lease: time.Minute, Late: true}
				assert.EqualValues(b, 1, sends(l.Rename(to)))
				assert.EqualValues(b, 1, sends(l.Release(contract.Release{Field: to.To})))
			},
		} {
			for beside, holds := range map[string]func(*RWLock) []Locker{
				"a free lock":    func(*RWLock) []Locker { return nil },
				"another reader": func(rw *RWLock) []Locker { return []Locker{rw.Read()} },
				"its writer":     func(rw *RWLock) []Locker { return []Locker{rw.Write()} },
			} {
				t.Run(name+", "+beside, func(t *testing.T) {
					b, ctx := newBench(t, addr), context.Background()
					c := b.client()
					rw := c.NewRWLock(b.name)
					held := holds(rw)
					late := contract.Attempt{Field: c.ID() + ":1:0999", Lease: time.Hour, HoldCount: 1, Late: true}
					for _, h := range held {
						b.must(h.Lock(ctx))
						late.Counterpart = c.engine.HeldField(insideOf(h).record, engine.OwnerOf(ctx))
					}
					sends := func(what call) int64 {
						r, err := c.send(what)
						b.must(err)
						return r[0]
					}
					l := rw.Read().record.(*readLock)
					ends(b, sends, l, late)
					require.EqualValues(b, 0, sends(l.Acquire(late)), "a reader that nobody releases")
					for _, h := range held {
						b.must(h.Unlock(ctx))
					}
					b.follows(b.client().NewRWLock(b.name).Write())
				})
			}
		}
	})
}
