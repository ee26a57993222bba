package locks

// An owner that holds, or asks for, both halves of a read/write lock.
//
// Rules: a writer gets the read lock at once, and may keep it when it releases the write lock. A reader that asks for
// the write lock waits for other readers, and is refused as soon as only its own hold blocks it, or another one that
// waits for the same. A write lock that was lost or released is not kept by the read lock inside.

import (
	"context"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A writer may also acquire the read lock and keep it. Waiting readers acquire the lock when the write lock is
// released.
func TestDowngradeLetsReadersIn(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l := b.Client().NewRWLock(b.LockName)
		other := b.Client(WithPollInterval(time.Hour)).NewRWLock(b.LockName)
		b.Must(l.Write().Lock(ctx))
		b.Must(l.Read().Lock(ctx))
		b.Must(l.Read().Lock(ctx))
		b.Holds(l.Write(), 1)
		b.Holds(l.Read(), 2)
		b.IsLocked(other.Write(), true)
		b.IsLocked(other.Read(), true)
		owners := []context.Context{ContextWithOwner(ctx), ContextWithOwner(ctx), ContextWithOwner(ctx)}
		var readers []<-chan error
		for _, o := range owners {
			readers = append(readers, b.StartWaiter(o, other.Read()))
		}
		b.Must(l.Write().Unlock(ctx))
		for _, got := range readers {
			b.Must(locktest.Await(b, "every waiting reader comes in", got))
		}
		b.Holds(l.Read(), 2)
		b.IsLocked(other.Write(), false)
		b.Tries(other.Write(), false)
		b.Must(l.Read().Unlock(ctx))
		b.Must(l.Read().Unlock(ctx))
		for _, o := range owners {
			b.Must(other.Read().Unlock(o))
		}
	})
}

// The release of a write lock was not confirmed by Redis. The read lock inside it, which is renewed, does not keep the
// write lock alive.
func TestReadLockDoesNotKeepAnUnconfirmedWriteLock(t *testing.T) {
	t.Parallel()
	ends := map[string]func(b *locktest.Bench, l *RWLock, ctx context.Context){
		"Unlock": func(b *locktest.Bench, l *RWLock, ctx context.Context) {
			assert.Error(b, l.Write().Unlock(ctx), "Unlock reports a release that Redis did not confirm")
		},
		"lease": func(b *locktest.Bench, l *RWLock, ctx context.Context) {
			guarded, err := l.Write().Guard(ctx)
			b.Must(err)
			locktest.Await(b, "the lease runs out", guarded.Done())
			time.Sleep(100 * time.Millisecond) // the attempt to remove the rest fails meanwhile
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mini := testredis.Mini(t)
			b := locktest.NewBench(t, mini.Addr())
			l, other := b.Client().NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName)
			if name == "lease" {
				b.Must(l.Write().LockLease(ctx, 4*time.Second)) // longer than a busy machine needs to reach Guard
			} else {
				b.Must(l.Write().Lock(ctx))
			}
			b.Must(l.Read().Lock(ctx))
			mini.SetError("MISCONF it cannot save to disk")
			end(b, l, ctx)
			mini.SetError("")
			within, cancel := context.WithTimeout(ctx, locktest.Soon)
			defer cancel()
			b.Must(other.Read().Lock(within))
			b.Holds(l.Read(), 1)
			b.Must(other.Read().Unlock(within))
			b.Must(l.Read().Unlock(ctx))
		})
	}
}

// B21: an upgrade waits while other owners read, and fails when only its own read lock blocks it.
func TestUpgradeFailsWhenOnlyItsOwnReadBlocksIt(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l, other := b.Client().NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName)
		b.Must(l.Read().Lock(ctx))
		for _, err := range []error{l.Write().Lock(ctx), locktest.Second(l.Write().TryLock(ctx, 0, 0))} {
			assert.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, "itself")
		}
		b.Must(other.Read().Lock(ctx))
		b.Tries(l.Write(), false)
		owner := ContextWithOwner(ctx)
		b.Must(l.Read().Lock(owner))
		got := b.StartWaiter(owner, l.Write())
		b.Must(l.Read().Unlock(ctx))
		select {
		case err := <-got:
			assert.Fail(t, "it did not wait for the other reader", err)
		case <-time.After(50 * time.Millisecond):
		}
		b.Must(other.Read().Unlock(ctx))
		b.MustBe(locktest.Await(b, "no other owner reads", got), ErrInvalid)
		b.Must(l.Read().Unlock(owner))
		b.Tries(other.Read(), true) // no waiting writer is left behind
		b.Must(other.Read().Unlock(ctx))
	})
}

