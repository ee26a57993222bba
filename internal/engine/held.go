package engine

// What users ask about their holds: the hold count, the field, the fencing token.
//
// Rules: an answer is what this process knows, and the clock is looked at first. Only HoldCount asks Redis, too.

import (
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// holdCount returns the hold that o has on kind and its hold count, as far as this process knows.
func (s *lockState) holdCount(kind contract.Lock, o Owner) (*hold, int) {
	h := s.find(kind.Traits().ID, o)
	if h == nil {
		return nil, 0
	}
	h.expireIfDue()
	s.Lock()
	defer s.Unlock()
	if !h.Holds() {
		return nil, 0
	}
	return h, h.Count()
}

// HoldCount returns the hold count of the hold that o has on kind, or 0 if Redis does not confirm the hold. confirm
// asks Redis whether it has the field.
func (e *Engine) HoldCount(kind contract.Lock, o Owner, confirm func(field string) (bool, error)) (int, error) {
	h, count := e.holdCount(kind, o)
	if count == 0 {
		return 0, e.Alive()
	}
	held, err := confirm(h.Field().ID)
	if h.wasReplaced(err) || err == nil && !held {
		h.lose(errGone)
	}
	if err != nil || !held {
		return 0, err
	}
	return count, nil
}

// Token returns the fencing token of the hold that o has on kind.
func (e *Engine) Token(kind contract.Lock, o Owner) (int64, error) {
	if err := e.Alive(); err != nil {
		return 0, err
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	h := s.find(kind.Traits().ID, o)
	if h == nil {
		return 0, s.notHeldError(kind.Traits().ID, o)
	}
	h.expireIfDue()
	s.Lock()
	defer s.Unlock()
	if err := h.heldLocked(); err != nil {
		return 0, err
	}
	if h.token == 0 {
		return 0, send.Invalid("it was acquired through a lock that was created without Fenced()")
	}
	return h.token, nil
}

// holdCount returns the hold of o on a lock and its hold count, as far as this process knows.
func (e *Engine) holdCount(kind contract.Lock, o Owner) (*hold, int) {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	return s.holdCount(kind, o)
}

// HeldToken returns the fencing token of the hold that has the record with this field in this process, or 0.
func (e *Engine) HeldToken(name, field string) (token int64) {
	s := e.retain(name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.has(field) && h.Holds() {
			token = max(token, h.token)
		}
	}
	return token
}
