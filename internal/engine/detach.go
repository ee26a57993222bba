package engine

// Detaching and attaching: how a hold moves to another process.
//
// Rules: a hold moves when its field is renamed in Redis, by one request (Commands.Rename). Detach renames it to a
// field that no process has, with a lease that is not renewed; the process that knows this field can attach the hold,
// which renames the field to a new one of its own. So a renewal, a late attempt or a rollback with the old field does
// nothing to a detached hold, and a detached hold is attached once. At any time at most one of the three fields has
// the lock.
//
// A hold that is detached ends in this process before the request is sent. If Redis does not confirm the request, the
// old field is released first and then the detached one: a late request finds no old field. An Attach that gives up
// renames its field back, and where there are tombstones, this field never acquires the lock again. That may be later
// than the time at which the detached hold would have expired: then the lock is free a moment later, and an Attach in
// between is refused. As long as a field is being renamed back, the next Attach of this process waits, because it would
// find no detached field. An attached hold is in no local queue, and is not handed off.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A Detached is what has to be known of a detached hold to attach it. The times are in milliseconds of the epoch, by
// the clock of Redis; 0 means that there is no such limit, but KeepEnd is always set.
type Detached struct {
	Field   string
	Token   int64 // the fencing token; 0: none
	MaxEnd  int64 // the end of MaxHold
	MinEnd  int64 // the end of MinHold
	KeepEnd int64 // when the lease of the detached hold ends
}

// Detach ends the hold that o has on kind, which has a record, in this process, and keeps the lock in Redis for keep,
// or for as long as the limits of the hold demand. ended reports whether the hold has ended, even if there is an
// error.
func (e *Engine) Detach(
	ctx context.Context,
	kind contract.Lock,
	o Owner,
	keep time.Duration,
) (d Detached, ended bool, err error) {
	e.workers.Begin()
	defer e.workers.End()
	op := waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: time.Now().Add(UnlockTime), OnCaller: true}}
	if err := cmp.Or(e.Alive(), op.Over()); err != nil {
		return d, false, err
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	h, err := s.lockHold(&op, kind, o, false)
	switch {
	case err == send.ErrTimeUp: // another goroutine of the owner is still waiting for Redis
		return d, false, s.silence(err)
	case err != nil:
		return d, false, err
	case h == nil:
		return d, false, s.notHeldError(kind.Traits().ID, o)
	}
	h.expireIfDue()
	x := &detaching{hold: h, to: e.fields.detachedField(h.lock.Traits().Permits())}
	guards, err := x.begin(keep)
	if err != nil {
		h.unlockHold()
		return d, false, err
	}
	guard.EndAll(guards, h.withName(ErrDetached))
	d, err = x.run(ctx, &op)
	return d, true, err
}

// A detaching is one call of Detach. Its caller has the owner mutex of the hold.
type detaching struct {
	*hold
	to     string        // the detached field
	lease  time.Duration // that the detached field gets
	held   time.Duration // how long the hold was held
	splits bool          // other holds need the field of the hold
	beside bool          // the owner has lost the counterpart: its field may be there, and keep the lease of the record
	undone atomic.Bool   // Redis has not confirmed the request
}

// begin ends the hold in this process, and returns its guards, which the caller has to cancel; or else the reason why
// the hold cannot be detached. The hold stays in its local queue, so that no caller waits for Redis in vain meanwhile.
func (x *detaching) begin(keep time.Duration) ([]*guard.End, error) {
	h, s := x.hold, x.lockState
	s.Lock()
	defer s.Unlock()
	other := s.counterpartLocked(h)
	switch {
	case !h.state.holds():
		return nil, cmp.Or(h.loss, ErrNotHeld)
	case h.count > 1:
		return nil, send.Invalid("the hold was acquired %d times: it can be detached when it is to be released once", h.count)
	case other != nil && (other.state.wanted() || other.state.holds()):
		return nil, send.Invalid("its owner also holds, or asks for, the other half of the read/write lock")
	}
	r, e := h.record, s.engine
	x.beside = other != nil
	x.lease = e.watchdog.RestOf(&r.lease, max(keep, h.keepUntil-e.watchdog.Now()))
	x.held = h.age()
	s.endSharingLocked(r)
	if h.leaveRecordLocked() {
		r.endLocked()
	} else {
		x.splits = true
		r.splits++
	}
	h.count = 0
	h.endLocked(ended)
	return h.guards.Take(), nil
}

