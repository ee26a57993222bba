package main

// The Redis of one workload, and the work that it and this process have done.
//
// Rules: testredis starts and stops it; it exits with this process, however that exits. Requests of the measurement
// itself are not counted.

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// A house is a testing.TB for testredis outside of a test. Methods that it does not define would panic; testredis calls
// none of them.
type house struct {
	testing.TB
	cleanups []func()
}

// A fatal is the value with which a house panics.
type fatal string

func (h *house) Helper()           {}
func (h *house) Failed() bool      { return false } // it panics at once
func (h *house) Cleanup(f func())  { h.cleanups = append(h.cleanups, f) }
func (h *house) Fatal(args ...any) { panic(fatal(fmt.Sprint(args...))) }

func (h *house) Fatalf(format string, args ...any) { panic(fatal(fmt.Sprintf(format, args...))) }
func (h *house) Skipf(format string, args ...any)  { h.Fatalf(format, args...) }

func (h *house) TempDir() string {
	dir, err := os.MkdirTemp("", "relock-bench")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (h *house) close() {
	for i := len(h.cleanups); i > 0; i-- {
		h.cleanups[i-1]()
	}
}

// A server is a Redis and, if a workload needs one, a proxy that adds latency.
type server struct {
	house
	addr  string // where peers connect
	admin *redis.Client
	nodes []*redis.Client // all masters; admin is the first
	pid   int
	proxy *testredis.Proxy // or nil
}

// startServer starts a Redis with a round trip of trip.
func startServer(trip time.Duration) (s *server, err error) {
	s = &server{}
	defer s.orNot(&err)
	real := testredis.Start(&s.house)
	s.admin, s.addr, s.pid = real.Client(), real.Addr(), real.Pid()
	s.nodes = []*redis.Client{s.admin}
	if trip > 0 {
		p := testredis.NewProxy(&s.house, s.addr)
		p.Latency(trip / 2)
		s.addr, s.proxy = p.Addr(), p
	}
	return s, nil
}

// startCluster starts a Cluster with a number of masters.
func startCluster(masters int) (s *server, err error) {
	s = &server{}
	defer s.orNot(&err)
	real := testredis.StartCluster(&s.house, masters, 0)
	for _, n := range real.Nodes() {
		s.nodes = append(s.nodes, n.Client())
	}
	s.admin, s.addr = s.nodes[0], strings.Join(real.Addrs(), ",")
	return s, nil
}

// orNot turns the panic of a house into an error, and lets others go on.
func (s *server) orNot(err *error) {
	switch why := recover().(type) {
	case nil:
	case fatal:
		s.close()
		*err = fmt.Errorf("no Redis to measure with: %s", string(why))
	default:
		panic(why)
	}
}

// roundTrip returns the median of some pings over the address of the peers, each after a pause, like the first request
// of a waiter.
func (s *server) roundTrip(ctx context.Context) (time.Duration, error) {
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	var all []float64
	for i := range 16 {
		time.Sleep(3 * time.Millisecond)
		start := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			return 0, err
		}
		if i > 0 { // the first one has to connect
			all = append(all, float64(time.Since(start)))
		}
	}
	return time.Duration(median(all)), nil
}

// A work is the work that Redis and this process have done so far.
type work struct {
	at          time.Time
	took        time.Duration
	calls       map[string]float64 // of each command, including those in scripts
	commands    float64            // the sum of them
	scripts     float64            // commands that run a script
	redis, ours float64            // CPU seconds; ours includes the proxy, if there is one
}

func (w work) since(before work) work {
	calls := map[string]float64{}
	for command, n := range w.calls {
		calls[command] = n - before.calls[command]
	}
	return work{
		calls:    calls,
		commands: w.commands - before.commands,
		scripts:  w.scripts - before.scripts,
		redis:    w.redis - before.redis,
		ours:     w.ours - before.ours,
	}
}

