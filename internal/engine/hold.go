package engine

// A hold is the relation of one owner to one lock, from the first attempt until the lock is given
// back or lost.
//
// Rules: a hold is used once, from fresh to over. It is lost at most once: the watchdog, a request
// that found no record, or a guard that looks at the clock notices first. Callers of one owner use a
// hold one at a time: the owner mutex of the hold is a queue, which a caller can leave.

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitqueue"
)

const expiredKept = 1024 // expired holds remembered, so that a late Unlock returns ErrLockLost

// A holdState is where a hold is on its way: from fresh to holding, and from there to lost or over.
type holdState uint8

const (
	fresh        holdState = iota // not acquired yet
	adopting                      // not acquired yet, and the record of the holder before was left to it: an attempt has to take it
	handed                        // acquired: the lock was handed to it, or the record shared with it, and its caller has not run since
	holding                       // acquired
	lost                          // its owner has not called Unlock or Lock since
	expired                       // lost because its explicit lease ran out: it needs no Unlock
	lossReported                  // lost, and a re-entry has told its owner
	ended                         // released, or handed over
)

// wanted says that the lock is not acquired yet.
func (s holdState) wanted() bool { return s <= adopting }

// holds says that the owner holds the lock.
func (s holdState) holds() bool { return s == handed || s == holding }

// isLost says that the hold was lost, and not released since.
func (s holdState) isLost() bool { return s >= lost && s <= lossReported }

// isForgotten says that the next acquire of the owner is a fresh one.
func (s holdState) isForgotten() bool { return s == expired || s == lossReported }

// afterLoss is the state after a loss. unrenewed says that an explicit lease has run out.
func (s holdState) afterLoss(unrenewed bool) holdState {
	switch {
	case !s.holds():
		return s
	case unrenewed:
		return expired
	}
	return lost
}

// afterReport is the state after a re-entry, which has told the owner of a loss.
func (s holdState) afterReport() holdState {
	if s.isLost() {
		return lossReported
	}
	return s
}

type holdKey struct {
	id    LockID
	owner Owner
}

type hold struct {
	name  *lockState
	lock  Lock
	key   holdKey
	field string // of its record in Redis; empty before the first attempt
	// A token in it wakes the caller that asks for this hold: its owner has come to hold the other half. Or nil.
	changed chan struct{}
	vote    Vote // set while the hold is fresh; nil: the watchdog keeps its record in Redis

	// guarded by name.mu
	owner  waitqueue.Queue[*hold] // the owner mutex
	queue  *waitQueue             // the wait queue that admitted the hold, and that it occupies; or nil
	record *record                // set from holding on
	own    record                 // memory for a record of this hold
	place  int                    // index among the holds of the record
	since  time.Duration          // on the clock of the watchdog: of the attempt that was granted, or of the handover
	// MinHold: on the clock of the watchdog, until when the record stays in Redis; 0: it need not.
	keepUntil time.Duration
	count     int
	token     int64
	loss      error // why, when lost
	guards    guard.Ends

	state      holdState
	registered bool // in the map of its name
	fieldSent  bool // its field was sent by an attempt on the other half
	// The record may outlive the lease, because a re-entry with a longer one was given up.
	leaseUncertain bool
}

// commands are the calls of a hold that has a record in Redis.
func (h *hold) commands() Record { return h.lock.(Record) }

// lossOf is why the hold was lost, or nil.
func (h *hold) lossOf() error {
	h.name.Lock()
	defer h.name.Unlock()
	return h.loss
}

// withName puts the lock's name before a loss.
func (h *hold) withName(loss error) error {
	return fmt.Errorf("relock: %s: %w", send.ShortName(h.lock.Name()), loss)
}

