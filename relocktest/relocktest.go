// Package relocktest gives unit tests a [relock.Client] on an embedded Redis, which
// needs no server and ends with the test.
//
//	func TestCheckout(t *testing.T) {
//		client := relocktest.New(t)
//		shop := NewShop(client)
//		...
//	}
//
// A test that is about leases, or about several processes, starts the [Server]
// itself, makes a Client for each process, and moves the clock:
//
//	server := relocktest.Start(t)
//	crashed, client := server.Client(), server.Client()
//	_ = crashed.NewLock("lock:orders:42").Lock(ctx)
//	_ = crashed.Close() // its holds are not renewed any more
//	server.Advance(30 * time.Second)
//	ok, err := client.NewLock("lock:orders:42").TryLock(ctx, 0, 0) // true
//
// # The clock
//
// The clock of a Server runs with the real one, ahead of it by what [Server.Advance]
// was given so far. It is the clock of Redis: Advance takes d from what is left of
// every lease, and a record that has nothing left is gone. The clock of TIME moves
// too, and with it fencing tokens and the times of [relock.Client.Inspect].
//
// The Clients do not notice. Each trusts its holds by its own monotonic clock, as it
// does in production, and no test can move that. So after Advance by a lease or more
// two can believe that they hold a lock, as after the pause of a process:
//
//   - A holder whose record is gone hears of it at its next renewal, a third of its
//     watchdog timeout after the last one in real time; or as soon as it asks Redis:
//     IsHeld and HoldCount say no, and its guarded contexts end with cause
//     relock.ErrLockLost; Unlock and another Lock return that. Guard and Token do not ask.
//   - A holder with an explicit lease is not renewed, and hears of it when it asks,
//     or when the lease has run out in real time.
//   - A holder that is renewed, and has a third of its lease left or more, has all of
//     it again after the next renewal. With less, it may lose the record before that.
//   - Who waits for the lock gets it within the poll interval, 10ms of real time here.
//   - Goroutines of one Client may for a moment pass on among themselves what Redis
//     has lost: see relock.WithHandoffWindow, where 0 is never.
//   - Who waits for a fair lock keeps its place: a jump of the clock looks like a
//     Redis that was away.
//
// For a loss that is noticed soon, make the watchdog timeout short, and advance by it:
//
//	client := server.Client(relock.WithWatchdogTimeout(300 * time.Millisecond))
//	guarded, err := lock.Guard(ctx)
//	server.Advance(300 * time.Millisecond)
//	<-guarded.Done() // within 100ms; the cause is relock.ErrLockLost
//
// # What it is not
//
// The Redis is a miniredis: the scripts, messages and expiry of one server, without
// faults, replicas or a Cluster. A Server uses the network, so it does not work in a
// bubble of testing/synctest: there [NewBubble] starts a Redis whose clock is that of the
// Clients, and that can be taken away.
package relocktest

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/mini"
)

// New returns a Client on a Server of its own. Both are closed when the test ends.
// See [Server.Client].
func New(t testing.TB, opts ...relock.Option) *relock.Client {
	t.Helper()
	return Start(t).Client(opts...)
}

// A Server is an embedded Redis of one test, with a clock that the test can move.
// Its methods may be called by any number of goroutines; but Client and Redis
// only while the test runs.
type Server struct {
	t    testing.TB
	mini *miniredis.Miniredis

	mu    sync.Mutex    // guards ahead, and that the clock does not go back
	ahead time.Duration // of the real clock
}

// Start starts a Server on a port of the loopback interface. It is closed when the
// test ends. Servers know nothing of each other: a RedLock wants one for each node.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, mini: mini.Still(t)}
	mini.Tick(t, func() { s.Advance(0) })
	return s
}

// Client returns a new Client of the Server, which stands for a process: its owners
// are not those of other Clients. It logs to the test, its poll interval is 10ms,
// and all else is as relock.New has it, where opts do not change it. It is closed
// when the test ends; a test may close it before that.
func (s *Server) Client(opts ...relock.Option) *relock.Client {
	s.t.Helper()
	client, err := relock.New(s.Redis(), append([]relock.Option{
		relock.WithPollInterval(10 * time.Millisecond),
		relock.WithLogger(slog.New(slog.NewTextHandler(testLog{s.t}, nil))),
	}, opts...)...)
	if err != nil {
		s.t.Fatalf("relocktest: %v", err)
	}
	s.t.Cleanup(func() {
		if err := client.Close(); err != nil {
			s.t.Errorf("relocktest: %v", err)
		}
	})
	return client
}

// Redis returns a new go-redis client of the Server: to look at what is there, or to
// have Redis lose it, with FlushAll. It is closed when the test ends.
func (s *Server) Redis() *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	s.t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Addr is where the Server listens: host:port.
func (s *Server) Addr() string { return s.mini.Addr() }

// Advance moves the clock of the Server by d: what is left of every lease is d
// shorter, and what has none left is gone when Advance returns. The package comment
// says what the Clients make of that. A clock does not go back: a negative d panics.
func (s *Server) Advance(d time.Duration) {
	if d < 0 {
		panic("relocktest: Advance(" + d.String() + "): a clock does not go back")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
	s.mini.SetTime(time.Now().Add(s.ahead)) // waits for a script that runs
}

// testLog writes to the log of a test, as the Output of a testing.TB does since Go 1.25.
type testLog struct{ t testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("%s", bytes.TrimSuffix(line, []byte("\n")))
	return len(line), nil
}
