package relock

// Sharing: how readers of this process have one record in Redis together.
//
// Rules: one contender of a name goes to Redis; when it is granted, those behind it
// at the gate come in with it, however long that took, and for as long as a slice
// whoever comes while one of them is still there. Each is a hold of its own; the
// record is that of their tenure, and the last of them releases it. Nobody comes in
// unless the tenure is trusted and kept by the watchdog, nor who has to do with the
// other half of the lock. What ends the tenure ends every hold of it. After the slice
// the next contender asks Redis, so that waiting writers go first.

import "time"

// shareLocked is the part of standInLine for locks that are held together.
func (e *engine) shareLocked(p *patience, b backend, key holdKey) (legacy, error) {
	if e.slice == 0 || e.isClosed {
		return legacy{}, nil
	}
	g := e.gateLocked(key.id)
	if e.isOpenLocked(g.open) {
		h := e.newHoldLocked(b, key)
		e.joinLocked(g.open, h)
		return legacy{hold: h, all: true}, nil
	}
	g.open = nil
	switch {
	case p.once: // it need not wait for the answer to somebody else
		e.dropGateLocked(key.id, g)
		return legacy{}, nil
	case g.tryEnter():
		return e.goesFirstLocked(e.newHoldLocked(b, key), g), nil
	}
	return e.lineUpLocked(p, g, e.newHoldLocked(b, key))
}

// isOpenLocked says whether whoever comes may come into t.
func (e *engine) isOpenLocked(t *tenure) bool {
	return t != nil && e.dog.now()-t.since < e.sliceTime() && e.isKeptLocked(t)
}

// isKeptLocked says whether others may rely on t, if it is that of somebody who asked for the
// watchdog's lease and has not given it back.
func (e *engine) isKeptLocked(t *tenure) bool {
	return !t.ended && lasts(e.dog.left(&t.lease), trust(e.watchdogTimeout))
}

// joinLocked makes t the tenure of h too, which is fresh.
func (e *engine) joinLocked(t *tenure, h *hold) {
	h.field = t.field
	h.hasLocked(t, e.dog.now())
	h.turn.leave()
}

// openLocked lets those come into the tenure of h who are at its gate, and who come later
// while it is young. Those at the gate have asked through h: the way to Redis alone may
// take longer than a slice, and then each of them would go it after the other.
func (e *engine) openLocked(h *hold) {
	g := h.gate
	if g == nil || h.backend.passage() != together {
		return
	}
	if e.isKeptLocked(h.tenure) && e.kinOfLocked(h) == nil { // of a writer it is a downgrade, beside which nobody reads
		if e.isOpenLocked(h.tenure) {
			g.open = h.tenure
		}
		for _, t := range g.line() {
			if e.kinOfLocked(t.heir) == nil {
				e.joinLocked(h.tenure, t.heir)
				t.heir.offered = true
				t.left = true
				g.call(t)
			}
		}
	}
	e.leaveGateLocked(h)
}

// closeLocked lets nobody into t any more.
func (e *engine) closeLocked(t *tenure) {
	if t.backend.passage() != together {
		return
	}
	id := t.backend.id()
	if g := e.gates[id]; g != nil && g.open == t {
		g.open = nil
		e.dropGateLocked(id, g)
	}
}

// hasLocked notes that h has one level in t.
func (h *hold) hasLocked(t *tenure, since time.Duration) {
	h.state, h.levels, h.since, h.tenure = holding, 1, since, t
	h.engine.heldByLocked(h.key)
	h.place = len(t.holds)
	t.holds = append(t.holds, h)
}

// partLocked takes h out of its tenure, and says whether it was the last.
func (h *hold) partLocked() bool {
	t := h.tenure
	last := len(t.holds) - 1
	t.holds[h.place] = t.holds[last]
	t.holds[h.place].place = h.place
	t.holds[last] = nil
	t.holds = t.holds[:last]
	return last == 0
}
