package engine

// Releasing: the one path by which a level is released; the undo of attempts
// that were given up; and force.
//
// Rules: the level is released in this process also when Redis answers an error or nothing: an
// Unlock is owed once, and a hold that no caller is going to unlock must not be renewed. A release
// that finds no record has succeeded if an earlier try of it may have run; otherwise it reports a loss.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
)

const (
	UnlockTime = send.ConnectTime // how long Unlock and an undo take at most
	clearPause = time.Second      // before a record that could not be cleared is cleared again
	mostForced = 1000             // requests of one ForceUnlock: new owners may take permits as fast as they are released
)

// Release releases one level. It ignores the end of ctx, and works after Close.
func (e *Engine) Release(ctx context.Context, kind Lock, o Owner) error {
	e.workers.Begin()
	defer e.workers.End()
	s := e.retain(kind.ID().Name)
	defer s.release()
	back, err := s.releaseOne(nil, kind, o)
	var op waitOptions // from the first wait on
	if err == send.ErrTimeUp {
		op = releaseOptions(ctx)
		back, err = s.releaseOne(&op, kind, o)
	}
	h := back.hold
	switch {
	case err != nil: // another caller of the owner waits for Redis
		return s.releaseUnconfirmed(ctx, kind, o, unconfirmed(err))
	case h == nil:
		return s.notHeldError(kind.ID(), o)
	case back.done: // the hold was handed over, or other holds share the record
		e.observeRelease(ctx, h, 0, nil)
		return nil
	case back.loss != nil && (back.count > 0 || h.vote != nil || errors.Is(back.loss, errGone)):
		h.unlockHold()
		return back.loss
	}
	if op.Ctx == nil {
		op = releaseOptions(ctx)
	}
	return releasing{h, back.count, back.loss}.run(ctx, &op)
}

// releaseOptions are the limits of an Unlock, which ignores the end of ctx.
func releaseOptions(ctx context.Context) waitOptions {
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: time.Now().Add(UnlockTime), OnCaller: true}}
}

// releaseUnconfirmed releases one level without Redis, because of err.
func (s *lockState) releaseUnconfirmed(ctx context.Context, kind Lock, o Owner, err error) error {
	h := s.find(kind.ID(), o)
	if h == nil {
		return err
	}
	left, last := h.releaseOne()
	if last {
		s.engine.workers.Spawn(h.clear)
	}
	s.engine.observeRelease(ctx, h, left, err)
	return err
}

// A releasing is one level of a hold that is being released, down to left levels. Its caller has the owner mutex of
// the hold.
type releasing struct {
	*hold
	count int
	loss  error // the hold was lost before; or nil
}

// run sets the levels in Redis, unlocks the hold, and reports the outcome.
func (r releasing) run(ctx context.Context, op *waitOptions) error {
	e := r.name.engine
	there, unknown, err := r.setHoldCount(op)
	if err != nil && r.count == 0 && r.vote == nil { // a vote goes on by itself
		e.workers.Spawn(r.clear)
	}
	switch {
	case r.loss != nil: // the record may still have been there
		return r.loss
	case r.vote == nil && errors.Is(err, send.ErrNotALock): // the record was replaced by something else
		return r.foundGone(err)
	case err != nil:
		err = unconfirmed(err)
	case there || r.count == 0 && unknown > 0: // this try, or an earlier one, has released the record
	default:
		return r.foundGone(errGone)
	}
	e.observeRelease(ctx, r.hold, r.count, err)
	return err
}

// foundGone notes that the release has found no record, and returns the loss.
func (r releasing) foundGone(why error) error {
	if r.count > 0 {
		r.lose(errGone)
	} else {
		e := r.name.engine
		e.Events.Lost(r.subject(), r.age(), LossError(errGone), errGone, false)
	}
	return LossError(why)
}

