package interop

// A prefix for all names: WithKeyPrefix in Go, a NameMapper in Java.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

func TestKeyPrefixIsThatOfANameMapper(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBoth(t, setting{version: version, prefix: "app:", redis: single(t)})
			c, err := relock.New(b.redis.client(t), relock.WithKeyPrefix("app:"))
			require.NoError(t, err)
			defer c.Close()
			for _, k := range kinds {
				// Redisson 3.17 has the queue of a fair lock under the name that is not mapped, and maps that of a
				// read/write lock twice.
				if !k.has(version) || version < "3.52" && k.name != "lock" && k.name != "fenced" {
					continue
				}
				b.excludeAndWake(k, c, "orders:"+k.name+":"+k.rival)
			}
		})
	}
}

// excludeAndWake makes each language wait for the other.
func (b *both) excludeAndWake(k kind, c *relock.Client, name string) {
	ctx := context.Background()
	l := k.lock(c, name)
	b.must(l.Lock(ctx))
	b.javaTries(k.rival, name, 1, false)
	waits := b.java.start(command{Op: "lock", Kind: k.rival, Name: name, Thread: 1})
	b.awaitSubscriber("app:" + name)
	b.must(l.Unlock(ctx))
	require.True(b, b.java.await(waits, prompt).OK, "%s: Java is not woken", k.name)
	got := startLock(relock.ContextWithOwner(ctx), l)
	b.awaitSubscriber("app:" + name)
	b.java.must(command{Op: "unlock", Kind: k.rival, Name: name, Thread: 1})
	b.await(k.name+": relock is not woken", got)
	freed, err := l.ForceUnlock(ctx)
	b.must(err)
	require.True(b, freed)
	b.nothingIsLeft(name)
}
