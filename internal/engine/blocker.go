package engine

// Blockers: how an error that ends a wait names the lock that blocked the caller, and the holder of that lock.
//
// Rules: no request is sent for this. An error contains what this process knows: its own holds, and the last Busy that
// Redis has answered to this caller, or to the caller in front of it. If neither is known, the error names no holder.

import (
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// noteBusy remembers the blocker of h for its caller, and for the waiters behind it.
// cause is blocker.cause.
func (op *waitOptions) noteBusy(h *hold, res Answer, cause error) {
	ahead := res.Standing.IsEnqueued() && res.Standing.Ahead() > 0
	op.noteBlocker(h, &blocker{lock: h.lock, ttl: res.TTL, at: time.Now(), ahead: ahead, total: res.Total, cause: cause})
}

// blockerHere returns the name of the first lock that another owner of this process keeps from o, and describes that
// owner; "" if there is none.
func blockerHere[L contract.Lock](e *Engine, locks []L, o Owner) (name, who string) {
	for _, l := range locks {
		if who = holderHere(e, l, o); who != "" {
			return l.Traits().Name, who
		}
	}
	return "", ""
}

// findBlocker returns the name of the lock that o waited for, and a description of its holder; "" if it is not known.
func findBlocker[L contract.Lock](e *Engine, f *findings, locks []L, o Owner) (name, who string) {
	if name, who = blockerHere(e, locks, o); who != "" {
		return name, who
	}
	if last := f.reply; last != nil {
		if last.cause != nil { // the error has it
			return "", ""
		}
		return last.lock.Traits().Name, last.String()
	}
	for _, l := range locks {
		if who = inFrontHere(e, l, o); who != "" {
			return l.Traits().Name, who
		}
	}
	return "", ""
}

// inFrontHere describes another caller of this process that waits for an answer about kind; "" if there is none.
func inFrontHere(e *Engine, kind contract.Lock, o Owner) string {
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.half() == kind.Traits().ID.Half && h.owner != o && h.Wanted() && h.queue != nil {
			return fmt.Sprintf(
				"%v of %s is ahead in the queue, and Redis has not answered its request",
				h.owner,
				e.process(),
			)
		}
	}
	return ""
}

// holderHere describes another owner of this process that holds a lock which blocks o from acquiring kind; "" if there
// is none.
func holderHere(e *Engine, kind contract.Lock, o Owner) string {
	own := kind.Traits().ID
	if kind.Traits().Admission == contract.Shared || kind.Traits().Admission == contract.Counting {
		own = contract.LockID{} // holders of the same half do not block o, or are not the only ones that do
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		switch key := h.key(); {
		case !h.Holds() || key.owner == o || !e.watchdog.IsValid(&h.record.lease):
		case h.id() == own:
			return fmt.Sprintf("%v of %s holds it", key.owner, e.process())
		case h.id() == kind.Traits().Counterpart:
			return fmt.Sprintf("%v of %s holds the %s lock", key.owner, e.process(), key.half)
		}
	}
	return ""
}

// process returns how errors name this process.
func (c *Config) process() string {
	if c.Label == "" {
		return "this process"
	}
	return "this process (" + c.Label + ")"
}

// whyEnded returns the error of a call of o for locks that ends with err: send.ErrTimeUp if its time was up and the
// locks are busy. Otherwise the error tells why that is not known, or who has the lock.
func whyEnded[L contract.Lock](e *Engine, op *waitOptions, locks []L, o Owner, r Request, err error) error {
	byCtx := op.Ctx.Err() != nil && errors.Is(err, op.Ctx.Err())
	closed := errors.Is(err, send.ErrClosed)
	if err != send.ErrTimeUp && !byCtx && !closed {
		return err
	}
	f := &op.found
	if f.behind != "" {
		f.look.Update(e.poller.Last(f.behind))
	}
	_, holder := blockerHere(e, locks, o)
	busy := !closed && f.busyAt(time.Now(), holder != "")
	if err == send.ErrTimeUp {
		if busy {
			return err
		}
		return f.whyNotBusy(e, locks[0])
	}
	switch name, who := findBlocker(e, f, locks, o); {
	case who == "":
	case r.Component || len(locks) > 1:
		err = fmt.Errorf("%w: %s: %s", err, send.ShortName(name), who)
	default:
		err = fmt.Errorf("%w: %s", err, who)
	}
	if busy {
		return busyError{err}
	}
	return err
}

// whyNotBusy returns the error of a TryLock of kind whose time is up although the lock is not known to be busy.
func (f *findings) whyNotBusy(e *Engine, kind contract.Lock) error {
	voted, votes := kind.(VotedLock)
	doubt := f.request.inDoubt(time.Now()) || f.look.InDoubt(time.Now(), send.MinWait)
	switch {
	case f.reply != nil && f.reply.cause != nil:
		return send.WithLast(send.ErrTimeUp, f.reply.cause)
	case votes:
		return send.WithLast(send.ErrTimeUp, voted.Unanswered())
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
