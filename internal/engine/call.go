package engine

// Calls: how a call that acquires locks becomes an acquire operation, or several ones, one after the other.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// Acquire acquires every lock for o, or none of them. A lock that o already holds gets a higher hold count. Acquire
// returns false, and no error, if r.Wait has passed, or if it is 0 and a lock is busy. Several locks must be on one
// Redis, and of types that a bundle can acquire together.
func (e *Engine) Acquire(ctx context.Context, o Owner, r Request, locks ...contract.Lock) (bool, error) {
	e.workers.Begin()
	defer e.workers.End()
	op := waitOptions{Wait: send.Wait{Ctx: ctx, Closed: e.noNewHolds, NoWait: r.Wait == 0, OnCaller: true}}
	switch {
	case ctx.Err() != nil:
		return false, send.CtxError(ctx)
	case e.Open() != nil:
		return false, send.ErrClosed
	}
	for _, l := range locks {
		if err := l.Traits().Limits.CheckLease(r.Lease); err != nil {
			return false, err
		}
	}
	op.Deadline = e.deadlineOf(r)
	op.Patient = op.NoWait && isPatient(ctx)
	op.part = partOf(ctx)
	op.span = startSpan(e, ctx, locks, o)
	err := errRestart
	for err == errRestart {
		err = e.acquireOnce(&op, o, r, locks)
	}
	if err != nil {
		err = whyEnded(e, &op, locks, o, r, err)
	}
	if err == nil || !r.Trial || r.isLate() {
		op.span.finish(err)
	}
	if err == nil {
		e.noteStacks(locks, o)
	}
	if err == send.ErrTimeUp { // not errors.Is: an error that wraps ErrTimeUp has a reason that the caller must see
		return false, nil
	}
	return err == nil, err
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

// acquireOnce runs one acquire operation for all locks. A caller that holds the lock without a request, because it was
// handed off to it, gets no acquireOp: to allocate one for every hand-off would cost as much as the rest of the
// hand-off.
func (e *Engine) acquireOnce(op *waitOptions, o Owner, r Request, locks []contract.Lock) error {
	if len(locks) > 1 {
		e.noteAcquire()
		g := e.newMultiAcquire(op, locks, o, r)
		defer g.end()
		return g.finish(op)
	}
	s := e.retain(locks[0].Traits().ID.Name)
	defer s.release()
	op.changed = nil
	if l, kept := locks[0].(VotedLock); kept {
		return e.acquireVote(op, s, l, o, r)
	}
	e.noteAcquire()
	var t target
	in, err := s.enter(op, locks[0], o, &r, &t)
	if in.holds {
		op.part.count(in.hold)
		op.span.handedOff(in.hold.token)
	}
	if in.holds || err != nil {
		return err
	}
	one := new(recordBackend)
	one.begin(op, one, t)
	one.unlocks = true
	defer one.unlockIfEnded()
	if in.adopts {
		one.leftovers.GrantNotKept()
		one.adoptsRecord, one.targets[0].AdoptsRecord = true, !locks[0].Traits().DrawsSingly
	}
	return one.finish(op)
}

// enter waits until the caller may go on among the callers of this process. It then has a hold. If in.holds is set, it
// holds the lock already; otherwise it has the owner mutex of the hold, and has to ask Redis by the attempt t, which is
// prepared.
func (s *lockState) enter(op *waitOptions, kind contract.Lock, o Owner, r *Request, t *target) (in admitted, err error) {
	in, err = s.admit(op, kind, o, r, t)
	if in.waiter != nil {
		in, err = s.awaitHandoff(op, in.waiter, r, t)
	}
	if err != nil || in.hold != nil {
		return in, err
	}
	err = s.lockTarget(op, kind, o, r, t)
	in.hold = t.hold
	return in, err
}
