//go:build go1.25

package sim

// Moves: workers that detach holds, processes that attach them, and what the witness knows of holds on the way.
//
// Rules: a detached hold is a hold of no process. It counts as held from the return of its Detach until its lease must
// have ended, or until it was attached; then the attached hold counts. It survives the process that has detached it.
// Its lease is no longer than those that are renewed, so that what the witness excuses for the length of a lease is
// the same for it. A ticket is used late, twice, by several processes at once, with little time, or never. The field
// of a detached hold is secret, but it begins with the ID of its Client, and has the owner 0.

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/relock-go/relock"
	tickets "github.com/relock-go/relock/internal/ticket"
)

const (
	detachedOwner = ":0:" // follows the ID of the Client in the field of a detached hold
	mostMoves     = 2     // of one hold
)

// A ticket is what the witness knows of a detached hold.
type ticket struct {
	until time.Time // when its lease may end
	end   context.CancelFunc
	tries int // Attaches so far
	under int // those under way
	used  bool

	gaveUp map[*process]time.Time // when an Attach of a process last gave up
}

// mayBePutBack reports whether a process may still be putting the hold back, or has done that during the Attach c. Only
// a later Attach of the same process waits for that.
func (t *ticket) mayBePutBack(c *call) bool {
	for other, at := range t.gaveUp {
		if other != c.p && time.Since(at) < slack || at.After(c.began) {
			return true
		}
	}
	return false
}

// isAsked reports whether a process has asked for the hold. Then it may have another field. t may be nil.
func (t *ticket) isAsked() bool { return t != nil && t.tries > 0 }

// letGo releases a hold, or detaches it for another process.
func (w *worker) letGo(held *relock.Hold, h *hold) {
	release := func() error { return held.Release(context.Background()) }
	if !w.Moves || h.moves == mostMoves || h.ctx.Err() != nil || w.isOver() || w.rng.IntN(3) == 0 {
		w.release(h, release)
		return
	}
	text, d := w.detach(held, h)
	switch {
	case d != nil:
		w.pass(d, text)
	case h.ctx.Err() == nil: // it goes on
		w.release(h, release)
	case release() == nil:
		w.world.witness.Report("Release after a Detach in vain returns an error", "%v: %v", h.names, h)
	}
}

// within returns a context of at most limit, and whether that leaves time for an answer. Sometimes it does not.
func (w *worker) within(limit time.Duration) (ctx context.Context, end context.CancelFunc, patient bool) {
	if patient = w.rng.IntN(5) > 0; !patient {
		limit = 1 + w.upTo(time.Millisecond+4*(w.world.plan.Latency+w.world.plan.Jitter))
	}
	ctx, end = context.WithTimeout(context.Background(), limit)
	return ctx, end, patient
}

// detach detaches a hold. It returns nil if there is no ticket.
func (w *worker) detach(held *relock.Hold, h *hold) (text string, d *hold) {
	plan := w.world.plan
	keep := min(50*time.Millisecond+10*(plan.Latency+plan.Jitter)+w.upTo(plan.Watchdog), plan.Watchdog)
	asked := keep
	if w.rng.IntN(8) == 0 {
		keep, asked = plan.Watchdog, 0 // the default
	}
	ctx, end, patient := w.within(callBound)
	defer end()
	alive := w.world.witness.departs(h) && patient
	call := w.world.witness.begin(h.p, &w.Worker, "Detach", callBound)
	text, err := held.Detach(ctx, asked)
	call.end(err)
	return text, w.world.witness.departed(h, alive, call.began, keep, err)
}

