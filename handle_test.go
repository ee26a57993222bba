package relock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDurationsAreRoundedUpToMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		time.Millisecond: 1, time.Millisecond + 1: 2, 2*time.Millisecond - 1: 2, 30 * time.Second: 30000,
		1<<63 - 1: 9223372036854,
	} {
		assert.Equal(t, want, milliseconds(d), "milliseconds of %v", d)
	}
	for ms, want := range map[int64]time.Duration{-2: -2 * time.Millisecond, 0: 0, 1: time.Millisecond, 1 << 62: 1<<63 - 1} {
		assert.Equal(t, want, fromMilliseconds(ms), "duration of %d ms", ms)
	}
}

// Names with a brace are taken as they are.
func TestNamesWithBracesAreKept(t *testing.T) {
	for name, want := range map[string]string{
		"x": "p:{x}", "a:b": "p:{a:b}", "{x}": "p:{x}", "a{x}b": "p:a{x}b", "x{": "p:x{", "x}": "p:{x}}",
	} {
		assert.Equal(t, want, prefixName("p", name), name)
	}
}

// On a Cluster all keys of a lock must be in one slot.
func TestClusterKeysOfALockShareASlot(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	c, err := New(rdb)
	require.NoError(t, err)
	defer c.Close()
	for name, good := range map[string]bool{
		"x": true, "{x}": true, "a{x}b": true, "a:b": true, "x}": false, "x{": false, "{}x": false, "}x": false, "{x}{y}": true,
	} {
		bad := c.NewLock(name, Fenced()).bad
		assert.Equal(t, good, bad == nil, "%s fenced: %v", name, bad)
		bad = c.NewLock(name).bad // of one key, and a channel
		assert.Equal(t, good, bad == nil, "%s: %v", name, bad)
	}
}

func TestUnlockTakesAGuardedContextThatHasEnded(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		l := b.client().NewLock(b.name)
		ctx, cancel := context.WithCancel(context.Background())
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		cancel()
		assert.Error(t, guarded.Err(), "the guard outlives its parent")
		b.must(l.Unlock(guarded))
		b.isLocked(l, false)
	})
}
