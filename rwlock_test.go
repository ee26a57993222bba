package relock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
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
		first, second, write := c.NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Write()
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

// A writer may take the read lock too and keep it. Waiting readers come in when the write lock is released.
func TestDowngradeLetsReadersIn(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name)
		other := b.client(WithMaxWakeDelay(time.Hour)).NewRWLock(b.name)
		b.must(l.Write().Lock(ctx))
		b.must(l.Read().Lock(ctx))
		b.must(l.Read().Lock(ctx))
		b.holds(l.Write(), 1)
		b.holds(l.Read(), 2)
		b.isLocked(other.Write(), true)
		b.isLocked(other.Read(), true)
		owners := []context.Context{WithOwner(ctx), WithOwner(ctx), WithOwner(ctx)}
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

// The end of a write lock was not confirmed by Redis. The read lock inside it, which is renewed, does not keep the write
// lock alive.
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
			time.Sleep(100 * time.Millisecond) // the attempt to clear the rest fails meanwhile
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
		b.must(l.Write().Lock(ctx)) // inside, it is no upgrade
		b.must(l.Read().Unlock(ctx))
		b.tries(other.Read(), false)
		b.must(l.Write().Unlock(ctx))
		b.tries(other.Read(), false)
		b.must(l.Write().Unlock(ctx))
		b.tries(other.Read(), true)
		b.must(other.Read().Unlock(ctx))
	})
}

// B21: an upgrade waits while other owners read, and fails when only its own read lock is in the way.
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
		owner := WithOwner(ctx)
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
		long, short, write := b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Write()
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

// A dead reader does not outlive its lease because other readers go on.
func TestWriterEvictsDeadReaders(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		dead, living, write := b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Write()
		b.must(dead.LockLease(ctx, 200*time.Millisecond))
		b.must(living.LockLease(ctx, time.Hour)) // keeps the hash alive
		owner := WithOwner(ctx)
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
		field := func(client *Client) string { return client.engine.id }
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

// B19: the lease of a write lock does not add up.
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

// Releasing the write lock wakes every reader of every process at once.
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
			r := b.client(WithMaxWakeDelay(time.Hour)).NewRWLock(b.name).Read()
			for range readers / clients {
				wg.Go(func() {
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
			return b.rdb.PubSubNumSub(ctx, "redisson_rwlock:{"+b.name+"}").Val()["redisson_rwlock:{"+b.name+"}"] == clients
		})
		b.must(w.Unlock(ctx))
		await(b, "all readers are in", all)
		wg.Wait()
	})
}

