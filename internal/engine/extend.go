package engine

// Extend: how the owner of a hold with an explicit lease extends the lease.
//
// Rules: an extension never shortens a lease, and the new validity counts from before the request was sent. Extend
// returns an error for a hold that the watchdog renews, and for a lease that would last beyond MaxHold.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// Extend sets the lease of the hold that o has on kind to length, counted from now, if less is left of it.
func (e *Engine) Extend(ctx context.Context, kind contract.Lock, o Owner, length time.Duration) error {
	return e.extend(ctx, kind, o, length, false)
}

// extend is Extend, or, if cuts is set, for no longer than MaxHold allows.
func (e *Engine) extend(ctx context.Context, kind contract.Lock, o Owner, length time.Duration, cuts bool) error {
	e.workers.Begin()
	defer e.workers.End()
	op := e.waitOptionsFor(ctx)
	if err := op.Over(); err != nil {
		return err
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	h, err := s.lockHold(op, kind, o)
	if err != nil {
		return err
	}
	defer h.unlockHold()
	if length, err = mayExtend(h, length, cuts); err != nil {
		return err
	}
	for asked := 1; ; asked++ {
		sent, again := extendHold(h, &op.Wait, length)
		h.expireIfDue()
		if again == nil {
			again = noteExtended(h, sent, length)
		}
		if asked == 1 { // the answers to the others leave more of the lease
			err = again
		}
		whole := lease.Validity(length)
		if again != nil || asked == MostAsked || lease.EnoughValidityLeft(whole-time.Since(sent), whole, false) {
			break
		}
	}
	if loss := lossOf(h); loss != nil {
		err = send.WithLast(loss, err)
	}
	return err
}

// extendHold makes the lease last for length, counted from sent, and waits for the answer. A hold that is found to be gone
// ends as lost. The caller has the owner mutex.
func extendHold(h *hold, wait *send.Wait, length time.Duration) (sent time.Time, err error) {
	answer := setLease(h, wait, length, toExtend, time.Time{})
	r, err := answer.Reply()
	switch {
	case h.wasReplaced(err):
		h.lose(fmt.Errorf("%w: %w", errGone, err))
		err = nil
	case err == nil && r[0] != 1:
		h.lose(errGone)
	}
	return answer.Sent, err
}

// mayExtend returns the lease that Extend may ask for: length, or a shorter one if cuts is set.
func mayExtend(h *hold, length time.Duration, cuts bool) (rest time.Duration, err error) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if err = h.heldLocked(); err != nil {
		return 0, err
	}
	w := h.lockState.engine.watchdog
	switch rest = w.RestOf(&h.record.lease, length); {
	case w.Renews(&h.record.lease):
		err = ErrRenewed
	case rest < length && !cuts:
		err = send.Invalid("lease %v is too long: MaxHold ends the hold in %v", length, rest)
	}
	return rest, err
}

// noteExtended notes that Redis has confirmed the request for a lease of length that was sent at sent.
func noteExtended(h *hold, sent time.Time, length time.Duration) error {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	err := h.heldLocked()
	if err == nil && !h.lockState.engine.watchdog.Extend(&h.record.lease, sent, length, false) {
		err = LossError(cmp.Or(h.record.whyOver(), send.ErrClosed)) // nil: since then, Close was called
	}
	return err
}

// A purpose is what a request that sets the lease of a hold is for.
type purpose int

const (
	toExtend purpose = iota // the owner is to rely on the lease, so replicas have to confirm it
	toKeep                  // the record is to last for that long, although no owner relies on it
	toLimit                 // the same, and for no longer: only this request may also shorten the lease
)

// setLease sends a request that sets the lease of the record to length.
func setLease(
	h *hold, wait *send.Wait, length time.Duration, why purpose, lastReply time.Time,
) (answer send.Answer) {
	answer = send.Answer{Lost: 1} // if a hook of the Redis client panics, or ends the goroutine
	defer func() {
		noteLease(h, &answer, length)
		if why == toExtend {
			clearIfOver(h)
		}
	}()
	call := h.commands().Renew(h.Field().ID, length, why == toLimit)
	return h.lockState.engine.sender.Do(wait, send.Request{Call: call, Acquiring: why == toExtend}, lastReply)
}

// noteLease notes what a request that sets the lease of the record to length has done, and may still do. No handler
// gets the outcomes of its other tries, so they count as lost.
func noteLease(h *hold, answer *send.Answer, length time.Duration) {
	outcome := answer.Err
	if lost := answer.Lost > 0 || answer.Orphans > 0 || answer.Unknown > 0 || answer.Abandoned; lost {
		h.lockState.engine.late.Left(h.Field().ID, late.Effect{Lease: length}, 0, true)
		outcome = send.ErrSilent
	}
	mayLast(h, length, outcome)
}

// clearIfOver has the record of h deleted if h has ended or was lost while a request for a longer lease was under way.
func clearIfOver(h *hold) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.clearIfOverLocked()
}

// ValidUntil returns the time until which the hold of o on kind is valid if it has an explicit lease, but no later than
// end. It returns the present time if there is no such hold.
func (e *Engine) ValidUntil(kind contract.Lock, o Owner, end time.Time) time.Time {
	h, _ := e.holdCount(kind, o)
	if h == nil {
		return time.Now()
	}
	if until := e.watchdog.End(&h.record.lease); !e.watchdog.Renews(&h.record.lease) && until.Before(end) {
		end = until
	}
	return end
}
