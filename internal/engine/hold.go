package engine

// A hold is what one owner has of one lock, from when it asks for the lock until it has released it, or knows that it
// has lost it.
//
// Rules: a hold is used once. After it was released, the next acquire of its owner makes a new one. If it was lost, an
// acquire has to return the loss first, unless the loss is that an explicit lease has expired. A hold is lost at most
// once. The first to notice the loss may be the watchdog, a request that finds no record, or a call or a guard that
// looks at the clock.
//
// The goroutines of one owner use a hold one at a time, with its owner mutex, which is a queue that a waiting goroutine
// can leave. Without the owner mutex a hold may only end: it is lost, or given up before its caller has run
// (discardHandoffUnlocking), or an Unlock has waited for the owner mutex in vain (releaseUnconfirmed). Then its record
// is not handed off, and a goroutine that has a request under way finds out afterwards: see lossLocked and
// dismissLocked.

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/ledger"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitqueue"
)

// expiredKept is how many lost holds with explicit leases an engine remembers, so that a late Unlock returns
// ErrLockLost.
const expiredKept = 1024

// A holdState is the state of a hold. As a rule, it goes from fresh to holding, and from there to lost or ended. The
// methods that change it are in transitions.go.
type holdState uint8

const (
	fresh        holdState = iota // not acquired yet
	adopting                      // left a record, which an attempt has to adopt, and its caller has not run since
	handed                        // acquired by a hand-off, or by sharing a record, and its caller has not run since
	holding                       // acquired
	lost                          // lost, and its owner does not know yet
	expired                       // lost because its explicit lease has expired: it needs no Unlock
	lossReported                  // lost, and an acquire has returned the loss to its owner
	ended                         // released, handed off, detached, or given up before it was acquired
)

// wanted reports whether the lock is not acquired yet.
func (s holdState) wanted() bool { return s <= adopting }

// holds reports whether the owner holds the lock.
func (s holdState) holds() bool { return s == handed || s == holding }

// isLost reports whether the hold was lost, and not released since.
func (s holdState) isLost() bool { return s >= lost && s <= lossReported }

// A holdKey identifies the hold of an owner on a lock, among the holds of the same lock state.
type holdKey struct {
	half  string
	owner Owner
}

// A hold is what one owner has of one lock.
type hold struct {
	lockState *lockState
	lock      contract.Lock // through which it was acquired
	key       holdKey
	next      *hold         // the next hold of the same owner in the holds of its lock state; or nil
	field     *ledger.Field // of its record in Redis; nil until its first attempt is prepared
	vote      Vote          // set and replaced only while the hold is fresh; nil if the lock has a record in Redis

	// guarded by lockState.mu
	// changed wakes the caller that waits for this hold when its owner has acquired the counterpart of the lock, or
	// when a late answer has granted the lock; nil: it has not waited, and there is no counterpart.
	changed    chan struct{}
	ownerQueue waitqueue.Queue[candidate] // the owner mutex
	queue      *waitQueue                 // the local queue that has admitted the hold, and not the next waiter yet; or nil
	record     *record                    // set when the lock is acquired
	own        record                     // memory for the record that this hold makes
	fieldRoom  ledger.Field               // memory for its first field
	index      int32                      // index in record.holds
	parts      int32                      // how much of the hold count belongs to RedLocks: see part.go
	// since is when the hold began, on the clock of the watchdog: when the attempt that was granted was sent, when the
	// lock was handed off, or when the hold joined the record of another one.
	since time.Duration
	// keepUntil is until when the record has to stay in Redis because of MinHold, on the clock of the watchdog; 0: there
	// is no such time.
	keepUntil time.Duration
	count     int   // the hold count
	token     int64 // the fencing token; 0: none
	loss      error // why the hold was lost; nil: it was not
	guards    guard.Ends

	state      holdState
	registered bool // it is in the holds of its lock state
	aside      bool // it was lost, and its owner has a newer hold: see part.go
	adopts     bool // it is a user of its field, which it is going to adopt: see adoptsLocked
	fieldSent  bool // an attempt on the counterpart has named its field
	late       bool // a late answer has perhaps granted the lock when there was no changed: see wokenBy
}

// id returns the ID of the lock.
func (h *hold) id() contract.LockID { return contract.LockID{Name: h.lockState.name, Half: h.key.half} }

// commands returns the commands of the lock, which must have a record in Redis.
func (h *hold) commands() contract.Record { return h.lock.(contract.Record) }

// lossOf returns why the hold was lost, or nil.
func (h *hold) lossOf() error {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return h.loss
}

// withName returns loss with the name of the lock in front.
func (h *hold) withName(loss error) error {
	return fmt.Errorf("relock: %s: %w", send.ShortName(h.lock.Traits().Name), loss)
}

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
		case h == nil || !makeOne && (h.state.wanted() || p == nil && !h.isOwnersLocked()):
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
	if other := s.counterpartLocked(h); h.state.holds() || other != nil && other.state.holds() { // by this owner
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
	if h.state == fresh && h.registered {
		h.leaveQueueLocked() // has an effect only after code of the user has panicked, or ended the goroutine
		h.endedLocked()
	}
	if h.state == ended {
		h.lockState.forgetLocked(h)
	}
	h.ownerQueue.Release()
}

// expireUnlocking ends h as lost if its validity is over, even if the watchdog has not noticed it yet. It may unlock the
// mutex for a moment.
func (s *lockState) expireUnlocking(h *hold) {
	if !h.state.holds() || h.vote == nil && s.engine.watchdog.IsValid(&h.record.lease) {
		return
	}
	s.Unlock()
	if cause := h.whyExpired(); cause != nil {
		h.lose(cause)
	}
	s.Lock()
}

