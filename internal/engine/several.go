package engine

// Several locks on one Redis, taken together by one script: all of them, or none.
//
// Rules: nothing else about their holds is special: each hold is released, renewed and lost by
// itself. A MultiLock that takes locks in several steps gives the locks of the first steps an
// interim lease, until StartLease.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// attemptCall is the call of one attempt on all wants.
func attemptCall(wants []target) send.Call {
	if len(wants) == 1 {
		return wants[0].hold.commands().Acquire(wants[0].Attempt)
	}
	calls := make([]BundledCall, len(wants))
	for i, w := range wants {
		l := w.hold.commands()
		calls[i] = BundledCall{l.Bundled(), l.Acquire(w.Attempt), l.RollBack(w.rollbackOf())}
	}
	return wants[0].hold.name.engine.Bundle(calls)
}

// rollbackOf is the attempt of w for its undo in the same script.
func (w *target) rollbackOf() Attempt {
	a := w.Attempt
	a.Share = w.hold.name.engine.shareTime()
	return a
}

// readResult reads the answer to one attempt on all wants.
func readResult(wants []target, answer *send.Answer) (Answer, error) {
	res := Answer{Sent: answer.Sent}
	var err error
	if len(wants) == 1 {
		var r send.Reply
		if r, err = answer.Reply(); err == nil {
			res.Outcome, err = wants[0].hold.commands().ReadReply(wants[0].Attempt, r)
		}
	} else {
		var replies []send.Reply
		if replies, err = answer.Replies(); err == nil {
			err = res.readAll(wants, replies)
		}
	}
	if err != nil && answer.Err == nil && send.MayHaveRun(err) {
		answer.Unknown++
	}
	return res, err
}

// readAll reads the replies of a bundle.
func (res *Answer) readAll(wants []target, replies []send.Reply) (err error) {
	if len(replies) == 0 || len(replies) > len(wants) {
		return fmt.Errorf("%w: %d locks were asked for, and %d answered", send.ErrReply, len(wants), len(replies))
	}
	queued := false
	for i, r := range replies {
		w := wants[i]
		if res.Outcome, err = w.hold.commands().ReadReply(w.Attempt, r); err != nil {
			return err
		}
		if res.Status != Held && i < len(replies)-1 {
			return fmt.Errorf("%w: of %d locks number %d is not held, and later ones answered", send.ErrReply, len(wants), i+1)
		}
		res.at = i
		res.tokens = append(res.tokens, res.token)
		queued = queued || res.leavesEntry
	}
	res.leavesEntry = queued
	if res.Status == Held && len(replies) < len(wants) {
		return fmt.Errorf("%w: of %d locks only %d answered", send.ErrReply, len(wants), len(replies))
	}
	return nil
}

// StartLease gives the holds of o on bs the lease that the caller has asked for, counted from now. A
// fresh hold, which had an interim lease, gets exactly that lease; the other holds get at least that lease.
func (e *Engine) StartLease(ctx context.Context, bs []Lock, o Owner, lease time.Duration, by time.Time) error {
	e.workers.Begin()
	defer e.workers.End()
	var holds []*hold
	var calls []send.Call
	for _, b := range bs {
		h, levels := e.holdCount(b, o)
		if h == nil {
			return LossError(ErrExpired)
		}
		if !e.watchdog.Renews(&h.record.lease) {
			holds = append(holds, h)
			calls = append(calls, h.commands().Renew(h.field, lease, levels == 1))
		}
	}
	if len(holds) == 0 {
		return nil
	}
	p := e.waitOptionsFor(ctx)
	p.Deadline = by
	answer := e.sender.Do(&p.Wait, send.Request{Pipeline: calls}, time.Time{})
	replies, err := answer.Replies()
	if err == send.ErrTimeUp {
		return ErrNoAnswer
	}
	if err != nil {
		return err
	}
	for i, h := range holds {
		if replies[i][0] != 1 {
			h.lose(errGone)
			return LossError(errGone)
		}
	}
	return nil
}

// holdCount returns o's hold on b and its levels, as far as this process knows.
func (e *Engine) holdCount(b Lock, o Owner) (*hold, int) {
	n := e.retain(b.ID().Name)
	defer n.release()
	return n.holdCount(b, o)
}

// ValidUntil is until when all holds of o on bs that are not renewed are trusted, or
// end if end is sooner. It is now if one of the holds is over.
func (e *Engine) ValidUntil(bs []Lock, o Owner, end time.Time) time.Time {
	for _, b := range bs {
		h, _ := e.holdCount(b, o)
		if h == nil {
			return time.Now()
		}
		if until := e.watchdog.End(&h.record.lease); !e.watchdog.Renews(&h.record.lease) && until.Before(end) {
			end = until
		}
	}
	return end
}

// LimitValidity lets the holds of o on bs that are not renewed end at the same
// moment: a hold that outlived the others would be re-entered when they are over.
func (e *Engine) LimitValidity(bs []Lock, o Owner, end time.Time) {
	for _, b := range bs {
		if h, levels := e.holdCount(b, o); h != nil && !e.watchdog.Renews(&h.record.lease) {
			e.watchdog.Settle(&h.record.lease, end, levels == 1)
		}
	}
}

// InUse reports whether goroutines of this process hold one of bs, or wait for it.
func (e *Engine) InUse(bs []Lock) bool {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return slices.ContainsFunc(bs, func(b Lock) bool { return e.table.names[b.ID().Name] != nil })
}
