package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A listener that waits with one field receives no message for another field.
func TestMessagesForAFieldReachItsListener(t *testing.T) {
	t.Parallel()
	mine, other, all := isFor("c:1:1"), isFor("c:1:12"), isFor("")
	for message, want := range map[string][3]bool{
		"grant c:1:1 7 5000 0": {true, false, true},
		"free c:1:12":          {false, true, true},
		"0":                    {true, true, true}, // for all listeners
	} {
		assert.Equal(t, want, [3]bool{mine(message), other(message), all(message)}, message)
	}
}
