package interop

// The semaphore: relock and Redisson's RPermitExpirableSemaphore share the permits.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

func (b *both) available(s *relock.Semaphore, want int) {
	b.Helper()
	n, err := s.Available(ctx)
	b.must(err)
	require.Equal(b, want, n, "relock: permits that are free")
	java := b.java.must(command{Op: "count", Kind: "semaphore", Name: s.Name()}).Number
	require.EqualValues(b, want, java, "Java: permits that are free")
}

// The permits that one language acquires are not free for the other, and each notifies the other.
func TestSemaphoreIsSharedAcrossLanguages(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		for _, name := range []string{"plain", "with {a tag} in it", "Schlüssel-鎖-🔒"} {
			b.Run(name, func(t *testing.T) {
				in := *b
				in.T, in.java = t, b.java.under(t)
				in.semaphore(name)
			})
		}
	})
}

func (b *both) semaphore(name string) {
	s := b.client.NewSemaphore(name, 2)
	j := func(op string, thread int) command {
		return command{Op: op, Kind: "semaphore", Name: name, Thread: thread}
	}
	first, second := relock.ContextWithOwner(ctx), relock.ContextWithOwner(ctx)

	// The first acquire sets the number.
	b.must(s.Lock(first))
	set := j("set", 1)
	set.MS = 7
	require.False(b, b.java.must(set).Value, "Java sets a number that relock has set")
	b.available(s, 1)
	b.java.must(j("lock", 1))
	b.available(s, 0)
	require.False(b, b.java.must(j("trylock", 2)).Value, "Java gets a third permit")
	b.tries(s, false)

	// relock waits for Java.
	got := startLock(second, s)
	b.awaitSubscriber(name)
	start := time.Now()
	b.java.must(j("unlock", 1))
	b.await("relock is woken", got)
	assert.LessOrEqual(b, time.Since(start), prompt)

	// Java waits for relock.
	try := j("trylock", 2)
	try.Wait, try.Lease = 20_000, 30_000
	waiting := b.java.start(try)
	b.awaitSubscriber(name)
	start = time.Now()
	b.must(s.Unlock(second))
	require.True(b, b.java.await(waiting, soon).Value, "Java is not woken")
	assert.LessOrEqual(b, time.Since(start), prompt)

	// The holders are distinguished, and Java identifies its permit by what relock shows.
	holders, err := s.Holders(ctx)
	b.must(err)
	require.Len(b, holders, 2)
	permit := b.java.must(j("permit", 2)).Text
	for _, h := range holders {
		if h.Client == "" {
			assert.Equal(b, permit, h.Field, "the permit of Java")
			assert.Equal(b, "permit "+permit, h.Owner)
		} else {
			assert.Equal(b, b.client.ID(), h.Client)
		}
		assert.Positive(b, h.Remaining)
		assert.LessOrEqual(b, h.Remaining, 30*time.Second)
	}

	// A lease that expires in either language releases the permit.
	b.must(s.Unlock(first))
	b.java.must(j("unlock", 2))
	b.available(s, 2)
	b.must(s.LockLease(first, 300*time.Millisecond))
	lease := j("lock", 3)
	lease.Lease = 300
	b.java.must(lease)
	ok, err := s.TryLock(second, soon, 0)
	b.must(err)
	require.True(b, ok, "after the leases")
	testredis.Await(b, "the other lease ends", soon, func() bool {
		n, err := s.Available(ctx)
		return err == nil && n == 1
	})
	b.available(s, 1)
	assert.False(b, b.java.do(j("unlock", 3)).OK, "Java returns a permit that has expired")
	b.available(s, 1)

	// Without a lease Java's permit does not expire.
	b.java.must(j("lock", 4))
	ttl, err := s.TTL(ctx)
	b.must(err)
	assert.Negative(b, ttl)
	b.available(s, 0)

	// An operator releases all permits by force.
	freed, err := s.ForceUnlock(ctx)
	b.must(err)
	assert.True(b, freed)
	b.available(s, 2)
	assert.ErrorIs(b, s.Unlock(second), relock.ErrLockLost)
	assert.False(b, b.java.do(j("unlock", 4)).OK, "Java returns a permit that was taken from it")
	b.available(s, 2)
}

// Several permits that one language acquires at once are counted by the other, each waits for the other, and each
// releases all of them.
func TestSeveralPermitsAcrossLanguages(t *testing.T) {
	run := func(t *testing.T, redis deployment) {
		b := newBoth(t, setting{version: versions[0], redis: redis})
		s := b.client.NewSemaphore("several", 5)
		j := func(op string, thread, permits int) command {
			return command{Op: op, Kind: "semaphore", Name: s.Name(), Thread: thread, Permits: permits, Lease: 60_000}
		}
		h, err := s.AcquireN(ctx, 2)
		b.must(err)
		b.available(s, 3)
		require.False(b, b.java.must(j("trylock several", 1, 4)).Value, "Java gets permits that relock holds")
		b.java.must(j("lock several", 1, 3))
		b.available(s, 0)
		holders, err := s.Holders(ctx)
		b.must(err)
		require.Len(b, holders, 4, "a hold of two permits, and the three of Java")

		// relock waits for Java.
		got := make(chan *relock.Hold, 1)
		go func() {
			h, err := s.AcquireN(ctx, 3)
			assert.NoError(b, err)
			got <- h
		}()
		b.awaitSubscriber(s.Name())
		b.java.must(j("unlock several", 1, 0))
		var three *relock.Hold
		select {
		case three = <-got:
		case <-time.After(soon):
			require.Fail(b, "relock does not get three permits")
		}
		b.available(s, 0)

		// Java waits for relock, whose waiter it may overtake.
		try := j("trylock several", 2, 4)
		try.Wait = 20_000
		waiting := b.java.start(try)
		select {
		case a := <-waiting:
			require.Fail(b, "Java does not wait", "%+v", a)
		case <-time.After(200 * time.Millisecond):
		}
		b.must(h.Release(ctx))
		b.must(three.Release(ctx))
		require.True(b, b.java.await(waiting, soon).Value, "Java is not woken")
		b.available(s, 1)
		_, ok, err := s.TryAcquireN(ctx, 2, 0, 0)
		b.must(err)
		require.False(b, ok, "relock gets permits that Java holds")
		b.java.must(j("unlock several", 2, 0))
		b.available(s, 5)
	}
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		run(t, single(t))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		run(t, cluster(t))
	})
}

// relock keeps its permits by renewing them, even while Java asks.
func TestSemaphoreIsRenewedBesideJava(t *testing.T) {
	const lease = 1500 * time.Millisecond
	forEachVersion(t, setting{watchdog: lease}, func(b *both) {
		s := b.client.NewSemaphore("renewed", 1)
		b.must(s.Lock(ctx))
		for start := time.Now(); time.Since(start) < 2*lease; time.Sleep(100 * time.Millisecond) {
			require.False(b, b.java.must(command{Op: "trylock", Kind: "semaphore", Name: "renewed"}).Value)
		}
		b.must(s.Unlock(ctx))
		b.available(s, 1)
	})
}
