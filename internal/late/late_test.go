package late

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/permute"
)

var (
	acquire = Effect{Acquires: true, Lease: time.Minute}
	extend  = Effect{Lease: time.Hour}
)

// The outcome of a try may be recorded before its caller is known to have left.
func TestTriesAreCountedInAnyOrder(t *testing.T) {
	var l Requests
	l.Heard("one", acquire, true)
	assert.False(t, l.MayAcquire("one"))
	l.Left("one", acquire, 2, false)
	assert.True(t, l.MayAcquire("one"), "the other try may run")
	l.Heard("one", acquire, true)
	assert.False(t, l.MayAcquire("one"))
	assert.Empty(t, l.fields)

	l.Left("one", acquire, 1, true)
	l.Heard("one", acquire, true)
	assert.True(t, l.MayAcquire("one"), "the try that was lost")

	l.Left("two", acquire, 2, false)
	l.Heard("two", acquire, false)
	l.Heard("two", acquire, true)
	assert.True(t, l.MayAcquire("two"), "a try was lost")
}

// A request that only sets a lease needs no tombstone; but the key may get its lease.
func TestOnlyAcquiringTriesNeedATombstone(t *testing.T) {
	var l Requests
	assert.Zero(t, l.Longest("x"))
	l.Left("x", extend, 1, false)
	assert.Equal(t, extend.Lease, l.Longest("x"))
	assert.False(t, l.MayAcquire("x"))

	l.Left("x", acquire, 1, false)
	assert.True(t, l.MayAcquire("x"))
	l.Heard("x", acquire, true)
	assert.False(t, l.MayAcquire("x"), "nothing acquires any more")
	assert.Equal(t, extend.Lease, l.Longest("x"))
	l.Heard("x", extend, true)
	assert.Zero(t, l.Longest("x"))
	assert.Empty(t, l.fields)
}

// All orders of six events of one field have the same result: what may still run is what has left and was not heard.
func TestOrderOfEventsDoesNotMatter(t *testing.T) {
	type event struct {
		x    Effect
		open int // left; or else heard
		lost bool
	}
	for name, lost := range map[string]bool{"all are heard": false, "one is lost": true} {
		events := []event{
			{x: acquire, open: 1}, {x: acquire, open: 1, lost: lost}, {x: extend, open: 1},
			{x: acquire}, {x: acquire}, {x: extend},
		}
		permute.All(len(events), func(order []int) {
			var l Requests
			for _, i := range order {
				if e := events[i]; e.open > 0 {
					l.Left("x", e.x, e.open, e.lost)
				} else {
					l.Heard("x", e.x, true)
				}
			}
			assert.Equal(t, lost, l.MayAcquire("x"), "%s: %v", name, order)
			assert.Equal(t, lost, l.Longest("x") > 0, "%s: %v", name, order)
			assert.Equal(t, lost, l.Fields() == 1, "%s: %v", name, order)
		})
	}
}

// Lost tries whose holds expire without a release do not stay in memory.
func TestLostTriesAreForgotten(t *testing.T) {
	var l Requests
	for i := range 20 * mostLost {
		l.Left(fmt.Sprint(i), acquire, 0, true)
		for _, f := range l.fields {
			f.all.lost = f.all.lost.Add(-Life)
		}
		assert.LessOrEqual(t, len(l.fields), 2*mostLost)
	}
	l.sweep = l.sweep.Add(-Life)
	assert.False(t, l.MayAcquire("another"))
	assert.Empty(t, l.fields, "the time of all of them is over")
	assert.Zero(t, l.Fields())
}

// In an outage, the renewals of all holds are lost, and their tries may run for a minute. To look for tries that can be
// forgotten costs time for each of them, so it is done when they have doubled, and not for every lost try.
func TestManyLostTriesAreSeldomSwept(t *testing.T) {
	var l Requests
	sweeps := 0
	for i := range 64 * mostLost {
		before := l.lost
		l.Left(fmt.Sprint(i), extend, 0, true)
		if l.lost <= before {
			sweeps++
		}
	}
	assert.LessOrEqual(t, sweeps, 10)
	assert.Equal(t, 64*mostLost, l.Fields())
}

// A try is lost while the time of an earlier one with the same field is over: also if that is when tries are forgotten,
// the new one is not.
func TestTryThatIsLostDuringASweepIsKnown(t *testing.T) {
	var l Requests
	l.Left("x", acquire, 0, true)
	f := l.fields["x"]
	f.all.lost, f.acquiring.lost = f.all.lost.Add(-2*Life), f.acquiring.lost.Add(-2*Life)
	for l.lost < mostLost {
		l.Left(fmt.Sprint(l.lost), acquire, 0, true)
	}
	l.Left("x", acquire, 0, true)
	assert.True(t, l.MayAcquire("x"))
	assert.False(t, l.sweep.IsZero())
}

// The time of a lost try is over, and another try with the same field is open: when its outcome is heard, nothing of the
// field stays in memory.
func TestLostTryIsForgottenBesideAnOpenOne(t *testing.T) {
	var l Requests
	l.Left("x", acquire, 1, true)
	f := l.fields["x"]
	f.all.lost, f.acquiring.lost = f.all.lost.Add(-2*Life), f.acquiring.lost.Add(-2*Life)
	l.sweep = l.sweep.Add(-2 * Life)
	assert.True(t, l.MayAcquire("x"), "one is open")
	l.Heard("x", acquire, true)
	assert.Zero(t, l.Fields())
}

// A try that acquires is open, and the outcome of another request with the same field is recorded before its caller is
// known to have left: the first try is not forgotten meanwhile, nor later.
func TestOpenTryIsKnownBesideARequestThatIsHeardFirst(t *testing.T) {
	var l Requests
	l.Left("x", acquire, 1, false)
	l.Heard("x", extend, true)
	assert.True(t, l.MayAcquire("x"), "before the caller of the other one has left")
	l.Left("x", extend, 1, false)
	assert.True(t, l.MayAcquire("x"), "after that")
	assert.Equal(t, extend.Lease, l.Longest("x"))
	l.Heard("x", acquire, true)
	assert.Zero(t, l.Fields())
}

// The same if the time of another try, which was lost, is over in between.
func TestOpenTryIsKnownAfterASweep(t *testing.T) {
	var l Requests
	l.Left("x", acquire, 1, false)
	l.Left("x", extend, 0, true)
	l.Heard("x", extend, true)
	l.fields["x"].all.lost = time.Now().Add(-Life)
	l.sweep = time.Now().Add(-Life)
	l.Longest("x")
	l.Left("x", extend, 1, false)
	assert.True(t, l.MayAcquire("x"))
	assert.NotNil(t, l.fields["x"])
	l.Heard("x", acquire, true)
	assert.Zero(t, l.Fields())
}
