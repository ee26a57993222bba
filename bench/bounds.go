package main

// The bounds that must be reached, and those that the check requires.

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/relock-go/relock/bench/stats"
)

// A bound is the required value of one figure. The check requires less than the goal, because it runs for a short time
// on a busy machine.
type bound struct {
	workload, what string
	value          func(*result) float64
	reach, demand  float64
	most           bool // at most this value, instead of at least
}

// None of the other libraries of Go has read locks. All of them send one request to lock and one to unlock, so two bare
// EVALSHA stand for the fastest library.
//
// Readers that a writer wakes are compared with a message to all of them, and then a request from each, which is the
// minimum with Redisson's records. On loopback the requests of the readers follow each other in Redis, and each of them
// takes it about 20 µs: a read lock of Redisson is three keys, and relock checks that no writer waits, and that the
// record is one of a lock. The three commands of the bare request take 3 µs.
//
// Where a lock is not contended, relock is behind the fastest library. The scripts of its two requests run eight
// commands, those of redislock five, those of rueidislock six, and redsync acquires with one SET: two bare EVALSHA have
// 0.95 to 0.98 of the rate of redislock already. relock's own work for a section is about 15 µs beside two round trips
// of 35 µs. With many names the requests in the AutoPipeline of go-redis, without a lock, are about as fast as
// rueidislock. A bound on the number of names is what was measured, a little rounded down.
//
// Each section of the fair lock is a hand-off through Redis, with two scripts of about 30 commands. The bare grant,
// with eight, is at 0.84 of a sync.Mutex.
//
// A lock that is held takes 1.3 KB of heap, by a heap profile: the Lock with its keys and channels 0.6 KB, and the hold
// with its lease, its place among the callers of the process and the state of its name 0.7 KB.
var bounds = slices.Concat([]bound{
	{"alone", "rate, of two bare EVALSHA", against("bare EVALSHA"), 0.85, 0.60, false},
	{"alone", "rate, of redislock", against("redislock"), 0.85, 0.50, false},
	{"alone-cancellable", "rate, of two bare EVALSHA", against("bare EVALSHA"), 0.82, 0.45, false},
	{"alone-cancellable", "rate, of redislock", against("redislock"), 0.80, 0.40, false},
	{"names-16", "rate, of rueidislock", against("rueidislock"), 0.88, 0.40, false},
	{"names-32", "rate, of rueidislock", against("rueidislock"), 0.88, 0.40, false},
	{"names", "rate, of the fastest library", againstFastest, 0.80, 0.40, false},
	{"names-1000", "rate, of the fastest library", againstFastest, 0.92, 0.50, false},
	{"names-cluster", "rate, of the fastest library", againstFastest, 0.92, 0.40, false},
	{"one-name", "rate, of the fastest library", againstFastest, 40, 15, false},
	{"fenced", "rate, of an unfenced lock", against("relock"), 0.5, 0.2, false},
	{"fleet-1ms-far", "rate, of a sync.Mutex", against("sync.Mutex"), 0.92, 0.50, false},
	{"fleet-1ms-far", "slowest client, of the fastest", figureOf(evenClient), 0.5, 0.25, false},
	{"fleet-1ms-far", "longest wait, in rounds of 64 critical sections", waitOf(64), 4, 8, true},
	{"fair", "rate, of a sync.Mutex", against("sync.Mutex"), 0.65, 0.30, false},
	{"fair", "rate, of bare grants", against("bare grant"), 0.78, 0.40, false},
	{"readers", "rate, of two bare EVALSHA", against("bare read"), 20, 5, false},
	{"readers-woken", "speed, of readers that each ask once", against("bare wake"), 0.55, 0.2, false},
	{"readers-woken-far", "speed, of readers that each ask once", against("bare wake"), 0.9, 0.2, false},
	{"held", "goroutines", figureOf(goroutines), 6, 16, true},
	{"held", "bytes of heap per lock", figureOf(heapEach), 1400, 1700, true},
	{"held", "locks not renewed within their third", figureOf(seldom), 0, 0, true},
	{"held", "locks lost", figureOf(lostLocks), 0, 0, true},
	{"waiters", "pub/sub connections", figureOf(pubsub), 1, 1, true},
	{"waiters", "commands per second, including those in scripts", figureOf(commandRate), 200, 80_000, true},
	{"fleet-10000x1-simulated", "processes served, of all", figureOf(servedAll), 1, 1, false},
	{"fleet-10000x1-simulated", "grants out of order", figureOf(overtaken), 0, 0, true},
	{"fleet-10000x1-simulated", "requests per critical section, without polls", figureOf(requests), 3, 3.1, true},
	{"fleet-10000x1-simulated", "requests per critical section, with polls", figureOf(allOfThem), 3.5, 40, true},
}, lineBounds(), handoffBounds(), leaverBounds())