// expireIfDue is expireUnlocking for callers without the mutex.
func (h *hold) expireIfDue() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.lockState.expireUnlocking(h)
}

// whyExpired returns why the hold can no longer be valid, or nil. It reads the clock, and asks the vote of a RedLock.
func (h *hold) whyExpired() error {
	h.lockState.Lock()
	holds := h.state.holds()
	h.lockState.Unlock()
	switch {
	case !holds:
		return nil
	case !h.lockState.engine.watchdog.IsValid(&h.record.lease):
		return h.lockState.engine.watchdog.WhyOver(&h.record.lease)
	case h.vote != nil:
		return h.vote.Check()
	}
	return nil
}

// whyUnwatched returns the cause with which the watchdog is about to end the hold, or nil if it watches the lease.
func (h *hold) whyUnwatched() error {
	w, l := h.lockState.engine.watchdog, &h.record.lease
	switch {
	case w.Watches(l):
		return nil
	case w.IsValid(l): // a renewal has found no record
		return errGone
	}
	return w.WhyOver(l)
}

// loseIfUnwatched ends h as lost if the watchdog is about to do so.
func (h *hold) loseIfUnwatched() {
	if cause := h.whyUnwatched(); cause != nil {
		h.lose(cause)
	}
}

// loseIfDue ends h as lost if its validity is over. It is for losses that the Client notices by itself.
func (h *hold) loseIfDue() {
	if cause := h.whyExpired(); cause != nil {
		h.loseUnasked(cause)
	}
}

// lose ends h as lost, and all holds that share its record. Only the first call has an effect, and returns true. It is
// for calls of the owner of h: lose itself reports the loss of h, and leaves the losses of other owners to the
// reporter.
func (h *hold) lose(cause error) bool {
	all := h.endRecord(cause)
	for _, other := range all {
		if other.hold != h {
			other.hold.lockState.engine.reporter.Later(other.report)
		}
	}
	for _, own := range all {
		if own.hold == h {
			own.report()
		}
	}
	return len(all) > 0
}

// loseUnasked is lose for a loss that the Client notices by itself: the reporter reports all losses.
func (h *hold) loseUnasked(cause error) { reportLater(h.endRecord(cause)) }

// endRecord ends the record of h and all its holds as lost, if the owner of h holds the lock.
func (h *hold) endRecord(cause error) []ending {
	h.lockState.Lock()
	r, holds := h.record, h.state.holds()
	h.lockState.Unlock()
	if !holds {
		return nil
	}
	return r.lose(cause, h)
}

// holdCount returns the hold that o has on kind and its hold count, as far as this process knows.
func (s *lockState) holdCount(kind contract.Lock, o Owner) (*hold, int) {
	h := s.find(kind.Traits().ID, o)
	if h == nil {
		return nil, 0
	}
	s.Lock()
	defer s.Unlock()
	s.expireUnlocking(h)
	if !h.state.holds() {
		return nil, 0
	}
	return h, h.count
}

// HoldCount returns the hold count of the hold that o has on kind, or 0 if Redis does not confirm the hold. confirm
// asks Redis whether it has the field.
func (e *Engine) HoldCount(kind contract.Lock, o Owner, confirm func(field string) (bool, error)) (int, error) {
	h, count := e.holdCount(kind, o)
	if count == 0 {
		return 0, e.Alive()
	}
	held, err := confirm(h.field.ID)
	if errors.Is(err, send.ErrNotALock) || err == nil && !held {
		h.lose(errGone)
	}
	if err != nil || !held {
		return 0, err
	}
	return count, nil
}

// HeldField returns the field of the hold that o has on kind, as far as this process knows, or "" if there is none.
func (e *Engine) HeldField(kind contract.Lock, o Owner) string {
	if h, _ := e.holdCount(kind, o); h != nil {
		return h.field.ID
	}
	return ""
}

// Token returns the fencing token of the hold that o has on kind.
func (e *Engine) Token(kind contract.Lock, o Owner) (int64, error) {
	if err := e.Alive(); err != nil {
		return 0, err
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	h := s.findFor(kind.Traits().ID, o, nil)
	if h == nil {
		return 0, s.notHeldError(kind.Traits().ID, o)
	}
	s.Lock()
	defer s.Unlock()
	s.expireUnlocking(h)
	switch {
	case !h.state.holds():
		return 0, cmp.Or(h.loss, ErrNotHeld)
	case h.token == 0:
		return 0, send.Invalid("it was acquired through a lock that was created without Fenced()")
	}
	return h.token, nil
}

// notHeldError returns the error of a call of o that needs a hold on the lock with this id.
func (s *lockState) notHeldError(id contract.LockID, o Owner) error {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		switch {
		case h.key.half != id.Half || !h.state.holds():
		case h.key.owner == o:
			return fmt.Errorf("%w: called by %v, which has acquired it only as a part of a RedLock", ErrNotHeld, o)
		default:
			return fmt.Errorf("%w: called by %v, but held by %v in this process", ErrNotHeld, o, h.key.owner)
		}
	}
	return fmt.Errorf("%w: called by %v, but not held by any owner in this process", ErrNotHeld, o)
}

// An expiredRing remembers the latest lost holds with explicit leases, whose owners perhaps never unlock them.
type expiredRing struct {
	mu    sync.Mutex // guards the fields below; no other mutex is locked while it is held
	holds []*hold
	next  int
}

// remember adds h to the ring. If the ring is full, it forgets the oldest hold.
func (r *expiredRing) remember(h *hold) {
	if oldest := r.replace(h); oldest != nil {
		oldest.lockState.Lock()
		defer oldest.lockState.Unlock()
		oldest.lockState.forgetLocked(oldest)
	}
}

// replace adds h to the ring, and returns the hold that it replaces, or nil.
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
