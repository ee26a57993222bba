//go:build go1.25

package sim

// How long holds last: the part of the witness that checks the times that the documentation promises.
//
// Rules: whatever ends a hold, it ends before its record does, unless Redis has lost the record. Its end is visible
// to goroutines that wait for Done, and not only to calls of Err. A limit of a lock applies to each of its holds.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/relock-go/relock"
)

// A kept lock is one that stays in Redis because of MinHold.
type kept struct {
	by    *hold
	until time.Time
}

// delay returns how long an answer, and the goroutine that waits for it, may take if there is no fault.
func (w *world) delay() time.Duration {
	return 300*time.Millisecond + 20*(w.plan.Latency+w.plan.Jitter)
}

// begins checks a hold that begins. mu is held.
func (w *witness) begins(h *hold) {
	for _, name := range h.names {
		if k, ok := w.kept[name]; ok && time.Now().Before(k.until) && !w.excused(k.by) && !w.excused(h) {
			w.report("MinHold keeps others out", "%s: %v released it, and keeps it for %v more; %v acquired it now", name, k.by,
				time.Until(k.until), h)
		}
	}
	if h.lease > 0 {
		h.until = time.Now().Add(h.lease)
		w.endsInTime(h)
	}
	if limit := max(h.worker.MaxHold, h.worker.MinHold); h.worker.MaxHold > 0 {
		time.AfterFunc(limit+slack-time.Since(h.begun()), func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if slices.Contains(w.holds, h) && h.ctx.Err() == nil {
				w.report("MaxHold ends a hold", "%v: %v is held after %v", h.names, h, limit)
			}
		})
	}
}

// endsInTime reports h if it lasts longer than its explicit lease. mu is held.
func (w *witness) endsInTime(h *hold) {
	time.AfterFunc(time.Until(h.until.Add(slack)), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case !slices.Contains(w.holds, h) || h.ctx.Err() != nil || h.again:
		case time.Now().Before(h.until.Add(slack)): // it was extended
			w.endsInTime(h)
		default:
			w.report("an explicit lease expires", "%v: %v", h.names, h)
		}
	})
}

// keeps records that a hold with MinHold is about to be released. mu is held.
func (w *witness) keeps(h *hold) {
	if h.worker.MinHold == 0 || h.ctx.Err() != nil || !w.world.calm(h.asked.Add(-w.leaseOf(h)-slack)) {
		return
	}
	for _, name := range h.names {
		w.kept[name] = kept{h, h.begun().Add(h.worker.MinHold - w.world.delay())}
	}
}

// hasTime reports a hold with a lease of which too little is left when its call returns. At least a quarter must be
// left: see LockLease.
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
		w.Report("a new hold has enough validity left", "%v: %v has %v left", h.names, h, left)
	}
}

// ends checks a hold whose context has just been canceled. A hold that is being released was canceled by the release.
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
		w.report("a hold ends before its record", "%v: %v no longer has a record, and ends only now: %v", h.names, h, cause)
	}
	if short := time.Since(h.since) < h.lease/4-w.world.delay(); short && h.worker.MaxHold == 0 &&
		w.world.calm(h.since.Add(-w.leaseOf(h)-slack)) {
		w.report("a hold lasts for its lease", "%v: %v: %v", h.names, h, cause)
	}
}

// tellsAll reports holds that have ended, and whose Done channel was not closed for a while.
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

// unlocked checks the result of releasing a hold that had ended before.
func (w *witness) unlocked(h *hold, err error) {
	if h.again && h.lease > 0 { // the lease may have expired before the re-entry, which was a new hold then
		return
	}
	if err == nil && !h.p.gone.Load() {
		w.Report("Unlock of a lost hold returns an error", "%v: %v: %v", h.names, h, context.Cause(h.ctx))
	}
	if errors.Is(context.Cause(h.ctx), relock.ErrLockLost) && err != nil && errors.Is(err, relock.ErrNotHeld) &&
		!errors.Is(err, relock.ErrLockLost) && !h.p.gone.Load() {
		w.Report(
			"Unlock of a lost hold returns ErrLockLost",
			"%v: %v: %v, and then %v",
			h.names,
			h,
			context.Cause(h.ctx),
			err,
		)
	}
}

// extended checks the result of Extend on h.
func (w *witness) extended(h *hold, by time.Duration, began time.Time, err error) {
	w.mu.Lock()
	h.until = later(h.until, time.Now().Add(by))
	w.mu.Unlock()
	switch h.worker.Kind {
	case Plain, FencedOne, Fair:
	default:
		return
	}
	var left time.Duration
	w.world.redis[0].Look(func(m *miniredis.Miniredis) { left = m.TTL(h.names[0]) })
	if err == nil && w.lives(h) && left < by-time.Since(began)-2*time.Millisecond {
		w.Report("Extend extends the lease", "%v: %v has %v left, not %v", h.names, h, left, by)
	}
}

// freedAll reports holders whose records still exist after ForceUnlock of locks of a kind. A process with a call for
// the lock may have acquired it again. mu is held.
func (w *witness) freedAll(kind Kind, names []string, of func(*hold) bool, began time.Time) {
	switch kind {
	case Plain, FencedOne, Fair, Leader:
	default:
		return // others share a record, or have several
	}
	for _, h := range w.holds {
		name := h.names[0]
		if h.worker.Kind != kind || h.ticket != nil || !of(h) || !slices.Contains(names, name) || !h.since.Before(began) ||
			!w.touched[h.p.name+" "+name].Before(began) || w.asks(h.p, name) {
			continue
		}
		if w.recorded(h) {
			w.report("ForceUnlock releases the lock", "%v: %v still has its record", h.names, h)
		}
	}
}

// asks reports whether p has a call for the lock of this name under way. mu is held.
func (w *witness) asks(p *process, name string) bool {
	for c := range w.calls {
		if c.p == p && c.worker != nil && slices.Contains(c.worker.Names, name) {
			return true
		}
	}
	return false
}