// pass has other processes attach a detached hold.
func (w *worker) pass(d *hold, text string) {
	keep := max(0, time.Until(d.ticket.until))
	switch w.rng.IntN(10) {
	case 0: // the ticket is lost
		return
	case 1: // it may be late
		w.rest(w.upTo(2 * keep))
	case 2, 3, 4:
		w.rest(w.upTo(keep / 2))
	default:
		w.rest(w.upTo(min(keep, 50*time.Millisecond)))
	}
	var both sync.WaitGroup
	twice := w.rng.IntN(3)
	if twice == 0 {
		rival := *w
		rival.rng = newRand(w.rng.Uint64(), w.ID)
		both.Go(func() { rival.attach(d, text) })
	}
	w.attach(d, text)
	both.Wait()
	if twice == 1 {
		w.attach(d, text)
	}
}

// attach attaches a detached hold in some process, and goes on with it there.
func (w *worker) attach(d *hold, text string) {
	there := *w
	there.Process = w.rng.IntN(w.world.plan.Processes)
	w = &there
	w.world.gate(w.Process)
	p := w.world.process(w.Process)
	if p.gone.Load() {
		return
	}
	ctx, end, patient := w.within(callBound)
	defer end()
	call := w.world.witness.begin(p, &w.Worker, "Attach", 2*callBound)
	nth := w.world.witness.attaches(d)
	held, err := p.clients[0].Attach(ctx, text)
	call.end(err)
	if err != nil {
		w.world.witness.unattached(d, call, nth, patient, err)
		return
	}
	a := &hold{p: p, worker: &w.Worker, ids: []string{p.clients[0].ID()}, names: d.names, read: d.read, asked: d.asked,
		moves: d.moves + 1, first: d.since}
	a.token, err = held.Token()
	w.world.witness.attached(d, a, errors.Is(err, relock.ErrLockLost))
	w.hold(held.Context(), nil, a, held.Context())
	if w.rng.IntN(8) == 0 {
		w.forge(text, a)
	}
	w.letGo(held, a)
}

// forge tries to attach a hold that another process has, with a ticket of another hold.
func (w *worker) forge(text string, h *hold) {
	if w.Kind != Plain && w.Kind != FencedOne && w.Kind != Fair {
		return
	}
	t, err := tickets.Decode(text)
	if err != nil {
		w.world.witness.Report("a ticket is what the documentation says", "%q: %v", text, err)
		return
	}
	w.world.redis[0].Look(func(m *miniredis.Miniredis) {
		fields, _ := m.HKeys(h.names[0])
		if i := slices.IndexFunc(fields, func(f string) bool { return h.owns(0, f) }); i >= 0 {
			t.ID = fields[i]
		}
	})
	if strings.Contains(t.ID, detachedOwner) {
		return // the hold is over
	}
	forged, err := t.Encode()
	if err != nil {
		return
	}
	p := w.world.process(w.rng.IntN(w.world.plan.Processes))
	ctx, end := context.WithTimeout(context.Background(), callBound)
	defer end()
	if _, err := p.clients[0].Attach(ctx, forged); !errors.Is(err, relock.ErrInvalid) {
		w.world.witness.Report("only a ticket attaches a hold", "%v: %v, with the ID %s: %v", h.names, h, t.ID, err)
	}
}

// departs records that the Detach of a hold begins, and reports whether it must succeed.
func (w *witness) departs(h *hold) (alive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = slices.DeleteFunc(w.holds, func(o *hold) bool { return o == h })
	return w.isValid(h)
}

