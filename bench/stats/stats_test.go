package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQuantilesAreThoseOfTheSortedValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, widest := range []int{1, 60, 1000, 1e6, 1e12} {
		var h, other Histogram
		var all []time.Duration
		for i := range 1000 {
			d := time.Duration(r.IntN(widest))
			all = append(all, d)
			if i%2 == 0 {
				h.Add(d)
			} else {
				other.Add(d)
			}
		}
		h.Merge(&other)
		slices.Sort(all)
		for _, q := range []float64{0, 0.01, 0.5, 0.99, 1} {
			want := all[max(1, int(math.Ceil(q*1000)))-1]
			got := h.Quantile(q)
			assert.GreaterOrEqual(t, got, want, "values up to %d: quantile %v", widest, q)
			assert.LessOrEqual(t, got, want+want/32, "values up to %d: quantile %v", widest, q)
		}
		assert.Equal(t, all[999], h.Max(), "values up to %d", widest)
		assert.Equal(t, 1000, h.Count(), "values up to %d", widest)
	}
}

func TestOverIsTheMiddleAndItsSpread(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{[]float64{3, 1, 2}, Spread{1, 2, 3}},
		{[]float64{4, nan, 1, 3, 2}, Spread{1, 2.5, 4}},
		{[]float64{7}, Spread{7, 7, 7}},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99}, Spread{2, 6, 10}},
	} {
		before := slices.Clone(c.values)
		assert.Equal(t, c.want, Over(c.values), c.values)
		assert.Equal(t, c.values[0], before[0], "the values were touched")
	}
	assert.True(t, math.IsNaN(Over([]float64{nan}).Mid), "the middle of no values")
}

// Of a hundred series of a known mean, about 95 have it within their margin, of few values as of many.
func TestMarginHoldsInNineteenOfTwentyCases(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, n := range []int{3, 5, 40} {
		within := 0
		for range 200 {
			values := make([]float64, n)
			for i := range values {
				values[i] = 2 * math.Exp(rng.NormFloat64()/5)
			}
			if mean, margin := GeometricMean(values); math.Abs(math.Log(mean/2)) <= math.Log1p(margin) {
				within++
			}
		}
		assert.GreaterOrEqual(t, within, 180, "of 200, of %d values", n)
		assert.Less(t, within, 200, "of 200, of %d values: the margin is too wide", n)
	}
	mean, margin := GeometricMean([]float64{1, math.NaN(), 4})
	assert.InDelta(t, 2, mean, 1e-9, "missing values do not count")
	assert.Greater(t, margin, 1.0)
	_, margin = GeometricMean([]float64{3})
	assert.True(t, math.IsNaN(margin), "of one value nothing is known")
	_, margin = GeometricMean([]float64{3, 3, 3, 3})
	assert.InDelta(t, 0, margin, 1e-9)
	mean, _ = GeometricMean(nil)
	assert.True(t, math.IsNaN(mean))
}
