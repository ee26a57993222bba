//go:build go1.25

package late

import (
	"testing"
	"testing/synctest"
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
	assert.Empty(t, l.all)

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
	assert.Empty(t, l.all)
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
			assert.Equal(t, lost, l.Len() == 1, "%s: %v", name, order)
		})
	}
}

// Lost tries do not stay in memory when they can run no longer, also if others with the same field were lost meanwhile, or
// are open.
func TestLostTriesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Requests
		l.Left("x", acquire, 0, true)
		l.Left("open", acquire, 1, true)
		time.Sleep(Life / 2)
		l.Left("x", extend, 0, true)
		time.Sleep(Life / 2)
		synctest.Wait()
		assert.False(t, l.MayAcquire("x"))
		assert.Equal(t, extend.Lease, l.Longest("x"), "the later one may still run")
		assert.True(t, l.MayAcquire("open"), "one is open")
		l.Heard("open", acquire, true)
		time.Sleep(Life / 2)
		synctest.Wait()
		assert.Zero(t, l.Len())
		l.Left("x", acquire, 0, true)
		assert.True(t, l.MayAcquire("x"), "a try that is lost then")
	})
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
	assert.Equal(t, acquire.Lease, l.Longest("x"))
	l.Heard("x", acquire, true)
	assert.Zero(t, l.Len())
}

// The same if the time of another try, which was lost, is over in between.
func TestOpenTryIsKnownAfterALostOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Requests
		l.Left("x", acquire, 1, false)
		l.Left("x", extend, 0, true)
		l.Heard("x", extend, true)
		time.Sleep(2 * Life)
		l.Left("x", extend, 1, false)
		assert.True(t, l.MayAcquire("x"))
		l.Heard("x", acquire, true)
		assert.Zero(t, l.Len())
	})
}
