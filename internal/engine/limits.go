package engine

// The limits of a hold: MaxHold and MinHold.
//
// Rules: a hold has the limits of the Lock value through which it was acquired. A hold is never valid for longer than
// MaxHold, and no request asks for a longer lease, so the record in Redis does not outlive the validity. A record is
// neither deleted nor handed off before MinHold has passed: the last Unlock sets its lease to the rest of that time. A
// MultiLock that rolls back, and ForceUnlock, do not wait for MinHold. Readers with limits share no record, because the
// limits of two holds end at different times.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// longestLimit bounds a limit or a lease, so that it can be added to any time without an overflow.
const longestLimit = 100 * 365 * 24 * time.Hour

func bounded(d time.Duration) time.Duration { return min(d, longestLimit) }

// limitEnds are the times at which the limits of a hold end, on the clock of the watchdog; 0: there is no such limit.
type limitEnds struct {
	keepUntil time.Duration // MinHold
	limit     time.Duration // MaxHold
}

// limitOf returns until when a hold that was acquired at since may last, on the clock of the watchdog; 0: there is no
// limit.
func limitOf(l contract.Limits, since time.Duration) time.Duration {
	if l.Max > 0 {
		return since + bounded(l.Max)
	}
	return 0
}

// A minHold is a hold whose record stays in Redis for at least MinHold.
type minHold struct{ *hold }

// rest returns how much of MinHold is left.
func (m minHold) rest() time.Duration {
	if m.lock.Traits().Limits.MinHold == 0 {
		return 0
	}
	m.lockState.Lock()
	defer m.lockState.Unlock()
	return max(0, m.keepUntil-m.lockState.engine.watchdog.Now())
}

// isAlone reports whether nothing else needs the lease of the record of h. A read lock and a write lock of one owner
// are in the same key in Redis, and so have one lease.
func (h *hold) isAlone() bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return !h.fieldSent && h.lockState.counterpartLocked(h) == nil
}

// ask sends a request that sets the lease of the record to rest. expires reports whether the record then expires in
// time: no other request may still extend the lease, or give it to another field, and no other try of this one may. It
// was so when the request was sent, too: a request that was under way then may be overtaken by this one, although its
// own answer comes first. And Redis has not run the request late, when less than rest was left.
func (m minHold) ask(op *waitOptions, rest time.Duration, lastReply time.Time) (answer send.Answer, expires bool) {
	began, before, why := time.Now(), m.isLast(), toKeep
	if m.isAlone() {
		why = toLimit
	}
	answer = m.renew(op, rest, why, lastReply)
	return answer, before && m.isLast() && time.Since(began) <= outlivesBy
}

// isLast reports whether no request that was sent may still extend the lease of the record, or give it to another
// field.
func (m minHold) isLast() bool {
	return m.isAlone() && m.reach().IsSettled()
}

// keep makes the record stay in Redis until MinHold has passed. It returns true if the record then expires by itself,
// and false if the caller has to delete it now.
func (m minHold) keep(ctx context.Context) bool {
	rest := m.rest()
	if rest <= 0 {
		return false
	}
	m.leaveQueue() // the next waiter makes an attempt, and finds the lock busy
	e, isOver := m.lockState.engine, m.untilOver()
	for ; rest > 0; rest = m.rest() {
		wait := send.Wait{Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime)}
		answer, expires := m.ask(&waitOptions{Wait: wait}, rest, time.Time{})
		r, err := answer.Reply()
		pause := min(rest, clearPause)
		switch {
		case err == nil && r[0] != 1: // it is gone; a request that may still run must not acquire the lock again
			return !e.late.MayAcquire(m.field.ID)
		case err == nil && expires:
			return true
		case err == nil && !m.isAlone():
			pause = rest
		case err != nil && isOver() && !m.keptByCounterpart():
			return true
		}
		if e.Pause(ctx, pause) != nil {
			return true // the engine is closed: no lease is renewed any more
		}
	}
	return false
}

// keptUntil returns until when, on the clock of the watchdog, the record of a hold that is acquired at now stays in
// Redis; 0: there is no MinHold.
func keptUntil(l contract.Limits, now time.Duration) time.Duration {
	if l.MinHold > 0 {
		return now + bounded(l.MinHold)
	}
	return 0
}

// DropMinHold makes the next Unlock of o release the lock before MinHold has passed, because o has not used the hold.
func (e *Engine) DropMinHold(kind contract.Lock, o Owner) {
	if kind.Traits().Limits.MinHold == 0 {
		return
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	if h := s.holds.get(holdKey{kind.Traits().ID.Half, o}); h != nil && h.count == 1 {
		h.keepUntil = 0
	}
}
