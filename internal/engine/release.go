package engine

// Releasing: the one path on which an owner decrements the hold count of its hold. ForceUnlock is in forced.go.
//
// Rules: the hold count is decremented in this process even if Redis returns an error or does not answer. A caller
// calls Unlock once for each Lock and does not repeat a call that has failed, and a hold that no caller is going to
// unlock must not be renewed. A release that finds no record in Redis has succeeded if an earlier try of it may have
// deleted the record; otherwise it returns a loss.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// Release decrements the hold count of the hold that o has on kind, and releases the lock when the count reaches zero.
// It ignores the cancellation of ctx, and works after Close.
func (e *Engine) Release(ctx context.Context, kind contract.Lock, o Owner) error {
	return e.release(ctx, ownerCall{kind: kind, owner: o})
}

// giveBack releases h as Report.GiveBack describes it.
func (e *Engine) giveBack(ctx context.Context, h *hold) error {
	if err := e.release(ctx, ownerCall{kind: h.lock, owner: h.owner, only: h}); !errors.Is(err, ErrNotHeld) {
		return err
	}
	return nil
}

func (e *Engine) release(ctx context.Context, c ownerCall) error {
	e.workers.Begin()
	defer e.workers.End()
	s := e.retain(c.kind.Traits().ID.Name)
	defer s.release()
	h, left, err := s.lower(ctx, c)
	if e.Observed && h != nil && (left == 0 || c.only == nil) && endsTold(h) {
		e.Events.Report(ctx, Event{What: Released, Subject: h.subject(), Time: h.age(), HoldCount: left, Err: err})
	}
	return err
}

// lower is release without the event. It returns the hold whose hold count it has decremented to left, or nil.
func (s *lockState) lower(ctx context.Context, c ownerCall) (h *hold, left int, err error) {
	back, err := s.releaseOne(nil, c)
	var op waitOptions // zero until the call waits or sends a request
	if err == send.ErrTimeUp {
		op = releaseOptions(ctx)
		back, err = s.releaseOne(&op, c)
	}
	h = back.hold
	switch {
	case err != nil: // another goroutine of the owner is still waiting for Redis
		if h = c.find(s); h != nil {
			left = lowerUnconfirmed(h)
		}
		return h, left, s.unconfirmed(err)
	case h == nil:
		return nil, 0, s.notHeldError(c.kind.Traits().ID, c.owner)
	case back.done: // the lock was handed off, or other holds share the record
		return h, 0, nil
	case back.loss != nil && (back.count > 0 || errors.Is(back.loss, errGone)):
		h.unlockHold()
		return nil, 0, back.loss
	}
	if op.Ctx == nil {
		op = releaseOptions(ctx)
	}
	if back.loss != nil { // the owner need not wait for Redis: the record is deleted in the background if it does not answer
		op.Deadline = time.Now().Add(s.engine.Patience())
	}
	return back.run(op.Wait)
}

// releaseOptions returns the wait options of an Unlock, which takes at most UnlockTime and ignores the cancellation of
// ctx. No method of ctx is called before the hold count was decremented, nor while the caller has the owner mutex.
func releaseOptions(ctx context.Context) waitOptions {
	if ctx != context.Background() {
		ctx = context.WithoutCancel(ctx)
	}
	return waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: time.Now().Add(UnlockTime), OnCaller: true}}
}

// lowerUnconfirmed decrements the hold count in this process alone. If the count reaches zero, the record is deleted in
// the background. It is not handed off: another goroutine of the owner, which has the owner mutex, may have a request
// under way that sets a lease or a hold count.
func lowerUnconfirmed(h *hold) (left int) {
	left, last, guards := lowerUnconfirmedStep(h)
	if last {
		defer h.lockState.engine.workers.Spawn(func() { clearRecord(h) })
	}
	guards.EndAll(nil)
	return left
}

func lowerUnconfirmedStep(h *hold) (left int, last bool, guards guard.Ends) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	left, last, guards = h.endOneLocked()
	if h.ownerQueue.TryEnter() { // as a rule, that goroutine forgets the hold, which has ended
		h.unlockHoldLocked()
	}
	return left, last, guards
}

// A releasing is a hold whose hold count is decremented: first in this process (releaseOne), and then, if the caller still
// has the owner mutex, in Redis (run).
type releasing struct {
	*hold         // nil if the owner has none
	count   int   // the hold count that is left
	loss    error // why the hold had been lost before; nil if it had not
	done    bool  // no request is needed; if it is false, the caller has the owner mutex of the hold
	lowered bool  // the hold count was decremented
}

