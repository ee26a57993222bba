package interop

import (
	"testing"
	"time"

	"github.com/relock-go/relock"
	"github.com/stretchr/testify/require"
)

// Two Java threads wait behind a Go waiter each, for longer than their timeouts. Both get the lock in the end.
func TestJavaBehindGoNeverSleepsWithoutAnEnd(t *testing.T) {
	s := setting{version: versions[0], fairWait: 2 * time.Second, watchdog: 3 * time.Second, redis: single(t)}
	b := &both{T: t, redis: s.redis, rdb: s.redis.client(t), java: startJava(t, s)}
	client := func() *relock.Client { return b.newClient(3*time.Second, relock.WithFairWaitTimeout(2*time.Second)) }
	b.client = client()
	const name = "fair"
	l := b.client.NewFairLock(name)
	b.must(l.Lock(ctx))
	ownerB, ownerC := relock.ContextWithOwner(ctx), relock.ContextWithOwner(ctx)
	lockB, lockC := client().NewFairLock(name), client().NewFairLock(name)
	gotB := startLock(ownerB, lockB)
	b.queued(name, 1)
	j1 := b.java.start(command{Op: "lock", Kind: "fair", Name: name, Thread: 1})
	b.queued(name, 2)
	gotC := startLock(ownerC, lockC)
	b.queued(name, 3)
	j2 := b.java.start(command{Op: "lock", Kind: "fair", Name: name, Thread: 2})
	b.queued(name, 4)

	time.Sleep(20 * time.Second)
	b.must(l.Unlock(ctx))
	b.must(<-gotB)
	time.Sleep(8 * time.Second) // J1 asks meanwhile
	b.must(lockB.Unlock(ownerB))
	b.must(<-gotC)
	time.Sleep(5 * time.Second)
	b.must(lockC.Unlock(ownerC))
	first, second := j1, j2
	for n := range 2 {
		select {
		case a := <-first:
			require.True(t, a.OK, a.Error)
			b.java.must(command{Op: "unlock", Kind: "fair", Name: name, Thread: 1})
			first = nil
		case a := <-second:
			require.True(t, a.OK, a.Error)
			b.java.must(command{Op: "unlock", Kind: "fair", Name: name, Thread: 2})
			second = nil
		case <-time.After(40 * time.Second):
			require.Fail(t, "a Java thread sleeps beside the free lock", "%d got it, keys %v", n, keys(b.rdb, name))
		}
	}
}
