package engine

// Bundles: several locks on one Redis that one script acquires together, all of them or none.
//
// Rules: each hold is released, renewed and lost by itself, as if it had been acquired by itself. If a MultiLock
// acquires its locks in several steps, KeepLease extends an explicit lease of the first steps until it has the last one.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
)

// attemptCall returns the call that makes one attempt on all targets.
func attemptCall(targets []target) send.Call {
	if len(targets) == 1 {
		return targets[0].hold.commands().Acquire(targets[0].Attempt)
	}
	calls := make([]contract.BundledCall, len(targets))
	for i, t := range targets {
		l := t.hold.commands()
		calls[i] = contract.BundledCall{
			Script: l.Traits().Bundled, Acquire: l.Acquire(t.Attempt), RollBack: l.RollBack(t.rollbackOf()),
		}
	}
	return targets[0].hold.lockState.engine.Bundle(calls)
}

// rollbackOf returns the attempt of t with which the same script rolls it back if another lock is busy.
func (t *target) rollbackOf() contract.Attempt {
	a := t.Attempt
	a.Share = t.hold.lockState.engine.shareTime()
	return a
}

// readResult reads the answer to one attempt on all targets.
func readResult(targets []target, answer *send.Answer) (Answer, error) {
	res := Answer{Sent: answer.Sent}
	var err error
	if len(targets) == 1 {
		var r send.Reply
		if r, err = answer.Reply(); err == nil {
			res.Outcome, err = targets[0].read(r)
		}
	} else {
		var replies []send.Reply
		if replies, err = answer.Replies(); err == nil {
			err = res.readAll(targets, replies)
		}
	}
	if err != nil && answer.Err == nil && send.MayHaveRun(err) {
		answer.Unknown++
	}
	return res, err
}

// read reads the reply to the attempt of t.
func (t *target) read(r send.Reply) (contract.Outcome, error) {
	o, err := t.hold.commands().ReadReply(t.Attempt, r)
	if o.Differs {
		t.hold.lockState.engine.OnDifference(t.hold.lock, o.Stored)
	}
	return o, err
}

// heldBefore is the second number of the reply for a target that a bundle has neither acquired nor rolled back: see
// internal/lua/bundle.lua.
const heldBefore = -1

// readAll reads the replies of a bundle.
func (res *Answer) readAll(targets []target, replies []send.Reply) (err error) {
	if len(replies) == 0 || len(replies) > len(targets) {
		return fmt.Errorf("%w: %d locks were requested, but %d were answered", send.ErrReply, len(targets), len(replies))
	}
	queued, stays := false, false
	for i, r := range replies {
		t := targets[i]
		if res.Outcome, err = t.read(r); err != nil {
			return err
		}
		if res.Status != contract.Held && i < len(replies)-1 {
			return fmt.Errorf(
				"%w: of %d locks, number %d was not acquired, but later ones were answered",
				send.ErrReply,
				len(targets),
				i+1,
			)
		}
		res.at = i
		res.tokens = append(res.tokens, res.Token)
		queued = queued || res.LeavesEntry
		stays = stays || i < len(replies)-1 && r[1] == heldBefore
	}
	res.LeavesEntry, res.stays = queued, stays && res.Status != contract.Held
	if res.Status == contract.Held && len(replies) < len(targets) {
		return fmt.Errorf("%w: of %d locks, only %d were answered", send.ErrReply, len(targets), len(replies))
	}
	return nil
}

