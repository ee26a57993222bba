package relockui

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock"
)

// A lease that was renewed grows; one that was not for more than a third of what was left of it does not, also if it
// grew before; and until then it is not known.
func TestPageSaysWhetherALeaseGrows(t *testing.T) {
	start := time.UnixMilli(1_700_000_000_000)
	var l lapse
	look := func(after, left time.Duration) string {
		h, at := relock.Holder{Remaining: left}, start.Add(after)
		l = seen(h, at, l)
		return l.text(h, at)
	}
	const yes, no = "yes: its process is alive", "no, not in the last "
	assert.Equal(t, "watching for 0s; a renewal is due within 11s", look(0, 30*time.Second))
	assert.Equal(t, "watching for 5s; a renewal is due within 6s",
		look(5*time.Second, 25*time.Second+5*time.Millisecond), "clocks are not that exact")
	assert.Equal(t, yes, look(11*time.Second, 29*time.Second), "it was renewed after 10s")
	assert.Equal(t, yes, look(21*time.Second, 29*time.Second))
	assert.Equal(t, yes, look(31*time.Second, 19*time.Second), "the next renewal may be late")
	assert.Contains(t, look(32*time.Second, 18*time.Second), no+"11s: its process has ended")
	assert.Equal(t, yes, look(33*time.Second, 29*time.Second), "it is back")
	l = lapse{}
	assert.Equal(t, "watching for 0s; a renewal is due within 2s", look(0, 3*time.Second))
	assert.Contains(t, look(2100*time.Millisecond, 900*time.Millisecond), no+"2s")
	assert.Equal(t, "no: it has expired", look(4*time.Second, 0))
	assert.Contains(t, look(5*time.Second, -1), "no end")
	assert.Contains(t, l.text(relock.Holder{Detached: true, Remaining: time.Second}, start), "detached")

	// Of two that have looked, one has seen the present end for longer, and the other has seen another one.
	first, second := lapse{since: start, end: start.Add(30 * time.Second)},
		lapse{since: start.Add(-time.Second), end: start.Add(20 * time.Second)}
	h, at := relock.Holder{Remaining: 25 * time.Second}, start.Add(5*time.Second)
	for _, before := range [][]lapse{{first, second}, {second, first}} {
		assert.Equal(t, lapse{start, start.Add(30 * time.Second), true}, seen(h, at, before...))
	}
}
