package engine

// Extend: how a hold with an explicit lease gets a longer one.
//
// Rules: an extension never shortens what is left of a lease, and validity counts from before its request. A hold that
// the watchdog renews, and one that MaxHold would end sooner, are not extended.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// Extend makes the lease of o's hold on kind as long as length from now on.
func (e *Engine) Extend(ctx context.Context, kind Lock, o Owner, length time.Duration) error {
	e.workers.Begin()
	defer e.workers.End()
	op := e.waitOptionsFor(ctx)
	if err := op.Over(); err != nil {
		return err
	}
	s := e.retain(kind.ID().Name)
	defer s.release()
	h, err := s.lockHold(op, kind, o, false)
	switch {
	case err != nil:
		return err
	case h == nil:
		return s.notHeldError(kind.ID(), o)
	}
	defer h.unlockHold()
	x := extension{h, length}
	if err := x.allowed(); err != nil {
		return err
	}
	sent, err := x.ask(op)
	whole := lease.Validity(length)
	for asked := 1; err == nil && asked < MostAsked && !lease.EnoughValidityLeft(whole-time.Since(sent), whole, false); asked++ {
		sent, err = x.ask(op) // the answer came late: another request restores the lease
	}
	if !e.watchdog.Watches(&h.record.lease) {
		h.lose(ErrExpired) // the watchdog has found the lease over, and is about to end the hold
	}
	return x.done(sent, err)
}

// An extension makes the lease of a hold as long as length from now on. Its caller has the owner mutex of the hold.
type extension struct {
	*hold
	length time.Duration
}

// allowed reports why the hold cannot have this lease from now on, or nil.
func (x extension) allowed() error {
	x.name.Lock()
	defer x.name.Unlock()
	switch {
	case !x.state.holds():
		return cmp.Or(x.loss, ErrNotHeld)
	case x.name.engine.watchdog.Renews(&x.record.lease):
		return ErrRenewed
	}
	if rest := x.name.engine.watchdog.RestOf(&x.record.lease, x.length); rest < x.length {
		return send.Invalid("lease %v: MaxHold ends the hold in %v", x.length, rest)
	}
	return nil
}

// done notes the outcome of a request that was sent at sent.
func (x extension) done(sent time.Time, err error) error {
	x.name.Lock()
	defer x.name.Unlock()
	switch {
	case !x.state.holds(): // it was lost, or released, while the request was under way
		return send.WithLast(cmp.Or(x.loss, ErrNotHeld), err)
	case err != nil:
		x.leaseUncertain = true
		return err
	}
	x.name.engine.watchdog.Extend(&x.record.lease, sent, x.length, false)
	return nil
}

// ask sends one request, at sent. It ends a hold that Redis does not have.
func (x extension) ask(op *waitOptions) (sent time.Time, err error) {
	if x.vote != nil {
		return x.vote.Extend(op.Ctx, x.length)
	}
	answer := x.name.engine.sender.Do(&op.Wait, send.Request{Call: x.commands().Renew(x.field, x.length, false)}, time.Time{})
	r, err := answer.Reply()
	switch {
	case errors.Is(err, send.ErrNotALock): // the record was replaced by something else
		x.lose(fmt.Errorf("%w: %w", errGone, err))
		err = nil
	case err == nil && r[0] != 1:
		x.lose(errGone)
	}
	return answer.Sent, err
}
