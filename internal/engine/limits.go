package engine

// The limits of a hold: MaxHold and MinHold.
//
// Rules: a hold has the limits of the Lock value through which it was acquired. A hold is never valid for longer than
// MaxHold, and no request asks for a longer lease, so the record in Redis does not outlive the validity. A record is
// neither deleted nor handed off before MinHold has passed: the last Unlock sets its lease to the rest of that time.
// ForceUnlock does not wait for MinHold, and neither does a hold that no call has told. Readers with limits share no
// record, because the limits of two holds end at different times.

import "time"

// longestLimit bounds a limit or a lease, so that it can be added to any time without an overflow.
const longestLimit = 100 * 365 * 24 * time.Hour

func bounded(d time.Duration) time.Duration { return min(d, longestLimit) }

// limitEnds are the times at which the limits of a hold end, on the clock of the watchdog; 0: there is no such limit.
type limitEnds struct {
	keepUntil time.Duration // MinHold
	limit     time.Duration // MaxHold
}

// endOf returns when a limit ends that counts from since, on the clock of the watchdog; 0: there is no such limit.
func endOf(limit, since time.Duration) time.Duration {
	if limit > 0 {
		return since + bounded(limit)
	}
	return 0
}
