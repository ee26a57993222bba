// Package relocktest provides unit tests with a [relock.Client] on an embedded Redis, which needs no server and ends
// with the test.
//
//	func TestCheckout(t *testing.T) {
//		client := relocktest.New(t)
//		shop := NewShop(client)
//		...
//	}
//
// A test that is about leases, or about several processes, starts the [Server] itself, creates a Client for each
// process, and moves the clock:
//
//	server := relocktest.Start(t)
//	crashed, client := server.Client(), server.Client()
//	_ = crashed.NewLock("lock:orders:42").Lock(ctx)
//	_ = crashed.Close() // its leases are no longer renewed
//	server.Advance(30 * time.Second)
//	ok, err := client.NewLock("lock:orders:42").TryLock(ctx, 0, 0) // true
//
// # The clock
//
// The clock of a Server is ahead of the real clock by the sum of all durations that were passed to [Server.Advance]. It
// is the clock of Redis: Advance shortens every remaining lease by d, and keys whose lease has expired are gone. The
// time of the command TIME moves, too, and with it fencing tokens and the times of [relock.Client.Inspect].
//
// The Clients do not notice. Each measures the validity of its holds with its own monotonic clock, as in production,
// and no test can move that clock. So after Advance by a lease or more two owners can believe that they hold a lock, as
// after the pause of a process:
//
//   - A holder whose key is gone notices at its next renewal, within a third of its watchdog timeout in real time. It
//     also notices when it asks Redis: IsHeld and HoldCount return false and 0, and the contexts of Guard are canceled
//     with the cause relock.ErrLockLost; Unlock and another Lock return that error. Guard and Token do not ask Redis.
//   - A holder with an explicit lease is not renewed. It notices when it asks Redis, or when the lease has expired in
//     real time.
//   - A holder whose lease is renewed has a full lease again after the next renewal, if a third of the lease or more
//     remains after Advance. If less remains, it may lose the key before that.
//   - A waiter acquires the lock within the poll interval, which is 10ms of real time here.
//   - Goroutines of one Client may for a moment hand off a lock that Redis has lost: see relock.WithHandoffWindow,
//     where 0 turns this off.
//   - A waiter for a fair lock keeps its position: a jump of the clock looks to it like an outage of Redis.
//
// To test a loss without a long wait, make the watchdog timeout short, and advance by it:
//
//	client := server.Client(relock.WithWatchdogTimeout(300 * time.Millisecond))
//	guarded, err := lock.Guard(ctx)
//	server.Advance(300 * time.Millisecond)
//	<-guarded.Done() // within 100ms; the cause is relock.ErrLockLost
//
// # Limits
//
// The Redis is a miniredis. It has the scripts, messages and expiry of one server, and no faults, replicas or Cluster.
// A Server uses the network, so it does not work in a bubble of testing/synctest. There [NewBubble] starts a Redis that
// uses the same clock as the Clients, and that can be stopped.
package relocktest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/mini"
	"github.com/relock-go/relock/internal/opaque"
)

// New returns a Client on a Server of its own. Both are closed when the test ends. See [Server.Client]. In a bubble of
// testing/synctest use [NewBubble].
func New(t testing.TB, opts ...relock.Option) *relock.Client {
	t.Helper()
	return Start(t).Client(opts...)
}

// A Server is an embedded Redis for one test, with a clock that the test can move. Its methods may be called by any
// number of goroutines at once. Client and Redis may be called only while the test runs.
type Server struct {
	t     testing.TB
	mini  opaque.Pointer[miniredis.Miniredis]
	clock opaque.Pointer[clock]
}

// A clock is that of a Server.
type clock struct {
	mu    sync.Mutex    // guards ahead, and keeps the clock from going back
	ahead time.Duration // how far the clock is ahead of the real one
}

