package interop

// The Java services are built before the tests that need them: "make build" runs this one alone.

import (
	"context"
	"slices"
	"testing"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

func TestJavaServicesAreBuilt(t *testing.T) {
	for _, version := range slices.Concat(versions, clusterVersions) {
		build(t, version)
	}
}
