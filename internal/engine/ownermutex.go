package engine

// The owner mutex of a hold: how the goroutines of one owner use a hold one at a time.
//
// Rules: a caller that has the owner mutex has looked at whether the hold has expired. A hold that has ended is forgotten
// when its owner mutex is released, and the next goroutine of the owner makes a new one.

import (
	"cmp"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// An ownerCall is a call that needs the owner mutex of the hold that its owner has on a lock. Its steps are those of
// run.
type ownerCall struct {
	kind     contract.Lock
	owner    Owner
	acquires bool  // it acquires the lock once more
	only     *hold // the hold that it is for, as in Report.GiveBack; nil: the one that the owner has

	hold   *hold // the result; nil if there is none
	enters *hold // the hold whose owner mutex the caller has, or waits for, and which it may use or not; or nil
	looked bool  // the caller has looked at whether enters has expired
}

// lockHold returns the hold that o has on the lock kind, or ErrNotHeld. The caller then has the owner mutex of this hold,
// which unlockHold releases.
func (s *lockState) lockHold(op *waitOptions, kind contract.Lock, o Owner) (*hold, error) {
	c := ownerCall{kind: kind, owner: o}
	err := c.run(s, op, nil)
	if err == nil && c.hold == nil {
		err = s.notHeldError(kind.Traits().ID, o)
	}
	return c.hold, err
}

// lockTarget is lockHold for a caller that acquires the lock once more, as r demands. It prepares the attempt t, which
// the caller has to make. If there is no hold, t has none: the caller needs a new claim.
func (s *lockState) lockTarget(op *waitOptions, kind contract.Lock, o Owner, r *Request, t *target) error {
	c := ownerCall{kind: kind, owner: o, acquires: true}
	var refused error
	err := c.run(s, op, func(h *hold) *effect {
		refused = h.prepareLocked(t, r)
		return nil
	})
	return cmp.Or(err, refused)
}

// prepareLocked prepares the attempt t of a caller that has the owner mutex of h. If the owner may make none, it unlocks
// the owner mutex and returns the reason.
func (h *hold) prepareLocked(t *target, r *Request) error {
	t.hold = h
	err := t.prepareLocked(r)
	if err != nil {
		h.unlockHoldLocked()
	}
	return err
}

// run takes steps until the caller has the owner mutex of c.hold, or until there is no hold for it; and then those of
// use, if it is not nil, until use returns no effect. The first step of use is not apart from that which has found the
// hold. If op is nil, the caller does not wait for the owner mutex.
func (c *ownerCall) run(s *lockState, op *waitOptions, use func(h *hold) *effect) error {
	for {
		todo, err := c.step(s, op, use)
		if err != nil || todo == nil {
			return err
		}
		if err = c.carryOut(op, todo); err != nil {
			return err
		}
	}
}

// step is a step of run.
func (c *ownerCall) step(s *lockState, op *waitOptions, use func(h *hold) *effect) (todo *effect, err error) {
	s.Lock()
	defer s.Unlock()
	if c.hold == nil {
		if todo, err = s.lockHoldLocked(op, c); c.hold == nil {
			return todo, err
		}
	}
	if use != nil {
		todo = use(c.hold)
	}
	return todo, nil
}

// carryOut carries out the effect of a step. If code of the user panics meanwhile, or ends the goroutine, it unlocks the
// owner mutex, unless the caller still waits for that.
func (c *ownerCall) carryOut(op *waitOptions, todo *effect) error {
	returned := false
	defer func() {
		if !returned && todo.waiter == nil {
			cmp.Or(c.hold, c.enters).unlockHold()
		}
	}()
	err := todo.carryOut(op)
	returned = true
	c.looked = c.looked || todo.look != nil
	return err
}

// lockHoldLocked sets c.hold, or returns an effect or an error. If it does none of this, there is no hold for the call.
func (s *lockState) lockHoldLocked(op *waitOptions, c *ownerCall) (todo *effect, err error) {
	for {
		if c.enters == nil {
			h := s.holdForLocked(c)
			if h == nil {
				return todo, nil
			}
			c.enters = h
			if todo, err = s.enterHoldLocked(op, h); err != nil || todo != nil {
				return todo, err
			}
		}
		if !c.looked && mayHaveExpiredLocked(c.enters) {
			return &effect{look: c.enters}, nil
		}
		h := c.enters
		c.enters, c.looked = nil, false
		if s.isUsableLocked(c, h) {
			c.hold = h
			return todo, nil
		}
		h.unlockHoldLocked()
	}
}

func (c *ownerCall) key() holdKey { return holdKey{c.kind.Traits().ID.Half, c.owner} }

// holdForLocked returns the hold that the call c may use if it gets its owner mutex; or nil.
func (s *lockState) holdForLocked(c *ownerCall) *hold {
	h := s.holds.get(c.key())
	if h != nil && !c.acquires && h.Asks() || c.only != nil && h != c.only {
		return nil
	}
	return h
}

// find returns the hold that the call c is for, if it is acquired, and has not ended; or nil.
func (c *ownerCall) find(s *lockState) *hold {
	s.Lock()
	defer s.Unlock()
	return unlessGone(s.holdForLocked(c))
}

// isUsableLocked reports whether the call c, which has the owner mutex of h, can use h: it has not ended, and an
// acquire needs no new hold in its place.
func (s *lockState) isUsableLocked(c *ownerCall, h *hold) bool {
	return h.registered && !(c.acquires && s.makeRoomLocked(h))
}

// makeRoomLocked reports whether an acquire needs a new hold in place of h: it was lost, and its owner knows, or needs
// no Unlock. Then makeRoomLocked has forgotten h.
func (s *lockState) makeRoomLocked(h *hold) bool {
	if h.State() != tenancy.Expired && h.State() != tenancy.LossReported {
		return false
	}
	s.forgetLocked(h)
	return true
}

// enterHold locks the owner mutex of h for a caller without the mutex of the lock state.
func (h *hold) enterHold(op *waitOptions) error {
	todo, err := enterHoldStep(h, op)
	if err != nil || todo == nil {
		return err
	}
	return todo.carryOut(op)
}

func enterHoldStep(h *hold, op *waitOptions) (*effect, error) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return h.lockState.enterHoldLocked(op, h)
}

