package interop

// Several clients of both languages together: queues, readers and writers, MultiLocks and RedLocks.

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// queued waits until n waiters are in the queue of a fair lock.
func (b *both) queued(name string, n int64) {
	b.Helper()
	testredis.Await(b, fmt.Sprintf("%d stand in the queue", n), soon, func() bool {
		return b.rdb.LLen(ctx, "redisson_lock_queue:{"+name+"}").Val() == n
	})
}

// A queue of both languages is served in its order, including waiters that give up.
func TestFairQueueServesBothLanguagesInOrder(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		const name = "fair"
		l := b.client.NewFairLock(name)
		b.must(l.Lock(ctx))
		got := make(chan string, 16)
		place := int64(0)
		inJava := func(thread int, wait time.Duration) {
			op := command{Op: "lock", Kind: "fair", Name: name, Thread: thread}
			if wait > 0 {
				op.Op, op.Wait = "trylock", wait.Milliseconds()
			}
			a := b.java.start(op)
			place++
			b.queued(name, place)
			go func() {
				a := <-a
				if op.Op == "trylock" && !a.Value {
					got <- "gave up"
					return
				}
				got <- fmt.Sprint("java ", thread)
				b.java.start(command{Op: "unlock", Kind: "fair", Name: name, Thread: thread})
			}()
		}
		inGo := func(c *relock.Client, who string, wait time.Duration) {
			l := c.NewFairLock(name)
			place++
			go func() {
				ok, err := l.TryLock(ctx, wait, 0)
				assert.NoError(b, err)
				if !ok {
					got <- "gave up"
					return
				}
				got <- who
				assert.NoError(b, l.Unlock(ctx))
			}()
			b.queued(name, place)
		}
		other := b.newClient(0)
		inJava(1, 0)
		inGo(b.client, "go 1", time.Hour)
		inJava(2, 1500*time.Millisecond)
		inGo(other, "go 2", time.Hour)
		inGo(b.client, "nobody", time.Second)
		inJava(3, 0)
		inGo(other, "go 3", time.Hour)
		for range 2 {
			assert.Equal(b, "gave up", <-got, "a waiter has the lock, which is held")
		}
		b.queued(name, 5)
		b.must(l.Unlock(ctx))
		var order []string
		for range 5 {
			select {
			case who := <-got:
				order = append(order, who)
			case <-time.After(2 * soon):
				require.Fail(b, "no waiter gets the lock", "after %v", order)
			}
		}
		assert.Equal(b, []string{"java 1", "go 1", "go 2", "java 3", "go 3"}, order, "served in the order")
		b.nothingIsLeft(name)
	})
}

// A killed waiter of either language does not block the others.
func TestFairQueueEvictsDeadWaitersOfBothLanguages(t *testing.T) {
	s := setting{version: versions[0], fairWait: 4 * time.Second, redis: single(t)}
	b := &both{T: t, redis: s.redis, rdb: s.redis.client(t), java: startJava(t, s)}
	b.client = b.newClient(time.Second) // a position lasts for the fair wait timeout and the remaining lease
	const name = "fair"
	l := b.client.NewFairLock(name)
	b.must(l.Lock(ctx))
	doomed := startJava(t, s)
	doomed.start(command{Op: "lock", Kind: "fair", Name: name, Thread: 1})
	b.queued(name, 1)
	gone := b.newClient(0)
	_ = startLock(relock.ContextWithOwner(ctx), gone.NewFairLock(name))
	b.queued(name, 2)
	owner := relock.ContextWithOwner(ctx)
	living := startLock(owner, b.client.NewFairLock(name))
	b.queued(name, 3)
	a := b.java.start(command{Op: "lock", Kind: "fair", Name: name, Thread: 2})
	b.queued(name, 4)

	doomed.kill()
	b.must(l.Unlock(ctx))
	// The waiter of the killed Java service is passed over after the fair wait timeout. That of relock has not crashed:
	// it gave up when its client was closed.
	b.must(gone.Close())
	select {
	case err := <-living:
		b.must(err)
	case <-time.After(s.fairWait + 2*soon):
		require.Fail(b, "the living wait for the dead")
	}
	b.must(b.client.NewFairLock(name).Unlock(owner))
	answer := b.java.await(a, 2*soon)
	assert.True(b, answer.OK, answer.Error)
	b.java.must(command{Op: "unlock", Kind: "fair", Name: name, Thread: 2})
	b.nothingIsLeft(name)
}

