package relock

// A group: how one caller takes several locks of one Redis together.
//
// Rules: an attempt is made with the owner's turn at all holds and through the gates of all locks that the
// owner does not hold. A caller that waits, for a turn, at a gate or for a release, keeps no turn and no
// level: other callers of its owner can unlock, lock and re-enter meanwhile. After every wait the
// caller looks again at what its owner holds by then. An acquisition has one field for
// each lock, under which it asks for as long as its owner does not hold that lock.

import (
	"errors"
	"slices"
)

// errLookAgain ends a wait at a gate: the owner who waits has come to hold one of the locks by another caller.
var errLookAgain = errors.New("the owner has come to hold one of the locks")

type group struct {
	engine   *engine
	owner    owner
	request  request
	backends []backend
	changed  chan struct{} // a token: the owner has come to hold one of the locks

	// One for each backend:
	fresh []*hold // what the acquisition asks for where nothing is held yet: its field, and its gate
	asked []want  // the last attempt on it; no hold: there was none
	again []want  // the last attempt on a re-entry; no hold: there was none

	turns []want // at whose holds it is the caller's turn
}

// newGroup begins an acquisition. The caller ends it.
func (e *engine) newGroup(bs []backend, o owner, r request) *group {
	g := &group{
		engine: e, owner: o, request: r, backends: bs,
		changed: make(chan struct{}, 1),
		fresh:   make([]*hold, len(bs)), asked: make([]want, len(bs)), again: make([]want, len(bs)),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, b := range bs {
		key := holdKey{b.id(), o}
		g.fresh[i] = &hold{engine: e, backend: b, key: key, field: e.fieldLocked(o)}
		if e.groups == nil {
			e.groups = make(map[holdKey][]*group)
		}
		e.groups[key] = append(e.groups[key], g)
	}
	return g
}

// end ends the caller's turns, and gives up what it was not granted.
func (g *group) end() {
	e := g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range g.turns {
		e.endTurnLocked(w.hold)
	}
	for _, h := range g.fresh {
		if h.state == fresh {
			e.leaveGateLocked(h)
			h.state = over // what is still on its way for it is undone
		}
		left := slices.DeleteFunc(e.groups[h.key], func(other *group) bool { return other == g })
		if e.groups[h.key] = left; len(left) == 0 {
			delete(e.groups, h.key)
		}
	}
}

// heldByLocked tells the groups of an owner that it has come to hold one of their locks.
func (e *engine) heldByLocked(key holdKey) {
	if len(e.groups) == 0 {
		return
	}
	for _, g := range e.groups[key] {
		select {
		case g.changed <- struct{}{}:
		default:
		}
	}
}

// waiting is p for a wait that ends, too, when the owner comes to hold one of the locks.
func (g *group) waiting(p *patience) *patience {
	patient := *p
	patient.changed = g.changed
	return &patient
}

// gather waits for the caller's turn at all holds and for the gates of all locks that are not held, and
// returns what is to be asked for. On an error it keeps nothing.
func (g *group) gather(p *patience) ([]want, error) {
	e := g.engine
	past := false  // the gates
	ahead := false // others were let go first
	e.mu.Lock()
	defer e.mu.Unlock()
	var kept *hold // at which it is the caller's turn already
	for {
		select {
		case <-g.changed: // and is seen now
		default:
		}
		other := g.takeTurnsLocked(kept)
		kept = nil
		if other != nil {
			g.leaveGatesLocked()
			patient := *p
			if other.state == holding {
				patient.once = false // another caller of the owner is at it, who will soon be done
			}
			if err := e.passLocked(&patient, &other.turn); err != nil {
				return nil, err
			}
			kept = other
			continue
		}
		if late := g.lapsedLocked(); late != nil {
			g.endTurnsLocked()
			e.mu.Unlock()
			late.lapseIfDue()
			e.mu.Lock()
			continue
		}
		if !past && !g.tryGatesLocked() {
			patient := g.waiting(p)
			err := e.enterGatesLocked(patient, g.awaitedLocked())
			p.sees(patient.obstacle)
			past = err == errAskYourself
			if err != nil && err != errLookAgain && !past {
				return nil, err
			}
			continue
		}
		if way := e.wayLocked(g.turns); way > 0 && !ahead && p.hasTime(way) {
			ahead = true
			g.endTurnsLocked()
			e.mu.Unlock()
			p.seen.waits()
			err := p.wait(nil, nil, way)
			e.mu.Lock()
			if err != nil {
				g.leaveGatesLocked()
				return nil, err
			}
			continue
		}
		var loss error
		for i := range g.turns {
			if err := e.prepareLocked(p, &g.turns[i], g.request); loss == nil {
				loss = err
			}
		}
		if loss != nil {
			g.endTurnsLocked()
			g.leaveGatesLocked()
			return nil, loss
		}
		return slices.Clone(g.turns), nil
	}
}

// takeTurnsLocked takes the owner's turn at all holds, and makes fresh ones where nothing is held; or it
// takes none and returns a hold that another caller is at. The caller has the turn at kept already.
func (g *group) takeTurnsLocked(kept *hold) (other *hold) {
	e := g.engine
	for i, b := range g.backends {
		key := holdKey{b.id(), g.owner}
		h := e.holds[key]
		if h != nil && h != kept && !h.turn.tryEnter() {
			other = h
			break
		}
		if h == kept {
			kept = nil // it is among the others now
		}
		if h != nil && (h.forgottenLocked() || h.state == over) {
			e.forgetLocked(h)
			h.turn.leave()
			h = nil
		}
		if h == nil {
			h = e.newHoldLocked(b, key)
			h.field, h.gate, g.fresh[i].gate = g.fresh[i].field, g.fresh[i].gate, nil
			g.fresh[i] = h
		} else {
			e.leaveGateLocked(g.fresh[i])
		}
		g.turns = append(g.turns, want{hold: h})
	}
	if kept != nil {
		e.endTurnLocked(kept) // it is over by now, or is not asked for this time
	}
	if other != nil {
		g.endTurnsLocked()
	}
	return other
}

// endTurnsLocked ends the caller's turns. The gates of what it asks for are left to g.fresh.
func (g *group) endTurnsLocked() {
	for _, w := range g.turns {
		if w.hold.state == fresh {
			g.engine.forgetLocked(w.hold)
			w.hold.turn.leave()
		} else {
			g.engine.endTurnLocked(w.hold)
		}
	}
	g.turns = nil
}

// lapsedLocked is a hold whose time is up, before the watchdog has noticed; or nil.
func (g *group) lapsedLocked() *hold {
	for _, w := range g.turns {
		if h := w.hold; h.state == holding && !g.engine.dog.trusted(&h.tenure.lease) {
			return h
		}
	}
	return nil
}

// tryGatesLocked enters all gates that the attempt has to pass; or ends the caller's turns.
func (g *group) tryGatesLocked() bool {
	e := g.engine
	for _, w := range g.turns {
		h := w.hold
		if h.gate != nil || !e.needsGateLocked(h) {
			continue
		}
		gate := e.gateLocked(h.key.id)
		if !gate.tryEnter() {
			g.endTurnsLocked()
			return false
		}
		h.gate = gate
	}
	return true
}

// awaitedLocked is what the caller asks for that its owner does not hold.
func (g *group) awaitedLocked() (wants []want) {
	for _, h := range g.fresh {
		if held := g.engine.holds[h.key]; held == nil || held.state == fresh {
			wants = append(wants, want{hold: h})
		}
	}
	return wants
}

func (g *group) leaveGatesLocked() {
	for _, h := range g.fresh {
		if h.state == fresh {
			g.engine.leaveGateLocked(h)
		}
	}
}

// letGo ends the caller's turns before it waits for the release of wants[at]. It keeps the gate of
// that one, which another process has; or all of them, if it asks again in a moment.
func (g *group) letGo(at int, all bool) {
	e := g.engine
	e.mu.Lock()
	for _, w := range g.turns {
		if h := w.hold; h.state == holding && !w.renewed {
			h.stretched = true // the attempt has set its lease, and what undoes an attempt does not shorten that
		}
	}
	g.endTurnsLocked()
	e.mu.Unlock()
	if !all {
		fresh := make([]want, len(g.fresh))
		for i, h := range g.fresh {
			fresh[i].hold = h
		}
		e.leaveGates(fresh, at)
	}
}

// asks notes an attempt on wants.
func (g *group) asks(wants []want) {
	for i, w := range wants {
		if w.hold == g.fresh[i] {
			g.asked[i] = w
		} else {
			g.again[i] = w
		}
	}
}

// now is what wants are for by now: a hold that is made for each attempt has the field of the acquisition.
func (g *group) now(wants []want) []want {
	if g == nil {
		return wants
	}
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	wants = slices.Clone(wants)
	for i, h := range g.fresh {
		if wants[i].field == h.field {
			wants[i].hold = h
		}
	}
	return wants
}

// unwanted is what attempts may have left in Redis that the caller does not have: granted is what was
// granted, or nil.
func (g *group) unwanted(granted []want, ghosts int) (wants []want) {
	for i, w := range g.asked {
		if w.hold != nil && (granted == nil || granted[i].field != w.field) {
			wants = append(wants, w)
		}
	}
	for _, w := range g.again {
		if w.hold != nil && granted == nil && ghosts > 0 {
			wants = append(wants, w)
		}
	}
	return wants
}
