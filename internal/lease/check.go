package lease

// Checks that are not due yet, and old leases: how a lease that was ended in Redis is noticed before its next renewal.
//
// Rules:
//   - A check is asked for by a hint, which anybody may have made up. So it ends nothing by itself, and only brings a
//     request forward. A lease is checked once in each checkPause at most, and at most mostChecks leases are checked in
//     a second. The checks of others wait for the following seconds, and those that would wait too long are dropped.
//   - A lease is old when its last confirmed request was sent an oldAge ago, or was, before it was renewed. A lease that
//     is renewed more often than that is never old: its renewals notice soon enough that the record is gone.
//   - Ages are looked at by the loop, so that a lease that is young when it is removed costs nothing more: at most once
//     in each agePause while none is old, and then once in each oldPause. A lease that is not old costs one comparison.

import "time"

const (
	mostChecks   = renewBatch       // one pipeline a second
	checkPause   = time.Second      // between two checks of one lease
	checkHorizon = 10 * time.Second // how long a check may wait for its turn

	oldAge   = time.Second
	agePause = 100 * time.Millisecond
	oldPause = 10 * time.Second
)

// The checks of a Watchdog have places in seconds, one after the other.
type checks struct {
	begin time.Duration // of the second that the next check belongs to; it may be in the future
	n     int           // how many checks belong to it already
}

// placeLocked returns the time of the next check.
func (c *checks) placeLocked(now time.Duration) time.Duration {
	if now-c.begin >= time.Second {
		c.begin, c.n = now, 0
	}
	if c.n == mostChecks {
		c.begin, c.n = c.begin+time.Second, 0
	}
	return max(now, c.begin)
}

// Check brings the next renewal of l forward, because its record may have been deleted. If l cannot be renewed, a
// request looks for the record. Check returns false if so many checks are waiting that there is no place for this one,
// nor for another one.
func (w *Watchdog) Check(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.index < 0 || l.Unrecorded || l.checking || w.stopped {
		return true
	}
	now := w.Now()
	at := w.checks.placeLocked(now)
	if at > now+checkHorizon {
		return false
	}
	if l.checkAt > 0 {
		at = max(at, l.checkAt+checkPause)
	}
	if at >= l.next() {
		return true
	}
	w.checks.n++
	l.checkAt, l.checking = at, true
	w.movedLocked(l)
	return true
}

// The ages of the leases of a Watchdog.
type ages struct {
	lookAt time.Duration // when to look at them
	old    bool          // at least one lease was old when the loop last looked
	told   bool          // what Config.Old was called with; only the loop uses it
}

// isOldLocked reports whether l is old.
func (l *Lease) isOldLocked(now time.Duration) bool {
	l.old = l.old || now-l.sent >= oldAge
	return l.old
}

// growLocked makes the loop look at l, which is watched from now on, when it may be old.
func (w *Watchdog) growLocked(l *Lease) {
	if w.ages.lookAt == never && w.config.Old != nil && !l.Unrecorded {
		w.ages.lookAt = l.sent + oldAge
		w.wakeLocked(w.ages.lookAt)
	}
}

// lookAtAgesLocked looks, if it is time to, whether a lease is old.
func (w *Watchdog) lookAtAgesLocked(now time.Duration) {
	if now < w.ages.lookAt {
		return
	}
	next := never
	w.ages.old = false
	for _, l := range w.leases {
		switch {
		case l.Unrecorded:
		case l.isOldLocked(now):
			w.ages.old, w.ages.lookAt = true, now+oldPause
			return
		default:
			next = min(next, l.sent+oldAge)
		}
	}
	w.ages.lookAt = max(next, now+agePause)
	if next == never {
		w.ages.lookAt = never
	}
}

// noticeAge calls Config.Old if it has something else to tell than the last time.
func (w *Watchdog) noticeAge() {
	if old := w.isOld(); old != w.ages.told {
		w.ages.told = old
		w.config.Old(old)
	}
}

func (w *Watchdog) isOld() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ages.old
}
