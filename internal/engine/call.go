package engine

// Calls: how a call that acquires locks becomes an acquire operation, or several ones, one after the other.

import (
	"cmp"
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// Acquire acquires kind for o. If o already holds the lock, its hold count rises. Acquire returns false, and no error, if
// r.Wait has passed, or if it is 0 and the lock is busy.
func (e *Engine) Acquire(ctx context.Context, o Owner, r Request, kind contract.Lock) (bool, error) {
	e.workers.Begin()
	defer e.workers.End()
	op := waitOptions{Wait: send.Wait{Ctx: ctx, Closed: e.noNewHolds, NoWait: r.Wait == 0, OnCaller: true}}
	switch {
	case ctx.Err() != nil:
		return false, send.CtxError(ctx)
	case e.Open() != nil:
		return false, send.ErrClosed
	}
	if err := kind.Traits().Limits.CheckLease(r.Lease); err != nil {
		return false, err
	}
	if r.Wait != 0 {
		if err := e.checkWait(kind, o); err != nil {
			return false, err
		}
	}
	op.Deadline = e.deadlineOf(r)
	op.Patient = op.NoWait && isPatient(ctx)
	op.span = startSpan(e, ctx, kind, o)
	h, err := (*hold)(nil), errRestart
	for err == errRestart {
		h, err = e.acquireOnce(&op, o, r, kind)
	}
	if err != nil {
		err = whyEnded(e, &op, kind, o, r, err)
	}
	if r.Report != nil {
		e.report(r.Report, r.Lease, op.span, h, err)
	} else {
		e.tell(op.span, h, err)
	}
	if err == send.ErrTimeUp { // not errors.Is: an error that wraps ErrTimeUp has a reason that the caller must see
		return false, nil
	}
	return err == nil, err
}

// tell tells the outcome of a call that has acquired h, or failed with err. If the Observer, or a part of a LocalLock, ends
// the goroutine, it releases h: the caller does not get it.
func (e *Engine) tell(s *span, h *hold, err error) {
	returned := false
	defer func() {
		if !returned && err == nil {
			_ = e.Release(context.Background(), h.lock, h.owner)
		}
	}()
	s.finish(h, err)
	if err == nil {
		e.noteStack(h)
		if h.local() != nil {
			h.expireIfDue() // Lose did not find it before it was acquired
		}
	}
	returned = true
}

// report notes the outcome of a call with this lease in p. It gets no Request, which would escape to the heap.
func (e *Engine) report(p *Report, lease time.Duration, s *span, h *hold, err error) {
	p.tell, p.drop = func() { e.tell(s, h, err) }, func() { s.drop(err) }
	if err != nil {
		return
	}
	p.tell = func() {
		lost := noteTold(h)
		e.tell(s, h, nil)
		if lost != nil {
			lost.report()
		}
	}
	p.GiveBack = func(ctx context.Context) error { return e.giveBack(ctx, h) }
	p.Extend = func(ctx context.Context) error {
		return e.extend(ctx, h.lock, h.owner, cmp.Or(lease, e.WatchdogTimeout), true)
	}
	if lease == 0 {
		p.Renew = h.startRenewal
	}
}

// deadlineOf returns when the wait of r ends; zero: it does not.
func (e *Engine) deadlineOf(r Request) (deadline time.Time) {
	switch {
	case r.Wait > 0:
		return time.Now().Add(r.Wait)
	case r.Wait == 0 && !r.AnswerBy.IsZero() && time.Until(r.AnswerBy) < e.Patience():
		return r.AnswerBy
	}
	return deadline
}

// acquireOnce runs one acquire operation. A caller that holds the lock without a request, because it was
// handed off to it, gets no acquireOp: to allocate one for every hand-off would cost as much as the rest of the
// hand-off.
func (e *Engine) acquireOnce(op *waitOptions, o Owner, r Request, kind contract.Lock) (*hold, error) {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	op.over = time.Time{}
	op.span.asks(1) // a call that begins again may have asked for more
	l, local := kind.(LocalLock)
	switch {
	case !local:
		e.noteAcquire()
	case r.Lease > 0 && lease.Validity(r.Lease) <= 0 && s.find(kind.Traits().ID, o) == nil: // a re-entry shortens no lease
		return nil, send.Invalid("lease %v is too short: it must exceed the allowance for clock drift", r.Lease)
	}
	var t target
	in, err := s.enter(op, kind, o, r.Lease == 0 && !local, &r, &t)
	if in.holds || err != nil {
		return in.hold, err
	}
	if local {
		k := &localBackend{lock: l}
		k.begin(op, k, t)
		return t.hold, k.finish(op)
	}
	one := new(recordBackend)
	one.begin(op, one, t)
	if t.hold.IsAdopted() {
		one.place.granted = true
		one.target.AdoptsRecord = !kind.Traits().DrawsSingly
	}
	return t.hold, one.finish(op)
}

// enter waits until the caller may go on among the callers of this process. It then has a hold. If in.holds is set, it
// holds the lock already; otherwise it has the owner mutex of the hold, and has to ask Redis by the attempt t, which is
// prepared. takes is that of admit.
func (s *lockState) enter(op *waitOptions, kind contract.Lock, o Owner, takes bool, r *Request, t *target) (in admitted, err error) {
	for in.hold == nil && err == nil {
		in, err = s.admit(op, kind, o, takes, r, t)
		switch {
		case in.waiter != nil:
			in, err = s.awaitTurn(op, in.waiter, r, t)
		case err == nil && in.hold == nil:
			err = s.lockTarget(op, kind, o, r, t)
			in.hold = t.hold
		}
	}
	return in, err
}
