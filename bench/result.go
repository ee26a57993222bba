package main

// The result of a workload.

import (
	"math"
	"slices"

	"github.com/relock-go/relock/bench/stats"
)

// A result is all rounds of a workload.
type result struct {
	workload
	rows []row
}

// A row has the samples of one library, in the order of the rounds, like those of all rows.
type row struct {
	kind    kind
	samples []sample
}

// of returns a metric round by round, with NaN if it was not measured.
func (r row) of(m *metric) []float64 {
	all := make([]float64, len(r.samples))
	for i, s := range r.samples {
		v, ok := s[m]
		if !ok {
			v = math.NaN()
		}
		all[i] = v
	}
	return all
}

func (r row) spread(m *metric) stats.Spread { return stats.Over(r.of(m)) }

func (r row) value(m *metric) float64 { return m.value(r.of(m)) }

// row returns the row of a library, or nil.
func (r *result) row(name string) *row {
	i := slices.IndexFunc(r.rows, func(r row) bool { return r.kind.name == name })
	if i < 0 {
		return nil
	}
	return &r.rows[i]
}

// compare adds the figures that refer to the mutex of the same round: the rate of an ideal lock, and how long a
// critical section takes by the clock.
func (r *result) compare() {
	mutex := r.row("sync.Mutex")
	if mutex == nil {
		return
	}
	ideal := mutex.of(rate)
	for _, row := range r.rows {
		for i, s := range row.samples {
			s[ofMutex] = s[rate] / ideal[i]
			if r.inLine > 0 {
				s[longestTurns] = s[longest] / (float64(r.inLine) * (1/ideal[i] + s[trips]))
			}
		}
	}
}

// ours returns the row of relock.
func (r *result) ours() row { return r.rows[0] }

// A ratio is the geometric mean of the ratios of the rounds, and how far it may be from the true one: see
// stats.GeometricMean.
type ratio struct{ mid, margin float64 }

func meanOf(ratios []float64) ratio {
	mid, margin := stats.GeometricMean(ratios)
	return ratio{mid, margin}
}

// sure is the margin up to which rounds are added.
const sure = 0.03

// better returns by which factor relock is better than the other library, round by round: above 1 it is better.
func (r *result) better(than []float64) ratio {
	ours := r.ours().of(r.figure)
	all := stats.Ratios(ours, than)
	if r.less {
		all = stats.Ratios(than, ours)
	}
	return meanOf(all)
}

// isSure reports whether all ratios are sure.
func (r *result) isSure() bool {
	for _, row := range r.rows[1:] {
		if m := r.better(row.of(r.figure)).margin; !(m <= sure) {
			return false
		}
	}
	return true
}

// fastest returns the best figure of all libraries, round by round.
func (r *result) fastest() []float64 {
	best := make([]float64, len(r.rows[0].samples))
	for i := range best {
		best[i] = math.NaN()
	}
	for _, row := range r.rows {
		if !row.kind.library {
			continue
		}
		for i, v := range row.of(r.figure) {
			if math.IsNaN(best[i]) || v > best[i] != r.less {
				best[i] = v
			}
		}
	}
	return best
}
