package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// One of the lines of a second is kept for the number of those that were left out, so that it comes with them.
func TestLeftOutLinesAreCountedAtOnce(t *testing.T) {
	t.Parallel()
	var l LineLimit
	assert.Zero(t, l.More(0), "nothing was left out")
	for i := range 15 {
		assert.Equal(t, i < MostLines-1, l.Allows(0, true), "line %d", i)
	}
	assert.Equal(t, 15-(MostLines-1), l.More(0))
	assert.False(t, l.Allows(time.Second-1, true), "a second is not over")
	assert.Zero(t, l.More(time.Second-1))
	assert.True(t, l.Allows(time.Second, true))
	assert.False(t, l.Allows(time.Second, false), "the Logger is not ready")
	assert.Equal(t, 2, l.More(time.Second))
}
