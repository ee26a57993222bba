//go:build go1.25

package sim

// The losses: what the witness knows of data that Redis has lost.
//
// Rules: a loss excuses two holders for as long as a lease lasts, and a holder must notice it within that time.
// Forced releases are losses, too.

import (
	"slices"
	"time"
)

// A loss is a period in which Redis lost data.
type loss struct {
	at    time.Time
	until time.Time        // zero: it has not ended
	name  string           // of a lock; "": of all
	of    func(*hold) bool // the holds that it affects
	ended bool             // the call that causes it has returned
}

// end returns when the loss ended, as far as is known.
func (l loss) end() time.Time {
	if l.until.IsZero() {
		return time.Now()
	}
	return l.until
}

// lose records that Redis has lost data, and checks that the holders notice it.
func (w *witness) lose(what, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := loss{at: time.Now(), until: time.Now(), name: name, of: func(h *hold) bool { return h.worker.Kind != Red }}
	w.losses = append(w.losses, l)
	for _, h := range w.holds {
		if l.hits(h) {
			w.isToNotice(h, what, w.leaseOf(h)+slack)
		}
	}
	for lock, all := range w.numbers {
		if name == "" || name == lock { // the next client may set the number again
			for i := range all {
				all[i].until = time.Time{}
			}
			w.numbers[lock] = append(all, number{permits: w.world.plan.permitsOf(lock)})
		}
	}
}

// loseOne records that one of several servers has lost all its data. No hold of a RedLock is lost by that. Other
// locks are on the first server.
func (w *witness) loseOne(server int) {
	if server == 0 {
		w.lose("wiped", "")
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses = append(w.losses, loss{at: time.Now(), until: time.Now(), of: func(*hold) bool { return false }})
}

// hits reports whether the loss may affect h.
func (l loss) hits(h *hold) bool {
	return (l.name == "" || slices.Contains(h.names, l.name)) && l.of(h)
}

// isToNotice reports h if it does not know after the given time that its record is gone. A later loss gives it a time
// of its own. mu is held.
func (w *witness) isToNotice(h *hold, what string, within time.Duration) {
	known := len(w.losses)
	time.AfterFunc(within, func() {
		recorded := w.recorded(h)
		w.mu.Lock()
		defer w.mu.Unlock()
		again := slices.ContainsFunc(w.losses[known:], func(l loss) bool { return l.hits(h) })
		if !recorded && !again && slices.Contains(w.holds, h) && h.ctx.Err() == nil {
			w.report("a lost hold is noticed", "%v: %s, and %v has not noticed it after %v", h.names, what, h, within)
		}
	})
}

// forcing records the begin of a call that releases locks regardless of their holders. The holders lose them, and
// must notice within a third of their leases. If there was a fault, the request may run some time after the call has
// returned.
func (w *witness) forcing(kind Kind, names []string, of func(*hold) bool) (done func(err error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := time.Now()
	for _, name := range names {
		w.losses = append(w.losses, loss{at: began, name: name, of: of})
	}
	return func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		calm := w.world.calm(began.Add(-lateLife))
		if calm && err == nil {
			w.freedAll(kind, names, of, began)
		}
		for i, l := range w.losses {
			if !l.at.Equal(began) || !l.until.IsZero() || !slices.Contains(names, l.name) {
				continue
			}
			if w.losses[i].ended = true; calm {
				w.losses[i].until = time.Now()
			}
		}
		for _, h := range w.holds {
			if !of(h) || !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(h.names, name) }) ||
				!h.since.Before(began) { // it may have been acquired because of the call
				continue
			}
			w.isToNotice(h, "forced", w.leaseOf(h)+slack)
			if calm && h.lease == 0 && h.worker.MaxHold == 0 { // it is renewed
				w.unlessTrouble(began, w.world.plan.Watchdog/3+slack, func() { w.isToNotice(h, "forced", 0) })
			}
		}
	}
}

// unlessTrouble calls f after a while, with mu held, if there is no fault until then.
func (w *witness) unlessTrouble(since time.Time, after time.Duration, f func()) {
	time.AfterFunc(after, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.world.calm(since) {
			f()
		}
	})
}

// settle records which losses have ended.
func (w *witness) settle() {
	calm := w.world.calm(time.Now().Add(-lateLife))
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range w.losses {
		if l.until.IsZero() && l.ended && calm {
			w.losses[i].until = time.Now()
		}
	}
}

func (w *witness) setBack(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.back += by
}

// forgetTokens records that Redis may have lost a counter of tokens. The next tokens are derived from its clock.
func (w *witness) forgetTokens() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgot = true
}

// leaseOf returns the longest time for which h can be valid without an answer from Redis.
func (w *witness) leaseOf(h *hold) time.Duration {
	return max(h.lease, w.world.plan.Watchdog) // after a re-entry, or an Extend
}

// excused reports whether h may be held at the same time as another hold, because Redis has lost its record and it
// need not know yet. mu is held.
func (w *witness) excused(h *hold) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool {
		return l.hits(h) &&
			// A hold that a process hands off inside itself may be lost already.
			!l.end().Before(h.asked.Add(-200*time.Millisecond)) &&
			time.Now().Before(later(l.end(), h.since).Add(w.leaseOf(h)+slack))
	})
}

// hasLost reports whether Redis has lost the record of h.
func (w *witness) hasLost(h *hold) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.excused(h)
}