// run renames the field of the hold in Redis, and unlocks the owner mutex.
func (x *detaching) run(ctx context.Context, op *waitOptions) (d Detached, err error) {
	h, e := x.hold, x.lockState.engine
	confirmed, buries := false, e.late.MayAcquire(h.field)
	answer := send.Answer{Lost: 1}
	defer func() { // runs also when a hook of the Redis client ends the goroutine
		x.left(answer.Orphans, answer.Lost > 0)
		if !confirmed {
			x.undone.Store(true)
			e.workers.Spawn(x.undo)
		}
		x.end()
	}()
	call := h.commands().Rename(contract.Rename{From: h.field, To: x.to, Lease: x.lease, Late: buries, Splits: x.splits})
	answer = e.sender.Do(&op.Wait, send.Request{Call: call, Acquiring: true, OnOrphan: x}, time.Now())
	r, err := answer.Reply()
	if buries && err == nil {
		rollbacker{e}.buried(h.commands(), h.field)
	}
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
		if e.Observed {
			e.Events.Released(ctx, h.subject(), x.held, 0, err)
		}
		return d, err
	}
	d = x.detached(r, answer.Sent)
	x.shorten(op, &d)
	if e.Observed {
		e.Events.Detached(ctx, h.subject(), x.held)
	}
	confirmed = true // last: a goroutine that ends here returns no ticket
	return d, nil
}

// detached describes the detached hold. Redis has answered r to a request that was sent at sent. Redis has run the
// request between then and now, so the limits are converted to its clock with the time that keeps them.
func (x *detaching) detached(r send.Reply, sent time.Time) Detached {
	w, now := x.lockState.engine.watchdog, r[2]
	d := Detached{Field: x.to, Token: x.token, KeepEnd: now + r[1]}
	if limit := x.record.lease.Limit(); limit > 0 {
		d.MaxEnd = now + int64((limit-w.Now())/time.Millisecond)
	}
	if rest := x.keepUntil - w.At(sent); rest > 0 {
		d.MinEnd = now + send.Milliseconds(rest)
	}
	return d
}

// shorten makes the lease of d end with MaxHold if it ends noticeably later: the request has asked for the rest of
// MaxHold, and Redis may have run it late. It also makes the record of a writer end with that lease if the record has a
// reader that its owner has lost: the request leaves the longer lease of a record with readers as it is.
func (x *detaching) shorten(op *waitOptions, d *Detached) {
	over := send.FromMilliseconds(d.KeepEnd - d.MaxEnd)
	late := d.MaxEnd > 0 && over > outlivesBy
	if !late && !x.beside {
		return
	}
	rest := x.lockState.engine.watchdog.RestOf(&x.record.lease, x.lease)
	_, _, err := x.lockState.engine.send(&op.Wait, x.commands().Renew(x.to, rest, true), time.Now())
	if late && err == nil {
		d.KeepEnd = d.MaxEnd
	}
}

// end unlocks the owner mutex, and admits the next caller of the local queue, as after a hand-off to another process.
// If no hold uses the field from which the hold was split any more, it is released.
func (x *detaching) end() {
	h, s := x.hold, x.lockState
	s.Lock()
	defer s.Unlock()
	if x.splits {
		h.record.splits--
		if !h.record.ended && !h.record.isUsedLocked() {
			h.record.endLocked()
			s.oweLocked(duty{clear: h})
		}
	}
	if q := h.queue; q != nil {
		q.policy.Interrupted()
	}
	h.leaveQueueLocked()
	h.unlockHoldLocked()
}

// effect is the most that the request may do to either field: it moves the lock from one to the other one, with a lease.
func (x *detaching) effect() late.Effect { return late.Effect{Lease: x.lease} }

// left notes the tries of the request that may still run. Until then MinHold cannot leave either field to its lease: see
// minHold.isLast.
func (x *detaching) left(orphans int, lost bool) {
	for _, field := range []string{x.field, x.to} {
		x.lockState.engine.late.Left(field, x.effect(), orphans, lost)
	}
}

// undo releases the field of the hold, and then the detached one, of which at most one has the lock. A field that is
// shared stays: then the request may still run, but finds that the detached field was released (lua/read_rename.lua).
func (x *detaching) undo() {
	unknown := 1
	if !x.splits {
		x.clearAfter(0)
		unknown = 0
	}
	x.release(unknown)
}

// HandleOrphan handles the answer to a try that came too late for the caller.
func (x *detaching) HandleOrphan(_ time.Time, value any, err error) {
	for _, field := range []string{x.field, x.to} {
		x.lockState.engine.late.Heard(field, x.effect(), !send.MayRunLater(err))
	}
	if r, err := send.ParseReply(value, err); x.undone.Load() && (err != nil || r[0] == 1) {
		x.release(0)
	}
}