// L5: relock readers that come without a pause do not keep a writer out.
func TestWriterIsNotStarved(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	const reading = 50 * time.Millisecond
	var reads atomic.Int64
	for range 2 {
		r := b.client().NewRWLock(b.name).Read()
		for range 8 { // so many that one of them always reads
			wg.Go(func() {
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

// Writers that come without a pause do not keep readers out.
func TestReadersAreNotStarved(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 {
		w := b.client().NewRWLock(b.name).Write()
		for range 3 {
			wg.Go(func() {
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

// A writer that gives up lets the readers in that waited for it.
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
		owner := WithOwner(ctx)
		late := b.client(WithMaxWakeDelay(time.Hour)).NewRWLock(b.name).Read()
		b.tries(late, false)
		b.tries(reading, true) // an owner that reads already may read again
		got := b.startWaiter(owner, late)
		cancel()
		b.mustBe(await(b, "the writer gives up", writer), context.Canceled)
		b.must(await(b, "the reader comes in", got))
		b.must(late.Unlock(owner))
		b.must(reading.Unlock(ctx))
		b.must(reading.Unlock(ctx))
	})
}

// WIRE.md 1.4: the record.
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

// Java's readers and writers are respected, and dead ones are evicted.
func TestRWRecordOfAJavaClientIsRespected(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client(WithMaxWakeDelay(50 * time.Millisecond)).NewRWLock(b.name)
		b.must(b.rdb.HSet(ctx, b.name, "mode", "read", javaThread, 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.must(b.rdb.Set(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:1", 1, 1500*time.Millisecond).Err())
		b.tries(l.Write(), false)
		b.tries(l.Read(), true)
		b.must(l.Read().Unlock(ctx))
		assert.True(t, b.rdb.HExists(ctx, b.name, javaThread).Val(), "the release of a reader removed the Java reader")
		b.must(l.Write().Lock(ctx)) // once its lease is over
		b.must(l.Write().Unlock(ctx))
		b.must(b.rdb.HSet(ctx, b.name, "mode", "write", javaThread+":write", 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, 1500*time.Millisecond).Err())
		b.tries(l.Read(), false)
		b.tries(l.Write(), false)
		b.must(l.Read().Lock(ctx))
		b.must(l.Read().Unlock(ctx))
	})
}

// A plain lock and a read/write lock of one name do not get in together.
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

// A write lease that runs out with a read lock inside is over, whatever keeps the record alive.
func TestWriteLeaseLapsesAroundAReadLock(t *testing.T) {
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

// Two readers that both want to write would wait for each other: all but one are refused.
func TestUpgradersDoNotBlockEachOther(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name)
		one, two := WithOwner(ctx), WithOwner(ctx)
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

// A waiting upgrade fails also when its owner takes the read lock later, on another goroutine.
func TestUpgradeFailsWhenItsOwnerReadsLater(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		owner := WithOwner(ctx)
		l, other := b.client(WithMaxWakeDelay(50*time.Millisecond)).NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.must(other.Read().Lock(ctx))
		got := b.startWaiter(owner, l.Write())
		b.must(b.rdb.Del(ctx, "relock_rwlock_writers:{"+b.name+"}").Err()) // so that the reader comes in
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

// At any depth a level of a reader costs Redis the same: to take, to release, to renew, and to inspect.
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
		lease += time.Minute // so that there is always something to do
		renew := []call{read.record.renew(b.fieldOf(read), lease, false)}
		for what, f := range []func(){
			func() { b.must(read.Lock(ctx)) },
			func() { b.must(read.Unlock(ctx)) },
			func() {
				replies, errs := read.client.engine.sender.All(ctx, renew)
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
	costs() // the server learns the scripts
	shallow := costs()
	for range deep {
		b.must(read.Lock(ctx))
	}
	assert.InDeltaSlice(t, shallow, costs(), 2) // a lease that is as long already, to the millisecond, is not set
	for range deep + 3 {
		b.must(read.Unlock(ctx))
	}
}

// fieldOf is the field of the one reader there is.
func (b *bench) fieldOf(l *ReadLock) string {
	for _, field := range b.rdb.HKeys(context.Background(), b.name).Val() {
		if field != "mode" {
			return field
		}
	}
	require.Fail(b, "no reader holds "+l.Name())
	return ""
}

// Java respects the longest lease among the levels that the hash counts.
func TestJavaSeesTheLeaseOfANestedReader(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		const lease = time.Second
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

		// A longer lease of an inner level becomes the lease of the hold.
		b.must(read.LockLease(ctx, lease))
		b.must(read.LockLease(ctx, time.Hour))
		field = b.fieldOf(read)
		b.must(read.Unlock(ctx))
		assert.Greater(t, longest(1), 50*time.Minute)
		b.must(read.Unlock(ctx))
	})
}

// S5: a write lease ends while its owner's request for the read lock is under way. The read lock keeps the record alive,
// and the ended write hold does not keep other readers out.
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

// Read inside Write never waits for another caller of the owner: a goroutine of the owner that waits in the wait queue
// behind another reader asks Redis itself as soon as the owner writes.
func TestReadInsideWriteNeverWaitsForItsOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, d, w := b.client(WithMaxWakeDelay(time.Hour)), b.client(), b.client()
	rw := c.NewRWLock(b.name)
	x, y := WithOwner(ctx), WithOwner(ctx)
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

// Write inside Read is refused at once, also when a goroutine of the owner waits to write behind another writer.
func TestWriteInsideReadIsRefusedWhileItsOwnerWaitsToWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	rw, d := b.client(WithMaxWakeDelay(time.Hour)).NewRWLock(b.name), b.client().NewRWLock(b.name)
	tried := 0 // rounds in which the owner read before the writer in front of it wrote
	for round := 0; tried < 2 && round < 40; round++ {
		x, y := WithOwner(ctx), WithOwner(ctx)
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
		select {
		case <-front: // the writer was first
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
		b.rdb.Del(ctx, b.name)
	}
	assert.Positive(t, tried, "the owner was never first")
}
