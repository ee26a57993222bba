package engine

// Parts: what a RedLock has acquired at one of its nodes.
//
// Rules: the owner of a RedLock may also hold one of its nodes by itself, or through another RedLock. These have one hold
// on the node, and share its hold count. A call whose context carries a Part releases only what it has acquired with that
// Part: it never decrements the hold count of a later hold. A call without a Part does not decrement what a Part has
// acquired. If the hold was lost, only calls without a Part return the loss to the owner. So a Part does not wait until
// the owner has heard of it: the lost hold is set aside for the owner, and the Part acquires a new hold.

import (
	"context"
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/tenancy"
)

// A Part has the holds that one hold of a RedLock has acquired at one node. The node may be a MultiLock.
type Part struct {
	mu    sync.Mutex // guards holds; no other mutex is locked while it is held
	holds []*hold    // one element for each time that their hold count was incremented
}

type partKey struct{}

// In returns a copy of ctx that carries p.
func (p *Part) In(ctx context.Context) context.Context { return context.WithValue(ctx, partKey{}, p) }

// partOf returns the Part that ctx carries, or nil.
func partOf(ctx context.Context) *Part {
	p, _ := ctx.Value(partKey{}).(*Part)
	return p
}

// holdLocked returns the hold on a lock of s that p has acquired, or nil if there is none, or if the owner has a newer
// one.
func (p *Part) holdLocked(s *lockState, half string) *hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range slices.Backward(p.holds) {
		if h.lockState == s && h.half() == half && h.registered {
			return h
		}
	}
	return nil
}

// hasLocked reports whether p has acquired h, and has not released it since.
func (p *Part) hasLocked(h *hold) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.holds, h)
}

// countLocked notes that a call with p, which may be nil, has incremented the hold count of h.
func (p *Part) countLocked(h *hold) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = append(p.holds, h)
	h.parts++
}

// count is countLocked for callers without the mutex.
func (p *Part) count(h *hold) {
	if p != nil {
		h.lockState.Lock()
		defer h.lockState.Unlock()
		p.countLocked(h)
	}
}

// uncountLocked notes that a call with p, which may be nil, is about to decrement the hold count of h.
func (p *Part) uncountLocked(h *hold) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.holds, h); i >= 0 {
		p.holds = slices.Delete(p.holds, i, i+1)
		h.parts--
	}
}

// isOwnersLocked reports whether the owner of h has acquired it by itself, and not only through RedLocks.
func (h *hold) isOwnersLocked() bool { return h.parts == 0 || h.Count() > int(h.parts) }

// reportLossLocked returns the loss of h, or nil, for a caller that acquires the lock with the part p, which may be nil.
// Without a part the owner then knows of the loss, and need not call Unlock. So a record that may be left is deleted.
func (h *hold) reportLossLocked(p *Part) error {
	if p != nil {
		return h.loss
	}
	if h.State() == tenancy.Lost {
		h.Field().Unwant()
		h.deleteIfLeftLocked()
	}
	h.reportedLocked()
	return h.loss
}

// holdOfLocked returns the hold that a call with the part p, which may be nil, uses. A hold that was set aside comes
// first for the owner, so that its calls return the loss. A Part acquires the lock beside it, and otherwise uses the
// hold that it has acquired.
func (s *lockState) holdOfLocked(key holdKey, p *Part, acquires bool) *hold {
	switch {
	case p != nil && !acquires:
		return p.holdLocked(s, key.half)
	case p == nil && s.holds.aside > 0:
		if h := s.holds.find(key, true); h != nil {
			return h
		}
	}
	return s.holds.get(key)
}

// makeRoomLocked reports whether a call with the part p, which may be nil, acquires a new hold in place of h, which was
// lost. Then it has forgotten h, or set it aside if the owner may not know of the loss, or has yet to call Unlock.
func (s *lockState) makeRoomLocked(h *hold, p *Part) bool {
	switch {
	case !h.IsLost():
		return false
	case h.State() == tenancy.Expired, h.State() == tenancy.LossReported && p == nil, !h.isOwnersLocked():
		s.forgetLocked(h)
	case p == nil: // the caller gets the loss
		return false
	case !h.IsAside(): // otherwise another Part has waited for the owner mutex, too, and was faster
		h.asideLocked()
		s.holds.aside++
	}
	return true
}

// findFor is find for a call with the part p, which may be nil: see holdOfLocked.
func (s *lockState) findFor(id contract.LockID, o Owner, p *Part) *hold {
	s.Lock()
	defer s.Unlock()
	return s.holdOfLocked(holdKey{id.Half, o}, p, false).unlessGone()
}
