package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
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
			if got := h.Quantile(q); got < want || got > want+want/32 {
				t.Errorf("up to %d: quantile %v is %d, want %d", widest, q, got, want)
			}
		}
		if h.Max() != all[999] || h.Count() != 1000 {
			t.Errorf("up to %d: max %d of %d", widest, h.Max(), h.Count())
		}
	}
}

func TestEveryBucketEndsWhereTheNextBegins(t *testing.T) {
	for i := range buckets - 1 {
		if end := top(i); end < math.MaxInt64 && (bucket(end) != i || bucket(end+1) != i+1) {
			t.Fatalf("bucket %d ends at %d, which is in %d; the next is in %d", i, end, bucket(end), bucket(end+1))
		}
	}
}

func TestHistogramOfNothing(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Error("not 0")
	}
	h.Add(-1)
	h.Add(math.MaxInt64)
	if h.Quantile(0.5) != 0 || h.Quantile(1) != math.MaxInt64 {
		t.Errorf("%d to %d", h.Quantile(0.5), h.Quantile(1))
	}
}

func TestOver(t *testing.T) {
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
		if got := Over(c.values); got != c.want {
			t.Errorf("%v: %v", c.values, got)
		}
		if before[0] != c.values[0] {
			t.Error("the values were touched")
		}
	}
	if got := Over([]float64{nan}); !math.IsNaN(got.Mid) {
		t.Errorf("of nothing: %v", got)
	}
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	got := Ratios([]float64{2, 30, 1}, []float64{1, 10, 0})
	if got[0] != 2 || got[1] != 3 || !math.IsNaN(got[2]) {
		t.Error(got)
	}
}