// lineBounds returns the bounds for processes that compete for one name with one goroutine each. A section of 1 ms and
// a round trip of 2 ms make at most a third of the rate of a sync.Mutex; a bare grant, which is no lock, reaches 0.28
// to 0.31 of it here.
func lineBounds() (all []bound) {
	for _, n := range linesOf {
		name := lineName(n)
		all = append(all,
			bound{name, "rate, of bare grants", against("bare grant"), 0.9, 0.5, false},
			bound{name, "rate, of a sync.Mutex", against("sync.Mutex"), 0.26, 0.15, false},
			bound{name, "rate, of the fastest library", againstFastest, 1.15, 0.5, false},
			bound{name, "requests per critical section", figureOf(requests), 2.5, 5, true},
			bound{name, "longest wait, in turns of all", figureOf(longestTurns), 2, 10, true},
			bound{name, "slowest process, of the fastest", figureOf(evenClient), 0.9, 0.4, false})
	}
	return all
}

// handoffBounds returns the bounds for the four kinds of locks that one process releases and another one acquires.
func handoffBounds() (all []bound) {
	for _, kind := range []string{"relock", "relock fenced", "relock write", "relock fair"} {
		// On loopback the time in Redis counts. The release of a plain lock that passes it on is a short script, and still
		// takes 35 to 65 µs, in which it reads and writes the wait queue: so relock is about as fast as rueidislock, whose
		// waiters ask. The release of a write lock has to look for readers, too, and that of a fair lock keeps the queue of
		// Redisson. Far away the bare grant needs 1.1 round trips.
		nearby := 1.05
		if kind == "relock write" || kind == "relock fair" {
			nearby = 1.15
		}
		all = append(all,
			bound{"handoff-far", kind + ", round trips", figureOfKind(kind, handedOff), 1.3, 3, true},
			bound{"handoff-far", kind + ", round trips, 99%", figureOfKind(kind, handedTail), 1.5, 40, true},
			bound{"handoff", kind + ", of the best library", ofBest(kind), nearby, 4, true})
	}
	return all
}

// leaverBounds returns the bounds for callers that leave. The second one of each requires that many did. A process of
// which the only goroutine leaves gives up its place, which is a request, and joins the wait queue again with another
// one.
func leaverBounds() (all []bound) {
	for _, w := range leaverWorkloads() {
		least := 0.95
		if w.name == "leavers-16x1" {
			least = 0.9
		}
		all = append(all,
			bound{w.name, "rate, of the same load in which no call is canceled", against(noneLeaves), least, 0.6, false},
			bound{w.name, "canceled calls per critical section", figureOf(leftEach), 0.5, 0.1, false})
	}
	return all
}

func figureOf(m *metric) func(*result) float64 {
	return func(r *result) float64 { return r.ours().value(m) }
}

func figureOfKind(kind string, m *metric) func(*result) float64 {
	return ofRow(kind, func(_ *result, row *row) float64 { return row.value(m) })
}

// ofBest returns the figure of a kind as a fraction of the best one that a library has in the same round.
func ofBest(kind string) func(*result) float64 {
	return ofRow(kind, func(r *result, row *row) float64 {
		return stats.Over(stats.Ratios(row.of(r.figure), r.fastest())).Mid
	})
}

func against(name string) func(*result) float64 {
	return ofRow(name, func(r *result, other *row) float64 { return r.better(other.of(r.figure)).mid })
}

// ofRow returns a figure of the row of a library, or NaN if the library did not take part.
func ofRow(name string, figure func(*result, *row) float64) func(*result) float64 {
	return func(r *result) float64 {
		row := r.row(name)
		if row == nil {
			return math.NaN()
		}
		return figure(r, row)
	}
}

func againstFastest(r *result) float64 { return r.better(r.fastest()).mid }

// waitOf returns the longest wait, in multiples of the time that a number of critical sections takes under a mutex.
func waitOf(sections float64) func(*result) float64 {
	return ofRow("sync.Mutex", func(r *result, mutex *row) float64 {
		waits, rates := r.ours().of(longest), mutex.of(rate)
		for i := range waits {
			waits[i] *= rates[i] / sections
		}
		return stats.Over(waits).Mid
	})
}

// met reports whether v is within a limit. A figure that was not measured is not.
func (b bound) met(v, limit float64) bool {
	if b.most {
		return v <= limit
	}
	return v >= limit
}

// check prints all bounds of the workloads that were run, and reports whether those that are required are met.
func check(w io.Writer, results []*result) bool {
	good := true
	for _, r := range results {
		for _, b := range bounds {
			if b.workload != r.name {
				continue
			}
			v := b.value(r)
			verdict := "reached"
			switch {
			case b.met(v, b.reach):
			case b.met(v, b.demand):
				verdict = "not reached"
			default:
				verdict = "FAILED"
				good = false
			}
			sign := "≥"
			if b.most {
				sign = "≤"
			}
			fmt.Fprintf(w, "%-24s %-44s %8s  %s %-6s %s\n", b.workload, b.what, digits(v), sign, digits(b.reach), verdict)
		}
	}
	return good
}
