package engine

// What users ask about their holds: the hold count, the field, the fencing token.
//
// Rules: an answer is what this process knows, and the clock is looked at first. Only HoldCount asks Redis, too.

import (
	"context"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// held returns the hold that o has on kind, as far as this process knows, or has lost; or why there is none.
func (e *Engine) held(kind contract.Lock, o Owner) (*hold, error) {
	id := kind.Traits().ID
	s := e.retain(id.Name)
	defer s.release()
	h := s.find(id, o)
	if h == nil {
		return nil, s.notHeldError(id, o)
	}
	h.expireIfDue()
	return h, nil
}

// holdCount returns the hold that o has on kind and its hold count, as far as this process knows.
func (e *Engine) holdCount(kind contract.Lock, o Owner) (*hold, int) {
	h, err := e.held(kind, o)
	if err != nil {
		return nil, 0
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if !h.Holds() {
		return nil, 0
	}
	return h, h.Count()
}

// HoldCount returns the hold count of the hold that o has on kind, or 0 if Redis, which it asks, does not have the hold.
func (e *Engine) HoldCount(ctx context.Context, kind contract.Record, o Owner) (int, error) {
	h, count := e.holdCount(kind, o)
	if count == 0 {
		return 0, e.Alive()
	}
	seen, err := e.Inspect(ctx, kind, h.Field().ID)
	if h.wasReplaced(err) || err == nil && !seen.Held {
		h.lose(errGone)
	}
	if err != nil || !seen.Held {
		return 0, err
	}
	_, count = e.holdCount(kind, o) // the answer may be late
	return count, nil
}

// Token returns the fencing token of the hold that o has on kind.
func (e *Engine) Token(kind contract.Lock, o Owner) (int64, error) {
	if err := e.Alive(); err != nil {
		return 0, err
	}
	h, err := e.held(kind, o)
	if err != nil {
		return 0, err
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if err = h.heldLocked(); err == nil && h.token == 0 {
		err = send.Invalid("it was acquired through a lock that was created without Fenced()")
	}
	if err != nil {
		return 0, err
	}
	return h.token, nil
}

// HeldToken returns the fencing token of the hold that has the record with this field in this process, or 0.
func (e *Engine) HeldToken(name, field string) (token int64) {
	s := e.retain(name)
	defer s.release()
	if h := s.holdWith(field); h != nil {
		token = h.token
	}
	return token
}
