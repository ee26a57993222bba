//go:build go1.25

package sim

// How long holds last: a witness of the times that the documentation promises.
//
// Rules: a hold ends before its record does, whatever ends it, unless Redis has lost the record. What ends a hold is
// seen by who waits for Done, not only by who asks Err. A limit that a lock has holds for each of its holds.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/relock-go/relock"
)

// A kept lock is one that MinHold keeps from others.
type kept struct {
	by    *hold
	until time.Time
}

// delay is how long an answer may take, and the goroutine that waits for it, where there is no fault.
func (w *world) delay() time.Duration {
	return 300*time.Millisecond + 20*(w.plan.Latency+w.plan.Jitter)
}

// begins judges a hold that begins. mu is held.
func (w *witness) begins(h *hold) {
	for _, name := range h.names {
		if k, ok := w.kept[name]; ok && time.Now().Before(k.until) && !w.excused(k.by) && !w.excused(h) {
			w.report("MinHold keeps others out", "%s: %v had it for %v more, and released it; %v has it now", name, k.by,
				time.Until(k.until), h)
		}
	}
	if limit := max(h.worker.MaxHold, h.worker.MinHold); h.worker.MaxHold > 0 {
		time.AfterFunc(limit+slack, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if slices.Contains(w.holds, h) && h.ctx.Err() == nil {
				w.report("MaxHold ends a hold", "%v: %v is held after %v", h.names, h, limit)
			}
		})
	}
}

// keeps notes that a hold with MinHold is about to be released. mu is held.
func (w *witness) keeps(h *hold) {
	if h.worker.MinHold == 0 || h.ctx.Err() != nil || !w.world.calm(h.asked.Add(-w.leaseOf(h)-slack)) {
		return
	}
	for _, name := range h.names {
		w.kept[name] = kept{h, h.since.Add(h.worker.MinHold - w.world.delay())}
	}
}

// hasTime reports a hold with a lease of which too little is left when its call returns: a quarter is the least, see
// LockLease.
func (w *witness) hasTime(h *hold) {
	switch h.worker.Kind {
	case Plain, FencedOne, Fair:
	default:
		return // others share a record, or have several
	}
	if h.lease == 0 || h.ctx.Err() != nil || w.hasLost(h) || w.world.pausedFor(h.p, h.asked) > 0 {
		return
	}
	var left time.Duration
	w.world.redis[0].Look(func(m *miniredis.Miniredis) { left = m.TTL(h.names[0]) })
	if least := h.lease / 4; left < least-time.Millisecond && w.lives(h) {
		w.Report("a fresh hold has time", "%v: %v has %v", h.names, h, left)
	}
}

// ends judges a hold whose context has ended in this moment. One that is being released has ended by that.
func (w *witness) ends(h *hold) {
	recorded := w.recorded(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.holds, h) || h.p.gone.Load() || w.excused(h) {
		return
	}
	cause := context.Cause(h.ctx)
	// A RedLock has its records on several servers, which may have lost them.
	if !recorded && h.worker.Kind != Red {
		w.report("a hold ends before its record", "%v: %v has no record any more, and ends only now: %v", h.names, h, cause)
	}
	if short := time.Since(h.since) < h.lease/4-w.world.delay(); short && h.worker.MaxHold == 0 &&
		w.world.calm(h.since.Add(-w.leaseOf(h)-slack)) {
		w.report("a lease lasts", "%v: %v: %v", h.names, h, cause)
	}
}

// tellsAll reports holds that have ended, and whose Done nobody has closed for a while.
func (w *witness) tellsAll(holds []*hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range holds {
		if h.ctx.Err() == nil {
			continue
		}
		select {
		case <-h.ctx.Done():
			continue
		default:
		}
		if h.over.IsZero() {
			h.over = time.Now()
		} else if time.Since(h.over) > slack && !h.p.gone.Load() {
			w.report("Done of a hold that has ended is closed", "%v: %v has ended %v ago", h.names, h, time.Since(h.over))
		}
	}
}

// unlocked judges the answer to the release of a hold that had ended before.
func (w *witness) unlocked(h *hold, err error) {
	if h.again && h.lease > 0 { // the lease may have run out before the re-entry: that was a fresh hold, with an Unlock of its own
		return
	}
	if err == nil && !h.p.gone.Load() {
		w.Report("Unlock of a lost hold is an error", "%v: %v: %v", h.names, h, context.Cause(h.ctx))
	}
	if errors.Is(context.Cause(h.ctx), relock.ErrLockLost) && err != nil && errors.Is(err, relock.ErrNotHeld) &&
		!errors.Is(err, relock.ErrLockLost) && !h.p.gone.Load() {
		w.Report("Unlock of a lost hold says so", "%v: %v: %v, and then %v", h.names, h, context.Cause(h.ctx), err)
	}
}
