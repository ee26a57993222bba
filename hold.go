package relock

// A hold is what one owner has of one lock, from asking for it until it is given
// back or lost.
//
// Rules: a hold is used once, from fresh to over, and has the record of its tenure:
// a field of its own, or that of the hold before it in this process; it is lost at most once, whoever notices first: the watchdog, a
// request that found no record, or a guard that looks at the clock.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

type holdState int

const (
	fresh   holdState = iota // not taken yet
	holding                  // taken
	lost                     // and its owner has still to hear of it
	over                     // given back, or handed over
)

type hold struct {
	engine  *engine
	backend backend
	key     holdKey
	field   string // in the record: that of its tenure; empty until it is asked for

	// guarded by engine.mu
	known  bool // it is among the holds of the engine
	turn   gate // callers of the same owner, one at a time
	gate   *gate
	state  holdState
	tenure *tenure       // what it holds, from then on
	own    tenure        // the first one may be this
	place  int           // among those who share it
	since  time.Duration // on the clock of the watchdog: of the attempt that was granted, or of the handover
	levels int
	token  int64
	loss   error // why, when lost
	wasKin bool  // its field was sent by an attempt on the other half
	heir   bool  // fresh, and the record of the one before it was left to it
	lapsed bool  // lost because its explicit lease ran out: it needs no Unlock
	told   bool  // a re-entry has reported the loss

	offered    bool // it was left to its caller, who has not come to it yet,
	unreported bool // and never will: it was lost before
	// The record may outlive the lease, because a re-entry with a longer one was given up.
	stretched bool
	guards    map[<-chan struct{}]*guardEnd // by what their parents end with
}

// forgottenLocked says whether the next acquire is a fresh one.
func (h *hold) forgottenLocked() bool {
	return h.state == lost && (h.lapsed || h.told)
}

// lossOf is why the hold was lost, or nil.
func (h *hold) lossOf() error {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	return h.loss
}

// named puts the lock's name before a loss.
func (h *hold) named(loss error) error {
	return fmt.Errorf("relock: %s: %w", shortName(h.key.id.name), loss)
}

// lapseIfDue ends the hold if its time is up, whether or not a timer has come to it yet: for calls of its owner.
func (h *hold) lapseIfDue() {
	if cause := h.due(); cause != nil {
		h.lose(cause)
	}
}

// due is why the hold can no longer be trusted, or nil. It looks at the clock alone.
func (h *hold) due() error {
	e := h.engine
	e.mu.Lock()
	holds := h.state == holding
	e.mu.Unlock()
	if !holds {
		return nil
	}
	if !e.dog.trusted(&h.tenure.lease) {
		return errLapsed
	}
	if c, ok := h.backend.(composite); ok && !c.trusted(h.field) {
		return errParts
	}
	return nil
}

// loseField ends the hold of o with that field as lost, if it is still there.
func (e *engine) loseField(id lockID, o owner, field string, cause error) {
	if h := e.find(id, o); h != nil && h.field == field {
		if !e.dog.trusted(&h.tenure.lease) {
			cause = errLapsed // that comes first
		}
		h.loseUnasked(cause)
	}
}

// lose ends the hold as lost, and those that share its record. Only the first call does
// anything, and returns true. It is for calls of the owner, which report the loss themselves.
func (h *hold) lose(cause error) bool {
	if !h.loseAlone(cause) {
		return false
	}
	h.tenure.leaseEnded(cause)
	h.sawEnd(cause)()
	return true
}

// loseUnasked is lose for what the Client notices by itself: the reporter reports it.
func (h *hold) loseUnasked(cause error) {
	if h.loseAlone(cause) {
		h.engine.reporter.later(h.sawEnd(cause))
		h.tenure.leaseEnded(cause)
	}
}

