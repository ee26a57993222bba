package interop

// The matrix: each lock type, held by one language and asked for by the other.

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// soon is how long an immediate operation may take on a busy machine.
const soon = 20 * time.Second

// prompt is how long it may take from a release to the next holder with a lease of 30s. If it takes no longer, the
// waiter was notified. Usually it is some milliseconds, which the tests log.
const prompt = 8 * time.Second

// A kind is one lock type, as both languages have it.
type kind struct {
	name  string // the name of the type in Java
	rival string // a type that excludes it
	since string // the first version of Redisson that has it; "" if all have it
	lock  func(c *relock.Client, name string) relock.Locker
}

var kinds = []kind{
	{"lock", "lock", "", func(c *relock.Client, name string) relock.Locker { return c.NewLock(name) }},
	{
		"fenced",
		"fenced",
		"3.19",
		func(c *relock.Client, name string) relock.Locker { return c.NewLock(name, relock.Fenced()) },
	},
	{"fair", "fair", "", func(c *relock.Client, name string) relock.Locker { return c.NewFairLock(name) }},
	{"write", "write", "", func(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Write() }},
	{"read", "write", "", func(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Read() }},
	{"write", "read", "", func(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Write() }},
}

func kindOf(name string) kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no kind " + name)
}

// A both has a Redis, relock, and a Java service of one version, for one test.
type both struct {
	*testing.T
	redis  deployment
	rdb    redis.UniversalClient
	client *relock.Client
	java   *java
}

func (b *both) version() string { return b.java.version }

func newBoth(t *testing.T, s setting) *both {
	t.Helper()
	b := &both{T: t, redis: s.redis, rdb: s.redis.client(t)}
	b.client = b.newClient(s.watchdog)
	b.java = startJava(t, s)
	return b
}

func (b *both) newClient(watchdog time.Duration, opts ...relock.Option) *relock.Client {
	b.Helper()
	opts = append(opts, relock.WithPollInterval(time.Hour), relock.WithLogger(slog.New(slog.DiscardHandler)))
	if watchdog > 0 {
		opts = append(opts, relock.WithWatchdogTimeout(watchdog))
	}
	c, err := relock.New(b.redis.client(b), opts...)
	require.NoError(b, err)
	b.Cleanup(func() {
		assert.NoError(b, c.Close())
	})
	return c
}

func (b *both) must(err error) {
	b.Helper()
	require.NoError(b, err)
}

// tries makes one attempt on l.
func (b *both) tries(l relock.Locker, want bool) {
	b.Helper()
	ok, err := l.TryLock(ctx, 0, 0)
	require.NoError(b, err)
	require.Equal(b, want, ok, "relock: TryLock answers")
}

// javaTries makes one attempt in Java.
func (b *both) javaTries(kind, name string, thread int, want bool) {
	b.Helper()
	require.Equal(
		b,
		want,
		b.java.must(command{Op: "trylock", Kind: kind, Name: name, Thread: thread}).Value,
		"Java: tryLock answers",
	)
	// Redisson leaves the queue of a fair lock shortly after it has answered, and publishes nothing.
	testredis.Await(b, "Java has left the queue", soon, func() bool {
		return !slices.ContainsFunc(
			keys(b.rdb, name),
			func(key string) bool { return strings.HasPrefix(key, "redisson_lock_queue") },
		)
	})
}

// nothingIsLeft waits until nothing of name is in Redis except its fencing counter, and tombstones, which
// last for a minute.
func (b *both) nothingIsLeft(name string) {
	b.Helper()
	testredis.Await(b, "nothing of "+name+" is left", soon, func() bool {
		return !slices.ContainsFunc(keys(b.rdb, name), func(key string) bool { return !b.isTombstone(key) })
	})
}

// isTombstone reports whether key has fields that have ended, and no process that waits.
func (b *both) isTombstone(key string) bool {
	isClient := func(field string) bool { return len(field) == 36 }
	return strings.HasSuffix(key, ":waits") && !slices.ContainsFunc(b.rdb.HKeys(ctx, key).Val(), isClient)
}

