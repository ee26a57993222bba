package engine

// Blockers: how an error that ends a wait names the lock that blocked the caller, and the holder of that lock.
//
// Rules: no request is sent for this. An error contains what this process knows: its own holds, and the last Busy that
// Redis has answered to this caller, or to the caller in front of it. If neither is known, the error names no holder.

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
)

// A blocker describes an attempt that has found a lock busy.
type blocker struct {
	lock  contract.Lock // the lock that is busy
	ttl   time.Duration // the rest of the lease in the reply; negative: the reply had none
	at    time.Time     // when the reply came
	ahead bool          // others are ahead of the caller in the line
	total int           // Outcome.Total of the reply
	who   string        // how the lock itself describes its holder; or ""
	cause error         // why the lock could not be acquired, if other owners are not the reason; or nil
}

func (o *blocker) String() string {
	if o.who != "" {
		return o.who
	}
	ago := time.Since(o.at)
	return o.lock.BusyText(o.ttl, o.ttl-ago, ago)
}

// noteBusy remembers the blocker of h for its caller, and for the waiters behind it.
// cause is blocker.cause.
func (op *waitOptions) noteBusy(h *hold, res Answer, cause error) {
	ahead := res.Standing.IsEnqueued() && res.Standing.Ahead() > 0
	op.noteBlocker(h, &blocker{lock: h.lock, ttl: res.TTL, at: time.Now(), ahead: ahead, total: res.Total, cause: cause})
}

// noteBlocker is noteBusy for any blocker.
func (op *waitOptions) noteBlocker(h *hold, o *blocker) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	op.found.foundLocked(h, o)
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
		if h.key.half == kind.Traits().ID.Half && h.key.owner != o && h.state.wanted() && h.queue != nil {
			return fmt.Sprintf(
				"%v of %s is ahead in the queue, and Redis has not answered its request",
				h.key.owner,
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
		switch key := h.key; {
		case !h.state.holds() || key.owner == o || !e.watchdog.IsValid(&h.record.lease):
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
