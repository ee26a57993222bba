package main

// The workloads that are measured.

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

// A workload is one kind of use, and the libraries that take part.
type workload struct {
	name, title string
	trip        time.Duration // the round trip of the proxy; 0 if there is none
	masters     int           // number of masters of a Cluster; 0 for one server
	timeout     time.Duration // the read timeout of go-redis; 0 for that of setting.client
	clients     int           // number of clients of each library, opened before it starts; 0 if it opens them itself
	rare        bool          // it takes long, so it has fewer rounds
	headline    bool          // the README has its row
	longer      int           // slices are longer by this factor, because processes take turns
	// More rounds by this factor, with slices that are shorter by it: no worker waits when a slice ends.
	often  int
	peers  []string // the first one is relock
	slice  func(ctx context.Context, t turn) (sample, error)
	inLine int // number of processes that take turns, with one goroutine each

	figure  *metric // the figure that is compared
	less    bool    // a smaller figure is better
	high    *metric // in the chart, the end of the range of a bar; nil for the greatest of all rounds
	columns []*metric
}

// A turn is one slice of time of one library.
type turn struct {
	server  *server
	kind    kind
	peers   []peer
	program *program // does the work instead of clients
	took    time.Duration

	// In all turns of the library so far, except the one that warms up.
	served *[]int           // of each worker, its critical sections
	handed *stats.Histogram // waits of hand-offs, in round trips
}

// A size is the size of a measurement.
type size struct {
	held, awaited int
	lease         time.Duration // the lease of the locks that are held
}

const far = 2 * time.Millisecond // the round trip through the proxy

var (
	libraries = []string{"rueidislock", "redislock", "redislock 2ms", "redsync", "redsync 2ms", "redisson"}
	crowded   = []*metric{p50, p99, longest, evenWorker, requests, commands, scripts, redisCPU, ourCPU, stuckCount}
	fleets    = []*metric{
		ofMutex,
		p50,
		p99,
		longest,
		evenClient,
		evenWorker,
		requests,
		commands,
		scripts,
		redisCPU,
		ourCPU,
		stuckCount,
	}
	lines = []*metric{
		ofMutex,
		requests,
		longestTurns,
		evenClient,
		p50,
		p99,
		longest,
		commands,
		scripts,
		redisCPU,
		ourCPU,
		stuckCount,
	}
)

// linesOf are the numbers of processes that take turns, with one goroutine each.
var linesOf = []int{4, 16, 64, 128}

// hugeLine is a queue of processes that is simulated.
var hugeLine = shape{10_000, 1}

func lineName(n int) string { return fmt.Sprintf("fleet-%dx1-1ms-far", n) }