// Java cannot pass over a waiter of relock that has crashed: the release takes it out of the queue.
func TestFairReleaseLetsJavaPassCrashedWaiters(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		const name = "fair"
		l := b.client.NewFairLock(name)
		b.must(l.Lock(ctx))
		rdb := b.redis.client(b)
		gone, err := relock.New(rdb, relock.WithLogger(slog.New(slog.DiscardHandler)))
		b.must(err)
		defer gone.Close()
		crashed := startLock(relock.ContextWithOwner(ctx), gone.NewFairLock(name))
		testredis.Await(b, "it listens to the channel of its client, and Redis knows", soon, func() bool {
			return slices.ContainsFunc(b.rdb.HVals(ctx, "relock_line:{"+name+"}:fair").Val(), func(place string) bool {
				words := strings.Fields(place)
				return len(words) == 7 && words[2] != "0"
			})
		})
		a := b.java.start(command{Op: "lock", Kind: "fair", Name: name, Thread: 1})
		b.queued(name, 2)
		b.must(rdb.Close()) // neither the waiter nor its rollback reaches Redis any more
		assert.Error(b, <-crashed)
		testredis.Await(b, "the server knows", soon, func() bool {
			for _, channel := range channels(b.rdb, name) {
				if strings.Contains(channel, ":client:") {
					return false
				}
			}
			return true
		})
		assert.Equal(b, int64(2), b.rdb.LLen(ctx, "redisson_lock_queue:{"+name+"}").Val(), "both are in the queue")
		start := time.Now()
		b.must(l.Unlock(ctx))
		answer := b.java.await(a, soon)
		assert.True(b, answer.OK, answer.Error)
		assert.Less(b, time.Since(start), 2*time.Second, "time that the crashed waiter delays Java")
		b.java.must(command{Op: "unlock", Kind: "fair", Name: name, Thread: 1})
		b.nothingIsLeft(name)
	})
}

// Readers of both share the lock. The release of one does not release the other's hold. A downgrade admits readers.
func TestReadersAndWritersShareAcrossLanguages(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		const name = "rw"
		j := func(op, kind string, thread int) command {
			return command{Op: op, Kind: kind, Name: name, Thread: thread}
		}
		rw := b.client.NewRWLock(name)
		writer := b.newClient(0).NewRWLock(name).Write()

		b.must(rw.Read().Lock(ctx))
		b.java.must(j("lock", "read", 1))
		b.java.must(j("lock", "read", 2))
		b.javaTries("write", name, 3, false)
		b.java.must(j("unlock", "read", 1))
		b.java.must(j("unlock", "read", 2))
		b.javaTries("write", name, 3, false)
		b.java.must(j("lock", "read", 1))
		b.must(rw.Read().Unlock(ctx))
		b.javaTries("write", name, 3, false)
		b.tries(writer, false)
		got := startLock(relock.ContextWithOwner(ctx), writer)
		b.awaitSubscriber(name)
		b.java.must(j("unlock", "read", 1))
		b.await("the writer gets in after the last reader", got)
		freed, err := writer.ForceUnlock(ctx)
		require.NoError(b, err)
		require.True(b, freed)

		// relock downgrades, and a waiting Java reader acquires the lock.
		b.must(rw.Write().Lock(ctx))
		b.must(rw.Read().Lock(ctx))
		a := b.java.start(j("lock", "read", 1))
		b.awaitSubscriber(name)
		b.must(rw.Write().Unlock(ctx))
		answer := b.java.await(a, soon)
		assert.True(b, answer.OK, answer.Error)
		b.java.must(j("unlock", "read", 1))
		b.javaTries("write", name, 1, false)
		b.must(rw.Read().Unlock(ctx))

		// Java downgrades. It publishes nothing: a reader of relock acquires the lock at its next attempt.
		b.java.must(j("lock", "write", 1))
		b.java.must(j("lock", "read", 1))
		b.tries(rw.Read(), false)
		b.java.must(j("unlock", "write", 1))
		b.tries(rw.Read(), true)
		b.tries(writer, false)
		b.java.must(j("unlock", "read", 1))
		b.tries(writer, false)
		b.must(rw.Read().Unlock(ctx))
		b.nothingIsLeft(name)
	})
}