// loseAlone is lose for this one hold, without a report. Its record is nobody's any more: leaseEnded has to tell the others.
func (h *hold) loseAlone(cause error) bool {
	e := h.engine
	// The cause may be an error of a user's hook, whose methods are called first, without the mutex.
	lapsed := errors.Is(cause, errLapsed)
	loss, unrenewed := lossError(cause), error(nil)
	if lapsed {
		unrenewed = lossError(fmt.Errorf("%w: %w", errUnrenewed, cause))
	}
	e.mu.Lock()
	if h.state != holding {
		e.mu.Unlock()
		return false
	}
	t := h.tenure
	h.partLocked()
	t.ended = true
	e.closeLocked(t)
	renewed := e.dog.renews(&t.lease)
	h.state, h.loss = lost, loss
	if renewed && lapsed {
		h.loss = unrenewed
	}
	h.lapsed = !renewed && lapsed
	if !renewed {
		e.rememberLocked(h)
	}
	e.leaveGateLocked(h)
	kin := e.holds[holdKey{h.backend.kin(), h.key.owner}]
	if h.lapsed && (h.stretched || kin != nil && kin.state != over && kin.state != lost) { // what keeps the record alive, or is about to, keeps this hold in it
		e.spawn(h.clear)
	}
	guards := h.takeGuardsLocked()
	h.unreported = h.offered
	e.mu.Unlock()

	e.dog.remove(&t.lease)
	endGuards(guards, h.named(h.loss))
	if c, ok := h.backend.(composite); ok {
		c.lost(h.field)
	}
	return true
}

// find returns the hold that o has on the lock of that id, or lost; nil where there is none.
func (e *engine) find(id lockID, o owner) *hold {
	if id == (lockID{}) {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.holds[holdKey{id, o}]
	if h == nil || h.state == fresh || h.state == over {
		return nil
	}
	return h
}

// levels returns o's hold on b and its levels, as far as this process knows.
func (e *engine) levels(b backend, o owner) (*hold, int) {
	h := e.find(b.id(), o)
	if h == nil {
		return nil, 0
	}
	h.lapseIfDue()
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.state != holding {
		return nil, 0
	}
	return h, h.levels
}

// token returns the fencing token of o's hold on b.
func (e *engine) token(b backend, o owner) (int64, error) {
	if err := e.open(); err != nil {
		return 0, err
	}
	h := e.find(b.id(), o)
	if h == nil {
		return 0, e.notHeldError(b.id(), o)
	}
	h.lapseIfDue()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case h.state != holding:
		return 0, cmp.Or(h.loss, ErrNotHeld)
	case h.token == 0:
		return 0, invalid("it is held through a lock made without Fenced()")
	}
	return h.token, nil
}

func (e *engine) notHeldError(id lockID, o owner) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, h := range e.holds {
		if key.id == id && h.state == holding {
			return fmt.Errorf("%w: %v asked, %v holds it here", ErrNotHeld, o, key.owner)
		}
	}
	return fmt.Errorf("%w: %v asked, nobody holds it here", ErrNotHeld, o)
}

// rememberLocked keeps h, whose explicit lease has run out and which nobody has
// to unlock, until enough others have lapsed.
func (e *engine) rememberLocked(h *hold) {
	if len(e.lapsed) < lapsedKept {
		e.lapsed = append(e.lapsed, h)
		return
	}
	e.forgetLocked(e.lapsed[e.lapsedAt])
	e.lapsed[e.lapsedAt] = h
	e.lapsedAt = (e.lapsedAt + 1) % lapsedKept
}

// inspect asks how b stands.
func (e *engine) inspect(ctx context.Context, b lockType, field string) (state, error) {
	p := e.patienceFor(ctx, b)
	s, _, err := persist(e, p, time.Time{}, nil, func(ctx context.Context) (state, error) {
		return b.inspect(ctx, field)
	}, nil)
	return s, err
}

// open is ErrClosed after Close.
func (e *engine) open() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed {
		return ErrClosed
	}
	return nil
}
