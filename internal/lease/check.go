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

import (
	"sync"
	"time"
)

const (
	checkPause = time.Second // between two checks of one lease
	oldAge     = time.Second
)

// Check brings the next renewal of l forward, because its record may have been deleted. If l cannot be renewed, a
// request looks for the record.
func (w *Watchdog) Check(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := max(w.Now(), l.checkFrom, 1)                                        // 0 is no time
	if l.checkAt == 0 && !(l.renewed.Load() && at >= l.renewAt && !l.asked) { // a renewal under way may be answered, not repeated
		l.checkAt = at
		w.movedLocked(l)
	}
}

// CheckNow renews leases, or looks for their records, at once, and returns when Redis has answered, or has been silent for
// some time. It is for the process that has deleted the records itself.
func (w *Watchdog) CheckNow(leases []*Lease) {
	if leases = w.startChecks(leases); len(leases) == 0 {
		return
	}
	defer w.work.Done()
	var all sync.WaitGroup
	w.send(leases, &all)
	all.Wait()
}

// startChecks notes that requests for the leases which it returns are about to be sent.
func (w *Watchdog) startChecks(leases []*Lease) (due []*Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return nil
	}
	for _, l := range leases {
		l.checkAt = w.Now() + checkPause // once more, as these requests may fail
		if !l.hasMostRenewals() {
			l.underWay++
			due = append(due, l)
		}
		w.movedLocked(l)
	}
	if len(due) > 0 {
		w.work.Add(1)
	}
	return due
}