// A write lease that expires with a read lock inside has ended, whatever keeps the record alive.
func TestWriteLeaseExpiresAroundAReadLock(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l, other := b.Client().NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName)
		b.Must(l.Write().LockLease(ctx, time.Second))
		b.Must(l.Read().Lock(ctx))
		ok, err := other.Read().TryLock(ctx, locktest.Soon, 0)
		require.NoError(t, err)
		require.True(t, ok, "another reader")
		b.Must(other.Read().Unlock(ctx))
		b.MustBe(locktest.Second(l.Write().TryLock(ctx, locktest.Soon, 0)), ErrInvalid)
		b.Must(l.Read().Unlock(ctx))
		ok, err = other.Write().TryLock(ctx, locktest.Soon, 0)
		require.NoError(t, err)
		require.True(t, ok, "another writer")
		b.Must(other.Write().Unlock(ctx))
	})
}

// S5: a write lease expires while its owner's request for the read lock is in flight. The read lock keeps the record
// alive, and the ended write hold does not keep other readers out.
func TestWriteLeaseThatEndsDuringTheReadHasExpired(t *testing.T) {
	b := locktest.NewFaultBench(t)
	for half, acquire := range map[string]*send.Script{"read": record.Script("read_acquire"), "write": record.Script("write_acquire")} {
		l, other := b.Shaky().NewRWLock(b.LockName), b.Direct.NewRWLock(b.LockName)
		b.Proxy.On(locktest.Calls(acquire), testredis.DelayReply(800*time.Millisecond))
		b.Must(l.Write().LockLease(ctx, 500*time.Millisecond))
		b.Must(l.Read().Lock(ctx))
		ok, err := other.Read().TryLock(ctx, locktest.Soon, 0)
		b.Must(err)
		require.True(t, ok, "another reader is kept out (%s)", half)
		b.Must(other.Read().Unlock(ctx))
		b.Must(l.Read().Unlock(ctx))
	}
}

// Acquiring the read lock inside the write lock never waits for another caller of the owner: a goroutine of the owner
// that waits in the local queue behind another reader asks Redis itself as soon as the owner holds the write lock.
func TestReadInsideWriteNeverWaitsForItsOwner(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c, d, w := b.Client(WithPollInterval(time.Hour)), b.Client(), b.Client()
	rw := c.NewRWLock(b.LockName)
	x, y := ContextWithOwner(ctx), ContextWithOwner(ctx)
	b.Must(d.NewRWLock(b.LockName).Read().Lock(ctx))
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { _ = w.NewRWLock(b.LockName).Write().Lock(waits) }() // from now on new readers wait
	writers := record.PrefixName("relock_rwlock_writers", b.LockName)
	testredis.Await(b, "the writer waits", locktest.Soon, func() bool { return b.Rdb.ZCard(ctx, writers).Val() == 1 })

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
	testredis.Await(b, "another owner is in front", locktest.Soon, func() bool { return b.Asks(rw.Read()) })
	behind := lock(rw.Read(), x)
	testredis.Await(b, "a reader of the owner waits behind it", locktest.Soon, func() bool { return b.WaitsInQueue(rw.Read()) })
	writes := make(chan error, 1)
	go func() { writes <- rw.Write().Lock(x) }()
	testredis.Await(b, "the owner waits to write", locktest.Soon, func() bool { return b.Rdb.ZCard(ctx, writers).Val() == 2 })
	cancel()
	// If the lock passed to the writer that is leaving, readers would have their chance before the next writer.
	testredis.Await(b, "the first writer has left", locktest.Soon, func() bool { return b.Rdb.ZCard(ctx, writers).Val() == 1 })
	b.Must(d.NewRWLock(b.LockName).Read().Unlock(ctx))
	b.Must(locktest.Await(b, "the owner writes", writes))
	inside, end := context.WithTimeout(x, locktest.Soon)
	defer end()
	b.Must(rw.Read().Lock(inside))
	b.Must(locktest.Await(b, "its other reader reads", behind))
	b.Must(rw.Read().Unlock(x))
	b.Must(rw.Write().Unlock(x))
	b.Must(locktest.Await(b, "the other owner reads", front))
}

