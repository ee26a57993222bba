package relock

// An owner that holds, or asks for, both halves of a read/write lock.
//
// Rules: a writer gets the read lock at once, and may keep it when it releases the write lock. A reader that asks for
// the write lock waits for other readers, and is refused as soon as only its own hold blocks it, or another one that
// waits for the same. A write lock that was lost or released is not kept by the read lock inside.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

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

// B21: an upgrade waits while other owners read, and fails when only its own read lock blocks it.
func TestUpgradeFailsWhenOnlyItsOwnReadBlocksIt(t *testing.T) {
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

// A read lock that was released again leaves its lease to the write lock around it, whose record is deleted when its own
// lease has expired.
func TestWriteLeaseExpiresAfterAReadLock(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		for _, lease := range []time.Duration{0, time.Hour} {
			b.must(l.Write().LockLease(ctx, time.Second))
			ok, err := l.Read().TryLock(ctx, 0, lease)
			require.NoError(t, err)
			require.True(t, ok)
			b.must(l.Read().Unlock(ctx))
			for _, rival := range []Locker{other.Read(), other.Write()} {
				ok, err = rival.TryLock(ctx, soon, 0)
				require.NoError(t, err)
				require.True(t, ok, "the lease of the read lock, %v, keeps the write lock (0: that of the watchdog)", lease)
				b.must(rival.Unlock(ctx))
			}
		}
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

// S5: a write lease expires while its owner's request for the read lock is in flight. The read lock keeps the record
// alive, and the ended write hold does not keep other readers out.
func TestWriteLeaseThatEndsDuringTheReadHasExpired(t *testing.T) {
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
	writers := record.PrefixName("relock_rwlock_writers", b.name)
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
		// It asks Redis by then; no call shows that. A busy machine takes longer.
		time.Sleep(time.Duration(round+2) * 10 * time.Millisecond)
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
