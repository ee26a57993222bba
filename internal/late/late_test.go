package late

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/send"
)

// The outcome of a try may be recorded before its caller is known to have left.
func TestTriesAreCountedInAnyOrder(t *testing.T) {
	var l Tries
	one := []string{"one"}
	drop := send.Call{Script: send.NewScript("return 1")}
	assert.Empty(t, l.Heard(one, true))
	assert.False(t, l.MayRun("one"))
	l.Left(one, 2, false)
	assert.True(t, l.MayRun("one"))
	assert.False(t, l.Buried("one", drop), "the other try may run")
	assert.Len(t, l.Heard(one, true), 1)
	assert.False(t, l.MayRun("one"))
	assert.Empty(t, l.fields)
	assert.True(t, l.Buried("one", drop), "the last outcome was heard before")

	l.Left(one, 1, true)
	assert.Empty(t, l.Heard(one, true))
	assert.True(t, l.MayRun("one"), "the try that was lost")
	assert.False(t, l.Buried("one", drop), "the tombstone stays")

	two := []string{"two"}
	l.Left(two, 2, false)
	assert.False(t, l.Buried("two", drop))
	assert.Empty(t, l.Heard(two, false))
	assert.Empty(t, l.Heard(two, true), "a try was lost")
	assert.False(t, l.Buried("two", drop), "buried once more, by another undo: the try that was lost may still run")
	assert.True(t, l.MayRun("two"))
}

// Lost tries whose holds expire without a release do not stay in memory.
func TestLostTriesAreForgotten(t *testing.T) {
	var l Tries
	for i := range 20 * mostLost {
		l.Left([]string{fmt.Sprint(i)}, 0, true)
		for _, f := range l.fields {
			f.lost = f.lost.Add(-life)
		}
		assert.LessOrEqual(t, len(l.fields), 2*mostLost)
	}
	l.sweep = l.sweep.Add(-life)
	assert.False(t, l.MayRun("another"))
	assert.Empty(t, l.fields, "the time of all of them is over")
	assert.Zero(t, l.Fields())
}
