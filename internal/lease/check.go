package lease

// Checks that are not due yet, and old leases: how a lease that was ended in Redis is noticed before its next renewal.
//
// Rules:
//   - A check is asked for by a hint, which anybody may have made up. So it ends nothing by itself, and only brings a
//     request forward. A lease is checked once in each checkPause at most, and mostChecks leases are checked in a second,
//     after as many at once. The checks of others wait for their turns, and those that would wait too long are dropped.
//   - A lease is old when its last confirmed request was sent an oldAge ago, or was, before it was renewed. A lease that
//     is renewed more often than that is never old: its renewals notice soon enough that the record is gone.
//   - A turn is due when a lease becomes old. A lease that is removed before costs nothing more. That none is old any more
//     is noticed by the next turn.

import "time"

const (
	mostChecks   = 256              // how many checks are sent at once at most, and then in each second
	checkPause   = time.Second      // between two checks of one lease
	checkHorizon = 10 * time.Second // how long a check may wait for its turn

	oldAge = time.Second
)

// The turns of checks: the time up to which they are given away.
type turns time.Duration

// next returns when a check that is due at from, now or later, may be sent. Those that wait are sent together.
func (t turns) next(from time.Duration) time.Duration {
	if next := time.Duration(t); next > from {
		return (next/time.Second + 1) * time.Second
	}
	return from
}

// take gives the next turn away. Turns of the last second that no check has taken can be taken at once.
func (t *turns) take(now time.Duration) {
	*t = max(*t, turns(now-time.Second)) + turns(time.Second/mostChecks)
}

// Check brings the next renewal of l forward, because its record may have been deleted. If l cannot be renewed, a
// request looks for the record. Check returns false if so many checks are waiting that there is no place for this one,
// nor for another one.
func (w *Watchdog) Check(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.index < 0 || w.stopped {
		return true
	}
	now, from := w.Now(), time.Duration(0)
	if l.checkedAt > 0 {
		from = l.checkedAt + checkPause
	}
	at := w.checks.next(max(now, from, 1)) // 0 is no time
	switch {
	case at-now > checkHorizon:
		return false
	case l.checkAt > 0, l.renewed.Load() && at >= l.renewAt && !l.asked: // a renewal under way may be answered, not repeated
		return true
	}
	w.checks.take(now)
	l.checkAt = at
	w.movedLocked(l)
	return true
}

// isOldLocked reports whether l is old.
func (l *Lease) isOldLocked(now time.Duration) bool { return l.old || now-l.sent >= oldAge }

// noticeAge calls Config.Old if it has something else to tell than the last time.
func (w *Watchdog) noticeAge(old bool) {
	if old != w.toldOld && w.config.Old != nil {
		w.toldOld = old
		w.config.Old(old)
	}
}
