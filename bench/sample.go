package main

// The figures that are measured, and how they are printed.

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

// A metric is one figure of a slice. Times are in seconds.
type metric struct {
	head  string
	write func(v float64) string
}

var (
	rate       = &metric{"sections/s", amount}
	p50        = &metric{"wait p50", span}
	p99        = &metric{"p99", span}
	longest    = &metric{"max", span}
	evenWorker = &metric{"even workers", share} // slowest compared with fastest
	evenClient = &metric{"even clients", share}
	servedAll  = &metric{"clients served", percent}
	commands   = &metric{"cmds/section", digits}
	requests   = &metric{"requests/section", digits}
	scripts    = &metric{"scripts/section", digits}
	redisCPU   = &metric{"redis CPU/section", span}
	ourCPU     = &metric{"client CPU/section", span}
	stuckCount = &metric{"not served in " + patience.String(), amount}

	leftEach     = &metric{"canceled/section", digits}
	ofMutex      = &metric{"of sync.Mutex", share}
	longestTurns = &metric{"max, in turns of all", digits} // a turn: a critical section and a round trip

	looks     = &metric{"polls/section", digits}
	allOfThem = &metric{"requests and polls/section", digits}
	overtaken = &metric{"overtaken", amount}

	handedOff  = &metric{"p50 in round trips", digits}
	handedTail = &metric{"p99 in round trips", digits}
	handoffs   = &metric{"handoffs", amount}
	trips      = &metric{"round trip", span}

	firstLock      = &metric{"until the first lock, p50", span}
	goroutinesEach = &metric{"goroutines each", digits}

	locksHeld    = &metric{"locks", amount}
	goroutines   = &metric{"goroutines more", amount}
	heapEach     = &metric{"heap each", kib}
	commandRate  = &metric{"cmds/s", amount}
	scriptRate   = &metric{"scripts/s", amount}
	pipelineRate = &metric{"pipelines/s", amount}
	redisLoad    = &metric{"redis CPU", percent}
	ourLoad      = &metric{"client CPU", percent}
	longestGap   = &metric{"longest time between renewals, in thirds", digits}
	seldom       = &metric{"not renewed", amount}
	lostLocks    = &metric{"lost", amount}
	connections  = &metric{"connections", amount}
	pubsub       = &metric{"for pub/sub", amount}
)

// A sample has the figures of one slice.
type sample map[*metric]float64

func amount(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v >= 999.5e3:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 9995:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

func digits(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v >= 99.95:
		return amount(v)
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	case v < 0.095:
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func span(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	d := time.Duration(v * float64(time.Second))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return digits(float64(d)/float64(unit)) + unit.String()[1:]
		}
	}
	return d.String()
}

func share(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

func percent(v float64) string { return amount(100*v) + "%" }

func kib(v float64) string {
	if v >= 10<<10 {
		return digits(v/1024) + " KiB"
	}
	return amount(v) + " B"
}

// evenness returns the smallest value as a fraction of the greatest.
func evenness(of []int) float64 {
	if len(of) < 2 || slices.Max(of) == 0 {
		return math.NaN()
	}
	return float64(slices.Min(of)) / float64(slices.Max(of))
}

// served returns the fraction of values that are not 0.
func served(of []int) float64 {
	n := 0
	for _, v := range of {
		if v > 0 {
			n++
		}
	}
	return float64(n) / float64(len(of))
}

// value returns the figure of all rounds: usually the median, the greatest for figures that must never occur, and the
// last one for a sum.
func (m *metric) value(rounds []float64) float64 {
	switch m {
	case longest, longestTurns, longestGap, stuckCount, seldom, lostLocks:
		return slices.Max(rounds) // NaN if one is
	case evenWorker, evenClient, handedTail, handoffs:
		return rounds[len(rounds)-1]
	}
	return median(rounds)
}

func median(of []float64) float64 { return stats.Over(of).Mid }
