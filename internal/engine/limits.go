package engine

// The limits of a hold: MaxHold and MinHold.
//
// Rules: a hold has the limits of the lock that took it. A hold with MaxHold is never trusted for longer than that, and
// no request asks Redis for more: the record expires with the trust. A record with MinHold is not deleted, and not
// handed over, before its time is over: the last Unlock sets its lease to the rest of that time. A hold that a
// MultiLock undoes, and ForceUnlock, do not wait for the time. Readers with limits share no record, because the limits
// of two holds differ.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// longestLimit keeps sums of times in their range.
const longestLimit = 100 * 365 * 24 * time.Hour

// checkLease reports why a hold cannot have this lease; 0: that of the watchdog.
func (l Limits) checkLease(lease time.Duration) error {
	if l.Max > 0 && lease > l.Max {
		return send.Invalid("lease %v: no longer than MaxHold(%v)", lease, l.Max)
	}
	return nil
}

// OfReaders is the admission of readers with these limits.
func (l Limits) OfReaders() Admission {
	if l != (Limits{}) {
		return Uncoordinated
	}
	return Shared
}

// cut is the lease that a fresh hold asks for, where it would ask for lease.
func (l Limits) cut(lease time.Duration) time.Duration {
	if l.Max > 0 {
		return min(lease, l.Max)
	}
	return lease
}

// end is until when a hold may last that was acquired at since, on the clock of the watchdog; 0: there is no limit.
func (l Limits) end(since time.Duration) time.Duration {
	if l.Max > 0 {
		return since + min(l.Max, longestLimit)
	}
	return 0
}

// A minHold is a hold whose record stays in Redis for a time: MinHold.
type minHold struct{ *hold }

// rest is how much of the time is left.
func (m minHold) rest() time.Duration {
	if m.lock.Limits().MinHold == 0 {
		return 0
	}
	m.name.Lock()
	defer m.name.Unlock()
	return max(0, m.keepUntil-m.name.engine.watchdog.Now())
}

// call sets the lease of the record to rest.
func (m minHold) call(rest time.Duration) send.Call {
	return m.commands().Renew(m.field, rest, m.isAlone())
}

// isAlone reports whether nothing but h needs its record: a write lock has its record together with the read lock of
// its owner.
func (h *hold) isAlone() bool {
	h.name.Lock()
	defer h.name.Unlock()
	return !h.fieldSent && h.name.counterpartLocked(h) == nil
}

// expires reports whether the record is gone in time after a call. No request may still extend its lease: neither when
// the call is sent, because it may overtake one that is answered first, nor when it was answered.
func (m minHold) expires() bool {
	e := m.name.engine
	return m.isAlone() && !e.late.MayRun(m.field) && !e.watchdog.IsRenewing(&m.record.lease)
}

// keep has Redis keep the record until its time is over, and reports whether the record expires then. If it
// does not, it is to be deleted by now.
func (m minHold) keep(ctx context.Context) bool {
	rest := m.rest()
	if rest <= 0 {
		return false
	}
	m.leaveQueue() // the next waiter asks, and finds the lock busy
	e := m.name.engine
	for end := m.recordEnd(); rest > 0; rest = m.rest() {
		op := &waitOptions{Wait: send.Wait{Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime)}}
		lapses := m.expires()
		r, _, err := e.send(op, m.call(rest), time.Time{})
		pause := min(rest, clearPause)
		switch {
		case err == nil && (r[0] != 1 || lapses && m.expires()):
			return true
		case err == nil && !m.isAlone():
			pause = rest
		case err != nil && time.Now().After(end) && !m.keptByCounterpart():
			return true
		}
		if e.waitOptionsFor(ctx).sleep(nil, nil, pause) != nil {
			return true // closed: no lease is renewed any more
		}
	}
	return false
}

// keepUntil is until when a record stays in Redis whose hold was acquired at now, on the clock of the watchdog; 0: it
// need not.
func (l Limits) keepUntil(now time.Duration) time.Duration {
	if l.MinHold > 0 {
		return now + min(l.MinHold, longestLimit)
	}
	return 0
}

// DropMinHold lets the next Unlock of o free the lock at once, because o has not used its hold.
func (e *Engine) DropMinHold(kind Lock, o Owner) {
	if kind.Limits().MinHold == 0 {
		return
	}
	s := e.retain(kind.ID().Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	if h := s.holds.get(holdKey{kind.ID(), o}); h != nil && h.count == 1 {
		h.keepUntil = 0
	}
}
