package relock

// A hold is what one owner has of one lock, from asking for it until it is given
// back or lost; and the guards, contexts that end with it.
//
// Rules: a hold is used once, from fresh to over, and has a field of its own in
// the record; it is lost at most once, whoever notices first: the watchdog, a
// request that found no record, or a guard that looks at the clock.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

type holdState int

const (
	fresh   holdState = iota // not taken yet
	holding                  // taken
	lost                     // and its owner has still to hear of it
	over                     // given back
)

type hold struct {
	engine  *engine
	backend backend
	key     holdKey
	field   string // of this acquisition alone

	lease lease // the watchdog's

	// guarded by engine.mu
	turn   gate // callers of the same owner, one at a time
	gate   *gate
	state  holdState
	levels int
	token  int64
	loss   error // why, when lost
	lapsed bool  // lost because its explicit lease ran out: it needs no Unlock
	told   bool  // a re-entry has reported the loss
	guards map[*guard]struct{}
}

// forgottenLocked says whether the next acquire is a fresh one.
func (h *hold) forgottenLocked() bool {
	return h.state == lost && (h.lapsed || h.told)
}

// lapseIfDue ends the hold if its time is up, whether or not a timer has come to it yet.
func (h *hold) lapseIfDue() {
	e := h.engine
	e.mu.Lock()
	due := h.state == holding && !e.dog.trusted(&h.lease)
	e.mu.Unlock()
	if due {
		h.leaseEnded(errLapsed)
	}
}

// leaseEnded ends the hold as lost. Only the first call counts.
func (h *hold) leaseEnded(cause error) {
	e := h.engine
	renewed := e.dog.renews(&h.lease)
	e.mu.Lock()
	if h.state != holding {
		e.mu.Unlock()
		return
	}
	h.state, h.loss = lost, lossError(cause)
	h.lapsed = !renewed && errors.Is(cause, errLapsed)
	if !renewed {
		e.rememberLocked(h)
	}
	e.leaveGateLocked(h)
	guards := h.takeGuardsLocked()
	closed := e.isClosed
	e.mu.Unlock()

	e.dog.remove(&h.lease)
	endGuards(guards, fmt.Errorf("relock: %s: %w", shortName(h.key.name), h.loss))
	if !h.lapsed && !closed {
		e.log.Warn("relock: a lock was lost", "lock", shortName(h.key.name), "owner", h.key.owner, "cause", cause)
	}
}

// A guard is a context that ends with a hold.
type guard struct {
	context.Context
	hold *hold
	end  context.CancelCauseFunc
}

// Err looks at the clock too: after a pause of the whole process, a hold that
// has lapsed is reported before any timer had the time to fire.
func (g *guard) Err() error {
	if err := g.Context.Err(); err != nil {
		return err
	}
	g.hold.lapseIfDue()
	return g.Context.Err()
}

func (h *hold) forgetGuard(g *guard) {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	delete(h.guards, g)
}

func (h *hold) takeGuardsLocked() []*guard {
	guards := slices.Collect(maps.Keys(h.guards))
	h.guards = nil
	return guards
}

// endGuards ends guards; a nil cause is context.Canceled.
func endGuards(guards []*guard, cause error) {
	for _, g := range guards {
		g.end(cause)
	}
}