// awaitSubscriber waits until a client is subscribed to the release of name.
func (b *both) awaitSubscriber(name string) {
	b.Helper()
	testredis.Await(b, "a waiter is subscribed", soon, func() bool { return len(channels(b.rdb, name)) > 0 })
	time.Sleep(50 * time.Millisecond) // until the attempt after the subscription has ended
}

// startLock locks l for owner on another goroutine.
func startLock(owner context.Context, l relock.Locker) <-chan error {
	got := make(chan error, 1)
	go func() { got <- l.Lock(owner) }()
	return got
}

func (b *both) await(what string, got <-chan error) {
	b.Helper()
	select {
	case err := <-got:
		b.must(err)
	case <-time.After(soon):
		require.Fail(b, "waited in vain", what)
	}
}

// forEachVersion runs test with every version of Redisson, on a single server and on a Cluster.
func forEachVersion(t *testing.T, s setting, test func(b *both)) {
	for _, version := range versions {
		t.Run("redisson-"+version, func(t *testing.T) {
			t.Parallel()
			s := s
			s.version, s.redis = version, single(t)
			test(newBoth(t, s))
		})
	}
	for _, version := range clusterVersions {
		t.Run("cluster/redisson-"+version, func(t *testing.T) {
			t.Parallel()
			s := s
			s.version, s.redis = version, cluster(t)
			test(newBoth(t, s))
		})
	}
}

func single(t *testing.T) deployment {
	return deployment{addrs: []string{testredis.Start(t).Addr()}}
}

func cluster(t *testing.T) deployment {
	return deployment{addrs: testredis.StartCluster(t, 3, 0).Addrs(), cluster: true}
}

// has reports whether a version of Redisson has the kind.
func (k kind) has(version string) bool {
	return k.since == "" || version > k.since // there is one digit before the dot
}

func TestEachLockExcludesAcrossLanguages(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		for i, k := range kinds {
			if !k.has(b.version()) {
				continue
			}
			for j, name := range []string{"plain", "with {a tag} in it", "Schlüssel-鎖-🔒", "a:b"} {
				b.Run(fmt.Sprintf("%s-%s/%s", k.name, k.rival, name), func(t *testing.T) {
					in := *b
					in.T = t
					in.java = b.java.under(t)
					in.pair(k, fmt.Sprint(name, "-", i, "-", j))
					if j == 0 {
						in.leases(k, fmt.Sprint("lease-", i))
					}
				})
			}
		}
	})
}

// under returns the same service for another test.
func (j *java) under(t testing.TB) *java {
	return &java{t: t, version: j.version, cmd: j.cmd, in: j.in, answers: j.answers}
}