// enterHoldLocked locks the owner mutex of h. If another goroutine of the owner has it, enterHoldLocked returns the
// waiter that waits for it; or send.ErrTimeUp if op, which may be nil, does not allow to wait.
func (s *lockState) enterHoldLocked(op *waitOptions, h *hold) (todo *effect, err error) {
	switch {
	case h.ownerQueue.TryEnter():
		return todo, nil
	case op == nil:
		return todo, send.ErrTimeUp
	}
	other := h.counterpartLocked()
	// An upgrade waits for other readers when Redis has answered it.
	return s.joinOwnersLocked(op, h, h.Holds() || h.waits == nil && other != nil && other.Holds())
}

// joinOwnersLocked makes the caller wait for the owner mutex of h, which another goroutine of the owner has. held
// reports that the owner holds the lock: see effect.held. It returns send.ErrTimeUp if op does not allow to wait.
func (s *lockState) joinOwnersLocked(op *waitOptions, h *hold, held bool) (todo *effect, err error) {
	if op.NoWait && !held {
		op.found.waitsBehindLocked(s.name, s.findQueueLocked(h.half()))
		return todo, send.ErrTimeUp
	}
	return &effect{waiter: s.engine.enqueue(op, candidate{hold: h}), held: held}, nil
}

// unlockHold releases the owner mutex of h, so that the next goroutine of the owner may use h.
func (h *hold) unlockHold() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.unlockHoldLocked()
}

// unlockHoldLocked is unlockHold for callers with the mutex. It forgets h if it has ended, or was not acquired: then it
// ends, so that a late grant to it is rolled back (see needs).
func (h *hold) unlockHoldLocked() {
	if h.Asks() {
		h.leaveQueueLocked() // has an effect only after code of the user has panicked, or ended the goroutine
		h.GivesUp()
	}
	if h.isOver() {
		h.lockState.forgetLocked(h)
	}
	h.waits = nil
	h.ownerQueue.Release()
}
