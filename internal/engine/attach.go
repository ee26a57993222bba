package engine

// Attaching: how an owner of this process acquires a hold that was detached, perhaps by another process.
//
// Rules: an Attach is an acquire operation, whose attempts rename the detached field to that of the hold (detach.go). It
// waits for no other owner. An Attach that gives up renames its field back, and where there are tombstones, this field
// never acquires the lock again. That may be later than the time at which the detached hold would have expired: then
// the lock is free a moment later, and an Attach in between is refused. As long as a field is being renamed back, the
// next Attach of this process waits, because it would find no detached field. An attached hold is in no local queue,
// and is not handed off.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
)

// Attach makes o hold the detached hold d, whose lock is kind.
func (e *Engine) Attach(ctx context.Context, kind contract.Record, o Owner, d Detached) error {
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
	Detached
	to     string // the field of the hold
	waited bool   // see missing

	refused bool // the hold was renamed, but the caller does not get it

	orphans int           // number of tries whose answers HandleOrphan gets
	handled atomic.Int64  // number of answers that it has handled
	heard   chan struct{} // has a value if it has handled one since the last look; its capacity is 1
}

// newAttachBackend begins an operation that makes h the detached hold d. The caller has the owner mutex of h.
func newAttachBackend(op *waitOptions, h *hold, d Detached) *attachBackend {
	a := &attachBackend{Detached: d, to: h.Field().ID, heard: make(chan struct{}, 1)}
	ask := contract.Attempt{Field: a.to, Lease: h.lockState.engine.WatchdogTimeout, HoldCount: 1, Renewed: true}
	a.begin(op, a, target{hold: h, Attempt: ask, tells: true})
	return a
}

func (a *attachBackend) admit() error { return a.engine.putBacks.await(&a.waitOptions, a.ID) }

// ask sends one request that renames the field.
func (a *attachBackend) ask(lastReply time.Time) (res Answer, err error) {
	t, e := &a.target, a.engine
	before := e.putBacks.ended.Load()
	t.Lease = e.WatchdogTimeout
	rename := contract.Rename{From: a.ID, To: a.to, Lease: e.WatchdogTimeout, Until: a.MaxEnd, Ends: max(1, a.KeepEnd)}
	request := send.Request{Call: t.hold.commands().Rename(rename), Acquiring: true, OnOrphan: a}
	answer := e.sender.Do(&a.Wait, request, lastReply)
	r, err := answer.Reply()
	a.orphans += answer.Orphans
	a.noteAnswer(&answer, false, err)
	switch {
	case err != nil:
		return res, err
	case r[0] != 1:
		return a.missing(answer.Sent, before)
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

// missing returns the error if the answer to a request, which was sent at sent, is that the detached field does not
// have the lock. If another caller of this process has given up since the request was sent, the hold is being put back,
// or was: more than before may have been. Then missing returns Busy instead, once: admit waits for that, and ask asks
// again.
func (a *attachBackend) missing(sent time.Time, before int64) (res Answer, err error) {
	backs := &a.engine.putBacks
	switch {
	case !backs.isUnderWay(a.ID) && backs.ended.Load() == before: // in this order: see giveUp
		return res, fmt.Errorf("%w: the ticket was used before, or the hold has expired or was released by force", ErrNotHeld)
	case a.waited:
		return res, errPutBack
	}
	a.waited = true
	return Answer{Outcome: contract.Outcome{Status: contract.Busy}, Sent: sent}, nil
}

func (a *attachBackend) await(res Answer) (Answer, error) {
	a.lastReply = time.Now()
	return res, nil
}

func (a *attachBackend) rollback(error) { a.giveUp() }

// dismissLocked has the hold put back that was granted, but that the caller cannot keep.
func (a *attachBackend) dismissLocked(res Answer) { a.refused = res.Status == contract.Held }

// giveUp gives the lock back to the detached field, and waits for that, but not for long: the caller may try again.
func (a *attachBackend) giveUp() {
	a.givenUp.Store(true)
	e := a.engine
	done := make(chan struct{})
	before, others := e.putBacks.under.Swap(a.ID, done)
	e.workers.Spawn(func() {
		defer close(done)
		defer e.putBacks.under.CompareAndDelete(a.ID, done)
		defer e.putBacks.ended.Add(1)
		a.putBack(a.Ctx)
		a.awaitOrphans()
		if others {
			select {
			case <-before.(chan struct{}):
			case <-e.closed:
			}
		}
	})
	select {
	case <-done:
	case <-time.After(send.MinWait):
	}
}

// awaitOrphans waits until HandleOrphan has handled the answers to all tries, but not for those that do not come. A
// request that renames the field back may overtake a try, and then finds nothing to rename: HandleOrphan sends another
// one.
func (a *attachBackend) awaitOrphans() {
	atMost := time.NewTimer(send.ResendTime)
	defer atMost.Stop()
	for a.handled.Load() < int64(a.orphans) {
		select {
		case <-a.heard:
		case <-a.engine.closed:
			return
		case <-atMost.C:
			return
		}
	}
}

// putBack gives the lock back to the detached field, until the time at which it would have expired. It is repeated for
// as long as the field of the hold may have the lock, or get it from a request that runs late.
func (a *attachBackend) putBack(ctx context.Context) {
	e := a.engine
	record := a.target.hold.commands()
	back := func(mayRun bool) send.Call {
		return record.Rename(contract.Rename{From: a.to, To: a.ID, Lease: longestLimit, Until: a.KeepEnd, Late: mayRun})
	}
	end := e.mayLeaveUntil(a.to, e.WatchdogTimeout)
	for e.repeat(ctx, record, a.to, a.place.Tries(), back) != nil && time.Now().Before(end) {
		if e.Pause(context.WithoutCancel(ctx), clearPause) != nil {
			return // the engine is closed
		}
	}
}

// HandleOrphan handles the answer to a try that came too late for the caller.
func (a *attachBackend) HandleOrphan(sent time.Time, value any, err error) {
	defer func() {
		a.handled.Add(1)
		select {
		case a.heard <- struct{}{}:
		default:
		}
	}()
	answer, e := send.Answer{Value: value, Err: err, Sent: sent}, a.engine
	r, err := answer.Reply()
	effect := late.Effect{Acquires: true, Lease: e.WatchdogTimeout}
	e.late.Heard(a.to, effect, !send.MayRunLater(answer.Err))
	if a.givenUp.Load() && (r[0] == 1 || send.MayHaveActed(err)) {
		a.putBack(context.Background())
	}
}

// errPutBack is returned by an Attach that finds no detached field while an earlier one may not have given it back yet.
var errPutBack = errors.New("an earlier call with this ticket is still being undone: try again")

// await waits until field has the lock again, if this process is giving it back; but not for long, because Redis may be
// unreachable.
func (p *putBacks) await(op *waitOptions, field string) error {
	done, ok := p.under.Load(field)
	if !ok {
		return nil
	}
	atMost := time.NewTimer(UnlockTime)
	defer atMost.Stop()
	select {
	case <-done.(chan struct{}):
	case <-atMost.C:
	case <-op.Closed:
		return send.ErrClosed
	case <-op.Ctx.Done():
		return send.CtxError(op.Ctx)
	}
	return nil
}
