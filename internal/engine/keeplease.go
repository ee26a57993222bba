package engine

// Keeping leases: how a MultiLock that acquires its locks in several steps keeps the first ones until it has the last.
//
// Rules: the lease of the first steps is extended by KeepLease while the others are acquired, and its validity is that
// of the whole MultiLock in the end.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
)

// KeepLease gives the holds of o on bs, which have an explicit lease, at least the given lease, counted from now; a hold
// with MaxHold gets no more than its rest. Holds that the watchdog renews stay as they are. Another goroutine of o may
// acquire the locks again meanwhile, or extend their leases: no request shortens them, so it does not matter in which
// order Redis runs the requests. KeepLease does not wait for an answer after the time by; zero: there is no limit.
func (e *Engine) KeepLease(ctx context.Context, bs []contract.Lock, o Owner, lease time.Duration, by time.Time) error {
	e.workers.Begin()
	defer e.workers.End()
	var holds []*hold
	var lengths []time.Duration
	for _, kind := range bs {
		h, _ := e.holdCount(kind, o)
		if h == nil {
			return LossError(ErrExpired)
		}
		if !e.watchdog.Renews(&h.record.lease) {
			length := e.watchdog.RestOf(&h.record.lease, lease)
			holds, lengths = append(holds, h), append(lengths, length)
		}
	}
	if len(holds) == 0 {
		return nil
	}
	for i, h := range holds {
		x := late.Effect{Lease: lengths[i]}
		if !h.noteRequest(x) {
			return LossError(ErrExpired)
		}
		defer e.late.Heard(h.Field().ID, x, true) // after keepAll
	}
	op := e.waitOptionsFor(ctx)
	op.Deadline = by
	answer := e.keepAll(&op.Wait, holds, lengths)
	replies, err := answer.Replies()
	for i, h := range holds {
		switch {
		case err != nil:
		case replies[i][0] == 1:
			h.keptFor(answer.Sent, lengths[i])
		default:
			h.lose(errGone)
			err = LossError(errGone)
		}
	}
	if err == send.ErrTimeUp {
		return ErrNoAnswer
	}
	return err
}

// keepAll sends one request that sets the leases of holds to at least these lengths.
func (e *Engine) keepAll(wait *send.Wait, holds []*hold, lengths []time.Duration) (answer send.Answer) {
	calls := make([]send.Call, len(holds))
	for i, h := range holds {
		calls[i] = h.commands().Renew(h.Field().ID, lengths[i], false)
	}
	answer = send.Answer{Lost: 1} // if a context, or a hook of the Redis client, panics or ends the goroutine
	defer func() {
		for i, h := range holds {
			recordKeeper{h}.extendedBy(&answer, lengths[i])
		}
	}()
	return e.sender.Do(wait, send.Request{Pipeline: calls}, time.Time{})
}

// noteRequest notes that a request of a caller without the owner mutex is about to be sent, which may do x: an Unlock of
// another goroutine that leaves the record to its lease must know of it (minHold.isLast). It returns false if the hold
// has ended. Otherwise late.Requests.Heard has to be called when the request has ended.
func (h *hold) noteRequest(x late.Effect) bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.Holds() {
		h.lockState.engine.late.Left(h.Field().ID, x, 1, false)
	}
	return h.Holds()
}

// keptFor notes that Redis has extended the explicit lease of h to length, by a request that was sent at sent.
func (h *hold) keptFor(sent time.Time, length time.Duration) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if w := h.lockState.engine.watchdog; h.Holds() && !w.Renews(&h.record.lease) {
		w.Extend(&h.record.lease, sent, length, false)
	}
}

// ValidUntil returns the time until which all holds of o on bs that are not renewed are valid, but no later than end.
// It returns the present time if one of the holds has ended.
func (e *Engine) ValidUntil(bs []contract.Lock, o Owner, end time.Time) time.Time {
	for _, kind := range bs {
		h, _ := e.holdCount(kind, o)
		if h == nil {
			return time.Now()
		}
		if until := e.watchdog.End(&h.record.lease); !e.watchdog.Renews(&h.record.lease) && until.Before(end) {
			end = until
		}
	}
	return end
}

// LimitValidity makes all holds of o on bs that are not renewed expire at end, or earlier if their leases are shorter.
// Otherwise the owner could re-enter one of them after the others have expired. A hold that o has acquired more than
// once stays as it is. The leases in Redis do, too: a record that would last longer is deleted when its hold expires.
func (e *Engine) LimitValidity(bs []contract.Lock, o Owner, end time.Time) {
	for _, kind := range bs {
		s := e.retain(kind.Traits().ID.Name)
		s.limitValidity(kind, o, end)
		s.release()
	}
}

func (s *lockState) limitValidity(kind contract.Lock, o Owner, end time.Time) {
	s.Lock()
	defer s.Unlock()
	w := s.engine.watchdog
	h := s.holds.get(holdKey{kind.Traits().ID.Half, o})
	if h != nil && h.Holds() && h.record != nil && h.Count() == 1 {
		w.Shorten(&h.record.lease, end)
	}
}
