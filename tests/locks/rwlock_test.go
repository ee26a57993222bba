package locks

// Read/write locks: readers share, writers exclude all others, and the record is that of Redisson.
//
// Rules: each reader has a lease of its own, and blocks writers for no longer. Neither readers nor writers are starved.
// A forced release frees the readers or the writer. What it leaves in Redis is in internal/lua: in the story
// readwrite_line, and in the model.

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWriteLock(t *testing.T) { testLocker(t, locktest.NewWriteLock) }

func TestReadLock(t *testing.T) {
	suite{newLock: locktest.NewReadLock, rival: locktest.NewWriteLock, shared: true}.run(t)
}

func TestFencedWriteLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() })
}

func TestReadersShare(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		first, second, write := c.NewRWLock(
			b.LockName,
		).Read(), b.Client().NewRWLock(
			b.LockName,
		).Read(), b.Client().NewRWLock(
			b.LockName,
		).Write()
		b.Tries(first, true)
		b.Tries(second, true)
		ok, err := locktest.Elsewhere(func() locktest.Pair[bool] { return locktest.PairOf(first.TryLock(ctx, 0, 50*time.Millisecond)) }).Get()
		assert.NoError(t, err)
		assert.True(t, ok, "another goroutine")
		b.Tries(write, false)
		b.IsLocked(first, true)
		b.IsLocked(write, false)
		b.Must(first.Unlock(ctx))
		b.Tries(write, false)
		b.Must(second.Unlock(ctx))
		ok, err = write.TryLock(ctx, locktest.Soon, 0)
		require.NoError(t, err)
		require.True(t, ok, "the writer gets in once the third read lease has expired")
		b.IsLocked(first, false)
		b.IsLocked(write, true)
		b.Tries(first, false)
		b.Must(write.Unlock(ctx))
	})
}

// A reader that has crashed does not block longer than its lease because other readers continue.
func TestWriterEvictsDeadReaders(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		dead, living, write := b.Client().NewRWLock(
			b.LockName,
		).Read(), b.Client().NewRWLock(
			b.LockName,
		).Read(), b.Client().NewRWLock(
			b.LockName,
		).Write()
		b.LocksFor(ctx, dead, 200*time.Millisecond)
		b.Must(living.LockLease(ctx, time.Hour)) // keeps the hash alive
		owner := ContextWithOwner(ctx)
		got := b.StartWaiter(owner, write)
		testredis.Await(t, "the dead reader is evicted", locktest.Soon, func() bool { return b.Rdb.HLen(ctx, b.LockName).Val() == 2 })
		b.Must(living.Unlock(ctx))
		b.Must(locktest.Await(b, "the writer gets the lock", got))
		b.MustBe(dead.Unlock(ctx), ErrLockLost)
		b.Must(write.Unlock(owner))
	})
}

// Releasing the write lock notifies all readers of all processes at the same time.
func TestWriteReleaseWakesAllReaders(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		w := b.Client().NewRWLock(b.LockName).Write()
		b.Must(w.Lock(ctx))
		var inside atomic.Int64
		all := make(chan struct{})
		var wg sync.WaitGroup
		const clients, readers = 3, 12
		for range clients {
			r := b.Client(WithPollInterval(time.Hour)).NewRWLock(b.LockName).Read()
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
		testredis.Await(t, "the readers of all clients wait", locktest.Soon, func() bool {
			return b.Hearers("redisson_rwlock:{"+b.LockName+"}") == clients
		})
		b.Must(w.Unlock(ctx))
		locktest.Await(b, "all readers are in", all)
		wg.Wait()
	})
}

