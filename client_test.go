package relock

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestNewRefuses(t *testing.T) {
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
		if c != nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNewSendsNothing(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	c, err := New(rdb, WithWatchdogTimeout(minWatchdogTimeout), WithMaxWakeDelay(1), WithLogger(slog.Default()))
	if err != nil {
		t.Fatal(err)
	}
	if n := rdb.PoolStats().TotalConns; n != 0 {
		t.Errorf("%d connections", n)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := (*Client)(nil).Close(); err != nil {
		t.Error(err)
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	c, err := New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := c.NewLock("x")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Lock(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	if ok, err := l.TryLock(ctx, 0, 0); ok || err == nil {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestOwners(t *testing.T) {
	ctx := context.Background()
	here, there := ownerOf(ctx), elsewhere(func() owner { return ownerOf(ctx) })
	if here == there || here <= 0 || there <= 0 || here != ownerOf(ctx) {
		t.Errorf("goroutines are %d and %d", here, there)
	}
	one, two := WithOwner(ctx), WithOwner(ctx)
	if a, b := ownerOf(one), ownerOf(two); a == b || a >= 0 || a != elsewhere(func() owner { return ownerOf(one) }) {
		t.Errorf("owners are %d and %d", a, b)
	}
	if a, b := ownerOf(WithOwner(one)), ownerOf(one); a == b {
		t.Error("an owner inside an owner is the same one")
	}
}

func TestShortName(t *testing.T) {
	for name, want := range map[string]string{
		"x":                           `"x"`,
		"new\nline":                   `"new\nline"`,
		strings.Repeat("x", 64):       `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):       `"` + strings.Repeat("x", 64) + `"… (65 bytes)`,
		strings.Repeat("x", 63) + "é": `"` + strings.Repeat("x", 63) + `"… (65 bytes)`,
	} {
		if got := shortName(name); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		time.Millisecond: 1, time.Millisecond + 1: 2, 2*time.Millisecond - 1: 2, 30 * time.Second: 30000,
		1<<63 - 1: 9223372036854,
	} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v is %d ms, want %d", d, got, want)
		}
	}
	for ms, want := range map[int64]time.Duration{-2: -2 * time.Millisecond, 0: 0, 1: time.Millisecond, 1 << 62: 1<<63 - 1} {
		if got := fromMilliseconds(ms); got != want {
			t.Errorf("%d ms is %v, want %v", ms, got, want)
		}
	}
}

// WIRE.md 1.0: names with a brace are taken as they are.
func TestRedissonNames(t *testing.T) {
	for name, want := range map[string]string{
		"x": "p:{x}", "a:b": "p:{a:b}", "{x}": "p:{x}", "a{x}b": "p:a{x}b", "x{": "p:x{", "x}": "p:{x}}",
	} {
		if got := prefixName("p", name); got != want {
			t.Errorf("%s becomes %s, want %s", name, got, want)
		}
	}
}

// On a Cluster all keys of a lock must be in one slot.
func TestClusterSlots(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	c, err := New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, good := range map[string]bool{
		"x": true, "{x}": true, "a{x}b": true, "a:b": true, "x}": false, "x{": false, "{}x": false, "}x": false, "{x}{y}": true,
	} {
		if bad := c.NewLock(name, Fenced()).bad; (bad == nil) != good {
			t.Errorf("%s fenced: %v", name, bad)
		}
		if bad := c.NewLock(name).bad; (bad == nil) != good { // it has one key, and a channel
			t.Errorf("%s: %v", name, bad)
		}
	}
}

// L7: a request is sent on the goroutine of its caller only where the read timeout of the Redis client ends
// the wait for an answer in time to send it again.
func TestShortReadTimeoutNeedsNoGoroutine(t *testing.T) {
	for readTimeout, want := range map[time.Duration]bool{0: false, time.Second: true, 1001 * time.Millisecond: false, -1: false} {
		o := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: readTimeout}
		for _, rdb := range []redis.UniversalClient{redis.NewClient(o.Simple()), redis.NewClusterClient(o.Cluster())} {
			c, err := New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			if got := answersSoon(rdb); got != want {
				t.Errorf("%T with a read timeout of %v: %v", rdb, readTimeout, got)
			}
			if err := errors.Join(c.Close(), rdb.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}
