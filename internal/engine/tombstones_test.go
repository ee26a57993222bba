package engine

// Tombstones: which fields leave one, when it is removed, and what it costs callers that have nothing to do with it.
//
// Rules: a request that the proxy holds back may run late, and its field has a tombstone until then.

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A re-entry that runs late acquires nothing, so its field needs no tombstone.
func TestReentryThatRunsLateNeedsNoTombstone(t *testing.T) {
	first, again := target{
		Attempt: Attempt{Field: "first", HoldCount: 1},
	}, target{
		Attempt: Attempt{Field: "again", HoldCount: 2},
	}
	assert.Equal(t, []string{"first"}, acquiringFields([]target{first, again}))
	assert.Empty(t, acquiringFields([]target{again}))
}
