package locktest

// Benches with a proxy between a Client and Redis, and the kinds of locks that meet faults.

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/require"
)

// A FaultLock is a lock type, and the requests by which its faults are injected.
type FaultLock struct {
	LockKind

	Takes, Gives, RollsBack, Renews testredis.Match

	Asks, Parts int  // number of requests of one acquire, and of one release
	Red         bool // Lock continues until ctx is done, whatever the nodes answer
}

var FaultLocks = []FaultLock{
	{KindCalled("lock"), Calls(record.Script("lock_acquire")), Calls(record.Script("lock_release")), Calls(record.Script("lock_release")), Calls(record.Script("renew")), 1, 1, false},
	{KindCalled("fenced"), Calls(record.Script("lock_acquire")), Calls(record.Script("lock_release")), Calls(record.Script("lock_release")), Calls(record.Script("renew")), 1, 1, false},
	{KindCalled("fair"), Calls(record.Script("fair_acquire")), Calls(record.Script("fair_release")), Calls(record.Script("fair_release")), Calls(record.Script("renew")), 1, 1, false},
	{KindCalled("read"), Calls(record.Script("read_acquire")), Calls(record.Script("read_release")), Calls(record.Script("read_release")), Calls(record.Script("read_renew")), 1, 1, false},
	{KindCalled("write"), Calls(record.Script("write_acquire")), Calls(record.Script("write_release")), Calls(record.Script("write_release")), Calls(record.Script("renew")), 1, 1, false},
	{
		KindCalled("semaphore"),
		Calls(record.Script("semaphore_acquire")),
		Calls(record.Script("semaphore_release")),
		Calls(record.Script("semaphore_release")),
		Calls(record.Script("semaphore_renew")),
		1,
		1,
		false,
	},
	{
		LockKind{Name: "multi", One: NewSlotMultiLock, Rival: NewSlotMultiLock},
		Calls(record.Script("lock_acquire")),
		Calls(record.Script("lock_release")),
		Calls(record.Script("lock_release")),
		Calls(record.Script("renew")),
		2,
		2,
		false,
	},
	{
		LockKind{Name: "red", One: NewThreeWayLock, Rival: NewThreeWayLock},
		Calls(record.Script("lock_acquire")),
		Calls(record.Script("lock_release")),
		Calls(record.Script("lock_release")),
		Calls(record.Script("renew")),
		3,
		3,
		true,
	},
}

// Lined reports whether processes wait for the lock, or for its parts, in a line, which has their tombstones.
func (k FaultLock) Lined() bool { return k.Name != "read" }

// Calls matches the runs of a script.
func Calls(script *send.Script) testredis.Match { return testredis.Script(script.Digest()) }

// AnyOf matches the runs of these scripts.
func AnyOf(scripts ...*send.Script) testredis.Match {
	return func(cmd []string) bool {
		return slices.ContainsFunc(scripts, func(s *send.Script) bool { return Calls(s)(cmd) })
	}
}

// NewThreeWayLock returns a RedLock whose nodes all fail together: three names of one server.
func NewThreeWayLock(c *relock.Client, name string) relock.Locker {
	others, _ := Siblings.Load(c)
	two := others.([]*relock.Client)
	return c.NewRedLock(c.NewLock(name), two[0].NewLock(name+"-b"), two[1].NewLock(name+"-c"))
}

// A FaultBench has two connections to one Redis: over a proxy that can be told to fail, and directly.
type FaultBench struct {
	*Bench
	Server *testredis.Server
	Proxy  *testredis.Proxy
	Direct *relock.Client // not over the proxy
}

func NewFaultBench(t *testing.T, args ...string) *FaultBench {
	t.Parallel()
	return NewFaultBenchOn(t, testredis.Start(t, args...))
}

func NewFaultBenchOn(t *testing.T, s *testredis.Server) *FaultBench {
	b := &FaultBench{Bench: NewBench(t, s.Addr()), Server: s, Proxy: testredis.NewProxy(t, s.Addr())}
	b.LockName += "-" // so that it is not a part of another name on this server
	b.Direct = b.Client()
	for _, script := range AllScripts() {
		// So that a fault hits a run, and not a NOSCRIPT.
		b.Must(b.Rdb.ScriptLoad(ctx, script.Source()).Err())
	}
	return b
}

// faultsAtOnce limits the calls of onFaultLocks that run at the same time: each has seven tests, which measure time.
var faultsAtOnce = make(chan struct{}, 6)

// OnFaultLocks runs test for every lock type at the same time, however few processors there are, each on the bench that
// start returns.
func OnFaultLocks(t *testing.T, start func(testing.TB) *testredis.Server, test func(b *FaultBench, k FaultLock)) {
	faultsAtOnce <- struct{}{}
	defer func() { <-faultsAtOnce }()
	var all sync.WaitGroup
	for _, k := range FaultLocks {
		waitgroup.Go(&all, func() {
			t.Run(k.Name, func(t *testing.T) { test(NewFaultBenchOn(t, start(t)), k) })
		})
	}
	all.Wait()
}

// OneRedis is for faults between client and server: all lock types share a server.
func OneRedis(t *testing.T) func(testing.TB) *testredis.Server {
	s := testredis.Start(t)
	return func(testing.TB) *testredis.Server { return s }
}

// Shaky returns a client over the proxy.
func (b *FaultBench) Shaky(opts ...relock.Option) *relock.Client {
	b.Helper()
	return b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }), opts...)
}

func (b *FaultBench) Client(opts ...relock.Option) *relock.Client {
	b.Helper()
	return b.ClientOn(testredis.Client(b, b.Addr), opts...)
}

// ClientOn returns a client like that of a bench, with two siblings that know the same server by other names.
func (b *FaultBench) ClientOn(rdb *redis.Client, opts ...relock.Option) *relock.Client {
	b.Helper()
	opts = append([]relock.Option{relock.WithRedLockNodeTimeout(4 * time.Second)}, opts...)
	_, port, err := net.SplitHostPort(rdb.Options().Addr)
	b.Must(err)
	var others []*relock.Client
	for _, host := range []string{"[::ffff:127.0.0.1]", "[::ffff:7f00:1]"} {
		others = append(others, b.Bench.ClientOn(testredis.Client(b, "", func(o *redis.Options) {
			*o = *rdb.Options()
			o.Addr = host + ":" + port
		}), opts...))
	}
	c := b.Bench.ClientOn(rdb, opts...) // closed before the others, which have the locks of its RedLocks
	Siblings.Store(c, others)
	b.Cleanup(func() { Siblings.Delete(c) })
	return c
}

// Stays checks that nothing arrives on c for a while.
func Stays[T any](b testing.TB, what string, c <-chan T, d time.Duration) {
	b.Helper()
	select {
	case v := <-c:
		require.Fail(b, what, "%v", v)
	case <-time.After(d):
	}
}

// Records returns the bench's keys except for token counters, which are never deleted.
func (b *FaultBench) Records() []string {
	return slices.DeleteFunc(b.Keys(), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })
}