// L5: relock readers that arrive without a pause do not starve a writer.
func TestWriterIsNotStarved(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	const reading = 50 * time.Millisecond
	var reads atomic.Int64
	for range 2 {
		r := b.Client().NewRWLock(b.LockName).Read()
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
	w := b.Client().NewRWLock(b.LockName).Write()
	for range 10 {
		before := reads.Load()
		testredis.Await(t, "the readers are at it", locktest.Soon, func() bool { return reads.Load() > before+8 })
		start := time.Now()
		b.Must(w.Lock(context.Background()))
		assert.LessOrEqual(t, time.Since(start), reading+locktest.Soon/2, "time that the writer waited")
		b.Must(w.Unlock(context.Background()))
	}
	cancel()
	wg.Wait()
}

// Writers that arrive without a pause do not starve readers.
func TestReadersAreNotStarved(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 2 {
		w := b.Client().NewRWLock(b.LockName).Write()
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
	r := b.Client().NewRWLock(b.LockName).Read()
	for range 10 {
		deadline, done := context.WithTimeout(context.Background(), 2*locktest.Soon)
		if assert.NoError(t, r.Lock(deadline)) {
			b.Must(r.Unlock(context.Background()))
		}
		done()
	}
	cancel()
	wg.Wait()
}

// When a writer gives up, the readers that waited for it acquire the lock.
func TestWriterThatGivesUpLetsReadersIn(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		reading := b.Client().NewRWLock(b.LockName).Read()
		b.Must(reading.Lock(ctx))
		waiting, cancel := context.WithCancel(ctx)
		writer := b.StartWaiter(waiting, b.Client().NewRWLock(b.LockName).Write())
		testredis.Await(t, "the writer has said that it waits", locktest.Soon, func() bool {
			return b.Rdb.Exists(ctx, "relock_rwlock_writers:{"+b.LockName+"}").Val() == 1
		})
		owner := ContextWithOwner(ctx)
		late := b.Client(WithPollInterval(time.Hour)).NewRWLock(b.LockName).Read()
		b.Tries(late, false)
		b.Tries(reading, true) // an owner that already reads may acquire the read lock again
		got := b.StartWaiter(owner, late)
		cancel()
		b.MustBe(locktest.Await(b, "the writer gives up", writer), context.Canceled)
		b.Must(locktest.Await(b, "the reader comes in", got))
		b.Must(late.Unlock(owner))
		b.Must(reading.Unlock(ctx))
		b.Must(reading.Unlock(ctx))
	})
}

// Java's readers and writers are respected, and crashed ones are evicted.
func TestRWRecordOfAJavaClientIsRespected(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l := b.Client(WithPollInterval(50 * time.Millisecond)).NewRWLock(b.LockName)
		b.Must(b.Rdb.HSet(ctx, b.LockName, "mode", "read", locktest.JavaThread, 1).Err())
		b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
		lease := "{" + b.LockName + "}:" + locktest.JavaThread + ":rwlock_timeout:1"
		b.Must(b.Rdb.Set(ctx, lease, 1, time.Minute).Err())
		b.Tries(l.Write(), false)
		b.Tries(l.Read(), true)
		b.Must(l.Read().Unlock(ctx))
		assert.True(t, b.Rdb.HExists(ctx, b.LockName, locktest.JavaThread).Val(), "the release of a reader removed the Java reader")
		b.Must(b.Rdb.PExpire(ctx, lease, 100*time.Millisecond).Err())
		b.Must(l.Write().Lock(ctx)) // when its lease has expired
		b.Must(l.Write().Unlock(ctx))
		b.Must(b.Rdb.HSet(ctx, b.LockName, "mode", "write", locktest.JavaThread+":write", 1).Err())
		b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
		b.Tries(l.Read(), false)
		b.Tries(l.Write(), false)
		b.Must(b.Rdb.PExpire(ctx, b.LockName, 100*time.Millisecond).Err())
		b.Must(l.Read().Lock(ctx))
		b.Must(l.Read().Unlock(ctx))
	})
}

// A plain lock and a read/write lock of one name are not held at the same time.
func TestRWLockAndPlainLockExcludeEachOther(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		plain, rw := b.Client().NewLock(b.LockName), b.Client().NewRWLock(b.LockName)
		b.Must(plain.Lock(ctx))
		b.Tries(rw.Read(), false)
		b.Tries(rw.Write(), false)
		b.IsLocked(rw.Write(), false)
		b.Must(plain.Unlock(ctx))
		b.Must(rw.Read().Lock(ctx))
		b.Tries(plain, false)
		b.Must(rw.Read().Unlock(ctx))
	})
}

func TestForceUnlockFreesItsHalfOnly(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l, other := b.Client().NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName)
		force := func(l Locker, want bool) {
			t.Helper()
			freed, err := l.ForceUnlock(ctx)
			require.NoError(t, err)
			require.Equal(t, want, freed)
		}
		b.Must(l.Write().Lock(ctx))
		force(l.Read(), false)
		b.Must(l.Read().Lock(ctx))
		b.IsLocked(l.Read(), true)
		force(l.Read(), true)
		b.MustBe(l.Read().Unlock(ctx), ErrLockLost)
		b.Holds(l.Write(), 1)
		b.Tries(other.Read(), false)

		b.Must(l.Read().Lock(ctx))
		guarded, err := l.Read().Guard(ctx)
		b.Must(err)
		force(other.Write(), true)
		b.MustBe(l.Write().Unlock(ctx), ErrLockLost)
		b.Holds(l.Read(), 1)
		assert.NoError(t, guarded.Err(), "ForceUnlock of the write lock freed the read lock")
		b.Tries(other.Write(), false)
		force(other.Write(), false)
		b.Must(l.Read().Unlock(ctx))
	})
}