// add adds the work of another node.
func (w *work) add(node work) {
	for command, n := range node.calls {
		w.calls[command] += n
	}
	w.commands += node.commands
	w.scripts += node.scripts
	w.redis += node.redis
}

// outsideScripts are the prefixes of the commands that a script cannot call.
var outsideScripts = []string{"eval", "fcall", "script|", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe",
	"psubscribe", "punsubscribe", "client|", "wait", "multi", "exec"}

// byThemselves is the fraction of some commands that a library sends by itself; its scripts call the rest. Redisson
// deletes a key of its own after each unlock, and so does the script that unlocks.
var byThemselves = map[string]map[string]float64{
	"redsync":     {"set": 1},
	"redsync 2ms": {"set": 1},
	"redisson":    {"del": 0.5},
}

// requests returns the number of requests that the clients of a kind sent: Redis counts a command of a script like one
// of its client.
func (w work) requests(kind string) float64 {
	n := 0.0
	for command, calls := range w.calls {
		part := byThemselves[kind][command]
		if slices.ContainsFunc(outsideScripts, func(prefix string) bool { return strings.HasPrefix(command, prefix) }) {
			part = 1
		}
		n += part * calls
	}
	return n
}

// notWork are the commands of connecting and of measuring.
var notWork = []string{
	"info",
	"client",
	"client|list",
	"client|setinfo",
	"client|setname",
	"hello",
	"ping",
	"flushall",
	"command",
}

func (s *server) work(ctx context.Context) (work, error) {
	w := work{calls: map[string]float64{}}
	for _, node := range s.nodes {
		info, err := node.Info(ctx, "commandstats", "cpu").Result()
		if err != nil {
			return work{}, err
		}
		w.add(parseInfo(info))
	}
	w.at = time.Now()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return work{}, err
	}
	w.ours = time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
	return w, nil
}

// watched returns the result of do, and the work of the server of t meanwhile.
func watched[T any](
	ctx context.Context,
	t turn,
	do func(context.Context, turn) (T, error),
) (got T, did work, err error) {
	before, err := t.server.work(ctx)
	if err != nil {
		return got, did, err
	}
	if got, err = do(ctx, t); err != nil {
		return got, did, err
	}
	after, err := t.server.work(ctx)
	return got, after.since(before), err
}

func parseInfo(info string) work {
	w := work{calls: map[string]float64{}}
	for line := range strings.SplitSeq(info, "\r\n") {
		key, value, _ := strings.Cut(line, ":")
		if command, ok := strings.CutPrefix(key, "cmdstat_"); ok {
			value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			calls, _ := strconv.ParseFloat(value, 64)
			if slices.Contains(notWork, command) {
				continue
			}
			w.calls[command] = calls
			w.commands += calls
			if strings.HasPrefix(command, "eval") || strings.HasPrefix(command, "fcall") {
				w.scripts += calls
			}
		}
		if key == "used_cpu_sys" || key == "used_cpu_user" {
			seconds, _ := strconv.ParseFloat(value, 64)
			w.redis += seconds
		}
	}
	return w
}

// connections returns the number of connections: all, and those for pub/sub, without those that only hear of forced
// releases.
func (s *server) connections(ctx context.Context) (all, pubsub int, err error) {
	list, err := s.admin.ClientList(ctx).Result()
	if err != nil {
		return 0, 0, err
	}
	subscribed, err := s.admin.Do(ctx, "client", "list", "type", "pubsub").Text()
	if err != nil {
		return 0, 0, err
	}
	hearing, err := s.hearing(ctx)
	// Except the connection that asks.
	return strings.Count(list, "\n") - 1, strings.Count(subscribed, "\n") - hearing, err
}

// hearing returns the number of channels on which Clients of relock hear of forced releases. In the benchmarks these
// Clients wait for nothing, so each of these channels has a connection of its own.
func (s *server) hearing(ctx context.Context) (int, error) {
	channels, err := s.admin.PubSubChannels(ctx, "relock_client:*").Result()
	return len(channels), err
}
