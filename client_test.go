package relock

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewRefusesInvalidOptions(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var nilClient *redis.Client
	for text, c := range map[string]struct {
		rdb  redis.UniversalClient
		opts []Option
	}{
		"WithWatchdogTimeout(99ms)": {rdb, []Option{WithWatchdogTimeout(99 * time.Millisecond)}},
		"WithWatchdogTimeout(-1s)":  {rdb, []Option{WithWatchdogTimeout(-time.Second)}},
		"WithMaxWakeDelay(0s)":      {rdb, []Option{WithMaxWakeDelay(0)}},
		"WithMaxWakeDelay(-1ns)":    {rdb, []Option{WithMaxWakeDelay(-1)}},
		"WithLogger(nil)":           {rdb, []Option{WithLogger(nil)}},
		"WithObserver(nil)":         {rdb, []Option{WithObserver(nil)}},
		"WithNodeTimeout(0s)":       {rdb, []Option{WithNodeTimeout(0)}},
		"WithSyncedReplicas(0, 1s)": {rdb, []Option{WithSyncedReplicas(0, time.Second)}},
		"WithSyncedReplicas(1, 1µs": {rdb, []Option{WithSyncedReplicas(1, time.Microsecond)}},
		"ReadTimeout":               {rdb, []Option{WithSyncedReplicas(1, time.Minute)}},
		"option 2 is nil":           {rdb, []Option{WithMaxWakeDelay(1), nil}},
		"Redis client is nil":       {nil, nil},
		"client is nil":             {nilClient, nil},
		"Ring":                      {ring, nil},
	} {
		c, err := New(c.rdb, c.opts...)
		assert.Nil(t, c, text)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, text)
	}
}

func TestNewSendsNothing(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	c, err := New(rdb, WithWatchdogTimeout(minWatchdogTimeout), WithMaxWakeDelay(1), WithLogger(slog.Default()))
	require.NoError(t, err)
	assert.Zero(t, rdb.PoolStats().TotalConns, "connections")
	assert.NoError(t, c.Close())
	assert.NoError(t, (*Client)(nil).Close())
}

func TestLockFailsAtOnceWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	c, err := New(rdb)
	require.NoError(t, err)
	defer c.Close()
	l := c.NewLock("x")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = l.Lock(ctx)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "refused")
	ok, err := l.TryLock(ctx, 0, 0)
	assert.False(t, ok)
	assert.Error(t, err)
}

func TestOwnerIsTheGoroutineOrOfTheContext(t *testing.T) {
	ctx := context.Background()
	here, there := ownerOf(ctx), elsewhere(func() owner { return ownerOf(ctx) })
	assert.NotEqual(t, there, here, "two goroutines are two owners")
	assert.Positive(t, here, "a goroutine's owner is its id")
	assert.Positive(t, there, "a goroutine's owner is its id")
	assert.Equal(t, ownerOf(ctx), here, "a goroutine stays the same owner")
	one, two := WithOwner(ctx), WithOwner(ctx)
	a, b := ownerOf(one), ownerOf(two)
	assert.NotEqual(t, b, a, "each WithOwner makes a new owner")
	assert.Negative(t, a, "an owner of a ctx is no goroutine id")
	assert.Equal(t, elsewhere(func() owner { return ownerOf(one) }), a, "the owner of a ctx on another goroutine")
	assert.NotEqual(t, ownerOf(one), ownerOf(WithOwner(one)), "an owner inside an owner is a new one")
}

func TestErrorsCutLongNames(t *testing.T) {
	for name, want := range map[string]string{
		"x":                           `"x"`,
		"new\nline":                   `"new\nline"`,
		strings.Repeat("x", 64):       `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):       `"` + strings.Repeat("x", 64) + `"… (65 bytes)`,
		strings.Repeat("x", 63) + "é": `"` + strings.Repeat("x", 63) + `"… (65 bytes)`,
	} {
		assert.Equal(t, want, shortName(name))
	}
}

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

// WIRE.md 1.0: names with a brace are taken as they are.
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

// L7: a request is sent on the goroutine of its caller only where the read timeout of the Redis client ends
// the wait for an answer in time to send it again.
func TestShortReadTimeoutNeedsNoGoroutine(t *testing.T) {
	for readTimeout, want := range map[time.Duration]bool{0: false, time.Second: true, 1001 * time.Millisecond: false, -1: false} {
		o := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: readTimeout}
		for _, rdb := range []redis.UniversalClient{redis.NewClient(o.Simple()), redis.NewClusterClient(o.Cluster())} {
			c, err := New(rdb)
			require.NoError(t, err)
			assert.Equal(t, want, answersSoon(rdb), "%T with a read timeout of %v", rdb, readTimeout)
			assert.NoError(t, errors.Join(c.Close(), rdb.Close()))
		}
	}
}
