package poller

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A lock with many waiters is polled each time by those near the head of the line. The others poll it now and then,
// because they may be the only ones that are still alive.
func TestPollerIsRareFarBackInALine(t *testing.T) {
	due := func(ahead ...int) (n int) {
		var waiters []Waiter
		for _, a := range ahead {
			waiters = append(waiters, Waiter{Ahead: a})
		}
		for range 10_000 {
			if isDue(waiters) {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 10_000, due(0))
	assert.Equal(t, 10_000, due(NearHead-1))
	assert.Equal(t, 10_000, due(10*NearHead, 1), "the nearest of this process counts")
	assert.InDelta(t, 909, due(10*NearHead), 300)
	assert.Positive(t, due(1000*NearHead))
}
