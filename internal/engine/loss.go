package engine

// Losses: how a record ends because Redis does not have it any more, or because it can no longer be valid.
//
// Rules: the record and all its holds end together, under the mutex of the lock state. What has to be done then for a
// hold is an ending, which is carried out after the mutex was unlocked: guards are canceled, and the reporter reports the
// loss, once. The loss of a hold that no call has told is not reported. Of many losses, which have one cause, the log gets
// at most report.MostLines lines in a second; the others are counted.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/each"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/tenancy"
)

// A hold that is found gone so long after a forced release, or after the hint of one, was not lost by it. A check
// may wait so long for its turn: see internal/lease/check.go.
const forcedLately = 10 * time.Second

// An ending is what has to be done for a hold that was lost.
type ending struct {
	hold    *hold
	subject Subject // now: a RedLock ends its agent, and the report may come later
	cause   error
	loss    error         // the error that the owner of the hold gets: ErrLockLost with the cause
	state   tenancy.State // of the hold, after the loss
	age     time.Duration // how long the hold was held
	guards  guard.Ends
	renewed bool // the lease was one that the watchdog renews
	limited bool // MaxHold has ended it
	gone    bool // Redis did not have the record, or only a part of it
	untold  bool // no call has told that it has the hold
}

// carryOut carries all out: guards are canceled, and then the reporter reports the losses.
func carryOut(all []ending) {
	defer func() {
		for _, e := range all {
			e.report()
		}
	}()
	each.Do(all, ending.carryOut)
}

// end ends the record and all its holds as lost, and returns an ending for each of them. If first is not nil, its ending
// comes first. end does nothing if the loss is outdated: see isLossLocked.
func (r *record) end(cause error, first *hold) []ending {
	if cause == errGone {
		cause = whyGone(r.first)
	}
	// The cause may be an error of a hook of the user. Its methods are called here, before the mutex is locked.
	end := ending{cause: cause, loss: LossError(cause), gone: errors.Is(cause, errGone), limited: errors.Is(cause, ErrMaxHold)}
	overdue := errors.Is(cause, ErrExpired)
	unrenewed := end.loss
	if overdue {
		unrenewed = LossError(fmt.Errorf("%w: %w", ErrUnrenewed, cause))
	}

	s := r.first.lockState
	s.Lock()
	defer s.Unlock()
	if !r.isLossLocked(first, overdue || end.limited) {
		return nil
	}
	if end.renewed = s.engine.watchdog.Renews(&r.lease); end.renewed && overdue {
		end.loss = unrenewed
	}
	var all []ending
	r.endLocked()
	for len(r.holds) > 0 {
		h := r.holds[len(r.holds)-1]
		if len(all) == 0 && first != nil {
			h = first
		}
		all = append(all, loseLocked(h, end, overdue && !end.renewed))
	}
	return all
}

// isLossLocked reports whether a loss that the caller has found is still one: first, if it is not nil, has not left the
// record since, and the lease, if its time was up, was not extended.
func (r *record) isLossLocked(first *hold, timeUp bool) bool {
	w := r.first.lockState.engine.watchdog
	left := first != nil && (!first.Holds() || first.record != r)
	return !left && !(timeUp && w.Watches(&r.lease) && w.IsValid(&r.lease))
}

// loseLocked ends h as lost, and returns end with what is particular to h. ranOut is set if an explicit lease has
// expired.
func loseLocked(h *hold, end ending, ranOut bool) ending {
	end.hold, end.subject, end.untold = h, h.subject(), !h.IsTold()
	h.Lost(ranOut)
	h.leaveRecordLocked()
	h.loss = end.loss
	h.leaveQueueLocked()
	// If Redis does not have the record, it may have some of the permits of a semaphore, which are of no use. Or a
	// request may still run, and acquire the lock for no owner. If the lease has run out, it may be longer in Redis, and
	// no Unlock has to come.
	mayRemain := end.gone && (h.lock.Traits().Permits() > 1 || h.lockState.engine.late.MayAcquire(h.Field().ID))
	if mayRemain || ranOut || end.limited {
		h.keepUntil = 0
		h.clearIfOverLocked()
	}
	if l := h.local(); l != nil {
		l.Lost(h.Field().ID)
	}
	end.state, end.age, end.guards = h.State(), h.age(), h.guards.Take()
	return end
}

// reportLossLocked returns the loss of h, or nil, for a call of its owner that acquires the lock. The owner then knows of
// the loss, and need not call Unlock. So a record that may be left is deleted.
func reportLossLocked(h *hold) error {
	if h.State() == tenancy.Lost {
		h.clearIfOverLocked()
	}
	h.Reported()
	return h.loss
}

// carryOut does what has to be done without the mutex, except the report.
func (e ending) carryOut() {
	h := e.hold
	switch engine := h.lockState.engine; {
	case e.limited:
		remember(engine.limited, h)
	case !e.renewed:
		remember(engine.expired, h)
	}
	e.guards.EndAll(h.withName(e.loss))
}