// run has the hold count set, which unlocks the owner mutex of the hold. Its results are those of lower.
func (r releasing) run(wait send.Wait) (*hold, int, error) {
	gone, err := r.setHoldCount(wait)
	if gone == errGone && r.wasGivenUp() {
		gone = nil
	}
	switch {
	case r.loss != nil: // the record may still have been there
		return nil, 0, r.loss
	case gone != nil:
		return nil, 0, r.foundGone(gone)
	case err != nil:
		err = r.lockState.unconfirmed(err)
	}
	return r.hold, r.count, err
}

// setHoldCount sets the hold count to that of r, waits for the answer, and then unlocks the owner mutex. If the count is
// zero, it also admits the next waiter of the local queue, even after an error, and what may be left then is released in
// the background. gone is why there was nothing to release, or nil.
func (r releasing) setHoldCount(wait send.Wait) (gone, err error) {
	e := r.lockState.engine
	answered, clears, heard, passed := false, true, 0, int64(0)
	defer func() { // runs also when a hook of the Redis client ends the goroutine
		r.end(r.others(heard), passed, answered)
		if clears && r.count == 0 {
			e.workers.Spawn(func() { clearRecord(r.hold) })
		}
	}()
	answer, keeps, expires := r.send(&wait)
	reply, err := answer.Reply()
	there, unknown := reply[0] == 1, answer.Unknown
	answered, heard, passed = err == nil, int(reply[1]), reply[2]
	if keeps {
		passed = 1 // as after a hand-off to another process: the lock is busy until MinHold has passed
		if restOfMinHold(r.hold) > 0 {
			unknown = 0 // no try of this release has deleted the record: if it is missing, it was gone before
		}
	}
	clears = err != nil || keeps && !expires
	if gone = r.whyNothing(there, unknown, err); gone != nil {
		return gone, nil
	}
	return nil, err
}

// whyNothing returns why there was nothing to release, or nil. there reports whether the release has found the record,
// unknown is the number of its tries whose outcome is unknown, and err is the error of the answer.
func (r releasing) whyNothing(there bool, unknown int, err error) error {
	switch {
	case r.wasReplaced(err):
		return err
	case err == nil && !there && (r.count > 0 || unknown == 0): // no earlier try has released the record either
		return errGone
	}
	return nil
}

// wasGivenUp reports whether the hold, of which a level was left, has ended meanwhile without a loss: the caller of that
// level was given up before it has run, or has unlocked without waiting for this release. Then this process has deleted
// the record.
func (r releasing) wasGivenUp() bool {
	r.lockState.Lock()
	defer r.lockState.Unlock()
	return r.count > 0 && r.State() == tenancy.Ended && r.hold.loss == nil
}

// foundGone ends and reports a hold whose record the release did not find in Redis, and returns the loss.
func (r releasing) foundGone(why error) error {
	gone := whyGone(r.hold)
	switch {
	case r.count > 0:
		r.lose(gone)
	case endsTold(r.hold):
		e := r.lockState.engine
		e.tellLoss(r.subject(), r.age(), LossError(gone), gone)
	}
	if why == errGone {
		why = gone
	}
	return LossError(why)
}

// send sends the request that sets the hold count in Redis. keeps reports that the request leaves the record in Redis
// for the rest of MinHold instead, and expires is that of askToKeep.
func (r releasing) send(wait *send.Wait) (answer send.Answer, keeps, expires bool) {
	e := r.lockState.engine
	if r.count == 0 {
		if rest := beginMinHold(r.hold); rest > 0 {
			answer, expires = askToKeep(r.hold, wait, rest, time.Now())
			return answer, true, expires
		}
	}
	late := r.count == 0 && e.late.MayAcquire(r.Field().ID)
	call := r.commands().Release(contract.Release{Field: r.Field().ID, HoldCount: r.count, Late: late, Share: e.shareTime()})
	return e.sender.Do(wait, send.Request{Call: call}, time.Now()), false, false
}

