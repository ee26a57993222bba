package contract

import (
	"time"

	"github.com/relock-go/relock/internal/send"
)

// Limits restrict how long a hold or its record lasts. 0 means that there is no limit.
type Limits struct {
	Max     time.Duration // MaxHold: how long a hold may last
	MinHold time.Duration // MinHold: how long the record stays in Redis at least
}

// CheckLease returns an error if a hold with these limits cannot have this explicit lease; 0 is a lease of the
// watchdog.
func (l Limits) CheckLease(lease time.Duration) error {
	if l.Max > 0 && lease > l.Max {
		return send.Invalid("lease %v is longer than MaxHold(%v)", lease, l.Max)
	}
	return nil
}

// OfReaders returns the admission of read locks with these limits.
func (l Limits) OfReaders() Admission {
	if l != (Limits{}) {
		return Uncoordinated
	}
	return Shared
}

// Cut returns the lease that a fresh hold asks for: lease, or MaxHold if that is shorter.
func (l Limits) Cut(lease time.Duration) time.Duration {
	if l.Max > 0 {
		return min(lease, l.Max)
	}
	return lease
}
