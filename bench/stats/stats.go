// Package stats sums up what was measured: waits in a histogram, and figures of
// several rounds as a median with its spread.
package stats

// Rules: adding a wait costs nanoseconds and no memory, whatever their number; a
// figure that is not there is NaN, and no sum is taken over it.

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
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

// Add counts d; one below 0 counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(d)]++
	h.n++
	h.max = max(h.max, d)
}

// Merge adds all that other has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i, c := range other.counts {
		h.counts[i] += c
	}
	h.n += other.n
	h.max = max(h.max, other.max)
}

// Count is how many were added.
func (h *Histogram) Count() int { return h.n }

// Max is the longest, exactly; 0 if there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile is the least duration that the part q of all does not exceed, at most
// 1/32 too long; 0 if there is none.
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

// bucket is the one that d falls into: those below 2<<fine have one each, above
// that every power of two has 1<<fine.
func bucket(d time.Duration) int {
	shift := max(0, bits.Len64(uint64(d))-fine-1)
	return shift<<fine + int(uint64(d)>>shift)
}

// top is the longest duration of a bucket.
func top(i int) time.Duration {
	if i < 2<<fine {
		return time.Duration(i)
	}
	shift := i>>fine - 1
	return time.Duration(uint64(i-shift<<fine+1)<<shift - 1)
}

// A Spread is the median of some values, and where most of them are: all but the
// lowest tenth and the highest. Of less than ten values, all.
type Spread struct{ Low, Mid, High float64 }

// Over is the spread of those values that are there; of none, all is NaN.
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

// Margin is how far the median of so many values as these may be from the true one, as a part of it: in 95 of 100 cases
// it is no farther. It is found by drawing as many of the values again and again, with repetition (a bootstrap). Of
// fewer than six values nothing is known, and it is NaN.
func Margin(values []float64) float64 {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) < 6 {
		return math.NaN()
	}
	const draws = 1000
	rng := rand.New(rand.NewPCG(1, 2)) // the same values have the same margin
	medians, drawn := make([]float64, draws), make([]float64, len(values))
	for i := range medians {
		for j := range drawn {
			drawn[j] = values[rng.IntN(len(values))]
		}
		medians[i] = Over(drawn).Mid
	}
	slices.Sort(medians)
	mid := Over(values).Mid
	return max(medians[draws-draws/40-1]-mid, mid-medians[draws/40]) / mid
}

// Ratios is a by b, round by round: noise that hits a whole round is not in them.
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
