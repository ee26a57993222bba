package engine

// Tombstones: where a field leaves one, when it goes, and what it costs those that have nothing to do with it.
//
// Rules: a request that the proxy holds may run late; until then its field has a tombstone.

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A re-entry that runs late takes nothing: its field has no tombstone because of it.
func TestReentryThatRunsLateNeedsNoTombstone(t *testing.T) {
	first, again := target{Attempt: Attempt{Field: "first", HoldCount: 1}}, target{Attempt: Attempt{Field: "again", HoldCount: 2}}
	assert.Equal(t, []string{"first"}, acquiringFields([]target{first, again}))
	assert.Empty(t, acquiringFields([]target{again}))
}
