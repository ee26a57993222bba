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

func TestWriteLockToken(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewRWLock(b.name, Fenced())
		var last int64
		for range 3 {
			b.must(l.Write().Lock(ctx))
			token, err := l.Write().Token(ctx)
			if token <= last || err != nil {
				t.Errorf("token %d after %d, %v", token, last, err)
			}
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
		if ok, err := elsewhere(func() pair[bool] { return pairOf(first.TryLock(ctx, 0, 50*time.Millisecond)) }).get(); !ok || err != nil {
			t.Errorf("another goroutine: %v, %v", ok, err)
		}
		b.tries(write, false)
		b.isLocked(first, true)
		b.isLocked(write, false)
		b.must(first.Unlock(ctx))
		b.tries(write, false)
		b.must(second.Unlock(ctx))
		if ok, err := write.TryLock(ctx, soon, 0); !ok || err != nil { // the third one lapses
			t.Fatal(ok, err)
		}
		b.isLocked(first, false)
		b.isLocked(write, true)
		b.tries(first, false)
		b.must(write.Unlock(ctx))
	})
}

// The writer may read too, and keep that; whoever reads may come in at once.
func TestDowngrade(t *testing.T) {
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

// A write lock whose end Redis did not confirm is not kept by the read lock inside it, which is renewed.
func TestDowngradeThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	ends := map[string]func(b *bench, l *RWLock, ctx context.Context){
		"Unlock": func(b *bench, l *RWLock, ctx context.Context) {
			if err := l.Write().Unlock(ctx); err == nil {
				b.Error("Unlock says that it was confirmed")
			}
		},
		"lease": func(b *bench, l *RWLock, ctx context.Context) {
			guarded, err := l.Write().Guard(ctx)
			b.must(err)
			await(b, "the lease runs out", guarded.Done())
			time.Sleep(100 * time.Millisecond) // and what is left of it could not be cleared
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

func TestWriterGivesBackItsReadLockFirst(t *testing.T) {
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

// B21: an upgrade waits while others read, and fails when only its own reading is in the way.
func TestUpgradeFailsClearly(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		b.must(l.Read().Lock(ctx))
		for _, err := range []error{l.Write().Lock(ctx), second(l.Write().TryLock(ctx, 0, 0))} {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "itself") {
				t.Errorf("%v", err)
			}
		}
		b.must(other.Read().Lock(ctx))
		b.tries(l.Write(), false)
		owner := WithOwner(ctx)
		b.must(l.Read().Lock(owner))
		got := b.startWaiter(owner, l.Write())
		b.must(l.Read().Unlock(ctx))
		select {
		case err := <-got:
			t.Errorf("it did not wait for the other reader: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		b.must(other.Read().Unlock(ctx))
		b.mustBe(await(b, "nobody else reads", got), ErrInvalid)
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
		if b.must(err); ttl < 50*time.Second {
			t.Errorf("a short reader cut the long one to %v", ttl)
		}
		b.must(short.Unlock(ctx))
		ttl, err = long.TTL(ctx)
		if b.must(err); ttl < 50*time.Second {
			t.Errorf("leaving, a short reader cut the long one to %v", ttl)
		}
		b.tries(write, false)
		b.must(long.Unlock(ctx))

		// A long one leaves; what stays is the short one's lease.
		b.must(long.LockLease(ctx, time.Hour))
		b.must(short.LockLease(ctx, 300*time.Millisecond))
		b.must(long.Unlock(ctx))
		start := time.Now()
		b.must(write.Lock(ctx))
		if took := time.Since(start); took > soon {
			t.Errorf("a writer waited for %v", took)
		}
		b.must(write.Unlock(ctx))
	})
}

// A dead reader does not outlive its lease because others go on reading.
func TestWriterBuriesDeadReaders(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		dead, living, write := b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Read(), b.client().NewRWLock(b.name).Write()
		b.must(dead.LockLease(ctx, 200*time.Millisecond))
		b.must(living.LockLease(ctx, time.Hour)) // keeps the hash alive
		owner := WithOwner(ctx)
		got := b.startWaiter(owner, write)
		testredis.Await(t, "the dead reader is buried", soon, func() bool { return b.rdb.HLen(ctx, b.name).Val() == 2 })
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
			t.Fatal(context.Cause(guarded))
		case <-time.After(3 * lease):
		}
		leases := b.rdb.Keys(ctx, "{"+b.name+"}:*:rwlock_timeout:*").Val()
		for _, key := range leases {
			if strings.Contains(key, field(dead.client)) {
				t.Errorf("the lease of a dead reader is kept alive: %s", key)
			}
		}
		if len(leases) != 2 {
			t.Errorf("leases %v", leases)
		}
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
		if ttl, err := w.TTL(ctx); ttl > 30*time.Second || err != nil {
			t.Errorf("TTL %v, %v", ttl, err)
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
		const readers = 12
		for range 3 {
			r := b.client(WithMaxWakeDelay(time.Hour)).NewRWLock(b.name).Read()
			for range readers / 3 {
				wg.Go(func() {
					if err := r.Lock(ctx); err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) == readers {
						close(all)
					}
					<-all // all of them at the same time
					if err := r.Unlock(ctx); err != nil {
						t.Error(err)
					}
				})
			}
		}
		testredis.Await(t, "the readers wait", soon, func() bool {
			return b.rdb.PubSubNumSub(ctx, "redisson_rwlock:{"+b.name+"}").Val()["redisson_rwlock:{"+b.name+"}"] >= 1
		})
		time.Sleep(50 * time.Millisecond) // and the last of them is subscribed
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
		for range 8 { // so many that somebody always reads
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := r.Lock(ctx); err != nil {
						continue
					}
					reads.Add(1)
					time.Sleep(reading)
					if err := r.Unlock(ctx); err != nil {
						t.Error(err)
					}
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
		if took := time.Since(start); took > reading+soon/2 {
			t.Errorf("the writer waited for %v", took)
		}
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
						if err := w.Unlock(ctx); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
	r := b.client().NewRWLock(b.name).Read()
	for range 10 {
		deadline, done := context.WithTimeout(context.Background(), 2*soon)
		if err := r.Lock(deadline); err != nil {
			t.Error(err)
		} else {
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
		b.tries(reading, true) // who reads already may read again
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
func TestRWRecordIsRedissons(t *testing.T) {
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
		if len(record) != 2 || record["mode"] != "read" || record[field] != "2" {
			t.Errorf("record %v", record)
		}
		for _, i := range []string{"1", "2"} {
			key := "{" + b.name + "}:" + field + ":rwlock_timeout:" + i
			if v, ttl := b.rdb.Get(ctx, key).Val(), b.rdb.PTTL(ctx, key).Val(); v != "1" || ttl <= 0 || ttl > 30*time.Second {
				t.Errorf("%s is %q for %v", key, v, ttl)
			}
		}
		b.must(l.Read().Unlock(ctx))
		if keys := b.keys(); len(keys) != 2 {
			t.Errorf("keys %v", keys)
		}
		b.must(l.Read().Unlock(ctx))
		if m, err := messages.ReceiveMessage(ctx); err != nil || m.Payload != "0" {
			t.Errorf("the last reader says %v, %v", m, err)
		}
		b.must(l.Write().Lock(ctx))
		record = b.rdb.HGetAll(ctx, b.name).Val()
		for f, v := range record {
			if f != "mode" && (!strings.HasSuffix(f, ":write") || v != "1") {
				t.Errorf("record %v", record)
			}
		}
		if len(record) != 2 || record["mode"] != "write" {
			t.Errorf("record %v", record)
		}
		b.must(l.Write().Unlock(ctx))
		if m, err := messages.ReceiveMessage(ctx); err != nil || m.Payload != "1" {
			t.Errorf("the writer says %v, %v", m, err)
		}
	})
}

// Java's readers and writers are respected, and dead ones buried.
func TestRWRecordOfJava(t *testing.T) {
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
		if n := b.rdb.HExists(ctx, b.name, javaThread).Val(); !n {
			t.Error("a reader's leave took the Java reader with it")
		}
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
func TestRWLockAndLockExclude(t *testing.T) {
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
		if ok, err := other.Read().TryLock(ctx, soon, 0); !ok || err != nil {
			t.Fatalf("another reader: %v, %v", ok, err)
		}
		b.must(other.Read().Unlock(ctx))
		b.mustBe(second(l.Write().TryLock(ctx, soon, 0)), ErrInvalid)
		b.must(l.Read().Unlock(ctx))
		if ok, err := other.Write().TryLock(ctx, soon, 0); !ok || err != nil {
			t.Fatalf("another writer: %v, %v", ok, err)
		}
		b.must(other.Write().Unlock(ctx))
	})
}

// Readers that all want to write would wait for one another: all but one are refused.
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
			} else if err != nil {
				t.Error(err)
			}
		}
		if refused == 0 {
			t.Error("nobody was refused")
		}
		for _, half := range []Locker{l.Write(), l.Read()} {
			for _, owner := range []context.Context{one, two} {
				if n, err := half.HoldCount(owner); n > 0 && err == nil {
					b.must(half.Unlock(owner))
				}
			}
		}
	})
}