// setHoldCount sets the levels in Redis, and unlocks the hold. With the last level it lets the
// next waiter contend for the lock, also after an error.
func (r releasing) setHoldCount(op *waitOptions) (there bool, unknown int, err error) {
	e := r.name.engine
	if r.vote != nil {
		defer r.end(0, 0)
		wait := op.Wait // a copy: the options of other locks need not be on the heap
		there, err = r.vote.SetHoldCount(&wait, r.count)
		return there, 0, err
	}
	returned, heard, passed := false, 0, int64(0)
	defer func() { // also when a hook of the Redis client ends the goroutine
		if !returned && r.count == 0 {
			e.workers.Spawn(r.clear)
		}
		r.end(r.others(heard), passed)
	}()
	call, keeps, late := r.call()
	kept := minHold{r.hold}
	lapses := keeps && kept.expires()
	reply, unknown, err := e.send(op, call, time.Now())
	if late && err == nil {
		rollbacker{e}.buried(r.commands(), r.field)
	}
	returned, heard, passed = true, int(reply[1]), reply[2]
	if keeps {
		passed = 1 // this process does not have the lock any more
		if kept.rest() > 0 {
			unknown = 0 // no try without an answer can have ended the record by now: if there is none, it was gone before
		}
	}
	if keeps && err == nil && !(lapses && kept.expires()) {
		e.workers.Spawn(r.clear)
	}
	return reply[0] == 1, unknown, err
}

// call sets the levels. keeps says that it keeps the record for MinHold instead, and late that it leaves a tombstone.
func (r releasing) call() (c send.Call, keeps, late bool) {
	if r.count == 0 {
		m := minHold{r.hold}
		if rest := m.rest(); rest > 0 {
			return m.call(rest), true, false
		}
	}
	late = r.count == 0 && r.name.engine.late.MayRun(r.field)
	return r.commands().Release(Release{r.field, r.count, late, r.name.engine.shareTime()}), false, late
}

// end unlocks the hold. With the last level it lets the next waiter contend for the lock. The
// message of the release has reached so many other clients. passed is as in the reply of Commands.Release.
func (r releasing) end(others int, passed int64) {
	e, s := r.name.engine, r.name
	s.Lock()
	defer s.Unlock()
	if r.count == 0 {
		switch {
		case passed == 2 && (r.queue != nil || r.lock.Admission() == Counting): // a permit is used outside the wait queue
			q := s.queueLocked(r.key.id.Half)
			q.policy.ReleasedUnannounced(e.watchdog.Now(), e.pace(), e.PollInterval)
			s.keepQueueLocked(q)
		case r.queue == nil:
		case passed == 1:
			r.queue.policy.Interrupted()
		default:
			r.queue.policy.Released(e.watchdog.Now(), e.pace(), others)
		}
		r.leaveQueueLocked()
	}
	r.unlockHoldLocked()
}

// others is how many connections of other Clients received the release, out of heard.
func (r releasing) others(heard int) int {
	if heard > 0 && r.name.engine.pubsub.HearsForNobody(r.commands().Channel(Attempt{})) {
		return heard - 1
	}
	return heard
}

func unconfirmed(err error) error {
	if err == send.ErrTimeUp {
		err = send.Silence(UnlockTime, 1, nil)
	}
	return fmt.Errorf("not confirmed: the release goes on in the background until the record is gone or its lease is over: %w", err)
}

// A releasedOne is a level that an owner has released in this process.
type releasedOne struct {
	hold  *hold
	count int   // levels
	loss  error // of the hold, before; or nil
	done  bool  // Redis need not know. If it is false, the caller has the owner mutex of the hold.
}

// releaseOne releases one level of the hold that o has on kind; the hold is nil where there is none. Where another caller
// of o uses the hold, it waits as op allows; if op is nil, it returns errTimeUp.
func (s *lockState) releaseOne(op *waitOptions, kind Lock, o Owner) (g releasedOne, err error) {
	s.Lock()
	defer s.Unlock()
	h, err := s.lockHoldLocked(op, kind, o, false) // it looks at the clock
	if h == nil {
		return g, err
	}
	g = releasedOne{hold: h, loss: h.loss}
	left, last := h.releaseOneLocked()
	g.count, g.done = left, g.loss == nil && left == 0 && !last
	if g.done {
		h.unlockHoldLocked()
	}
	return g, nil
}

// releaseOne takes one level from the hold. It returns the levels that are left, and whether the caller has
// to release the record.
func (h *hold) releaseOne() (left int, last bool) {
	h.name.Lock()
	defer h.name.Unlock()
	return h.releaseOneLocked()
}

