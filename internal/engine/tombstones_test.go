package engine

// Tombstones: which fields leave one, when it is removed, and what it costs callers that have nothing to do with it.
//
// Rules: a request that the proxy holds back may run late, and its field has a tombstone until then.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
)

// A re-entry that runs late acquires nothing, so its field needs no tombstone. But it may give the key a longer lease.
func TestReentryThatRunsLateNeedsNoTombstone(t *testing.T) {
	var requests late.Requests
	for field, holdCount := range map[string]int{"first": 1, "again": 2} {
		t := target{Attempt: contract.Attempt{Field: field, HoldCount: holdCount, Lease: time.Hour}}
		requests.Left(field, t.effect(), 1, false)
	}
	assert.True(t, requests.MayAcquire("first"))
	assert.False(t, requests.MayAcquire("again"))
	assert.Equal(t, time.Hour, requests.Longest("again"))
}