// lockHold finds the hold that o has on the lock, and keeps other callers of o away from it
// until unlockHold. Where there is none, it makes a fresh hold if makeOne is set, and else returns nil.
func (s *lockState) lockHold(op *waitOptions, kind Lock, o Owner, makeOne bool) (*hold, error) {
	s.Lock()
	defer s.Unlock()
	return s.lockHoldLocked(op, kind, o, makeOne)
}

// lockHoldLocked is lockHold for callers with the mutex. It lets go of the mutex while it waits.
func (s *lockState) lockHoldLocked(op *waitOptions, kind Lock, o Owner, makeOne bool) (*hold, error) {
	key := holdKey{kind.ID(), o}
	for {
		h := s.holds.get(key)
		switch {
		case h == nil && makeOne:
			return s.newHoldLocked(kind, key, op.changes(kind)), nil
		case h == nil || h.state.wanted() && !makeOne:
			return nil, nil
		}
		err := s.enterHoldLocked(op, h)
		if err == errOwnerChanged {
			continue
		}
		if err != nil {
			return nil, err
		}
		if s.usableLocked(h, makeOne) {
			return h, nil
		}
	}
}

// enterHoldLocked takes the owner mutex of h. Where another caller has it, enterHoldLocked waits as op allows; if op is
// nil, it returns errTimeUp.
func (s *lockState) enterHoldLocked(op *waitOptions, h *hold) error {
	switch {
	case h.owner.TryEnter():
		return nil
	case op == nil:
		return send.ErrTimeUp
	}
	if other := s.counterpartLocked(h); h.state.holds() || other != nil && other.state.holds() { // this owner holds the lock
		return entrance{s.engine}.enterOwnersLocked(s, op, &h.owner)
	}
	patient := *op
	return entrance{s.engine}.enterLocked(s, &patient, &h.owner)
}

// usableLocked reports whether h can be used by the caller, which has its owner mutex. It returns the mutex of a hold
// that is over, or is to be forgotten because an acquire begins.
func (s *lockState) usableLocked(h *hold, acquires bool) bool {
	s.expireLocked(h)
	if acquires && h.state.isForgotten() {
		s.forgetLocked(h)
	}
	if !h.registered {
		h.owner.Release()
	}
	return h.registered
}

// unlockHold releases the owner mutex: the next caller of the owner may use the hold.
func (h *hold) unlockHold() {
	h.name.Lock()
	defer h.name.Unlock()
	h.unlockHoldLocked()
}

// unlockHoldLocked is unlockHold for callers with the mutex. It forgets a hold that is not acquired, or over.
func (h *hold) unlockHoldLocked() {
	if h.state == fresh {
		h.leaveQueueLocked() // has an effect only after a panic in a hook of the Redis client
	}
	if h.state == fresh || h.state == ended {
		h.name.forgetLocked(h)
	}
	h.owner.Release()
}

// expireLocked ends h if its time is over, also before a timer has fired. It lets go of the mutex meanwhile.
func (s *lockState) expireLocked(h *hold) {
	if !h.state.holds() || h.vote == nil && s.engine.watchdog.IsValid(&h.record.lease) {
		return
	}
	s.Unlock()
	if cause := h.due(); cause != nil {
		h.lose(cause)
	}
	s.Lock()
}

// expireIfDue is expireLocked for callers without the mutex.
func (h *hold) expireIfDue() {
	h.name.Lock()
	defer h.name.Unlock()
	h.name.expireLocked(h)
}

// due is why the hold can no longer be valid, or nil. It reads the clock, and asks the keeper.
func (h *hold) due() error {
	h.name.Lock()
	holds := h.state.holds()
	h.name.Unlock()
	switch {
	case !holds:
		return nil
	case !h.name.engine.watchdog.IsValid(&h.record.lease):
		return h.name.engine.watchdog.WhyOver(&h.record.lease)
	case h.vote != nil:
		return h.vote.Check()
	}
	return nil
}

// loseIfDue ends the hold if its time is over. It is for losses that the Client notices by itself.
func (h *hold) loseIfDue() {
	if cause := h.due(); cause != nil {
		h.loseUnasked(cause)
	}
}

