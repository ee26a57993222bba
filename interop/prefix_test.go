package interop

// A prefix for all names: WithKeyPrefix in Go, a NameMapper in Java.

import (
	"testing"

	"github.com/relock-go/relock"
)

func TestKeyPrefixIsThatOfANameMapper(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBoth(t, setting{version: version, prefix: "app:", redis: single(t)})
			b.client = b.newClient(0, relock.WithKeyPrefix("app:"))
			for _, k := range kinds {
				// Redisson 3.17 has the queue of a fair lock under the name that is not mapped, and maps that of a
				// read/write lock twice.
				if !k.has(version) || version < "3.52" && k.name != "lock" && k.name != "fenced" {
					continue
				}
				b.pair(k, "orders:"+k.name+":"+k.rival)
			}
		})
	}
}