// releaseOneLocked is releaseOne for callers with the mutex. With the last level it hands the lock over, or ends
// the hold in this process. It lets go of the mutex while it ends guards.
func (h *hold) releaseOneLocked() (left int, last bool) {
	if len(h.guards) > 0 {
		if next, _ := h.successorLocked(); next != nil { // the guards end before the successor holds the lock
			h.endGuardsLocked(h.guards.Take())
		}
	}
	if h.handOffLocked() {
		return 0, false
	}
	left, last, guards := h.endOneLocked()
	h.endGuardsLocked(guards)
	return left, last
}

// endGuardsLocked ends guards. It lets go of the mutex meanwhile.
func (h *hold) endGuardsLocked(guards []*guard.End) {
	if len(guards) == 0 {
		return
	}
	h.name.Unlock()
	defer h.name.Lock()
	guard.EndAll(guards, nil)
}

// endOneLocked takes one level from the hold, and ends the hold with the last level. It also returns the guards
// that the caller has to end.
func (h *hold) endOneLocked() (left int, last bool, guards []*guard.End) {
	if h.state != ended {
		h.count--
		left = h.count
	}
	if left > 0 || h.state == ended { // the hold may have ended after its owner looked
		return left, false, nil
	}
	last = h.state.isLost() || h.leaveRecordLocked()
	h.endLocked(ended)
	if last {
		h.record.endLocked()
	}
	return 0, last, h.guards.Take()
}

// clear deletes the hold from Redis, and lets the next waiter contend for its lock; a hold with MinHold only when its
// time is over. It tries for as long as the record may last: until the lease is over; and where the other half renews
// that lease, as long as the other half is held.
func (h *hold) clear() {
	e := h.name.engine
	ctx := h.key.owner.In(context.Background())
	if h.vote != nil {
		h.vote.Lower(ctx, 0)(UnlockTime)
		h.leaveQueue()
		return
	}
	if (minHold{h}).keep(ctx) {
		return
	}
	end := h.recordEnd()
	for (rollbacker{e}).rollBackOne(ctx, h.commands(), Attempt{Field: h.field, HoldCount: 1}, 1) != nil && (time.Now().Before(end) || h.keptByCounterpart()) {
		if e.waitOptionsFor(ctx).sleep(nil, nil, clearPause) != nil {
			break // closed: no lease is renewed any more
		}
	}
	h.leaveQueue()
}

// keptByCounterpart reports whether the owner holds the other half, which keeps the record alive.
func (h *hold) keptByCounterpart() bool {
	h.name.Lock()
	defer h.name.Unlock()
	other := h.name.counterpartLocked(h)
	return other != nil && other.state.holds()
}

// Force frees kind for any holder, and ends the holds that this process had on it. The request is sent once: a repeated
// one could free a later hold. Of a semaphore with very many permits each request releases some, and the answer {1,
// more, 0} reports whether more are left.
func (e *Engine) Force(ctx context.Context, kind Record) (bool, error) {
	op := e.waitOptionsFor(ctx)
	op.OnCaller = false // no second try would wait longer for a connection
	if err := op.Over(); err != nil {
		return false, err
	}
	return e.ForceBy(kind, func() (freed bool, err error) {
		for range mostForced {
			answer := e.sender.Once(&op.Wait, send.Request{Call: kind.Force()})
			r, err := answer.Reply()
			freed = freed || err == nil && r[0] == 1
			if err != nil {
				return false, err
			}
			if r[1] == 0 {
				break
			}
		}
		return freed, nil
	})
}

// ForceBy has force free kind, and ends the holds that this process had on it before.
func (e *Engine) ForceBy(kind Lock, force func() (freed bool, err error)) (bool, error) {
	s := e.retain(kind.ID().Name)
	before := s.recordsOf(kind.ID())
	s.release()
	freed, err := force()
	if freed {
		endForced(before)
	}
	return freed, err
}

// endForced ends and reports the holds of a lock that was forced open.
func endForced(before []*record) {
	var lost []ending
	for _, r := range before {
		lost = append(lost, r.lose(errForced, nil)...)
	}
	for _, e := range lost {
		e.report()
	}
}
