package handoff

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// turnsPace is the pace with a Redis server nearby.
var turnsPace = Pace{RTT: time.Millisecond, Window: 10 * time.Millisecond}

// Each row of the table plays the life of one lock in this process.
func TestTurns(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	p, start := turnsPace, turnsPace.start()
	long := p.Window // a tenure of one hand-off window
	tenure := func(tr *Policy, from time.Duration, others int) (end time.Duration) {
		tr.Acquired(from)
		tr.Released(from+long, p, others)
		return from + long
	}
	for _, row := range []struct {
		name string
		play func(tr *Policy)
		at   time.Duration // when Yield is called
		want time.Duration // how long other processes go first
	}{
		{"a name that was never held", func(*Policy) {}, ms, 0},
		{"a streak shorter than a slice", func(tr *Policy) { tr.Acquired(ms); tr.Released(long, p, 1) }, long, 0},
		{"a streak of a slice", func(tr *Policy) { tenure(tr, ms, 1) }, ms + long, start},
		{"a while after it", func(tr *Policy) { tenure(tr, ms, 1) }, ms + long + start/2, start - start/2},
		{"long after it", func(tr *Policy) { tenure(tr, ms, 1) }, time.Hour, 0},
		{"a streak that another process has interrupted", func(tr *Policy) {
			tr.Acquired(ms)
			tr.Interrupted()
			tr.Acquired(long)
			tr.Released(ms+long, p, 1)
		}, ms + long, 0},
		{"the streak begins with the first grant", func(tr *Policy) {
			tr.Acquired(ms)
			tr.Acquired(long)
			tr.Released(ms+long, p, 1)
		}, ms + long, start},

		// If the others were not quick enough, they get a head start twice as long, up to mostYield.
		{"missed once", func(tr *Policy) { tenure(tr, tenure(tr, ms, 1), 1) }, ms + 2*long, 2 * start},
		{"missed often", func(tr *Policy) {
			for from, n := ms, 0; n < 20; n++ {
				from = tenure(tr, from, 1)
			}
		}, ms + 20*long, mostYield},
		{"missed, and then one of them had the lock", func(tr *Policy) {
			from := tenure(tr, ms, 1)
			tr.Interrupted()
			tenure(tr, from, 1)
		}, ms + 2*long, start},

		// Each of the others that received the release goes first once.
		{"one of three has had the lock", func(tr *Policy) {
			now := tenure(tr, ms, 3)
			tr.Interrupted()
			tr.HeardRelease(now+50*ms, p)
		}, ms + long + 50*ms, start},
		{"two of three have had it", func(tr *Policy) {
			now := tenure(tr, ms, 3)
			tr.HeardRelease(now+50*ms, p)
			tr.HeardRelease(now+60*ms, p)
		}, ms + long + 60*ms, start},
		{"all three have had it", func(tr *Policy) {
			now := tenure(tr, ms, 3)
			for i := range 3 {
				tr.HeardRelease(now+time.Duration(50+i)*ms, p)
			}
		}, ms + long + 52*ms, start - ms}, // from the second release on: the third one changes nothing
		{"the only other one has had it", func(tr *Policy) {
			now := tenure(tr, ms, 1)
			tr.HeardRelease(now+50*ms, p)
		}, ms + long + 50*ms, 0},

		// Releases that no client receives.
		{"nobody has heard a release", func(tr *Policy) { tenure(tr, ms, 0) }, ms + long, 0},
		{"nobody has heard releases for less than unheardFor", func(tr *Policy) {
			tenure(tr, tenure(tr, ms, 0), 0)
		}, ms + 2*long, 0},
		{"nobody has heard releases for unheardFor", func(tr *Policy) {
			now := tenure(tr, ms, 0)
			tenure(tr, now+unheardFor-long, 0)
		}, ms + long + unheardFor, unheardYield + p.RTT},
		{"nobody has heard any of three in unheardFor", func(tr *Policy) {
			now := tenure(tr, ms, 0)
			now = tenure(tr, now+unheardFor*3/4-long, 0)
			tenure(tr, now+unheardFor/4-long, 0)
		}, ms + long + unheardFor, unheardYield + p.RTT},
		{"and others have gone first since", func(tr *Policy) {
			now := tenure(tr, ms, 0)
			now = tenure(tr, now+unheardFor-long, 0)
			tenure(tr, now+unheardYield+p.RTT, 0)
		}, ms + long + unheardFor + unheardYield + p.RTT + long, 0},
		{"another process had the lock in between", func(tr *Policy) {
			now := tenure(tr, ms, 0)
			tr.Interrupted()
			tenure(tr, now+unheardFor-long, 0)
		}, ms + long + unheardFor, 0},
		{"one was heard in between", func(tr *Policy) {
			now := tenure(tr, ms, 0)
			now = tenure(tr, now+long, 1)
			tenure(tr, now+unheardFor-long, 0)
		}, ms + 3*long + unheardFor, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			var tr Policy
			row.play(&tr)
			assert.Equal(t, row.want, tr.Yield(row.at), "others go first for so long")
		})
	}
}

// A lock is handed off inside the process for one hand-off window.
func TestTurnsEndHandoffsWithTheWindow(t *testing.T) {
	t.Parallel()
	p := turnsPace
	var tr Policy
	tr.Acquired(1)
	assert.True(t, tr.MayHandOff(p.Window, p), "a moment before the end of the slice")
	assert.False(t, tr.MayHandOff(1+p.Window, p), "at the end of the slice")
	tr.Interrupted()
	tr.Acquired(1 + p.Window)
	assert.True(t, tr.MayHandOff(1+p.Window, p), "a new streak")
	assert.False(t, (&Policy{}).MayHandOff(0, Pace{RTT: p.RTT}), "without a slice")
}

// The head start of other processes grows with the round trip, and so does the hand-off window. Both have a limit.
func TestPaceFollowsTheRoundTrip(t *testing.T) {
	t.Parallel()
	const window = 10 * time.Millisecond
	for _, row := range []struct{ window, rtt, wantWindow, wantStart time.Duration }{
		{window, 0, window, leastYield},
		{window, 100 * time.Microsecond, window, leastYield + 100*time.Microsecond},
		{window, 2 * time.Millisecond, windowTrips * 2 * time.Millisecond, leastYield + 2*time.Millisecond},
		{window, time.Second, LongWindow, mostYield},
		{time.Second, time.Second, time.Second, mostYield},
		{0, time.Second, 0, mostYield}, // there are no hand-offs
	} {
		var r RoundTrip
		r.Observe(row.rtt)
		p := PaceOf(r.Get(), row.window)
		assert.Equal(t, row.wantWindow, p.Window, "the slice with %+v", row)
		assert.Equal(t, row.wantStart, p.start(), "the start of others with %+v", row)
	}
}

// A single slow round trip counts little; a Redis server that has become faster counts soon.
func TestRoundTripForgetsOutliers(t *testing.T) {
	t.Parallel()
	var r RoundTrip
	r.Observe(time.Millisecond)
	assert.Equal(t, time.Millisecond, r.Get(), "the first one")
	r.Observe(time.Hour)
	assert.LessOrEqual(t, r.Get(), 1100*time.Microsecond, "after an outlier")
	for range 20 {
		r.Observe(100 * time.Microsecond)
	}
	assert.LessOrEqual(t, r.Get(), 110*time.Microsecond, "after 20 that were quicker")
	for range 100 {
		r.Observe(10 * time.Millisecond)
	}
	assert.GreaterOrEqual(t, r.Get(), 9*time.Millisecond, "after 100 that took longer")
}
