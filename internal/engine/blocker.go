package engine

// Blockers: how an error that ends a wait names the lock that blocked the caller, and the holder of that lock.
//
// Rules: no request is sent for this. An error contains what this process knows: its own holds, and the last Busy that
// Redis has answered to this caller, or to the caller in front of it. If neither is known, the error names no holder.

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// noteBusy remembers the blocker of h for its caller, and for the waiters behind it.
// cause is blocker.cause.
func (op *waitOptions) noteBusy(h *hold, res Answer, cause error) {
	ahead := res.Standing.IsEnqueued() && res.Standing.Ahead() > 0
	op.noteBlocker(h, &blocker{lock: h.lock, ttl: res.TTL, at: time.Now(), ahead: ahead, total: res.Total, cause: cause})
}

// here describes another owner of this process that holds a lock which blocks o from acquiring kind, or else another
// caller that waits for an answer about kind; both "" if there is none.
func (e *Engine) here(kind contract.Lock, o Owner) (holder, front string) {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	for h := range s.blockersLocked(kind, o) {
		if h.id() == kind.Traits().ID {
			return fmt.Sprintf("%v of %s holds it", h.owner.principal(), e.process()), ""
		}
		return fmt.Sprintf("%v of %s holds the %s lock", h.owner.principal(), e.process(), h.half()), ""
	}
	for h := range s.holds.all() {
		if h.half() == kind.Traits().ID.Half && h.owner != o && h.Asks() && h.queue != nil {
			return "", fmt.Sprintf(
				"%v of %s is ahead in the queue, and Redis has not answered its request",
				h.owner.principal(),
				e.process(),
			)
		}
	}
	return "", ""
}

// blockersLocked returns the holds of other owners of this process that block o from acquiring kind.
func (s *lockState) blockersLocked(kind contract.Lock, o Owner) iter.Seq[*hold] {
	own := kind.Traits().ID
	if kind.Traits().Admission == contract.Shared || kind.Traits().Admission == contract.Counting {
		own = contract.LockID{} // holders of the same half do not block o, or are not the only ones that do
	}
	return func(yield func(*hold) bool) {
		for h := range s.holds.all() {
			blocks := h.id() == own || h.id() == kind.Traits().Counterpart
			if blocks && h.Holds() && h.owner != o && s.engine.watchdog.IsValid(&h.record.lease) && !yield(h) {
				return
			}
		}
	}
}

// BlocksItself reports whether o would wait for itself if it waited for kind: what blocks it there was acquired by the
// owner for which it acts, or by an agent of that one, which has to release it.
func (e *Engine) BlocksItself(kind contract.Lock, o Owner) bool {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	if own := s.holds.get(holdKey{kind.Traits().ID.Half, o}); own != nil && own.State() == tenancy.Lost {
		return false // a call of o returns that loss, and does not wait
	}
	for h := range s.blockersLocked(kind, o) {
		if h.owner.principal() == o.principal() {
			if a := h.owner.agent(); a == nil || a.holds.Load() { // otherwise the agent is about to release it
				return true
			}
		}
	}
	return false
}

// checkWait returns an error if a call of o that acquires kind would wait for itself.
func (e *Engine) checkWait(kind contract.Lock, o Owner) error {
	if holding.Load() == 0 || !e.BlocksItself(kind, o) {
		return nil
	}
	return send.Invalid("%v would wait for itself: it holds %s through a RedLock",
		o.principal(), send.ShortName(kind.Traits().Name))
}

// process returns how errors name this process.
func (c *Config) process() string {
	if c.Label == "" {
		return "this process"
	}
	return "this process (" + c.Label + ")"
}

// whyEnded returns the error of a call of o for kind that ends with err: send.ErrTimeUp if its time was up and the lock
// is busy. Otherwise the error tells why that is not known, or who has the lock.
func whyEnded(e *Engine, op *waitOptions, kind contract.Lock, o Owner, r Request, err error) error {
	byCtx := op.Ctx.Err() != nil && errors.Is(err, op.Ctx.Err())
	closed := errors.Is(err, send.ErrClosed)
	if err != send.ErrTimeUp && !byCtx && !closed {
		return err
	}
	f, now := &op.found, cmp.Or(op.over, time.Now())
	if f.behind != "" {
		f.look.Update(e.poller.Last(f.behind))
	}
	who, front := e.here(kind, o)
	busy := !closed && f.busyAt(now, who != "")
	if err == send.ErrTimeUp {
		if busy {
			return err
		}
		return f.whyNotBusy(e, kind, now)
	}
	switch last := f.reply; {
	case who != "":
	case last == nil:
		who = front
	case last.cause != nil:
		err = send.WithLast(err, last.cause)
	default:
		who = last.String()
	}
	switch {
	case who == "":
	case r.Report != nil: // the caller has asked for more than this lock
		err = fmt.Errorf("%w: %s: %s", err, send.ShortName(kind.Traits().Name), who)
	default:
		err = fmt.Errorf("%w: %s", err, who)
	}
	if busy {
		return busyError{err}
	}
	return err
}

// whyNotBusy returns the error of a TryLock of kind whose time is up although the lock was not known to be busy then.
func (f *findings) whyNotBusy(e *Engine, kind contract.Lock, now time.Time) error {
	local, asks := kind.(LocalLock)
	doubt := f.request.inDoubt(now) || f.look.InDoubt(now, send.MinWait)
	switch {
	case f.reply != nil && f.reply.cause != nil:
		return send.WithLast(send.ErrTimeUp, f.reply.cause)
	case asks:
		return send.WithLast(send.ErrTimeUp, local.Unanswered())
	case f.behind != "" && doubt:
		return fmt.Errorf("behind another caller of this process, which has had no answer from Redis: %w", ErrNoAnswer)
	case f.reply != nil && !doubt:
		return errUnasked
	}
	return e.sender.Explain(ErrNoAnswer, kind.Traits().ID.Name)
}

// A busyError is an error that also matches ErrBusy. Its text names who has the lock.
type busyError struct{ error }

func (e busyError) Unwrap() []error { return []error{e.error, ErrBusy} }