// pair tests a lock of kind k in relock against its rival in Java.
func (b *both) pair(k kind, name string) {
	l, other := k.lock(b.client, name), kindOf(k.rival).lock(b.client, name)
	j := func(op string) command { return command{Op: op, Kind: k.rival, Name: name, Thread: 1} }

	// Java holds, and relock waits and is notified by a message.
	b.java.must(j("lock"))
	b.tries(l, false)
	locked, err := other.IsLocked(ctx)
	assert.NoError(b, err)
	assert.True(b, locked, "IsLocked")
	assert.ErrorIs(b, l.Unlock(ctx), relock.ErrNotHeld, "Unlock of a lock that Java holds")
	owner := relock.ContextWithOwner(ctx)
	got := startLock(owner, l)
	b.awaitSubscriber(name)
	b.java.must(j("lock")) // acquires it again
	b.java.must(j("unlock"))
	select {
	case err := <-got:
		require.Fail(b, "relock has the lock, of which Java holds one level", err)
	case <-time.After(100 * time.Millisecond):
	}
	start := time.Now()
	b.java.must(j("unlock"))
	b.await("relock is woken", got)
	wokenGo := time.Since(start)
	assert.LessOrEqual(b, wokenGo, prompt, "time from a release of Java to relock")

	// relock holds, and Java waits and is notified by a message.
	b.javaTries(k.rival, name, 1, false)
	assert.True(
		b,
		b.java.must(command{Op: "locked", Kind: k.name, Name: name, Thread: 1}).Value,
		"Java does not see that it is locked",
	)
	a := b.java.do(j("unlock"))
	assert.False(b, a.OK, "Java unlocks a lock that relock holds")
	assert.Contains(b, a.Error, "IllegalMonitorState")
	b.must(l.Lock(owner))
	c := j("trylock")
	c.Wait = 20_000
	waiting := b.java.start(c)
	b.awaitSubscriber(name)
	b.must(l.Unlock(owner))
	select {
	case a := <-waiting:
		require.Fail(b, "Java has the lock, of which relock holds one level", "%+v", a)
	case <-time.After(100 * time.Millisecond):
	}
	start = time.Now()
	b.must(l.Unlock(owner))
	assert.True(b, b.java.await(waiting, soon).Value, "Java did not get it")
	wokenJava := time.Since(start)
	assert.LessOrEqual(b, wokenJava, prompt, "time from a release of relock to Java")
	b.Logf("from a release to the next holder: Java to relock %v, relock to Java %v", wokenGo, wokenJava)
	b.java.must(j("unlock"))

	// A release by force, in both directions.
	b.java.must(j("lock"))
	freed, err := other.ForceUnlock(ctx)
	assert.NoError(b, err)
	assert.True(b, freed, "relock forces a lock that Java holds")
	b.must(l.Lock(ctx))
	b.java.do(j("unlock")) // some versions of Redisson do not return an error
	n, err := l.HoldCount(ctx)
	assert.NoError(b, err)
	assert.Equal(b, 1, n, "levels of relock, after Java has unlocked a lock that was forced")
	assert.True(
		b,
		b.java.must(command{Op: "force", Kind: k.name, Name: name, Thread: 1}).Value,
		"Java forces a lock that relock holds",
	)
	assert.ErrorIs(b, l.Unlock(ctx), relock.ErrLockLost, "relock unlocks a lock that was forced")
	b.nothingIsLeft(name)
}

// A hold that moves from one process to another excludes Java all the time, and its release lets a waiting Java service
// in.
func TestHoldThatMovesExcludesJava(t *testing.T) {
	for _, version := range versions {
		t.Run("redisson-"+version, func(t *testing.T) {
			t.Parallel()
			b := newBoth(t, setting{version: version, redis: single(t)})
			other := b.newClient(0)
			for _, k := range kinds {
				if k.has(version) {
					b.moves(k, other, "moves-"+k.name+"-from-"+k.rival)
				}
			}
		})
	}
}

func (b *both) moves(k kind, other *relock.Client, name string) {
	h, err := k.lock(b.client, name).(relock.Acquirer).Acquire(ctx)
	b.must(err)
	ticket, err := h.Detach(ctx, time.Minute)
	b.must(err)
	b.javaTries(k.rival, name, 1, false)
	waiter := b.java.start(command{Op: "lock", Kind: k.rival, Name: name, Thread: 2})
	b.awaitSubscriber(name)
	attached, err := other.Attach(ctx, ticket)
	b.must(err)
	select {
	case <-waiter:
		require.Fail(b, "Java has acquired it", name)
	case <-time.After(200 * time.Millisecond):
	}
	released := time.Now()
	b.must(attached.Release(ctx))
	answer := b.java.await(waiter, soon)
	require.True(b, answer.OK, answer.Error)
	assert.Less(b, time.Since(released), prompt, "%s: Java was not told", name)
	b.tries(k.lock(b.client, name), false)
	b.java.must(command{Op: "unlock", Kind: k.rival, Name: name, Thread: 2})
	b.nothingIsLeft(name)
}

