// Package stats summarizes measurements: waits in a histogram, and figures of several rounds as a median with its
// spread.
package stats

// Rules: adding a wait costs nanoseconds and no memory, whatever their number. A missing figure is NaN, and is not part
// of any sum.

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

const (
	fine    = 5 // bits below the highest one: a bucket is no wider than 1/32 of its values
	buckets = (64 - fine) << fine
)

// A Histogram counts durations. The zero one is empty.
type Histogram struct {
	counts [buckets]uint32
	n      int
	max    time.Duration
}

// Add counts d. A negative d counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(d)]++
	h.n++
	h.max = max(h.max, d)
}

// Merge adds all durations of other.
func (h *Histogram) Merge(other *Histogram) {
	for i, c := range other.counts {
		h.counts[i] += c
	}
	h.n += other.n
	h.max = max(h.max, other.max)
}

// Count returns the number of durations.
func (h *Histogram) Count() int { return h.n }

// Max returns the longest duration exactly, or 0 if there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile returns the shortest duration that the fraction q of all does not exceed, at most 1/32 too long. It is 0 if
// there is none.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(1, int(math.Ceil(q*float64(h.n))))
	seen := 0
	for i, c := range h.counts {
		if seen += int(c); seen >= rank {
			return min(top(i), h.max)
		}
	}
	return h.max
}

// bucket returns the bucket of d. Durations below 2<<fine have a bucket each; above that every power of two has 1<<fine
// buckets.
func bucket(d time.Duration) int {
	shift := max(0, bits.Len64(uint64(d))-fine-1)
	return shift<<fine + int(uint64(d)>>shift)
}

// top returns the longest duration of a bucket.
func top(i int) time.Duration {
	if i < 2<<fine {
		return time.Duration(i)
	}
	shift := i>>fine - 1
	return time.Duration(uint64(i-shift<<fine+1)<<shift - 1)
}

// A Spread is the median of some values, and the range of most of them: all except the lowest tenth and the highest
// tenth. Of fewer than ten values it is the range of all.
type Spread struct{ Low, Mid, High float64 }

// Over returns the spread of the values that are not missing. If there is none, all fields are NaN.
func Over(values []float64) Spread {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(values)
	middle := len(values) / 2
	tenth := len(values) / 10
	s := Spread{values[tenth], values[middle], values[len(values)-1-tenth]}
	if len(values)%2 == 0 {
		s.Mid = (values[middle-1] + values[middle]) / 2
	}
	return s
}

// GeometricMean returns the geometric mean of some ratios, and how far it may be from the true one, as a fraction of
// it, in 95 of 100 cases: the interval of Student's t for the mean of their logarithms. The margin is NaN for fewer
// than two values.
func GeometricMean(values []float64) (mean, margin float64) {
	var logs []float64
	for _, v := range values {
		if !math.IsNaN(v) && v > 0 {
			logs = append(logs, math.Log(v))
		}
	}
	if len(logs) == 0 {
		return math.NaN(), math.NaN()
	}
	n := float64(len(logs))
	center, deviation := stat.MeanStdDev(logs, nil)
	if n < 2 {
		return math.Exp(center), math.NaN()
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975)
	return math.Exp(center), math.Expm1(t * deviation / math.Sqrt(n))
}

// Ratios returns a divided by b, round by round, so that noise that affects a whole round cancels out.
func Ratios(a, b []float64) []float64 {
	all := make([]float64, min(len(a), len(b)))
	for i := range all {
		all[i] = a[i] / b[i]
		if b[i] == 0 {
			all[i] = math.NaN()
		}
	}
	return all
}