// An owner that got the read lock on another goroutine is in its own way, also if that came later.
func TestUpgradeBehindOnesBack(t *testing.T) {
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

func TestForceUnlockOfEachHalf(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l, other := b.client().NewRWLock(b.name), b.client().NewRWLock(b.name)
		force := func(l Locker, want bool) {
			t.Helper()
			if freed, err := l.ForceUnlock(ctx); freed != want || err != nil {
				t.Fatalf("%v, %v", freed, err)
			}
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
		if guarded.Err() != nil {
			t.Error("the read lock went with the write lock")
		}
		b.tries(other.Write(), false)
		force(other.Write(), false)
		b.must(l.Read().Unlock(ctx))
	})
}

// IsLocked counts those who live.
func TestReadIsLockedCountsTheLiving(t *testing.T) {
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

// However deep a reader is, a level costs Redis the same: to take, to give back, to renew, and to others who look.
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
		renew := []call{read.lock.renewal(b.fieldOf(read), lease, false)}
		for what, f := range []func(){
			func() { b.must(read.Lock(ctx)) },
			func() { b.must(read.Unlock(ctx)) },
			func() {
				replies, errs := runAll(ctx, b.rdb, renew)
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
	b.Fatalf("nobody holds %s", l.Name())
	return ""
}

// Java goes by the longest lease of the levels that the hash counts.
func TestLeaseOfADeepReaderIsSeenByJava(t *testing.T) {
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

		// A longer lease of an inner level is that of the hold from then on.
		b.must(read.LockLease(ctx, lease))
		b.must(read.LockLease(ctx, time.Hour))
		field = b.fieldOf(read)
		b.must(read.Unlock(ctx))
		assert.Greater(t, longest(1), 50*time.Minute)
		b.must(read.Unlock(ctx))
	})
}

// S5: a write lease ends while the read lock of its owner is under way, which keeps the record alive: the ended write
// hold does not keep other readers out.
func TestWriteLeaseThatEndsWhileTheReadIsUnderWay(t *testing.T) {
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