// leases checks that leases expire, in both directions.
func (b *both) leases(k kind, name string) {
	const lease = 1500 * time.Millisecond
	l := k.lock(b.client, name)

	// A thread of its own: the watchdog of Redisson may renew once more what its thread has held before.
	b.java.must(command{Op: "lock", Kind: k.rival, Name: name, Thread: 9, Lease: lease.Milliseconds()})
	b.tries(l, false)
	start := time.Now()
	ok, err := l.TryLock(ctx, soon, lease)
	assert.NoError(b, err)
	assert.True(b, ok, "after the lease of Java")
	b.javaTries(k.rival, name, 2, false)
	// Before 3.32 a Java waiter of a fair lock continues to sleep when its position is given away, and when the lease
	// expires (redisson#4705).
	if k.name != "fair" || b.version() > "3.32" {
		c := command{Op: "trylock", Kind: k.rival, Name: name, Thread: 1, Wait: soon.Milliseconds()}
		assert.True(b, b.java.must(c).Value, "after the lease of relock: Java did not get it")
		assert.LessOrEqual(b, time.Since(start), 2*lease+prompt, "two leases of %v", lease)
		b.java.must(command{Op: "unlock", Kind: k.rival, Name: name, Thread: 1})
	}
	testredis.Await(b, "all leases have ended", soon, func() bool {
		locked, err := l.IsLocked(ctx)
		return !locked && err == nil
	})
	b.nothingIsLeft(name)
}

// The watchdogs of both renew what is held, and the holder of the other language waits for it.
func TestWatchdogsOfBothLanguagesKeepLeases(t *testing.T) {
	const lease = 3 * time.Second
	forEachVersion(t, setting{watchdog: lease}, func(b *both) {
		for _, k := range []string{"lock", "fair", "write", "read"} {
			k := kindOf(k)
			l := k.lock(b.client, "relock-"+k.name)
			b.must(l.Lock(ctx))
			b.java.must(command{Op: "lock", Kind: k.name, Name: "java-" + k.name, Thread: 1})
		}
		for start := time.Now(); time.Since(start) < 2*lease; time.Sleep(100 * time.Millisecond) {
			for _, k := range []string{"lock", "fair", "write", "read"} {
				k := kindOf(k)
				b.javaTries(k.rival, "relock-"+k.name, 2, false)
				b.tries(kindOf(k.rival).lock(b.client, "java-"+k.name), false)
			}
		}
		b.java.kill()
		start := time.Now()
		for _, k := range []string{"lock", "fair", "write", "read"} {
			k := kindOf(k)
			b.must(k.lock(b.client, "relock-"+k.name).Unlock(ctx))
			l := kindOf(k.rival).lock(b.newClient(0), "java-"+k.name)
			ok, err := l.TryLock(ctx, 2*soon, 0)
			require.NoError(b, err, "%s: Java was killed", k.name)
			require.True(b, ok, "%s: Java was killed", k.name)
			b.must(l.Unlock(ctx))
		}
		assert.LessOrEqual(b, time.Since(start), lease+soon, "time until the locks of a killed Java service were free")
	})
}

// There is one fencing counter: tokens grow, whichever language draws them.
func TestTokensGrowAcrossLanguages(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		if !kindOf("fenced").has(b.version()) {
			b.Skip("this Redisson has no fenced lock")
		}
		l := b.client.NewLock("fenced", relock.Fenced())
		var last int64
		for range 5 {
			b.must(l.Lock(ctx))
			token, err := l.Token(ctx)
			assert.NoError(b, err)
			assert.Greater(b, token, last, "relock draws")
			last = token
			b.must(l.Unlock(ctx))
			b.java.must(command{Op: "lock", Kind: "fenced", Name: "fenced"})
			token = b.java.must(command{Op: "token", Kind: "fenced", Name: "fenced"}).Number
			assert.Greater(b, token, last, "Java draws")
			last = token
			b.java.must(command{Op: "unlock", Kind: "fenced", Name: "fenced"})
		}
	})
}
