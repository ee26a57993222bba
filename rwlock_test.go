package relock

// Read/write locks: readers share, writers exclude all others, and the record is that of Redisson.
//
// Rules: each reader has a lease of its own, and blocks writers for no longer. Neither readers nor writers are starved.
// A forced release frees the readers or the writer that it names, and no lease of theirs stays.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
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
		b.locksFor(ctx, short, 300*time.Millisecond)
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
		b.locksFor(ctx, dead, 200*time.Millisecond)
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
			b.must(b.rdb.HSet(ctx, b.name, "mode", "read", reader, record.MostHoldCount).Err())
			for _, n := range []int{1, record.MostHoldCount} {
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
		b.locksFor(ctx, l.Read(), 50*time.Millisecond)
		testredis.Await(t, "the read lease ends", soon, func() bool {
			locked, err := l.Read().IsLocked(ctx)
			return err == nil && !locked
		})
		b.must(l.Write().Unlock(ctx))
	})
}

// Whatever the hold count of a reader is, each call costs Redis the same: acquiring, releasing, renewing and
// inspecting.
func TestEveryHoldCountOfAReaderCostsTheSame(t *testing.T) {
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
	leaseKey := func(n int) string { return record.SuffixName(b.name, reader(n)+":rwlock_timeout:1") }
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
