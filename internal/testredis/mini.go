package testredis

// An in-process Redis, and clients that end with their test.
//
// Rules: miniredis runs on the clock (ClockTTL), otherwise no lease would ever
// end; on one that stands still while a script runs, as that of Redis does. It proves the logic of scripts, not the faults and errors of Redis: those
// are tested on a Server.

import (
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini starts a miniredis on a loopback port whose TTLs follow the clock. It is
// closed when the test ends. A client on it: Client(t, m.Addr()).
func Mini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := StillMini(t)
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.SetTime(time.Now()) // waits for a script that runs
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		ticking.Wait()
	})
	return m
}

// StillMini is Mini with a clock that only the test moves, with SetTime.
func StillMini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	m.SetTime(time.Now())
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		t.Fatalf("miniredis does not start: %v", err)
	}
	t.Cleanup(m.Close)
	return m
}

// Client returns a client of whatever listens at addr, with the defaults of
// go-redis where opts do not change them. It is closed when the test ends.
func Client(t testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() }) // a test may have closed it already
	return c
}