func workloads(n size) []workload {
	all := []workload{
		{name: "alone-cancellable", headline: true, title: "1 goroutine, no contention, a context that can be canceled",
			clients: 1, peers: []string{"relock", "bare EVALSHA", "rueidislock", "redislock", "redsync"},
			often: 40, slice: crowd{clients: 1, workers: 1, names: 1}.slice, figure: rate, columns: crowded},
		{name: "alone", title: "1 goroutine, no contention, context.Background()",
			clients: 1, peers: []string{"relock", "bare EVALSHA", "redislock", "redsync", "redisson"}, // rueidislock can hang
			often: 40, slice: crowd{clients: 1, workers: 1, names: 1, endless: true}.slice, figure: rate, columns: crowded},
		{name: "names-16", title: "16 goroutines, 16 names",
			clients: 1, peers: []string{"relock", "bare EVALSHA", "bare AutoPipeline", "rueidislock", "redislock", "redsync"},
			often: 5, slice: crowd{clients: 1, workers: 16, names: 16}.slice, figure: rate, columns: crowded},
		{name: "names-32", title: "32 goroutines, 32 names",
			clients: 1, peers: []string{"relock", "bare EVALSHA", "bare AutoPipeline", "rueidislock", "redislock", "redsync"},
			often: 5, slice: crowd{clients: 1, workers: 32, names: 32}.slice, figure: rate, columns: crowded},
		{name: "names", headline: true, title: "64 goroutines, 64 names",
			clients: 1, peers: []string{"relock", "bare EVALSHA", "bare AutoPipeline", "rueidislock", "redislock", "redsync",
				"redisson"},
			often: 5, slice: crowd{clients: 1, workers: 64, names: 64}.slice, figure: rate, columns: crowded},
		{name: "names-1000", title: "1,000 goroutines, 1,000 names",
			clients: 1, peers: []string{"relock", "bare EVALSHA", "bare AutoPipeline", "rueidislock", "redislock", "redsync"},
			often: 5, slice: crowd{clients: 1, workers: 1000, names: 1000}.slice, figure: rate, columns: crowded},
		{name: "names-cluster", title: "64 goroutines, 64 names, a Cluster of three masters", masters: 3,
			clients: 1, peers: []string{"relock", "bare EVALSHA", "bare AutoPipeline", "rueidislock", "redislock", "redsync"},
			often: 5, slice: crowd{clients: 1, workers: 64, names: 64}.slice, figure: rate, columns: crowded},
		{name: "one-name", title: "64 goroutines of one process, one name, empty section",
			clients: 1, peers: with("relock", "sync.Mutex"),
			slice: crowd{clients: 1, workers: 64, names: 1}.slice, figure: rate, columns: crowded},
		{name: "fenced", title: "64 goroutines of one process, one fenced lock, empty section",
			clients: 1, peers: []string{"relock fenced", "relock"},
			often: 5, slice: crowd{clients: 1, workers: 64, names: 1}.slice, figure: rate, columns: crowded},
	}
	for _, skew := range []float64{0, 0.8, 0.99} {
		all = append(all, workload{name: fmt.Sprintf("zipf-%g", skew),
			title:   fmt.Sprintf("4 clients × 16 goroutines, 1,000 names drawn by Zipf, exponent %g", skew),
			clients: 4, peers: []string{"relock", "rueidislock", "redislock", "redislock 2ms", "redsync", "redsync 2ms"},
			slice:  crowd{clients: 4, workers: 16, names: 1000, drawn: true, skew: skew}.slice,
			figure: rate, columns: crowded})
	}
	all = append(all, workload{name: "one-name-10ms", title: "64 goroutines of one process, one name, 10 ms section",
		clients: 1, peers: with("relock", "sync.Mutex"), longer: 4,
		slice:  crowd{clients: 1, workers: 64, names: 1, section: 10 * time.Millisecond}.slice,
		figure: rate, columns: append([]*metric{ofMutex}, crowded...)})
	for _, f := range []struct {
		name, title   string
		trip, section time.Duration
	}{
		{"fleet-empty", "4 clients × 16 goroutines, one name, empty section, loopback", 0, 0},
		{"fleet-1ms", "4 clients × 16 goroutines, one name, 1 ms section, loopback", 0, time.Millisecond},
		{"fleet-empty-far", "4 clients × 16 goroutines, one name, empty section, 2 ms round trip", far, 0},
		{"fleet-1ms-far", "4 clients × 16 goroutines, one name, 1 ms section, 2 ms round trip", far, time.Millisecond},
	} {
		all = append(all, workload{name: f.name, title: f.title, trip: f.trip,
			clients: 4, peers: with("relock", "sync.Mutex"),
			slice:  crowd{clients: 4, workers: 16, names: 1, section: f.section}.slice,
			figure: rate, columns: fleets})
	}
	for _, n := range linesOf {
		all = append(all, workload{name: lineName(n),
			title: fmt.Sprintf("%d clients × 1 goroutine, one name, 1 ms section, 2 ms round trip", n),
			trip:  far, headline: n == 16,
			clients: n, peers: with("relock", "relock fair", "bare grant", "sync.Mutex"),
			longer: max(1, n/8), inLine: n, // one turn more or less must not make a process uneven
			slice:  line{crowd{clients: n, workers: 1, names: 1, section: time.Millisecond}}.slice,
			figure: rate, columns: lines})
	}
	all = append(all, workload{name: "fleet-10000x1-simulated", rare: true,
		title: "10,000 clients × 1 goroutine, one name, 1 ms section, 0.4 ms round trip, simulated",
		peers: []string{"relock"},
		slice: hugeLine.inSimulation, figure: rate,
		columns: []*metric{requests, looks, allOfThem, servedAll, overtaken, longest, evenClient, redisLoad}})
	for _, h := range []struct {
		name, title string
		trip        time.Duration
	}{
		{"handoff", "from Unlock in one client to Lock in another, loopback", 0},
		{"handoff-far", "from Unlock in one client to Lock in another, 2 ms round trip", far},
	} {
		all = append(all, workload{name: h.name, title: h.title, trip: h.trip, headline: h.trip == far,
			clients: 2, peers: with("relock", "relock fenced", "relock write", "relock fair", "bare grant"),
			longer: 2,
			slice:  handoff{h.trip}.slice,
			figure: handedOff, less: true, high: handedTail,
			columns: []*metric{handedTail, p50, longest, trips, requests, handoffs, stuckCount}})
	}
	all = append(all, leaverWorkloads()...)
	for _, s := range []struct {
		name, title      string
		clients, workers int
		section          time.Duration
		peers            []string
	}{
		{"semaphore-alone", "1 goroutine, no contention, a semaphore with one permit", 1, 1, 0,
			[]string{"relock semaphore", "relock"}},
		{"semaphore-process", "64 goroutines of one process, 8 permits, 1 ms section", 1, 64, time.Millisecond,
			[]string{"relock 8 permits", "relock semaphore", "relock"}},
		{"semaphore-fleet", "16 clients × 1 goroutine, 8 permits, 1 ms section", 16, 1, time.Millisecond,
			[]string{"relock 8 permits", "relock semaphore", "relock"}},
	} {
		all = append(all, workload{name: s.name, title: s.title, clients: s.clients, peers: s.peers,
			slice:  crowd{clients: s.clients, workers: s.workers, names: 1, section: s.section}.slice,
			figure: rate, columns: fleets})
	}
	return append(
		all,
		workload{name: "fair", title: "4 clients × 16 goroutines, one fair lock, 1 ms section, loopback",
			clients: 4, peers: []string{"relock fair", "bare grant", "relock", "sync.Mutex"},
			slice:  crowd{clients: 4, workers: 16, names: 1, section: time.Millisecond}.slice,
			figure: rate, columns: fleets},
		workload{name: "readers", title: "64 readers, one name",
			clients: 1, peers: []string{"relock read", "bare read", "relock"},
			often: 5, slice: crowd{clients: 1, workers: 64, names: 1}.slice, figure: rate, columns: crowded},
		workload{name: "readers-1ms", title: "64 readers, one name, 1 ms section",
			clients: 1, peers: []string{"relock read", "bare read", "relock"},
			slice: crowd{clients: 1, workers: 64, names: 1, section: time.Millisecond}.slice, figure: rate, columns: crowded},
		wokenReaders("readers-woken", 0),
		wokenReaders("readers-woken-far", far),
		workload{name: "start", title: "from opening a Redis client and a lock client until the first lock is held",
			peers: []string{"relock", "rueidislock", "redislock", "redsync"},
			slice: start, figure: firstLock, less: true, columns: []*metric{goroutinesEach, heapEach}},
		workload{
			name:   "held",
			title:  amount(float64(n.held)) + " held locks that are renewed, lease " + n.lease.String(),
			rare:   true,
			peers:  []string{"relock", "rueidislock"},
			slice:  hoard{n.held, n.lease}.held,
			figure: heapEach,
			less:   true,
			columns: []*metric{
				locksHeld,
				goroutines,
				longestGap,
				seldom,
				lostLocks,
				scriptRate,
				commandRate,
				pipelineRate,
				redisLoad,
				ourLoad,
			},
		},
		workload{name: "waiters", title: amount(float64(n.awaited)) + " goroutines that wait for as many names", rare: true,
			peers:  []string{"relock", "rueidislock", "redislock", "redsync"},
			slice:  hoard{n.awaited, 2 * time.Minute}.awaited,
			figure: scriptRate, less: true,
			columns: []*metric{commandRate, pubsub, connections, goroutines, heapEach, redisLoad, ourLoad, stuckCount}},
	)
}

