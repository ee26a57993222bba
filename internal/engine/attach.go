package engine

// Attaching: how an owner of this process acquires a hold that was detached, perhaps by another process.
//
// Rules: an Attach is an acquire operation, whose attempts rename the detached field to that of the hold (detach.go). It
// waits for no other owner. An Attach that gives up renames its field back, and leaves a tombstone of it. That may be
// later than the time at which the detached hold would have expired: then the lock is free a moment later, and an Attach
// in between is refused. As long as a field is being renamed back, the next Attach of this process waits, because it
// would find no detached field. An attached hold is in no local queue, and is not handed off.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/ticket"
)

// Attach makes o hold the detached hold d, whose lock is kind.
func (e *Engine) Attach(ctx context.Context, kind contract.Record, o Owner, d ticket.Ticket) error {
	e.workers.Begin()
	defer e.workers.End()
	op := waitOptions{Wait: send.Wait{Ctx: ctx, Closed: e.noNewHolds, OnCaller: true}}
	switch {
	case ctx.Err() != nil:
		return send.CtxError(ctx)
	case e.Open() != nil:
		return send.ErrClosed
	}
	op.span = startSpan(e, ctx, kind, o)
	e.noteAcquire()
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	h := s.attachingHold(kind, o)
	a := newAttachBackend(&op, h, d)
	err := s.silence(a.finish(&op))
	if a.refused {
		a.giveUp()
	}
	if err == nil {
		op.span.ends(pathAttached)
	}
	e.tell(op.span, h, err)
	return err
}

// attachingHold returns a hold whose claim asks with a field of its own, which is in no local queue, and its owner mutex.
func (s *lockState) attachingHold(kind contract.Record, o Owner) *hold {
	s.Lock()
	defer s.Unlock()
	h := s.newHoldLocked(kind, holdKey{kind.Traits().ID.Half, o})
	h.newField()
	return h
}

// An attachBackend is the backend of one call of Attach.
type attachBackend struct {
	acquireOp
	ticket.Ticket
	to      string // the field of the hold
	refused bool   // the hold was renamed, but the caller does not get it
}

// newAttachBackend begins an operation that makes h the detached hold d. The caller has the owner mutex of h.
func newAttachBackend(op *waitOptions, h *hold, d ticket.Ticket) *attachBackend {
	a := &attachBackend{Ticket: d, to: h.Field().ID}
	ask := contract.Attempt{Field: a.to, Lease: h.lockState.engine.WatchdogTimeout, HoldCount: 1, Renewed: true}
	a.begin(op, a, target{hold: h, Attempt: ask, tells: true})
	return a
}

// A return gives the lock back to the detached field of an Attach that has given up: internal/late knows for how long.
var returns = late.Effect{Acquires: true}

// admit waits while this process gives the lock back to the detached field; but not for long, because Redis may be
// unreachable.
func (a *attachBackend) admit() error {
	for end := time.Now().Add(UnlockTime); a.isPutBack(); {
		if err := a.Sleep(nil, nil, nil, putBackPause); err != nil {
			return err
		}
		if !time.Now().Before(end) {
			return errPutBack
		}
	}
	return nil
}

func (a *attachBackend) isPutBack() bool { return a.engine.late.MayAcquire(a.ID) }

// ask sends one request that renames the field.
func (a *attachBackend) ask(lastReply time.Time) (res Answer, err error) {
	t, e := &a.target, a.engine
	t.Lease = e.WatchdogTimeout
	rename := contract.Rename{From: a.ID, To: a.to, Lease: e.WatchdogTimeout, Until: a.MaxEnd, Ends: max(1, a.KeepEnd)}
	request := send.Request{Call: t.hold.commands().Rename(rename), Acquiring: true, OnOrphan: a}
	answer := e.sender.Do(&a.Wait, request, lastReply)
	r, err := answer.Reply()
	a.noteAnswer(&answer, false, err)
	switch {
	case err != nil:
		return res, err
	case r[0] != 1 && a.isPutBack(): // since the request was sent: the next one has to wait
		return Answer{Outcome: contract.Outcome{Status: contract.Busy}, Sent: answer.Sent}, nil
	case r[0] != 1:
		return res, fmt.Errorf("%w: the ticket was used before, or the hold has expired or was released by force", ErrNotHeld)
	}
	t.Lease = send.FromMilliseconds(r[1])
	t.cut = a.MaxEnd > 0 && t.Lease < e.WatchdogTimeout
	res = Answer{Outcome: contract.Outcome{Status: contract.Held, Token: a.Token}, Sent: answer.Sent}
	res.limits = a.limits(r[2], answer.Sent)
	return res, nil
}

// limits returns when the limits of the hold end. now is the time by the clock of Redis at which it has run a request
// that was sent at sent.
func (a *attachBackend) limits(now int64, sent time.Time) *limitEnds {
	w, ends := a.engine.watchdog, new(limitEnds)
	if a.MinEnd > now {
		ends.keepUntil = w.Now() + send.FromMilliseconds(a.MinEnd-now)
	}
	if a.MaxEnd > 0 {
		ends.limit = max(1, w.At(sent)+send.FromMilliseconds(a.MaxEnd-now))
	}
	return ends
}

func (a *attachBackend) await(res Answer) (Answer, error) { return res, nil }

func (a *attachBackend) rollback(error) { a.giveUp() }

// dismissLocked has the hold put back that was granted, but that the caller cannot keep.
func (a *attachBackend) dismissLocked(res Answer) { a.refused = res.Status == contract.Held }

// giveUp gives the lock back to the detached field, and waits for that, but not for long: the caller may try again.
func (a *attachBackend) giveUp() {
	late := &a.engine.late
	late.Left(a.ID, returns, 1, false)
	a.engine.workers.Within(context.Background(), send.MinWait, func() {
		defer late.Heard(a.ID, returns, true)
		a.putBack()
	})
}

// putBack gives the lock back to the detached field, until the time at which it would have expired. It is repeated for
// as long as the field of the hold may have the lock, or get it from a request that runs late.
func (a *attachBackend) putBack() {
	e, ctx := a.engine, context.WithoutCancel(a.Ctx)
	record := a.target.hold.commands()
	back := func(mayRun bool) send.Call {
		return record.Rename(contract.Rename{From: a.to, To: a.ID, Lease: longestLimit, Until: a.KeepEnd, Late: mayRun})
	}
	end := e.mayLeaveUntil(a.to, e.WatchdogTimeout)
	for e.repeat(ctx, a.to, back) != nil && time.Now().Before(end) {
		if e.Pause(ctx, clearPause) != nil {
			return // the engine is closed
		}
	}
}

// HandleOrphan notes the answer to a try that came too late for the caller. If the caller has given up, the try has run
// before the field was renamed back, or has found the tombstone of the field.
func (a *attachBackend) HandleOrphan(_ time.Time, _ any, err error) {
	effect := late.Effect{Acquires: true, Lease: a.engine.WatchdogTimeout}
	a.engine.late.Heard(a.to, effect, !send.MayRunLater(err))
}

// putBackPause is the time between two looks of an Attach at whether the field was renamed back.
const putBackPause = 10 * time.Millisecond

// errPutBack is returned by an Attach if an earlier one has not given the lock back in time.
var errPutBack = errors.New("an earlier call with this ticket is still being undone: try again")