// departed records that a Detach has returned. It returns the detached hold, or nil if there is none.
func (w *witness) departed(h *hold, alive bool, began time.Time, keep time.Duration, err error) *hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		limited := h.lease > 0 || h.worker.MaxHold > 0 // it may have ended during the call
		if alive && !w.excused(h) && !h.p.gone.Load() && w.world.calm(h.asked) &&
			!(limited && errors.Is(err, relock.ErrLockLost)) {
			w.report("Detach of a valid hold returns nil", "%v: %v: %v", h.names, h, err)
		}
		if h.ctx.Err() == nil && !h.p.gone.Load() { // it goes on
			w.holds = append(w.holds, h)
			return nil
		}
		w.vanishes(h)
		return nil
	}
	if h.ctx.Err() == nil {
		w.report("Done is closed after Detach", "%v: %v", h.names, h)
	}
	until := began.Add(keep)
	if h.worker.MaxHold > 0 {
		if end := h.asked.Add(max(h.worker.MaxHold, h.worker.MinHold)); end.Before(until) {
			until = end
		}
	}
	until = until.Add(-2 * time.Millisecond) // Redis rounds
	d := &hold{p: h.p, worker: h.worker, ids: h.ids, names: h.names, read: h.read, lease: keep, asked: h.asked,
		since: h.begun(), token: h.token, moves: h.moves, ticket: &ticket{until: until}}
	d.ctx, d.ticket.end = context.WithDeadline(context.Background(), until)
	context.AfterFunc(d.ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.Index(w.holds, d); i >= 0 {
			w.holds = slices.Delete(w.holds, i, i+1)
			w.vanishes(d)
		}
	})
	w.holds = append(w.holds, d)
	w.world.note(h.p, "worker %d has detached %v, until %v", h.worker.ID, h.names, until.Sub(w.world.start))
	for _, name := range d.names {
		w.alone(d, name)
	}
	return d
}

// vanishes records that a hold is not released, but expires, or is released in the background. mu is held.
func (w *witness) vanishes(h *hold) {
	w.touch(h.p, h.worker)
	for _, name := range h.names {
		w.undone[name] = time.Now()
		delete(w.free, name)
	}
}

// isBeingAttached reports whether h is a detached hold that a process has asked for.
func (w *witness) isBeingAttached(h *hold) bool {
	if h.ticket == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return h.ticket.isAsked()
}

// attaches records that an Attach begins, and returns which one it is, or 0 if another one is under way.
func (w *witness) attaches(d *hold) (nth int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.ticket.tries++
	d.ticket.under++
	if d.ticket.under > 1 {
		return 0
	}
	return d.ticket.tries
}

// attached records that an Attach has returned the hold a. If that hold is over already, because MaxHold has left it
// less than a millisecond, it tells no token.
func (w *witness) attached(d, a *hold, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.ticket.under--
	if d.ticket.used && !w.lostSinceAsked(d) {
		w.report("a ticket works once", "%v: %v was attached before %v", d.names, d, a)
	}
	if d.token != a.token && !over {
		w.report("a token moves with its hold", "%v: %v was detached, and %v attached", d.names, d, a)
	}
	d.ticket.used = true
	w.moved++
	w.holds = slices.DeleteFunc(w.holds, func(o *hold) bool { return o == d })
	d.ticket.end()
}

// unattached checks the error of an Attach, which was the nth of its ticket.
func (w *witness) unattached(d *hold, c *call, nth int, patient bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := d.ticket
	t.under--
	if !errors.Is(err, relock.ErrNotHeld) {
		if t.gaveUp == nil {
			t.gaveUp = make(map[*process]time.Time)
		}
		t.gaveUp[c.p] = time.Now()
	}
	calm := w.world.calm(d.asked.Add(-w.leaseOf(d)-slack)) && !w.world.untidy()
	switch {
	case c.p.gone.Load() || t.used || !time.Now().Before(t.until) || w.lostSinceAsked(d):
	case errors.Is(err, relock.ErrNotHeld):
		// An Attach that gives up may need longer to put the hold back if there are faults.
		if nth == t.tries && (nth == 1 || calm) && t.under == 0 && !t.mayBePutBack(c) {
			w.report("a ticket attaches its hold", "%v: %v: %v", d.names, d, err)
		}
	case patient && calm:
		w.report("no error without a reason", "%v: Attach of %v: %v", d.names, d, err)
	}
}

// lostSinceAsked reports whether Redis may have lost a detached hold since it was acquired. mu is held.
func (w *witness) lostSinceAsked(d *hold) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool { return l.hits(d) && !l.end().Before(d.asked) })
}
