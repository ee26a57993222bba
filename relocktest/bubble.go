package relocktest

import (
	"log/slog"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
)

// A Bubble is a Redis for a test that runs in a bubble of testing/synctest (Go 1.25), where time passes when every
// goroutine of the test waits: a lease of 30s ends in no time, and for Clients and Redis at the same moment.
//
//	synctest.Test(t, func(t *testing.T) {
//		redis := relocktest.NewBubble(t)
//		holder, other := redis.Client(), redis.Client()
//		...
//		redis.Forget("lock:orders:42") // the holder has lost its lock, and hears of it within 10s
//		redis.Stop()                   // an outage, which keeps what Redis has
//		time.Sleep(5 * time.Minute)    // takes a millisecond
//		redis.Resume()
//	})
//
// The Clients reach it over a network in memory. A goroutine of the test that waits for a sync.Mutex stops the time of
// the bubble: see package testing/synctest. All methods may be called by any goroutine of the bubble.
type Bubble struct {
	t     testing.TB
	redis *bubble.Redis
}

// NewBubble starts a Redis in the bubble of the test, which t belongs to. It ends with the test.
func NewBubble(t testing.TB) *Bubble {
	b := &Bubble{t, bubble.Start()}
	t.Cleanup(func() {
		b.redis.Close()
		time.Sleep(2 * time.Second) // go-redis looks once a second whether its server is back, until a moment after its end
	})
	return b
}

// Client returns a new Client, which stands for a process: its owners are not those of other Clients. It logs to the
// test. All else is as relock.New has it, where opts do not change it. It is closed when the test ends; a test may
// close it before that.
func (b *Bubble) Client(opts ...relock.Option) *relock.Client {
	b.t.Helper()
	client, err := relock.New(b.Redis(), append([]relock.Option{
		relock.WithLogger(slog.New(slog.NewTextHandler(testLog{b.t}, nil))),
	}, opts...)...)
	if err != nil {
		b.t.Fatalf("relocktest: %v", err)
	}
	b.t.Cleanup(func() {
		if err := client.Close(); err != nil {
			b.t.Errorf("relocktest: %v", err)
		}
	})
	return client
}

// Redis returns a new go-redis client, with a round trip of a millisecond. It is closed when the test ends.
func (b *Bubble) Redis() *redis.Client {
	link := b.redis.Link(strconv.Itoa(rand.IntN(1_000_000)), rand.Uint64())
	link.Set(func(c *bubble.Conditions) { c.Latency = 500 * time.Microsecond })
	rdb := redis.NewClient(&redis.Options{
		Addr: bubble.Addr(0), Dialer: link.Dial, DialerRetries: 1, // it would sleep between them, with a mutex held
		PoolSize:                 bubble.PoolSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	b.t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Forget has Redis lose the record of a lock, as a failover to a replica may: whoever holds the lock has lost it, and
// hears of that at the next renewal, a third of the watchdog timeout later at most. It reports whether there was a
// record. key is the name of the lock, with the prefix of its Client.
func (b *Bubble) Forget(key string) (there bool) {
	b.redis.Look(func(m *miniredis.Miniredis) { there = m.Del(key) })
	return there
}

// Stop begins an outage: connections end, and new ones are refused. Leases go on. Redis keeps what it has until Resume.
func (b *Bubble) Stop() { b.redis.Stop() }

// Resume ends an outage.
func (b *Bubble) Resume() { b.redis.Return() }
