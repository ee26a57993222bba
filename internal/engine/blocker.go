package engine

// Obstacles: how an error that ends a wait says which lock blocked, and who has it.
//
// Rules: no request is sent for this. The error uses the knowledge of this process: its own holds, and the last answer
// that said busy, to this caller or to the caller in front. Where neither is known, the error says nothing.

import (
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// An blocker is the answer to an attempt that found a lock busy.
type blocker struct {
	lock  Lock          // that is busy
	ttl   time.Duration // of the record in the way; negative: none was answered
	at    time.Time     // when the answer came
	who   string        // text of the lock itself about its holder; or ""
	known bool          // the error names the blocker anyway
}

func (o *blocker) String() string {
	if o.who != "" {
		return o.who
	}
	ago := time.Since(o.at)
	return o.lock.BusyText(o.ttl, o.ttl-ago, ago)
}

func (t *Traits) BusyText(ttl, left, ago time.Duration) string {
	switch {
	case ttl < 0:
		return "a record without a lease is in the way"
	case left > 0:
		return fmt.Sprintf("another process (or Client) holds it, %v of its lease left", Rounded(left))
	}
	return fmt.Sprintf("another process (or Client) held it when Redis was asked last, %v ago", Rounded(ago))
}

// Rounded is d, rounded for a reader.
func Rounded(d time.Duration) time.Duration {
	unit := time.Millisecond
	if d >= time.Second {
		unit = 100 * time.Millisecond
	}
	return (d + unit/2) / unit * unit
}

// noteBusy remembers the blocker that blocks h, for its caller and for the waiters behind it.
func (op *waitOptions) noteBusy(h *hold, ttl time.Duration) {
	op.noteBlocker(h, &blocker{lock: h.lock, ttl: ttl, at: time.Now()})
}

// noteBlocker is noteBusy for any blocker.
func (op *waitOptions) noteBlocker(h *hold, o *blocker) {
	op.blocker = o
	h.name.Lock()
	defer h.name.Unlock()
	if h.queue != nil {
		h.queue.foundBusy(o)
	}
}

// sees remembers an blocker that another caller has found, if op has not found a later one.
func (op *waitOptions) sees(o *blocker) {
	if o != nil && (op.blocker == nil || op.blocker.at.Before(o.at)) {
		op.blocker = o
	}
}

// withHolder adds to err, which ended the wait of o for locks, the lock that blocks and its holder, where they
// are known.
func withHolder[L Lock](e *Engine, op waitOptions, locks []L, o Owner, r Request, err error) error {
	if err == nil || err == send.ErrTimeUp {
		return err
	}
	if ended := op.Ctx.Err(); (ended == nil || !errors.Is(err, ended)) && !errors.Is(err, send.ErrClosed) {
		return err
	}
	name, who := findBlocker(e, op, locks, o)
	switch {
	case who == "":
		return err
	case r.Component || len(locks) > 1:
		return fmt.Errorf("%w: %s: %s", err, send.ShortName(name), who)
	}
	return fmt.Errorf("%w: %s", err, who)
}

// findBlocker reports which lock o waited for, and who has it; "" where this is not known.
func findBlocker[L Lock](e *Engine, op waitOptions, locks []L, o Owner) (name, who string) {
	for _, l := range locks {
		if who = e.holderHere(l, o); who != "" {
			return l.Name(), who
		}
	}
	if last := op.blocker; last != nil {
		if last.known {
			return "", ""
		}
		return last.lock.Name(), last.String()
	}
	for _, l := range locks {
		if who = e.inFrontHere(l, o); who != "" {
			return l.Name(), who
		}
	}
	return "", ""
}

// inFrontHere reports which other caller of this process waits for an answer about kind; "" for none.
func (e *Engine) inFrontHere(kind Lock, o Owner) string {
	s := e.retain(kind.ID().Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.key.id == kind.ID() && h.key.owner != o && h.state.wanted() && h.queue != nil {
			return fmt.Sprintf("%v of %s is in front, and Redis has not answered it", h.key.owner, e.process())
		}
	}
	return ""
}

// holderHere reports which other owner of this process holds a lock that blocks o, who asks for kind; "" for none.
func (e *Engine) holderHere(kind Lock, o Owner) string {
	own := kind.ID()
	if kind.Admission() == Shared || kind.Admission() == Counting {
		own = LockID{} // holders of the same half are not in the way, or not the only ones
	}
	s := e.retain(kind.ID().Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		switch key := h.key; {
		case !h.state.holds() || key.owner == o:
		case key.id == own:
			return fmt.Sprintf("%v of %s holds it", key.owner, e.process())
		case key.id == kind.Counterpart():
			return fmt.Sprintf("%v of %s holds the %s lock", key.owner, e.process(), key.id.Half)
		}
	}
	return ""
}

// process is how errors name this process.
func (c *Config) process() string {
	if c.Label == "" {
		return "this process"
	}
	return "this process (" + c.Label + ")"
}