// report has the loss reported as an event.
func (e *ending) report() {
	engine, s := e.hold.lockState.engine, e.subject
	switch {
	case e.untold:
	case e.state == tenancy.Expired:
		engine.reporter.Later(func() {
			engine.Events.Report(context.Background(), Event{What: Expired, Subject: s, Time: e.age})
		})
	default:
		engine.tellLoss(s, e.age, e.loss, e.cause)
	}
}

// noteTold notes that the caller is about to tell that it has h. It returns the ending that it then has to report, because h
// was lost before; or nil.
func noteTold(h *hold) *ending {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	told := h.IsTold()
	if h.Told(); told || h.loss == nil {
		return nil
	}
	return &ending{hold: h, subject: h.subject(), cause: h.loss, loss: h.loss, state: h.State(), age: h.age()}
}

// tellLoss has a loss reported to the Observer, and to the log. How many the log does not get is reported a second later,
// or by Close.
func (e *Engine) tellLoss(s Subject, held time.Duration, loss, cause error) {
	e.reporter.Later(func() {
		logged := e.losses.Allows(e.watchdog.Now(), true)
		if !logged && e.losses.Left == 1 {
			time.AfterFunc(time.Second, func() { e.reporter.Later(e.tellOmittedLosses) })
		}
		e.Events.Report(context.Background(), Event{What: Lost, Subject: s, Time: held, Err: loss, Cause: cause, Logged: logged})
	})
}

// tellOmittedLosses reports how many losses were left out.
func (e *Engine) tellOmittedLosses() {
	if n := e.losses.Omitted(); n > 0 {
		e.Events.LossesOmitted(n)
	}
}

// mayHaveExpiredLocked reports whether the validity of h is over, or may be because it is that of a LocalLock.
func mayHaveExpiredLocked(h *hold) bool {
	return h.Holds() && (h.local() != nil || !h.lockState.engine.watchdog.IsValid(&h.record.lease))
}

// expireIfDue ends h as lost if its validity is over, even if the watchdog has not noticed it yet.
func (h *hold) expireIfDue() {
	if cause := whyExpired(h); cause != nil {
		h.lose(cause)
	}
}

// whyExpired returns why the hold can no longer be valid, or nil. It reads the clock, and asks a LocalLock.
func whyExpired(h *hold) error {
	h.lockState.Lock()
	holds := h.Holds()
	h.lockState.Unlock()
	if !holds {
		return nil
	}
	if cause := h.record.whyOver(); cause != nil || h.local() == nil {
		return cause
	}
	return h.local().Check(h.Field().ID)
}

// whyOver returns why the lease of the record is over, even if the watchdog has not told it yet; or nil.
func (r *record) whyOver() error {
	switch w := r.first.lockState.engine.watchdog; {
	case !w.IsValid(&r.lease):
		return w.WhyOver(&r.lease)
	case !w.Watches(&r.lease): // a renewal has found no record
		return errGone
	}
	return nil
}

// lose ends h as lost, and all holds that share its record, if the owner of h holds the lock. Only the first call has an
// effect.
func (h *hold) lose(cause error) {
	h.lockState.Lock()
	r, holds := h.record, h.Holds()
	h.lockState.Unlock()
	if holds {
		carryOut(r.end(cause, h))
	}
}

// Lose ends the hold of kind with this field as lost.
func (e *Engine) Lose(kind contract.Lock, field string, cause error) {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	if h := s.holdWith(field); h != nil {
		h.expireIfDue() // if its lease is over, that is the cause
		h.lose(cause)
	}
}

// holdWith returns the hold that has field now, or nil.
func (s *lockState) holdWith(field string) *hold {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.has(field) && h.Holds() {
			return h
		}
	}
	return nil
}

// LeaseEnded ends all holds of the record as lost. The watchdog calls it when the lease has expired, or the record in
// Redis is gone.
//
// The watchdog calls LeaseEnded, and renew and observedRenew, without a mutex, and by then the record may have been
// released, handed off or lost. So whatever it calls must look again, under the mutex of the lock state, at whether the
// record has ended (r.ended), and at which holds are left. To look at r.holds is enough, as lose and holdsNow do: a
// record that has ended has no holds. (A renewal may still be sent for a record that has ended, because it never
// creates one.)
//
// The goroutine of the watchdog serves all leases, so it cancels no guard: that calls a context of the user, which may
// block, or end the goroutine.
func (r *record) LeaseEnded(cause error) {
	all := r.end(cause, nil)
	if slices.ContainsFunc(all, func(e ending) bool { return len(e.guards) > 0 }) {
		r.first.lockState.engine.workers.Spawn(func() { carryOut(all) })
	} else {
		carryOut(all)
	}
}

// whyGone returns the cause of a loss for which Redis gives none: the hold h does not exist there any more. If a forced
// release of the lock was lately known of, and h is older than that, it is the cause. A hint of it may be made up.
func whyGone(h *hold) error {
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	if forced := s.forced; forced > 0 && h.since <= forced && s.engine.watchdog.Now()-forced <= forcedLately {
		return errForced
	}
	return errGone
}
