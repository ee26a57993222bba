package relocktest

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/opaque"
)

// A Bubble is a Redis for a test that runs in a bubble of testing/synctest (Go 1.25). There time advances when every
// goroutine of the test waits: a lease of 30s expires without a real delay, and for Clients and Redis at the same
// moment.
//
//	synctest.Test(t, func(t *testing.T) {
//		redis := relocktest.NewBubble(t)
//		holder, other := redis.Client(), redis.Client()
//		...
//		redis.Forget("lock:orders:42") // the holder has lost its lock, and notices within 10s
//		redis.Stop()                   // an outage; Redis keeps its data
//		time.Sleep(5 * time.Minute)    // takes a millisecond
//		redis.Resume()
//	})
//
// The Clients use a network in memory. If a goroutine of the test waits for a sync.Mutex, the time of the bubble does
// not advance: see package testing/synctest. All methods may be called by any goroutine of the bubble.
type Bubble struct {
	t     testing.TB
	redis opaque.Pointer[bubble.Redis]
}

// In a bubble go-redis prints nothing: during an outage it would print a line for each refused connection.
func init() { setLogger() } // before TestMain, which may set another one

func setLogger() { redis.SetLogger(&quiet{logging.NewBlacklistLogger(nil)}) }

// A quiet logger is the default one of go-redis, except for goroutines that run in a bubble.
type quiet struct {
	printer interface {
		Printf(ctx context.Context, format string, v ...any)
	}
}

// Printf implements the interface of [redis.SetLogger].
func (q *quiet) Printf(ctx context.Context, format string, v ...any) {
	if !inBubble() {
		q.printer.Printf(ctx, format, v...)
	}
}

// NewBubble starts a Redis in the bubble of the test t. It ends with the test.
func NewBubble(t testing.TB) *Bubble {
	b := &Bubble{t, opaque.To(bubble.Start())}
	t.Cleanup(func() {
		b.redis.Get().Close()
		time.Sleep(
			2 * time.Second,
		) // go-redis checks once a second whether its server is back, until shortly after it is closed
	})
	return b
}

// String returns "Bubble".
func (b *Bubble) String() string { return "Bubble" }

// Client returns a new Client, which stands for a process of its own: its owners differ from those of other Clients. It
// logs to the test, and a forced release by another Client reaches it at once. All other settings are the defaults of relock.New, unless opts change them. The Client is closed
// when the test ends; a test may close it earlier.
func (b *Bubble) Client(opts ...relock.Option) *relock.Client {
	b.t.Helper()
	return newClient(b.t, b.Redis(), opts)
}

// Redis returns a new go-redis client with a round trip of a millisecond. It is closed when the test ends.
func (b *Bubble) Redis() *redis.Client {
	link := b.redis.Get().Link(strconv.Itoa(rand.IntN(1_000_000)), rand.Uint64())
	link.Set(func(c *bubble.Conditions) { c.Latency = 500 * time.Microsecond })
	rdb := redis.NewClient(&redis.Options{
		Addr: bubble.Addr(0), Dialer: link.Dial, DialerRetries: 1, // between retries it would sleep with a mutex held
		PoolSize:                 bubble.PoolSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	b.t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Forget makes Redis lose the key of a lock, as a failover to a replica may. The holder of the lock has lost it then,
// and notices at its next renewal, a third of the watchdog timeout later at most. Forget reports whether the key
// existed. The key is the name of the lock, with the prefix of its Client.
func (b *Bubble) Forget(key string) (there bool) {
	b.redis.Get().Look(func(m *miniredis.Miniredis) { there = m.Del(key) })
	return there
}

// Stop starts an outage: connections are closed, and new ones are refused. Leases continue to expire. Redis keeps its
// data until Resume.
func (b *Bubble) Stop() { b.redis.Get().Stop() }

// Resume ends an outage.
func (b *Bubble) Resume() { b.redis.Get().Return() }
