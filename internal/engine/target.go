package engine

// Targets: the attempt on one lock, from when it is prepared until its owner holds the lock.
//
// Rules: an attempt sets a hold count and a lease, and adds nothing, so that it may run more than once. Who prepares a
// target has the owner mutex of its hold until the target is acquired or dismissed.

import (
	"cmp"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A target is the attempt on one lock, and the hold that it is made for.
type target struct {
	hold *hold
	contract.Attempt
	cut   bool // the lease is as long as MaxHold allows: the watchdog will not renew it
	kept  bool // the lease that the owner has already stays as it is: see Report.Kept
	tells bool // the call tells at once that it has the lock, and not by a Report
}

// prepareLocked sets the attempt of t. It returns an error if the owner may make none: if its hold was lost, or would
// get too high a hold count.
func (t *target) prepareLocked(r *Request) error {
	h := t.hold
	e := h.lockState.engine
	if h.Field() == nil {
		h.newField()
	}
	if h.IsLost() { // before all other reasons: the owner hears of it by this call
		return reportLossLocked(h)
	}
	if l := h.lock.Traits(); l.MaxHoldCount > 0 && h.Count() >= l.MaxHoldCount {
		return l.TooMany
	}
	t.Attempt = contract.Attempt{Field: h.Field().ID, Lease: r.Lease, HoldCount: h.Count() + 1, Renewed: r.Lease == 0}
	t.tells = r.Report == nil
	t.kept = !t.tells && h.owner.agent() == nil && !h.Asks() && !e.watchdog.Renews(&h.record.lease)
	switch {
	case h.Asks():
		t.NoWait = r.Wait == 0
		t.Lease = h.lock.Traits().Limits.Cut(cmp.Or(r.Lease, e.WatchdogTimeout))
	case t.kept:
		t.Lease = time.Millisecond // a request shortens no lease
	default:
		t.Renewed = t.Renewed || e.watchdog.Renews(&h.record.lease)
		if t.Renewed {
			t.Lease = e.WatchdogTimeout
		}
		t.Lease = e.watchdog.RestOf(&h.record.lease, t.Lease)
	}
	if !t.tells {
		r.Report.Kept = t.kept
	}
	most := h.lock.Traits().Limits.Max
	t.cut = most > 0 && t.Lease >= most
	return nil
}

// mayLastLocked notes for how long the field of t lasts, which was granted just now. Another try of the attempt may be
// on its way, and give an explicit lease again.
func (t *target) mayLastLocked() {
	length := bounded(t.Lease)
	if !t.Renewed && t.hold.lockState.engine.late.Longest(t.Field) > 0 {
		length += late.Life
	}
	t.hold.mayLastLocked(length)
}

// acquiredLocked notes that the attempt of t was granted, and that its owner holds the lock from now on.
func (t *target) acquiredLocked(res Answer) {
	h, sent := t.hold, res.Sent
	e := h.lockState.engine
	if !h.Asks() {
		h.Reentered()
		t.mayLastLocked()
		if !t.kept {
			e.watchdog.Extend(&h.record.lease, sent, t.Lease, t.Renewed)
		}
		return
	}
	now := e.watchdog.Now()
	h.acquiredLocked(newRecord(h, now), e.watchdog.At(sent))
	t.mayLastLocked()
	if q := h.queue; q != nil {
		q.request, q.owned = inquiry{}, true
		if h.lock.Traits().Admission != contract.Counting { // a granted permit does not mean that another one is free
			q.reply = nil
		}
		q.policy.Acquired(now)
	}
	h.token, h.record.tokens = res.Token, tokenBlock{res.Token + 1, res.Following}
	limit := endOf(h.lock.Traits().Limits.Max, e.watchdog.At(sent))
	if res.limits != nil {
		h.keepUntil, limit = res.limits.keepUntil, res.limits.limit
	}
	h.record.lease.SetLimit(limit)
	e.watchdog.Watch(&h.record.lease, sent, t.Lease, t.Renewed, res.provisional) // 6
	checkIfForcedLocked(h, e.watchdog.At(sent))
	openLocked(h, res.More)
}

// effect returns the most that a try of the attempt may do when it runs late. A re-entry acquires nothing.
func (t *target) effect() late.Effect {
	return late.Effect{Acquires: t.HoldCount <= 1, Lease: t.Lease}
}

// readResult reads the answer to the attempt of t.
func (t *target) readResult(answer *send.Answer) (Answer, error) {
	res := Answer{Sent: answer.Sent}
	r, err := answer.Reply()
	if err == nil {
		res.Outcome, err = t.hold.commands().ReadReply(t.Attempt, r)
		if res.Differs {
			t.hold.lockState.engine.OnDifference(t.hold.lock, res.Stored)
		}
	}
	if err != nil && answer.Err == nil && send.MayHaveRun(err) {
		answer.Unknown++
	}
	return res, err
}

// enoughValidityLeft reports whether enough is left of the lease that the last request has asked for, which was sent
// the time took ago. asked is the number of requests so far in this attempt. A smaller rest is enough (lease.Suffices)
// of a lease that is not renewed, if the caller has asked for it twice, or if MaxHold allows no longer one.
func (e *Engine) enoughValidityLeft(t *target, took time.Duration, asked int) bool {
	whole := lease.Validity(t.Lease)
	left := whole - took
	if t.HoldCount > 1 {
		left = max(left, e.watchdog.Left(&t.hold.record.lease))
	}
	return t.kept || lease.EnoughValidityLeft(left, whole, t.Renewed) ||
		(asked >= 2 || t.cut) && lease.Suffices(left, whole, t.Renewed && !t.cut)
}

// confirmLocked notes that t was granted and that its owner holds the lock. It returns an error if the owner cannot keep
// the hold.
func (t *target) confirmLocked(res Answer) error {
	switch h := t.hold; {
	case h.IsLost() || h.isOver(): // now, or while the attempt was under way
		return cmp.Or(reportLossLocked(h), errRestart)
	case h.Asks() && h.lockState.engine.isLeaving.Load():
		return send.ErrClosed
	}
	t.acquiredLocked(res)
	if t.tells {
		t.hold.Told()
	}
	return nil
}
