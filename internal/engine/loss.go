package engine

// Losses: how a record ends because Redis does not have it any more, or because it can no longer be valid.
//
// Rules: the record and all its holds end together, under the mutex of the lock state. What has to be done then for a
// hold is an ending, which is carried out after the mutex was unlocked: guards are canceled, and the vote of a RedLock
// releases what its nodes still have. Each loss is reported once, by the call that has found it or by the reporter. The
// loss of a hold is not reported if no goroutine of its owner has run since the lock was handed off to it. Of many
// losses, which have one cause, the log gets at most report.MostLines lines in any second; the others are counted
// (lossLines).

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/report"
)

// An ending is what has to be done for a hold that was lost.
type ending struct {
	hold    *hold
	cause   error
	loss    error         // the error that the owner of the hold gets: ErrLockLost with the cause
	state   holdState     // of the hold, after the loss
	age     time.Duration // how long the hold was held
	guards  []*guard.End
	renewed bool // the lease was one that the watchdog renews
	gone    bool // Redis did not have the record, or only a part of it
	unheard bool // the lock was handed off to the hold, and no goroutine of its owner has run since
}

// lose ends the record and all its holds as lost, and returns an ending for each of them, which it has carried out. If
// first is not nil, its ending comes first. lose does nothing if the loss is outdated: see isLossLocked.
func (r *record) lose(cause error, first *hold) []ending {
	cause = r.first.whyLost(cause)
	// The cause may be an error of a hook of the user. Its methods are called here, before the mutex is locked.
	end := ending{cause: cause, loss: LossError(cause), gone: errors.Is(cause, errGone)}
	unrenewed, limited := errors.Is(cause, ErrExpired), errors.Is(cause, ErrMaxHold)
	overdue := end.loss
	if unrenewed {
		overdue = LossError(fmt.Errorf("%w: %w", ErrUnrenewed, cause))
	}

	s := r.first.lockState
	s.Lock()
	if !r.isLossLocked(first, unrenewed || limited) {
		s.Unlock()
		return nil
	}
	if end.renewed = s.engine.watchdog.Renews(&r.lease); end.renewed && unrenewed {
		end.loss = overdue
	}
	var all []ending
	if unrenewed && !end.renewed || limited {
		r.first.field.Unwant()
	}
	r.endLocked()
	for len(r.holds) > 0 {
		h := r.holds[len(r.holds)-1]
		if len(all) == 0 && first != nil {
			h = first
		}
		all = append(all, h.loseLocked(end, unrenewed && !end.renewed))
	}
	s.Unlock()

	for _, e := range all {
		e.carryOut()
	}
	return all
}

// isLossLocked reports whether a loss that the caller has found is still one: first, if it is not nil, has not left the
// record since, and the lease, if its time was up, was not extended.
func (r *record) isLossLocked(first *hold, timeUp bool) bool {
	w := r.first.lockState.engine.watchdog
	left := first != nil && (!first.state.holds() || first.record != r)
	return !left && !(timeUp && w.Watches(&r.lease) && w.IsValid(&r.lease))
}

// loseLocked ends h as lost, and returns end with what is particular to h. ranOut is set if an explicit lease has
// expired.
func (h *hold) loseLocked(end ending, ranOut bool) ending {
	last := h.leaveRecordLocked()
	end.hold, end.unheard = h, h.state == handed && h.count == 1
	h.lostLocked(ranOut)
	h.loss = end.loss
	h.leaveQueueLocked()
	other := h.lockState.counterpartLocked(h)
	// The record would block others if its lease is longer in Redis, or may still be extended there by a request that is
	// under way or by renewals of the counterpart: so it is deleted. A hold without a record is released by its vote.
	mayStay := other != nil && other.state != ended && !other.state.isLost()
	// If Redis does not have the record, it may have some of the permits of a semaphore, which are of no use. Or a
	// request may still run, and acquire the lock for no owner.
	mayRemain := end.gone && last && (h.lock.Traits().Permits() > 1 || h.lockState.engine.late.MayAcquire(h.field.ID))
	switch {
	case h.vote != nil:
	case h.field.IsUnwanted() && (mayStay || h.mayOutliveLocked()):
		h.lockState.oweLocked(duty{clear: h})
	case mayRemain:
		h.lockState.oweLocked(duty{rollBack: h.commands(), attempt: h.attemptUntil(h.field.Expires())})
	}
	end.state, end.age, end.guards = h.state, h.age(), h.guards.Take()
	return end
}

// carryOut does what has to be done without the mutex, except the report.
func (e *ending) carryOut() {
	h := e.hold
	if !e.renewed {
		h.lockState.engine.expired.remember(h)
	}
	guard.EndAll(e.guards, h.withName(e.loss))
	if h.vote != nil {
		h.vote.Lost()
	}
}

// report reports the loss as an event.
func (e *ending) report() {
	events, s := e.hold.lockState.engine.Events, e.hold.subject()
	switch {
	case e.unheard:
	case e.state == expired:
		events.Expired(s, e.age)
	default:
		e.hold.lockState.engine.tellLoss(s, e.age, e.loss, e.cause)
	}
}

// tellLoss reports a loss to the Observer, and to the log unless this Client has forced the lock open.
func (e *Engine) tellLoss(s Subject, held time.Duration, loss, cause error) {
	logged := !errors.Is(cause, errForced) && e.logsLoss()
	e.Events.Lost(s, held, loss, cause, logged)
}

// reportLater makes the reporter report the losses.
func reportLater(all []ending) {
	for _, e := range all {
		e.hold.lockState.engine.reporter.Later(e.report)
	}
}

// lossLines counts the losses for the log, and decides which of them it gets.
type lossLines struct {
	mu       sync.Mutex // guards the fields below; no other mutex is locked while it is held
	lines    report.LineLimit
	counting bool // a goroutine runs countLosses, or did until Close
}

// next counts a loss at now, on the clock of the watchdog, and reports whether the log gets it. first reports whether it
// is the first one that is left out since the last report of countLosses.
func (l *lossLines) next(now time.Duration) (allowed, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines.Allows(now, true) {
		return true, false
	}
	first, l.counting = !l.counting, true
	return false, first
}

// omitted returns how many losses were left out since the last call.
func (l *lossLines) omitted(now time.Duration, closed bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = l.lines.Omitted(now) // next has kept a line for it
	l.counting = n > 0 || closed
	return n
}

// logsLoss reports whether the log gets the next loss.
func (e *Engine) logsLoss() bool {
	allowed, first := e.losses.next(e.watchdog.Now())
	if first {
		e.workers.Spawn(e.countLosses)
	}
	return allowed
}

// countLosses reports once in a second how many losses were left out, until there are none. The rest is for Close.
func (e *Engine) countLosses() {
	for e.Pause(e.life, time.Second) == nil {
		n := e.losses.omitted(e.watchdog.Now(), false)
		if n == 0 {
			return
		}
		e.reporter.Later(func() { e.Events.LossesOmitted(n) })
	}
}

// tellOmittedLosses reports how many losses were left out, after the reports that were made before Close.
func (e *Engine) tellOmittedLosses() {
	if n := e.losses.omitted(e.watchdog.Now(), true); n > 0 {
		e.Events.LossesOmitted(n)
	}
}
