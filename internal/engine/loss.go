package engine

// Losses: how a record ends because Redis does not have it any more, or because it can no longer be valid.
//
// Rules: the record and all its holds end together, under the mutex of the name. What has to be done then is an ending,
// which is carried out when the mutex is free: guards end, and the keeper releases what is left. Each loss is
// reported once, by the call that has found it or by the reporter; that of a hold whose caller has not run since it was
// handed the lock is not reported.

import (
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/guard"
)

// An ending is what has to be done about a hold that was lost.
type ending struct {
	hold    *hold
	cause   error
	loss    error // cause, as the owner of the hold sees it
	state   holdState
	age     time.Duration // of the hold
	guards  []*guard.End
	renewed bool // the watchdog renewed its lease
	unheard bool // its caller has not run
}

// lose ends the record and all its holds, unless first is a hold that has left it. The ending of first comes first.
func (r *record) lose(cause error, first *hold) []ending {
	// The cause may be an error of a user's hook, whose methods are called first, without the mutex.
	end := ending{cause: cause, loss: LossError(cause)}
	unrenewed, limited := errors.Is(cause, ErrExpired), errors.Is(cause, ErrMaxHold)
	overdue := end.loss
	if unrenewed {
		overdue = LossError(fmt.Errorf("%w: %w", ErrUnrenewed, cause))
	}

	s := r.first.name
	s.Lock()
	if first != nil && (!first.state.holds() || first.record != r) {
		s.Unlock()
		return nil
	}
	if end.renewed = s.engine.watchdog.Renews(&r.lease); end.renewed && unrenewed {
		end.loss = overdue
	}
	var all []ending
	r.endLocked()
	for len(r.holds) > 0 {
		h := r.holds[len(r.holds)-1]
		if len(all) == 0 && first != nil {
			h = first
		}
		all = append(all, h.loseLocked(end, unrenewed && !end.renewed, limited))
	}
	s.Unlock()

	for _, e := range all {
		e.carryOut()
	}
	return all
}

// loseLocked ends h as lost. expires says that its explicit lease has run out, and limited that MaxHold has ended it.
func (h *hold) loseLocked(end ending, lapses, limited bool) ending {
	h.leaveRecordLocked()
	end.hold, end.unheard = h, h.state == handed
	h.endLocked(h.state.afterLoss(lapses))
	h.loss = end.loss
	h.leaveQueueLocked()
	other := h.name.counterpartLocked(h)
	// A record that is kept alive, or is about to be, would keep this hold in it. A hold without a record is released
	// by its keeper.
	if h.vote == nil && (lapses || limited) && (h.leaseUncertain || other != nil && other.state != ended && !other.state.isLost()) {
		h.name.oweLocked(duty{clear: h})
	}
	end.state, end.age, end.guards = h.state, h.age(), h.guards.Take()
	return end
}

// carryOut does what remains to be done.
func (e *ending) carryOut() {
	h := e.hold
	if !e.renewed {
		h.name.engine.expired.remember(h)
	}
	guard.EndAll(e.guards, h.withName(e.loss))
	if h.vote != nil {
		h.vote.Lost()
	}
}

// report reports the loss.
func (e *ending) report() {
	events, s := e.hold.name.engine.Events, e.hold.subject()
	switch {
	case e.unheard:
	case e.state == expired:
		events.Expired(s, e.age)
	default:
		events.Lost(s, e.age, e.loss, e.cause, errors.Is(e.cause, errForced))
	}
}

// reportLater has the reporter report the losses.
func reportLater(all []ending) {
	for _, e := range all {
		e.hold.name.engine.reporter.Later(e.report)
	}
}
