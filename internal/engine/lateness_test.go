//go:build go1.25

package engine

// Requests that run late, or whose answers are lost, and that do more than acquire: they extend a lease or rename a
// field. What this process knows of them is in internal/late and in internal/tenancy.
//
// Rules: no request that runs late makes a record shorter than its hold, or longer than its limits. What this means
// after the hold is in lateness_minhold_test.go and lateness_deleted_test.go.

import (
	"github.com/relock-go/relock/internal/fakeredis"
)

// late makes the n-th request with this verb (from 1) run late.
func runsLate(r *fakeredis.Redis, verb string, n int, f fakeredis.Fault) {
	seen := 0
	r.Set(func() {
		r.Fault = func(v string) (none fakeredis.Fault) {
			if v != verb {
				return none
			}
			if seen++; seen == n {
				return f
			}
			return none
		}
	})
}