// leaverWorkloads are those of callers that leave, with a queue in one process and with one in Redis.
func leaverWorkloads() (all []workload) {
	for _, q := range []struct {
		name, title      string
		clients, workers int
		trip             time.Duration
		leave            quitting
	}{
		{"leavers-process", "64 goroutines of one process, one name, 1 ms section; half of the calls are canceled within " +
			"10 ms",
			1, 64, 0, quitting{oneIn: 2, within: 10 * time.Millisecond}},
		{"leavers-fleet", "4 clients × 16 goroutines, one name, 1 ms section, 2 ms round trip; half of the calls are " +
			"canceled within 10 ms",
			4, 16, far, quitting{oneIn: 2, within: 10 * time.Millisecond}},
		{"leavers-16x1", "16 clients × 1 goroutine, one name, 1 ms section, 2 ms round trip; half of the calls are " +
			"canceled within 50 ms",
			16, 1, far, quitting{oneIn: 2, within: 50 * time.Millisecond}},
		{"bursts-process", "128 goroutines of one process, one name, 1 ms section; every 20 ms most of the waits are " +
			"canceled at once",
			1, 128, 0, quitting{oneIn: 4, within: 20 * time.Millisecond, together: true}},
		{"bursts-fleet", "4 clients × 32 goroutines, one name, 1 ms section, 2 ms round trip; every 20 ms most of the " +
			"waits are canceled at once",
			4, 32, far, quitting{oneIn: 4, within: 20 * time.Millisecond, together: true}},
	} {
		q.leave.crowd = crowd{clients: q.clients, workers: q.workers, names: 1, section: time.Millisecond}
		all = append(all, workload{name: q.name, title: q.title, trip: q.trip,
			clients: q.clients, peers: []string{"relock", noneLeaves},
			longer: 2, often: 2, // a short run has a margin, too, and slices are no shorter
			slice: q.leave.slice, figure: rate, columns: append([]*metric{leftEach}, crowded...)})
	}
	return all
}

// wokenReaders is the workload of readers of many processes that wait for a writer.
func wokenReaders(name string, trip time.Duration) workload {
	w := woken{trip: trip, readers: 32}
	at := "loopback"
	if trip > 0 {
		at = "2 ms round trip"
	}
	return workload{name: name,
		title: fmt.Sprintf("from Unlock of a writer until the waiting readers of %d clients have the lock, %s",
			w.readers, at),
		trip: trip, clients: w.readers + 1, peers: []string{"relock RWLock", "bare wake", "bare broadcast", "redisson"},
		longer: 8, often: 2, // as for callers that leave
		slice:  w.slice,
		figure: handedOff, less: true, high: handedTail,
		columns: []*metric{handedTail, p50, longest, trips, requests, handoffs, stuckCount}}
}

// with returns these peers and all libraries.
func with(these ...string) []string { return append(these, libraries...) }
