package relock

// The record that a hold has in Redis, or that several holds of this process share.
//
// Rules: a record is one field in Redis, from the attempt that was granted until the
// release. The field belongs to this record alone, and is released once: when the last hold has left. What
// ends the lease of the record ends every hold of it.

import "time"

type record struct {
	name   *name
	lock   description
	keeper holdKeeper    // of its only hold, which has nothing in Redis itself; or nil
	field  string        // in Redis
	since  time.Duration // on the clock of the watchdog: of the answer; trust is counted from before the request
	lease  lease

	// guarded by name.mu
	holds []*hold  // whose it is
	room  [1]*hold // of holds
	ended bool     // lost, whoever has it by now

	handedOn bool // to a hold that has a record of its own in the same field
}

// newRecord is that of h, which was granted by an answer that came at since.
func (h *hold) newRecord(since time.Duration) *record {
	r := &h.own
	r.name, r.lock, r.keeper, r.field, r.since, r.holds = h.name, h.lock, h.keeper, h.field, since, r.room[:0]
	r.lease.holder = r
	return r
}

// joinLocked gives h, which is fresh, one level in r.
func (r *record) joinLocked(h *hold, since time.Duration) {
	h.field = r.field
	h.state, h.levels, h.since, h.record = holding, 1, since, r
	h.name.heldByLocked(h.key)
	h.place = len(r.holds)
	r.holds = append(r.holds, h)
}

// leaveRecordLocked takes h out of its record, and says whether it was the last.
func (h *hold) leaveRecordLocked() bool {
	r := h.record
	last := len(r.holds) - 1
	r.holds[h.place] = r.holds[last]
	r.holds[h.place].place = h.place
	r.holds[last] = nil
	r.holds = r.holds[:last]
	return last == 0
}

// leaseEnded hears from the watchdog, or from a hold that was lost, that the lease has
// ended: with it all holds end. A hold that has just left makes no difference to the others.
func (r *record) leaseEnded(cause error) {
	for _, h := range r.end(cause) {
		r.name.engine.reporter.later(h.observeEnd(cause))
	}
}

// end ends all holds of the record, and returns those whose loss is to be reported.
func (r *record) end(cause error) (lost []*hold) {
	for {
		r.name.mu.Lock()
		r.ended = true // from now on nobody takes it over, or shares it
		last := len(r.holds) - 1
		if last < 0 {
			r.name.mu.Unlock()
			return lost
		}
		h := r.holds[last]
		r.name.mu.Unlock()
		if h.loseAlone(cause) {
			lost = append(lost, h)
		}
	}
}

// holdsNow are the holds of the record by now.
func (r *record) holdsNow() []*hold {
	r.name.mu.Lock()
	defer r.name.mu.Unlock()
	return append([]*hold(nil), r.holds...)
}

// isKeptLocked says whether others may rely on r: it is trusted for longer than a moment.
func (r *record) isKeptLocked() bool {
	e := r.name.engine
	return !r.ended && lasts(e.watchdog.left(&r.lease), trust(e.watchdogTimeout))
}

// recordEnd is when the lease of the record of h is over at the latest. A renewal may be on its way.
func (h *hold) recordEnd() time.Time {
	e, r := h.name.engine, h.record
	if r == nil {
		return time.Now()
	}
	if e.watchdog.renews(&r.lease) {
		return time.Now().Add(e.watchdogTimeout)
	}
	return e.watchdog.end(&r.lease).Add(drift(e.watchdog.left(&r.lease)))
}