// lose ends the hold as lost, and the holds that share its record. Only the first call has an effect,
// and returns true. It is for calls of the owner, which report the loss themselves.
func (h *hold) lose(cause error) bool {
	all := h.endRecord(cause)
	for _, other := range all {
		if other.hold != h {
			other.hold.name.engine.reporter.Later(other.report)
		}
	}
	for _, own := range all {
		if own.hold == h {
			own.report()
		}
	}
	return len(all) > 0
}

// loseUnasked is lose for a loss that the Client notices by itself: the reporter reports the loss.
func (h *hold) loseUnasked(cause error) { reportLater(h.endRecord(cause)) }

// endRecord ends the record of h and all its holds, if the owner of h holds the lock.
func (h *hold) endRecord(cause error) []ending {
	h.name.Lock()
	r, holds := h.record, h.state.holds()
	h.name.Unlock()
	if !holds {
		return nil
	}
	return r.lose(cause, h)
}

// holdCount returns o's hold on kind and its levels, as far as this process knows.
func (s *lockState) holdCount(kind Lock, o Owner) (*hold, int) {
	h := s.find(kind.ID(), o)
	if h == nil {
		return nil, 0
	}
	s.Lock()
	defer s.Unlock()
	s.expireLocked(h)
	if !h.state.holds() {
		return nil, 0
	}
	return h, h.count
}

// HoldCount is how many levels o holds of kind; 0 where Redis does not confirm the hold. confirm asks Redis whether it has
// the field.
func (e *Engine) HoldCount(kind Lock, o Owner, confirm func(field string) (bool, error)) (int, error) {
	h, levels := e.holdCount(kind, o)
	if levels == 0 {
		return 0, e.Alive()
	}
	held, err := confirm(h.field)
	if errors.Is(err, send.ErrNotALock) || err == nil && !held {
		h.lose(errGone)
	}
	if err != nil || !held {
		return 0, err
	}
	return levels, nil
}

// Token returns the fencing token of o's hold on kind.
func (e *Engine) Token(kind Lock, o Owner) (int64, error) {
	if err := e.Alive(); err != nil {
		return 0, err
	}
	s := e.retain(kind.ID().Name)
	defer s.release()
	h := s.find(kind.ID(), o)
	if h == nil {
		return 0, s.notHeldError(kind.ID(), o)
	}
	s.Lock()
	defer s.Unlock()
	s.expireLocked(h)
	switch {
	case !h.state.holds():
		return 0, cmp.Or(h.loss, ErrNotHeld)
	case h.token == 0:
		return 0, send.Invalid("it is held through a lock made without Fenced()")
	}
	return h.token, nil
}

func (s *lockState) notHeldError(id LockID, o Owner) error {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.key.id == id && h.state.holds() {
			return fmt.Errorf("%w: %v asked, %v holds it here", ErrNotHeld, o, h.key.owner)
		}
	}
	return fmt.Errorf("%w: %v asked, no owner holds it here", ErrNotHeld, o)
}

// An expiredRing remembers the last holds whose explicit lease has run out. No caller has to unlock them.
type expiredRing struct {
	mu    sync.Mutex // guards below; a leaf
	holds []*hold
	next  int
}

// remember keeps h, and forgets the oldest hold of the ring.
func (r *expiredRing) remember(h *hold) {
	if oldest := r.replace(h); oldest != nil {
		oldest.name.Lock()
		defer oldest.name.Unlock()
		oldest.name.forgetLocked(oldest)
	}
}

func (r *expiredRing) replace(h *hold) (oldest *hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.holds) < expiredKept {
		r.holds = append(r.holds, h)
		return nil
	}
	oldest, r.holds[r.next] = r.holds[r.next], h
	r.next = (r.next + 1) % expiredKept
	return oldest
}
