package interop

// The Java services are built before the tests that need them: "make build" runs this one alone.

import (
	"slices"
	"testing"
)

func TestJavaServicesAreBuilt(t *testing.T) {
	for _, version := range slices.Concat(versions, clusterVersions) {
		build(t, version)
	}
}