// IsLocked of a read lock counts readers whose lease has not expired.
func TestReadIsLockedCountsLiveReaders(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l := b.Client().NewRWLock(b.LockName)
		b.Must(l.Write().Lock(ctx))
		b.LocksFor(ctx, l.Read(), 50*time.Millisecond)
		testredis.Await(t, "the read lease ends", locktest.Soon, func() bool {
			locked, err := l.Read().IsLocked(ctx)
			return err == nil && !locked
		})
		b.Must(l.Write().Unlock(ctx))
	})
}

// fieldOf returns the field of the only reader.
func fieldOf(b *locktest.Bench, l *ReadLock) string {
	for _, field := range b.Rdb.HKeys(ctx, b.LockName).Val() {
		if field != "mode" {
			return field
		}
	}
	require.Fail(b, "no reader holds "+l.Name())
	return ""
}

// Java respects the lease with the number 1, which the hash always counts.
func TestJavaSeesTheLeaseOfANestedReader(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		b := locktest.NewBench(t, addr)
		const lease = 9 * time.Second
		read := b.Client(WithWatchdogTimeout(lease)).NewRWLock(b.LockName).Read()
		const deep = 3
		for range deep {
			b.Must(read.Lock(ctx))
		}
		field := fieldOf(b, read)
		left := func() time.Duration { return b.Rdb.PTTL(ctx, "{"+b.LockName+"}:"+field+":rwlock_timeout:1").Val() }
		for levels := deep; levels > 0; levels-- {
			assert.Equal(t, strconv.Itoa(levels), b.Rdb.HGet(ctx, b.LockName, field).Val())
			last := left()
			assert.Greater(t, last, lease/2)
			testredis.Await(t, "a renewal", locktest.Soon, func() bool {
				before := last
				last = left()
				return last > before
			})
			b.Must(read.Unlock(ctx))
		}
		assert.Empty(t, b.Keys())

		// A longer lease of an inner acquire becomes the lease of the hold.
		b.Must(read.LockLease(ctx, 10*lease))
		b.Must(read.LockLease(ctx, time.Hour))
		field = fieldOf(b, read)
		b.Must(read.Unlock(ctx))
		assert.Greater(t, left(), 50*time.Minute)
		b.Must(read.Unlock(ctx))
	})
}

// Readers of a lock that has very many of them come and go, and writers ask for it, at the cost of a few commands. The
// lease of the record is still that of the reader who lives longest, and the last one frees the lock.
func TestRWLockOfManyReadersCostsFewCommands(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	b.Cleanup(b.Forget)
	read, write := locktest.RecordOf(b.Client().NewRWLock(b.LockName).Read()), b.Client().NewRWLock(b.LockName).Write()
	const many = 1000
	reader := func(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d:1:1", n) }
	leaseKey := func(n int) string { return record.SuffixName(b.LockName, reader(n)+":rwlock_timeout:1") }
	pipe := b.Rdb.Pipeline()
	pipe.HSet(ctx, b.LockName, "mode", "read")
	pipe.PExpire(ctx, b.LockName, 3*time.Minute)
	for n := range many {
		pipe.HSet(ctx, b.LockName, reader(n), 1)
		pipe.Set(ctx, leaseKey(n), 1, map[bool]time.Duration{true: 3 * time.Minute, false: time.Minute}[n == 0])
	}
	b.Must(locktest.Second(pipe.Exec(ctx)))
	leaves := func(n int) int {
		b.Helper()
		return commands(b, func() {
			r, err := locktest.Run(ctx, b.Rdb, read.Release(locktest.Released(reader(n), 0, false)))
			b.Must(err)
			require.Equal(b, int64(1), r[0])
		})
	}
	lease := func() time.Duration { return b.Rdb.PTTL(ctx, b.LockName).Val() }

	b.Tries(write, false)
	assert.Less(t, commands(b, func() { b.Tries(write, false) }), 100, "commands of a writer that asks")
	assert.Less(t, leaves(1), 100, "commands of a reader that leaves")
	assert.Greater(t, lease(), 2*time.Minute, "the lease is that of the first one")
	leaves(0)
	assert.LessOrEqual(t, lease(), time.Minute, "the lease is that of another one")
	assert.Less(t, leaves(2), 100, "commands of a reader that leaves")
	assert.Positive(t, lease())

	for n := 4; n < many; n++ {
		b.Must(b.Rdb.Del(ctx, leaseKey(n)).Err())
	}
	leaves(3)
	assert.Zero(t, b.Rdb.Exists(ctx, b.LockName).Val(), "all others are dead, and the lock is free")
	b.Tries(write, true)
	b.Must(write.Unlock(ctx))
}
