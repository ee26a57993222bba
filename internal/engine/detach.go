package engine

// Detaching: how a hold leaves for another process. attach.go is how it arrives.
//
// Rules: a hold moves when its field is renamed in Redis, by one request (Commands.Rename). Detach renames it to a
// field that no process has, with a lease that is not renewed; the process that knows this field can attach the hold,
// which renames the field to a new one of its own. So a renewal, a late attempt or a rollback with the old field does
// nothing to a detached hold, and a detached hold is attached once. At any time at most one of the three fields has
// the lock.
//
// A hold that is detached ends in this process before the request is sent. If Redis does not confirm the request, the
// old field is released first and then the detached one: a late request finds no old field.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/ticket"
)

// Detach ends the hold that o has on kind, which has a record, in this process, and keeps the lock in Redis for keep,
// or for as long as the limits of the hold demand. ended reports whether the hold has ended, even if there is an
// error.
func (e *Engine) Detach(
	ctx context.Context,
	kind contract.Lock,
	o Owner,
	keep time.Duration,
) (d ticket.Ticket, ended bool, err error) {
	e.workers.Begin()
	defer e.workers.End()
	op := waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: time.Now().Add(UnlockTime), OnCaller: true}}
	if err := cmp.Or(e.Alive(), op.Over()); err != nil {
		return d, false, err
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	h, err := s.lockHold(&op, kind, o)
	switch {
	case err == send.ErrTimeUp: // another goroutine of the owner is still waiting for Redis
		return d, false, s.silence(err)
	case err != nil:
		return d, false, err
	}
	x := &detaching{hold: h, to: e.fields.detachedField(h.lock.Traits().Permits())}
	guards, err := x.begin(keep)
	if err != nil {
		h.unlockHold()
		return d, false, err
	}
	d, err = x.run(ctx, &op, guards)
	return d, true, err
}

// A detaching is one call of Detach. Its caller has the owner mutex of the hold.
type detaching struct {
	*hold
	to     string        // the detached field
	lease  time.Duration // that the detached field gets
	held   time.Duration // how long the hold was held
	splits bool          // other holds need the field of the hold
}

// begin ends the hold in this process, and returns its guards, which run cancels; or else the reason why the hold cannot
// be detached. The hold stays in its local queue, so that no caller waits for Redis in vain meanwhile.
func (x *detaching) begin(keep time.Duration) (guard.Ends, error) {
	h, s := x.hold, x.lockState
	s.Lock()
	defer s.Unlock()
	other := h.counterpartLocked()
	switch {
	case !h.Holds():
		return nil, h.heldLocked()
	case h.Count() > 1:
		return nil, send.Invalid("the hold was acquired %d times: it can be detached when it is to be released once", h.Count())
	case other != nil && (other.Asks() || other.Holds()):
		return nil, send.Invalid("its owner also holds, or asks for, the other half of the read/write lock")
	}
	r, e := h.record, s.engine
	x.lease = e.watchdog.RestOf(&r.lease, max(keep, h.keepUntil-e.watchdog.Now()))
	x.held = h.age()
	s.endSharingLocked(r)
	h.Ended()
	if h.leaveRecordLocked() {
		r.endLocked()
	} else {
		x.splits = true
		h.Field().Use() // until end
	}
	return h.guards.Take(), nil
}

// run cancels the guards of the hold, renames its field in Redis, and unlocks the owner mutex.
func (x *detaching) run(ctx context.Context, op *waitOptions, guards guard.Ends) (d ticket.Ticket, err error) {
	h, e := x.hold, x.lockState.engine
	confirmed, answer := false, send.Answer{Lost: 1} // until Do has returned
	defer func() {                                   // runs also when a context, or a hook of the Redis client, ends the goroutine
		// What a try of the request may still do that no caller waits for.
		lost := answer.Orphans+answer.Lost > 0
		e.late.Left(h.Field().ID, late.Effect{Lease: x.lease}, 0, lost)
		if !confirmed {
			e.late.Left(x.to, late.Effect{Acquires: true, Lease: x.lease}, 0, lost)
			e.workers.Spawn(x.undo)
		}
		x.end()
	}()
	guards.EndAll(h.withName(ErrDetached))
	buries := e.late.MayAcquire(h.Field().ID)
	call := h.commands().Rename(contract.Rename{From: h.Field().ID, To: x.to, Lease: x.lease, Late: buries, Splits: x.splits})
	answer = e.sender.Do(&op.Wait, send.Request{Call: call, Acquiring: true}, time.Now())
	r, err := answer.Reply()
	switch {
	case errors.Is(err, send.ErrNotALock), err == nil && r[0] == -1: // an earlier try has not renamed it either
		e.tellLoss(h.subject(), x.held, LossError(errGone), errGone)
		return d, LossError(cmp.Or(err, errGone))
	case err == nil && r[0] != 1:
		err = errors.New("the key has the most readers that it can have")
		fallthrough
	case err != nil:
		err = fmt.Errorf("not confirmed: the lock is released in the background instead: %w",
			h.lockState.silence(err))
		e.Events.Report(ctx, Event{What: Released, Subject: h.subject(), Time: x.held, Err: err})
		return d, err
	}
	d = x.detached(r, answer.Sent)
	e.Events.Report(ctx, Event{What: Released, Subject: h.subject(), Time: x.held, Detached: true})
	confirmed = true // last: a goroutine that ends here returns no ticket
	return d, nil
}

// detached describes the detached hold. Redis has answered r to a request that was sent at sent. Redis has run the
// request between then and now, so the limits are converted to its clock with the time that keeps them. If that was late,
// the lease lasts so much longer than MaxHold.
func (x *detaching) detached(r send.Reply, sent time.Time) ticket.Ticket {
	w, now := x.lockState.engine.watchdog, r[2]
	l := x.lock.Traits()
	d := ticket.Ticket{Type: l.Type, Key: l.ID.Name, ID: x.to, Token: x.token, KeepEnd: now + r[1]}
	if limit := x.record.lease.Limit(); limit < lease.Never {
		d.MaxEnd = now + int64((limit-w.Now())/time.Millisecond)
	}
	if rest := x.keepUntil - w.At(sent); rest > 0 {
		d.MinEnd = now + send.Milliseconds(rest)
	}
	return d
}

// end unlocks the owner mutex, and admits the next caller of the local queue, as after a hand-off to another process.
// If no hold uses the field from which the hold was split any more, it is released.
func (x *detaching) end() {
	h, s := x.hold, x.lockState
	s.Lock()
	defer s.Unlock()
	if x.splits && h.Field().Leave() {
		h.record.endLocked()
		s.oweLocked(duty{clear: h})
	}
	if q := h.queue; q != nil {
		q.policy.Interrupted()
	}
	h.leaveQueueLocked()
	h.unlockHoldLocked()
}

// undo releases the field of the hold, and then the detached one, of which at most one has the lock, when MinHold is over. A
// field that is shared stays: then the request may still run, but finds a tombstone of the detached field
// (internal/lua/read_rename.lua).
func (x *detaching) undo() {
	h, ctx := x.hold, context.Background()
	if !x.splits {
		clearRecord(h)
	}
	e := h.lockState.engine
	if rest := restOfMinHold(h); rest > 0 && e.Pause(ctx, rest) != nil {
		return
	}
	e.undo(ctx, h.commands(), contract.Attempt{Field: x.to, HoldCount: 1, Lease: x.lease}, h)
}