// Start starts a Server on a port of the loopback interface. It is closed when the test ends. Servers are independent
// of each other: for a RedLock start one for each node.
//
// In a bubble of testing/synctest Start ends the test: use NewBubble there.
func Start(t testing.TB) *Server {
	t.Helper()
	if inBubble() {
		t.Fatal("relocktest: a Server uses the network, for which the time of a synctest bubble does not wait: " +
			"call NewBubble instead of New or Start")
	}
	s := &Server{t, opaque.To(mini.Still(t)), opaque.To(new(clock))}
	mini.Tick(t, s.mini.Get(), func() { s.Advance(0) }, nil)
	return s
}

// Client returns a new Client of the Server, which stands for a process of its own: its owners differ from those of
// other Clients. It logs to the test, and its poll interval is 10ms. A forced release by another Client of the Server
// reaches it at once, and not only when it has had a hold for a second. All other settings are the defaults of relock.New,
// unless opts change them. The Client is closed when the test ends; a test may close it earlier.
func (s *Server) Client(opts ...relock.Option) *relock.Client {
	s.t.Helper()
	return newClient(s.t, s.Redis(), append([]relock.Option{relock.WithPollInterval(10 * time.Millisecond)}, opts...))
}

// newClient returns a Client that logs to t, is closed when t ends, and hears of forced releases from the start.
func newClient(t testing.TB, rdb *redis.Client, opts []relock.Option) *relock.Client {
	t.Helper()
	log := relock.WithLogger(slog.New(slog.NewTextHandler(testLog{t}, nil)))
	client, err := relock.New(rdb, append([]relock.Option{log}, opts...)...)
	if err != nil {
		t.Fatalf("relocktest: %v", err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("relocktest: %v", err)
		}
	})
	inside.Of(client).Engine.Probe().HearsOfForce()
	return client
}

// Redis returns a new go-redis client of the Server, to read its data, or to delete them, for example with FlushAll. It
// is closed when the test ends.
func (s *Server) Redis() *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	s.t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Addr returns the address of the Server, as host:port.
func (s *Server) Addr() string { return s.mini.Get().Addr() }

// String returns "Server" and the address.
func (s *Server) String() string { return "Server " + s.Addr() }

// Advance moves the clock of the Server forward by d. Every remaining lease becomes shorter by d, and keys whose lease
// has expired are gone when Advance returns. The package comment describes how Clients react. Advance panics if d is
// negative.
func (s *Server) Advance(d time.Duration) {
	if d < 0 {
		panic("relocktest: Advance(" + d.String() + "): a clock does not go back")
	}
	c := s.clock.Get()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
	s.mini.Get().SetTime(time.Now().Add(c.ahead)) // waits for a script that runs
}

// ReportHeld makes t fail if one of the clients still holds a lock when t ends. The error names the locks, and who holds
// them. A Client that the test has closed, as if its process had crashed, is not reported. Call it after the Clients
// were created, so that they are not closed before:
//
//	client := relocktest.New(t)
//	relocktest.ReportHeld(t, client)
func ReportHeld(t testing.TB, clients ...*relock.Client) {
	t.Helper()
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		for _, c := range clients {
			// A hold that nobody has is not asked for in Redis.
			if _, err := c.NewLock("relocktest").HoldCount(relock.ContextWithOwner(context.Background())); err != nil {
				continue // it is closed
			}
			if err := c.Shutdown(ended); errors.Is(err, context.Canceled) {
				t.Errorf("relocktest: the test has ended: %v", err)
			}
		}
	})
}

// inBubble reports whether the calling goroutine runs in a bubble of testing/synctest, which has no function for that.
func inBubble() bool {
	head := make([]byte, 128) // such as: goroutine 8 [running, synctest bubble 1]:
	head = head[:runtime.Stack(head, false)]
	line, _, _ := bytes.Cut(head, []byte("\n"))
	return bytes.Contains(line, []byte("synctest"))
}

// testLog writes to the log of a test, as the Output of a testing.TB does since Go 1.25.
type testLog struct{ t testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("%s", bytes.TrimSuffix(line, []byte("\n")))
	return len(line), nil
}
