package engine

// The owner mutex of a hold: how the goroutines of one owner use a hold one at a time.
//
// Rules: whoever has the owner mutex has looked at whether the hold has expired. A hold that has ended is forgotten when
// its owner mutex is released, and the next goroutine of the owner makes a new one.

import (
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// lockHold returns the hold that o has on the lock kind. The caller then has the owner mutex of this hold, which
// unlockHold releases. If there is none, lockHold returns a fresh hold if makeOne is set, and nil otherwise.
func (s *lockState) lockHold(op *waitOptions, kind contract.Lock, o Owner, makeOne bool) (*hold, error) {
	s.Lock()
	defer s.Unlock()
	return s.lockHoldUnlocking(op, kind, o, op.part, makeOne)
}

// lockHoldUnlocking is lockHold for callers with the mutex, and with the part p, which may be nil. It unlocks the mutex
// while it waits. Unless makeOne is set, a caller without a part gets no hold that only RedLocks have acquired.
func (s *lockState) lockHoldUnlocking(
	op *waitOptions, kind contract.Lock, o Owner, p *Part, makeOne bool,
) (*hold, error) {
	key := holdKey{kind.Traits().ID.Half, o}
	for {
		h := s.holdOfLocked(key, p, makeOne)
		switch {
		case h == nil && makeOne:
			return s.newHoldLocked(kind, key, op.changes(kind)), nil
		case h == nil || !makeOne && (h.Wanted() || p == nil && !h.isOwnersLocked()):
			return nil, nil
		}
		err := s.enterHoldUnlocking(op, h)
		if err == errOwnerChanged {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch {
		case !s.usableUnlocking(h, p, makeOne):
		case p == nil && !makeOne && !h.isOwnersLocked():
			h.unlockHoldLocked()
			return nil, nil
		default:
			return h, nil
		}
	}
}

// enterHoldUnlocking locks the owner mutex of h. If another goroutine of the owner has it, enterHoldUnlocking waits as
// op allows; if op is nil, it returns send.ErrTimeUp instead.
func (s *lockState) enterHoldUnlocking(op *waitOptions, h *hold) error {
	switch {
	case h.ownerQueue.TryEnter():
		return nil
	case op == nil:
		return send.ErrTimeUp
	}
	if other := s.counterpartLocked(h); h.Holds() || other != nil && other.Holds() { // by this owner
		return entrance{s.engine}.enterOwnersUnlocking(s, op, h)
	}
	patient := *op
	err := entrance{s.engine}.enterUnlocking(s, &patient, &h.ownerQueue, h)
	op.waitedAs(&patient)
	if err != nil && err != errOwnerChanged {
		op.found.waitsBehindLocked(s.name, s.findQueueLocked(h.key.half))
	}
	return err
}

// usableUnlocking reports whether the caller, which has the owner mutex of h, can use h. If h has ended, or an acquire
// needs a new hold, it releases the owner mutex and returns false.
func (s *lockState) usableUnlocking(h *hold, p *Part, acquires bool) bool {
	s.expireUnlocking(h)
	if h.registered && !(acquires && s.makeRoomLocked(h, p)) {
		return true
	}
	h.ownerQueue.Release()
	return false
}

// unlockHold releases the owner mutex of h, so that the next goroutine of the owner may use h.
func (h *hold) unlockHold() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.unlockHoldLocked()
}

// unlockHoldLocked is unlockHold for callers with the mutex. It forgets h if it has ended, or was not acquired: then it
// ends, so that a late grant to it is rolled back (see needs). A fresh hold that was forgotten already is that of a
// multi-acquire, which goes on.
func (h *hold) unlockHoldLocked() {
	if h.State() == tenancy.Fresh && h.registered {
		h.leaveQueueLocked() // has an effect only after code of the user has panicked, or ended the goroutine
		h.endedLocked()
	}
	if h.State() == tenancy.Ended {
		h.lockState.forgetLocked(h)
	}
	h.ownerQueue.Release()
}
