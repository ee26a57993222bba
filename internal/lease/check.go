package lease

// Checks that are not due yet, and old leases: how a lease that was ended in Redis is noticed before its next renewal.
//
// Rules:
//   - A check is asked for by a hint, which anybody may have made up. So it ends nothing by itself, and only brings a
//     request forward. A lease is checked once in each checkPause at most.
//   - A lease is old from when its last confirmed request was sent an oldAge ago. A lease that is renewed more often than
//     that is never old: its renewals notice soon enough that the record is gone.
//   - A turn is due when a lease becomes old. A lease that is removed before costs nothing more. That none is old any more
//     is noticed by the next turn.

import "time"

const (
	checkPause = time.Second // between two checks of one lease
	oldAge     = time.Second
)

// Check brings the next renewal of l forward, because its record may have been deleted. If l cannot be renewed, a
// request looks for the record.
func (w *Watchdog) Check(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := max(w.Now(), l.checkedAt+checkPause)
	if l.checkAt == 0 && !(l.renewed.Load() && at >= l.renewAt && !l.asked) { // a renewal under way may be answered, not repeated
		l.checkAt = at
		w.movedLocked(l)
	}
}