// KeepLease gives the holds of o on bs, which have an explicit lease, at least the given lease, counted from now; a hold
// with MaxHold gets no more than its rest. Holds that the watchdog renews stay as they are. Another goroutine of o may
// acquire the locks again meanwhile, or extend their leases: no request shortens them, so it does not matter in which
// order Redis runs the requests. KeepLease does not wait for an answer after the time by; zero: there is no limit.
func (e *Engine) KeepLease(ctx context.Context, bs []contract.Lock, o Owner, lease time.Duration, by time.Time) error {
	e.workers.Begin()
	defer e.workers.End()
	var holds []*hold
	var calls []send.Call
	var lengths []time.Duration
	for _, kind := range bs {
		h, _ := e.holdCount(kind, o)
		if h == nil {
			return LossError(ErrExpired)
		}
		if !e.watchdog.Renews(&h.record.lease) {
			length := e.watchdog.RestOf(&h.record.lease, lease)
			holds, lengths = append(holds, h), append(lengths, length)
			calls = append(calls, h.commands().Renew(h.field.ID, length, false))
		}
	}
	if len(holds) == 0 {
		return nil
	}
	for i, h := range holds {
		x := late.Effect{Lease: lengths[i]}
		if !h.noteRequest(x) {
			return LossError(ErrExpired)
		}
		defer e.late.Heard(h.field.ID, x, true) // after extendedBy
	}
	op := e.waitOptionsFor(ctx)
	op.Deadline = by
	answer := e.sender.Do(&op.Wait, send.Request{Pipeline: calls}, time.Time{})
	replies, err := answer.Replies()
	for i, h := range holds {
		h.extendedBy(&answer, lengths[i])
		switch {
		case err != nil:
		case replies[i][0] == 1:
			h.keptFor(answer.Sent, lengths[i])
		default:
			h.lose(errGone)
			err = LossError(errGone)
		}
	}
	if err == send.ErrTimeUp {
		return ErrNoAnswer
	}
	return err
}

// noteRequest notes that a request of a caller without the owner mutex is about to be sent, which may do x: an Unlock of
// another goroutine that leaves the record to its lease must know of it (minHold.isLast). It returns false if the hold
// has ended. Otherwise late.Requests.Heard has to be called when the request has ended.
func (h *hold) noteRequest(x late.Effect) bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.state.holds() {
		h.lockState.engine.late.Left(h.field.ID, x, 1, false)
	}
	return h.state.holds()
}

// keptFor notes that Redis has extended the explicit lease of h to length, by a request that was sent at sent.
func (h *hold) keptFor(sent time.Time, length time.Duration) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if w := h.lockState.engine.watchdog; h.state.holds() && !w.Renews(&h.record.lease) {
		w.Extend(&h.record.lease, sent, length, false)
	}
}

// holdCount returns the hold of o on a lock and its hold count, as far as this process knows.
func (e *Engine) holdCount(kind contract.Lock, o Owner) (*hold, int) {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	return s.holdCount(kind, o)
}

// ValidUntil returns the time until which all holds of o on bs that are not renewed are valid, but no later than end.
// It returns the present time if one of the holds has ended.
func (e *Engine) ValidUntil(bs []contract.Lock, o Owner, end time.Time) time.Time {
	for _, kind := range bs {
		h, _ := e.holdCount(kind, o)
		if h == nil {
			return time.Now()
		}
		if until := e.watchdog.End(&h.record.lease); !e.watchdog.Renews(&h.record.lease) && until.Before(end) {
			end = until
		}
	}
	return end
}

// LimitValidity makes all holds of o on bs that are not renewed expire at end, or earlier if their leases are shorter.
// Otherwise the owner could re-enter one of them after the others have expired. A hold that o has acquired more than
// once stays as it is. The leases in Redis do, too: a record that would last longer is deleted when its hold expires.
func (e *Engine) LimitValidity(bs []contract.Lock, o Owner, end time.Time) {
	for _, kind := range bs {
		s := e.retain(kind.Traits().ID.Name)
		s.limitValidity(kind, o, end)
		s.release()
	}
}

func (s *lockState) limitValidity(kind contract.Lock, o Owner, end time.Time) {
	s.Lock()
	defer s.Unlock()
	w := s.engine.watchdog
	h := s.holds.get(holdKey{kind.Traits().ID.Half, o})
	if h != nil && h.state.holds() && h.record != nil && h.count == 1 {
		w.Shorten(&h.record.lease, end)
	}
}

// InUse reports whether goroutines of this process hold one of the locks bs, or wait for it.
func (e *Engine) InUse(bs []contract.Lock) bool {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return slices.ContainsFunc(bs, func(kind contract.Lock) bool { return e.table.names[kind.Traits().ID.Name] != nil })
}