// release releases the detached field. As many requests that rename the field of the hold have an unknown outcome.
func (x *detaching) release(unknown int) {
	h := x.hold
	to := &hold{lockState: h.lockState, lock: h.lock, key: h.key, field: x.to, keepUntil: h.keepUntil, state: ended}
	to.record = to.newRecord(0)
	to.mayLast(x.lease, send.ErrSilent)
	to.clearAfter(unknown)
}

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
	op.span = startSpan(e, ctx, []contract.Lock{kind}, o)
	e.noteAcquire()
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	x := &attaching{hold: s.attachingHold(kind, o), Detached: d, heard: make(chan struct{}, 1)}
	x.to = x.field
	err := x.run(&op)
	if err == nil {
		op.span.ends(pathAttached)
	}
	op.span.asked([]target{{hold: x.hold, Attempt: contract.Attempt{HoldCount: 1}}})
	op.span.finish(err)
	if err == nil {
		e.noteStacks([]contract.Lock{kind}, o)
	}
	return err
}

// attachingHold returns a fresh hold with a field of its own, which is in no local queue, and its owner mutex.
func (s *lockState) attachingHold(kind contract.Record, o Owner) *hold {
	s.Lock()
	defer s.Unlock()
	h := s.newHoldLocked(kind, holdKey{kind.Traits().ID.Half, o}, nil)
	h.field = s.engine.fields.newField(o, kind.Traits().Permits())
	return h
}

// An attaching is one call of Attach. Its caller has the owner mutex of the hold, which is fresh.
type attaching struct {
	*hold
	Detached
	to        string      // the field of the hold, for HandleOrphan, which has neither mutex
	lastReply time.Time   // when Redis last answered; zero: it has not
	unknown   int         // tries whose outcome is unknown: they may have renamed the field, or may still do so
	asking    bool        // a request is under way
	renamed   bool        // the field of the hold has the lock in Redis, or may have it
	givenUp   atomic.Bool // the detached field gets the lock back, also after a late answer

	waited bool // see missing

	orphans int           // number of tries whose answers HandleOrphan gets
	handled atomic.Int64  // number of answers that it has handled
	heard   chan struct{} // has a value if it has handled one since the last look; its capacity is 1
}

// run makes the hold that of its owner, and unlocks the owner mutex. The hold is valid from before the request was sent
// that Redis has answered. If the answer comes so late that too little is left of the lease, run asks again, as every
// attempt does.
func (x *attaching) run(op *waitOptions) (err error) {
	h, e := x.hold, x.lockState.engine
	attached := false
	defer func() { // runs also when a hook of the Redis client ends the goroutine
		if x.asking {
			x.renamed = true
			e.late.Left(h.field, x.effect(), 0, true)
		}
		if !attached && (x.renamed || x.unknown > 0) {
			x.giveUp(op.Ctx)
		}
		h.unlockHold()
	}()
	if err := e.putBacks.await(op, x.Field); err != nil {
		return err
	}
	for asked := 1; ; asked++ {
		r, sent, err := x.ask(op)
		switch {
		case err != nil:
			return x.lockState.silence(err)
		case r[0] != 1:
			if err := x.missing(op); err != nil {
				return err
			}
		case x.enoughValidityLeft(send.FromMilliseconds(r[1]), time.Since(sent), asked):
			err = x.attached(r, sent)
			attached = err == nil
			return err
		case asked == MostAsked:
			return LossError(ErrLate)
		}
	}
}

// missing returns the error for an answer that the detached field does not have the lock. If another caller of this
// process has given up since the request was sent, the hold is being put back. Then missing waits for that, and returns
// nil, once: run asks again.
func (x *attaching) missing(op *waitOptions) error {
	backs := &x.lockState.engine.putBacks
	switch {
	case !backs.isUnderWay(x.Field):
		return fmt.Errorf("%w: the ticket was used before, or the hold has expired or was released by force", ErrNotHeld)
	case x.waited:
		return errPutBack
	}
	x.waited = true
	return backs.await(op, x.Field)
}

// effect is the most that the request may do to the field of the hold.
func (x *attaching) effect() late.Effect {
	return late.Effect{Acquires: true, Lease: x.lockState.engine.WatchdogTimeout}
}

// ask sends one request, and returns when it was sent.
func (x *attaching) ask(op *waitOptions) (r send.Reply, sent time.Time, err error) {
	h, e := x.hold, x.lockState.engine
	rename := contract.Rename{
		From: x.Field, To: h.field, Lease: e.WatchdogTimeout, Until: x.MaxEnd, Ends: max(1, x.KeepEnd),
	}
	request := send.Request{Call: h.commands().Rename(rename), Acquiring: true, OnOrphan: x}
	x.asking = true
	answer := e.sender.Do(&op.Wait, request, x.lastReply)
	x.asking = false
	r, err = answer.Reply()
	x.unknown += answer.Unknown
	x.orphans += answer.Orphans
	x.renamed = err != nil || r[0] == 1 || answer.Abandoned // after an error, too: a script may have stopped halfway
	e.late.Left(h.field, x.effect(), answer.Orphans, answer.Lost > 0)
	if err == nil {
		x.lastReply = time.Now()
	}
	return r, answer.Sent, err
}