// Acquiring the write lock inside the read lock fails at once, even if a goroutine of the owner waits to write behind
// another writer.
func TestWriteInsideReadIsRefusedWhileItsOwnerWaitsToWrite(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	rw, d := b.Client(WithPollInterval(time.Hour)).NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName)
	tried := 0 // rounds in which the owner read before the writer ahead of it wrote
	for round := 0; tried < 2 && round < 40; round++ {
		x, y := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(d.Write().Lock(ctx))
		front, refused := make(chan error, 1), make(chan error, 1)
		go func() {
			err := rw.Write().Lock(y)
			if err == nil {
				err = rw.Write().Unlock(y)
			}
			front <- err
		}()
		testredis.Await(b, "a writer is in front", locktest.Soon, func() bool { return b.Asks(rw.Write()) })
		behind, cancel := context.WithCancel(x)
		go func() {
			err := rw.Write().Lock(behind)
			if err == nil {
				err = rw.Write().Unlock(x)
			}
			refused <- err
		}()
		testredis.Await(b, "the owner waits behind it", locktest.Soon, func() bool { return b.WaitsInQueue(rw.Write()) })
		reads := make(chan error, 1)
		go func() { reads <- rw.Read().Lock(x) }()
		// It asks Redis by then; no call shows that. A busy machine takes longer.
		time.Sleep(time.Duration(round+2) * 10 * time.Millisecond)
		b.Must(d.Write().Unlock(ctx))
		b.Must(locktest.Await(b, "the owner reads", reads))
		written := false
		select {
		case <-front: // the writer was first
			written = true
		default:
			tried++
			inside, end := context.WithTimeout(x, locktest.Soon)
			ok, err := rw.Write().TryLock(inside, locktest.Soon, 0)
			if assert.False(t, ok) && ctx.Err() == nil && err != nil {
				b.MustBe(err, ErrInvalid)
			}
			assert.NoError(t, inside.Err(), "the writer waits for itself")
			end()
		}
		cancel()
		b.Must(rw.Read().Unlock(x))
		<-refused
		if !written {
			b.Must(locktest.Await(b, "the writer in front", front)) // before the next round
		}
		b.Rdb.Del(ctx, b.LockName)
	}
	assert.Positive(t, tried, "the owner was never first")
}

// A waiting upgrade also fails when its owner acquires the read lock later, in another goroutine.
func TestUpgradeFailsWhenItsOwnerReadsLater(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx := context.Background()
		owner := ContextWithOwner(ctx)
		l, other := b.Client(WithPollInterval(50*time.Millisecond)).NewRWLock(b.LockName), b.Client().NewRWLock(b.LockName)
		b.Must(other.Read().Lock(ctx))
		got := b.StartWaiter(owner, l.Write())
		b.Must(b.Rdb.Del(ctx, "relock_rwlock_writers:{"+b.LockName+"}").Err()) // so that the reader acquires the lock
		testredis.Await(t, "the reader comes in", locktest.Soon, func() bool {
			ok, err := l.Read().TryLock(owner, 0, 0)
			if !ok {
				b.Rdb.Del(ctx, "relock_rwlock_writers:{"+b.LockName+"}")
			}
			return ok && err == nil
		})
		b.Must(other.Read().Unlock(ctx))
		b.MustBe(locktest.Await(b, "the writer is told", got), ErrInvalid)
		b.Must(l.Read().Unlock(owner))
	})
}
