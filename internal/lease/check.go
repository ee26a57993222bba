package lease

// Checks that are not due yet, and old leases: how a lease that was ended in Redis is noticed before its next renewal.
//
// Rules:
//   - A check is asked for by a hint, which anybody may have made up. So it ends nothing by itself, and only brings a
//     request forward. A lease is checked once in each checkPause at most, and at most mostChecks leases are checked in
//     a second. The checks of others wait for the following seconds, and those that would wait too long are dropped.
//   - A sweep checks all leases, because hints may have been lost. It leaves a share of each second to hints, which
//     would have to wait behind it otherwise.
//   - A lease is old when its last confirmed request was sent an oldAge ago, or was, before it was renewed. A lease that
//     is renewed more often than that is never old: its renewals notice soon enough that the record is gone.
//   - Ages are looked at in turns, so that a lease that is young when it is removed costs nothing more: at most once
//     in each agePause while none is old, and then once in each oldPause. A lease that is not old costs one comparison.

import (
	"slices"
	"time"
)

const (
	mostChecks   = renewBatch // one pipeline a second
	mostSwept    = renewBatch * 3 / 4
	checkPause   = time.Second      // between two checks of one lease
	checkHorizon = 10 * time.Second // how long a check may wait for its turn

	oldAge   = time.Second
	agePause = 100 * time.Millisecond
	oldPause = 10 * time.Second
)

// The checks of a Watchdog have places in seconds: the current one, and those that follow.
type checks struct {
	begin time.Duration                     // of the current second
	n     [1 + checkHorizon/time.Second]int // how many checks belong to each
}

// advance makes the second that includes now the current one. If no check is to come, a new second begins now.
func (c *checks) advance(now time.Duration) {
	for ; now-c.begin >= time.Second; c.begin += time.Second {
		copy(c.n[:], c.n[1:])
		c.n[len(c.n)-1] = 0
		if c.n == [len(c.n)]int{} {
			c.begin = now
			return
		}
	}
}

// placeLocked returns the second for a check that is due at from, where each second has room for this number of checks,
// and the time of the check. The second is -1 if there is no room.
func (c *checks) placeLocked(now, from time.Duration, room int) (second int, at time.Duration) {
	c.advance(now)
	for i := int(max(0, from-c.begin) / time.Second); i < len(c.n); i++ {
		if c.n[i] < room {
			return i, max(from, c.begin+time.Duration(i)*time.Second)
		}
	}
	return -1, 0
}

// leave gives up the place of a check that was to be made at the time at.
func (c *checks) leave(at time.Duration) {
	if at >= c.begin {
		c.n[(at-c.begin)/time.Second]--
	}
}

// Check brings the next renewal of l forward, because its record may have been deleted. If l cannot be renewed, a
// request looks for the record. Check returns false if so many checks are waiting that there is no place for this one,
// nor for another one.
func (w *Watchdog) Check(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkLocked(l, mostChecks)
}

// Sweep checks all leases as Check does, because the hints about some of them may have been lost. The old ones come
// first, because the others may be removed in a moment; of each, those that are due last, because the others are
// renewed sooner. If there are too many, their renewals have to do.
func (w *Watchdog) Sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	all := slices.Clone(w.leases) // a check changes the order of the heap
	for _, old := range []bool{true, false} {
		for _, l := range slices.Backward(all) {
			if l.isOldLocked(now) == old && !w.checkLocked(l, mostSwept) {
				return
			}
		}
	}
}

// checkLocked implements Check. Each second has room for this number of checks. A check that is waiting for its turn is
// brought forward if there is room by now, as there is for a hint about a lease of a sweep.
func (w *Watchdog) checkLocked(l *Lease, room int) bool {
	if l.index < 0 || w.stopped {
		return true
	}
	now, last := w.Now(), l.checkAt
	if l.checking {
		last = l.checkedAt
	}
	from := now
	if last > 0 {
		from = max(now, last+checkPause)
	}
	second, at := w.checks.placeLocked(now, from, room)
	if second < 0 {
		return false
	}
	if l.checking && at >= l.checkAt || at >= l.next() && !l.asked { // a renewal under way may be answered, not repeated
		return true
	}
	w.checks.n[second]++
	if l.checking {
		w.checks.leave(l.checkAt)
	}
	l.checkAt, l.checkedAt, l.checking = at, last, true
	w.movedLocked(l)
	return true
}

// The ages of the leases of a Watchdog.
type ages struct {
	lookAt time.Duration // when to look at them
	old    bool          // at least one lease was old in the last turn that looked
	told   bool          // what Config.Old was called with; only turns use it
}

// isOldLocked reports whether l is old.
func (l *Lease) isOldLocked(now time.Duration) bool {
	l.old = l.old || now-l.sent >= oldAge
	return l.old
}

// growLocked makes a turn look at l, which is watched from now on, when it may be old.
func (w *Watchdog) growLocked(l *Lease) {
	if w.ages.lookAt == never && w.config.Old != nil {
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
