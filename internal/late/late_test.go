//go:build go1.25

package late

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/permute"
	"github.com/relock-go/relock/internal/send"
)

var (
	acquire = Effect{Acquires: true, Lease: time.Minute}
	extend  = Effect{Lease: time.Hour}
	drop    = send.Call{Script: send.NewScript("return 1")}
)

// The outcome of a try may be recorded before its caller is known to have left.
func TestTriesAreCountedInAnyOrder(t *testing.T) {
	var l Requests
	assert.Nil(t, l.Heard("one", acquire, true).Script)
	assert.False(t, l.MayAcquire("one"))
	l.Left("one", acquire, 2, false)
	assert.True(t, l.MayAcquire("one"))
	assert.False(t, l.Buried("one", drop), "the other try may run")
	assert.NotNil(t, l.Heard("one", acquire, true).Script)
	assert.False(t, l.MayAcquire("one"))
	assert.Empty(t, l.fields)
	assert.True(t, l.Buried("one", drop), "the last outcome was heard before")

	l.Left("one", acquire, 1, true)
	assert.Nil(t, l.Heard("one", acquire, true).Script)
	assert.True(t, l.MayAcquire("one"), "the try that was lost")
	assert.False(t, l.Buried("one", drop), "the tombstone stays")

	l.Left("two", acquire, 2, false)
	assert.False(t, l.Buried("two", drop))
	assert.Nil(t, l.Heard("two", acquire, false).Script)
	assert.Nil(t, l.Heard("two", acquire, true).Script, "a try was lost")
	assert.False(t, l.Buried("two", drop), "buried once more, by another rollback: the try that was lost may still run")
	assert.True(t, l.MayAcquire("two"))
}

// A request that only sets a lease needs no tombstone, and keeps none; but the key may get its lease.
func TestOnlyAcquiringTriesNeedATombstone(t *testing.T) {
	var l Requests
	assert.Zero(t, l.Longest("x"))
	l.Left("x", extend, 1, false)
	assert.Equal(t, extend.Lease, l.Longest("x"))
	assert.False(t, l.MayAcquire("x"))
	assert.True(t, l.Buried("x", drop))

	l.Left("x", acquire, 1, false)
	assert.False(t, l.Buried("x", drop))
	assert.NotNil(t, l.Heard("x", acquire, true).Script, "nothing acquires any more")
	assert.Equal(t, extend.Lease, l.Longest("x"))
	assert.Nil(t, l.Heard("x", extend, true).Script, "the tombstone was removed before")
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
			assert.Equal(t, !lost, l.Buried("x", drop), "%s: %v", name, order)
			assert.Equal(t, lost, l.Fields() == 1, "%s: %v", name, order)
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
		assert.False(t, l.Buried("open", drop))
		assert.NotNil(t, l.Heard("open", acquire, true).Script)
		time.Sleep(Life / 2)
		synctest.Wait()
		assert.Zero(t, l.Fields())
		l.Left("x", acquire, 0, true)
		assert.True(t, l.MayAcquire("x"), "a try that is lost then")
	})
}

// A try that acquires is open, and the outcome of another request with the same field is recorded before its caller is
// known to have left: the first try is not forgotten meanwhile, nor later.
func TestOpenTryIsKnownBesideARequestThatIsHeardFirst(t *testing.T) {
	var l Requests
	l.Left("x", acquire, 1, false)
	assert.Nil(t, l.Heard("x", extend, true).Script)
	assert.True(t, l.MayAcquire("x"), "before the caller of the other one has left")
	l.Left("x", extend, 1, false)
	assert.True(t, l.MayAcquire("x"), "after that")
	assert.Equal(t, extend.Lease, l.Longest("x"))
	assert.False(t, l.Buried("x", drop), "the try may still run")
	assert.NotNil(t, l.Heard("x", acquire, true).Script)
	assert.Zero(t, l.Fields())
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
		assert.Zero(t, l.Fields())
	})
}