// end unlocks the owner mutex of the hold. If the hold count is zero, it also notes the release for the hand-off policy
// and admits the next waiter of the local queue. others is the number of connections of other Clients that have
// received the message of the release, and passed is the third number of the reply to Commands.Release. answered reports
// whether there was a reply.
func (r releasing) end(others int, passed int64, answered bool) {
	e, s := r.lockState.engine, r.lockState
	s.Lock()
	defer s.Unlock()
	if r.count == 0 {
		if answered && r.queue != nil {
			r.queue.request = inquiry{}
		}
		switch {
		// The holders of a semaphore have left its queue.
		case passed == 2 && (r.queue != nil || r.lock.Traits().Admission == contract.Counting):
			q := s.queueLocked(r.half())
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

// others returns heard, the number of connections that have received the message of the release, without the
// connection of this Client if it is subscribed although no caller listens.
func (r releasing) others(heard int) int {
	if heard > 0 && r.lockState.engine.pubsub.HearsForNobody(r.commands().Channel(contract.Attempt{})) {
		return heard - 1
	}
	return heard
}

// unconfirmed returns the error of a release that continues in the background because of err.
func (s *lockState) unconfirmed(err error) error {
	if send.RedisClosed(err) {
		return fmt.Errorf("not confirmed: no request can be sent any more, so the key stays until its lease has expired: %w", err)
	}
	return fmt.Errorf(
		"not confirmed: the release is retried in the background until the key is deleted or its lease has expired: %w",
		s.silence(err),
	)
}

// silence returns err, or an error that users understand if the time of a request without an answer was up.
func (s *lockState) silence(err error) error {
	if err == send.ErrTimeUp {
		return s.engine.sender.Explain(send.Silence(UnlockTime, 1, nil), s.name)
	}
	return err
}

// releaseOne decrements the hold count of the hold of c, which also ends a hold whose lease has expired. If another
// goroutine of the owner uses the hold, it waits as op allows; if op is nil, it returns send.ErrTimeUp instead.
func (s *lockState) releaseOne(op *waitOptions, c ownerCall) (g releasing, err error) {
	returned := false
	defer func() {
		if !returned {
			s.abandonRelease(&g, c)
		}
	}()
	err = c.run(s, op, func(h *hold) *effect {
		if c.only == nil {
			h.Told() // by the Unlock, if by no other call
		}
		if guards := g.releaseLocked(h); len(guards) > 0 {
			return &effect{guards: guards}
		}
		return nil
	})
	returned = true
	return g, err
}

// abandonRelease finishes a releaseOne during which code of the user has panicked, or ended the goroutine. The caller
// has the owner mutex no more, and does not unlock again, so the hold count is decremented all the same.
func (s *lockState) abandonRelease(g *releasing, c ownerCall) {
	switch {
	case !g.lowered:
		if h := c.find(s); h != nil {
			lowerUnconfirmed(h)
		}
	case g.count == 0 && !g.done:
		s.engine.workers.Spawn(func() { clearRecord(g.hold) })
	}
}

// releaseLocked is a step of releaseOne. It returns guards that have to be canceled before the next step, if there are
// any. The guards of the hold are canceled in two parts: those that there are before a hand-off are canceled before the
// successor holds the lock, while the hold still does. It may be lost meanwhile.
func (r *releasing) releaseLocked(h *hold) (guards guard.Ends) {
	if r.hold == nil {
		r.hold = h
		if guards = beforeHandOffLocked(h); len(guards) > 0 {
			return guards
		}
	}
	if !r.lowered {
		if guards = r.lowerLocked(); len(guards) > 0 {
			return guards
		}
	}
	if r.done {
		h.unlockHoldLocked()
	}
	return nil
}

// beforeHandOffLocked returns the guards of h that have to be canceled before its hold count is decremented, because
// there is a successor.
func beforeHandOffLocked(h *hold) (guards guard.Ends) {
	if len(h.guards) > 0 {
		if next, _ := h.successorLocked(); next != nil {
			guards = h.guards.Take()
		}
	}
	return guards
}

// lowerLocked decrements the hold count for a caller that has the owner mutex. When
// the count reaches zero, it hands the lock off, or ends the hold in this process. It returns guards to cancel.
func (r *releasing) lowerLocked() (guards guard.Ends) {
	h := r.hold
	if r.lowered, r.done = true, h.handOffLocked(); r.done {
		return nil
	}
	left, last, guards := h.endOneLocked()
	r.count, r.loss = left, h.loss
	r.done = r.loss == nil && left == 0 && !last
	return guards
}

// endOneLocked decrements the hold count, and ends the hold when the count reaches zero. It also returns the guards
// whose contexts the caller has to cancel.
func (h *hold) endOneLocked() (left int, last bool, guards guard.Ends) {
	if h.State() == tenancy.Ended { // since the caller has looked it up
		return 0, false, nil
	}
	if left = h.Lowered(); left > 0 {
		return left, false, nil
	}
	held := h.Holds()
	h.Ended()
	last = !held || h.leaveRecordLocked()
	if last {
		h.record.endLocked()
		if h.queue != nil {
			h.queue.request.begin(send.MinWait) // for those that give up before the release was answered: see busy.go
		}
	}
	return 0, last, h.guards.Take()
}

// endsTold reports whether a release of h is told: the hold was, and was not lost.
func endsTold(h *hold) bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return h.IsTold() && h.loss == nil
}
