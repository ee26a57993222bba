package testredis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A bound is longer by as much as the process was late since the beginning of what it is for.
func TestBoundsScaleWithTheLatenessOfTheProcess(t *testing.T) {
	start := time.Now()
	p := pace{ticking: true, ticks: []time.Time{start}}
	at := start
	tick := func(n int, each time.Duration) {
		for range n {
			at = at.Add(each)
			p.ticks = append(p.ticks, at)
		}
	}
	tick(100, paceTick)
	quiet := at
	tick(100, 4*paceTick)
	busy := at
	tick(100, paceTick)
	for what, c := range map[string]struct {
		from, to time.Time
		want     float64
	}{
		"quiet":                  {start, quiet, 1},
		"busy":                   {quiet, busy, 4},
		"busy for a while":       {start, busy, 2.5},
		"quiet again":            {busy, at, 1},
		"less than a tick":       {busy, busy.Add(paceTick / 2), 1},
		"not even one tick":      {at.Add(1), at.Add(50 * paceTick), 50},
		"before the tests begin": {start.Add(-time.Second), quiet, 1},
	} {
		assert.InEpsilon(t, c.want, p.scale(c.from, c.to, time.Second).Seconds(), 0.05, what)
	}
	p.ticking = false
	assert.Equal(t, time.Second, p.scale(quiet, busy, time.Second), "without tests")
}