// enoughValidityLeft reports whether enough is left of a lease that was asked for in request number asked, which was
// sent some time ago: as Engine.enoughValidityLeft. A lease that MaxHold has cut is not renewed.
func (x *attaching) enoughValidityLeft(granted, ago time.Duration, asked int) bool {
	whole := lease.Validity(granted)
	last := x.MaxEnd > 0 && granted < x.lockState.engine.WatchdogTimeout
	return lease.EnoughValidityLeft(whole-ago, whole, true) ||
		(asked >= 2 || last) && lease.Suffices(whole-ago, whole, !last)
}

// attached notes that the owner holds the lock from now on. Redis has answered r to a request that was sent at sent.
func (x *attaching) attached(r send.Reply, sent time.Time) error {
	h, s := x.hold, x.lockState
	w, now := s.engine.watchdog, r[2]
	s.Lock()
	defer s.Unlock()
	if s.closed {
		return send.ErrClosed
	}
	h.newRecord(w.Now()).joinLocked(h, w.At(sent))
	h.token, h.keepUntil = x.Token, 0
	if x.MinEnd > now {
		h.keepUntil = w.Now() + send.FromMilliseconds(x.MinEnd-now)
	}
	if x.MaxEnd > 0 {
		h.record.lease.SetLimit(max(1, w.At(sent)+send.FromMilliseconds(x.MaxEnd-now)))
	}
	h.mayLastLocked(bounded(send.FromMilliseconds(r[1])))
	w.Watch(&h.record.lease, sent, send.FromMilliseconds(r[1]), true, 0)
	h.checkIfForcedLocked(w.At(sent))
	return nil
}

// giveUp gives the lock back to the detached field, and waits for that, but not for long: the caller may try again.
func (x *attaching) giveUp(ctx context.Context) {
	x.givenUp.Store(true)
	e := x.lockState.engine
	done := make(chan struct{})
	before, others := e.putBacks.under.Swap(x.Field, done)
	e.workers.Spawn(func() {
		defer close(done)
		defer e.putBacks.under.CompareAndDelete(x.Field, done)
		x.putBack(ctx)
		x.awaitOrphans()
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
func (x *attaching) awaitOrphans() {
	atMost := time.NewTimer(send.ResendTime)
	defer atMost.Stop()
	for x.handled.Load() < int64(x.orphans) {
		select {
		case <-x.heard:
		case <-x.lockState.engine.closed:
			return
		case <-atMost.C:
			return
		}
	}
}

// putBacks are the detached fields to which this process is giving the lock back.
type putBacks struct {
	// under maps the field to a chan struct{}, of the last Attach that has given up. It is closed when the field has the
	// lock again, or cannot get it, and those of the Attaches before are closed.
	under sync.Map
}

// errPutBack is returned by an Attach that finds no detached field while an earlier one may not have given it back yet.
var errPutBack = errors.New("an earlier call with this ticket is still being undone: try again")

// isUnderWay reports whether this process is giving the lock back to field.
func (p *putBacks) isUnderWay(field string) bool {
	_, ok := p.under.Load(field)
	return ok
}

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

// putBack gives the lock back to the detached field, until the time at which it would have expired. It is repeated for
// as long as the field of the hold may have the lock, or get it from a request that runs late.
func (x *attaching) putBack(ctx context.Context) {
	h, e := x.hold, x.lockState.engine
	back := func(mayRun bool) send.Call {
		return h.commands().Rename(contract.Rename{
			From: x.to, To: x.Field, Lease: longestLimit, Until: x.KeepEnd, Late: mayRun,
		})
	}
	end := rollbacker{e}.mayLeaveUntil(x.to, e.WatchdogTimeout)
	for (rollbacker{e}).repeat(ctx, h.commands(), x.to, x.unknown, back) != nil && time.Now().Before(end) {
		if e.Pause(context.WithoutCancel(ctx), clearPause) != nil {
			return // the engine is closed
		}
	}
}

// HandleOrphan handles the answer to a try that came too late for the caller.
func (x *attaching) HandleOrphan(sent time.Time, value any, err error) {
	defer func() {
		x.handled.Add(1)
		select {
		case x.heard <- struct{}{}:
		default:
		}
	}()
	answer, e := send.Answer{Value: value, Err: err, Sent: sent}, x.lockState.engine
	r, err := answer.Reply()
	drop := e.late.Heard(x.to, x.effect(), !send.MayRunLater(answer.Err))
	if x.givenUp.Load() && (r[0] == 1 || err != nil && (send.MayHaveRun(err) || send.Answered(err))) {
		x.putBack(context.Background())
	}
	if drop.Script != nil {
		rollbacker{e}.unburyAll([]send.Call{drop})
	}
}
