package relock

// A gate lets one through at a time, in the order in which they came. There is one
// for every name that this process contends for or holds, and one for every hold,
// for callers of the same owner.
//
// Rules: the mutex of the engine guards every gate, so its methods never block;
// waiting happens in passLocked, which lets go of the mutex meanwhile. leave hands
// the gate to the next in line itself: nobody can slip in between.

import (
	"container/list"
	"errors"
	"time"
)

// The zero gate is open.
type gate struct {
	taken  bool
	known  bool       // it is among the gates of the engine
	queue  *list.List // of *ticket; nil: nobody ever waited
	streak streak     // of a name's gate
	open   *tenure    // those who come may share it; or nil

	obstacle *obstacle // what the last attempt of those who passed found; nil: it was granted, or there was none
}

// A passage is how goroutines of one process get past the gate of a name.
type passage int

const (
	oneByOne      passage = iota // one contends or holds, the others wait in line
	eachForItself                // there is no gate
	together                     // one contends, and lets in those in line when it holds
)

// A ticket is a place in the queue of a gate; its channel is closed when its turn has come.
type ticket struct {
	turn  chan struct{}
	place *list.Element // in the line; nil: not any more
	heir  *hold         // the lock may be left to it together with the turn; or nil
	// Written before turn is closed:
	err  error // why it will not be its turn
	left bool  // the lock was left to heir

	number uint64 // orders tickets; kept by a caller who was turned away and comes back
}

// tryEnter enters an open gate.
func (g *gate) tryEnter() bool {
	if g.taken {
		return false
	}
	g.taken = true
	return true
}

// enqueue takes a place behind all who wait and have a lower number.
func (g *gate) enqueue(heir *hold, number uint64) *ticket {
	if g.queue == nil {
		g.queue = list.New()
	}
	t := &ticket{turn: make(chan struct{}), heir: heir, number: number}
	before := g.queue.Back()
	for before != nil && before.Value.(*ticket).number > number {
		before = before.Prev()
	}
	if before == nil {
		t.place = g.queue.PushFront(t)
	} else {
		t.place = g.queue.InsertAfter(t, before)
	}
	return t
}

// numberLocked is the number of the next ticket of p: that of the ticket with which p was turned
// away, or a new one.
func (e *engine) numberLocked(p *patience) uint64 {
	if n := p.number; n != 0 {
		p.number = 0
		return n
	}
	e.tickets++
	return e.tickets
}

// first is who has waited longest, or nil.
func (g *gate) first() *ticket {
	if g.queue == nil || g.queue.Len() == 0 {
		return nil
	}
	return g.queue.Front().Value.(*ticket)
}

// line is all who wait, in order.
func (g *gate) line() (all []*ticket) {
	if g.queue == nil {
		return nil
	}
	for p := g.queue.Front(); p != nil; p = p.Next() {
		all = append(all, p.Value.(*ticket))
	}
	return all
}

// call takes t out of the line: its turn has come, or never will.
func (g *gate) call(t *ticket) {
	g.queue.Remove(t.place)
	t.place = nil
	close(t.turn)
}

// cancel gives up a place. If its turn had come already, the next one's comes.
func (g *gate) cancel(t *ticket) {
	switch {
	case t.place != nil:
		g.queue.Remove(t.place)
	case t.err == nil:
		g.leave()
	}
}

// errAskYourself turns away callers who wait at a gate: Redis has not answered the caller in front, which
// says nothing about their own requests. Each of them makes its next attempt past the gate, so that
// they do not wait for a dead Redis one after the other. After an attempt that Redis answers with
// busy, a caller takes its old place in the line again.
var errAskYourself = errors.New("no answer from Redis to the caller in front")

// turnAway tells all who wait to ask for themselves, but for the first: its turn comes when the gate is left.
func (g *gate) turnAway() {
	for i, t := range g.line() {
		if i > 0 {
			t.err = errAskYourself
			g.call(t)
		}
	}
}

// leave hands the gate to the next in line, or opens it.
func (g *gate) leave() {
	if next := g.first(); next != nil {
		g.call(next)
	} else {
		g.taken = false
	}
}

// passLocked waits for the turn of the caller at g. It lets go of the mutex
// meanwhile.
func (e *engine) passLocked(p *patience, g *gate) error {
	if g.tryEnter() {
		return nil
	}
	if p.once {
		return errTimeUp
	}
	t := g.enqueue(nil, e.numberLocked(p))
	if err := e.awaitTurnLocked(p, t); err != nil {
		p.sees(g.obstacle)
		g.cancel(t)
		return err
	}
	if t.err == errAskYourself {
		p.number = t.number
	}
	return t.err
}

// awaitTurnLocked waits for the turn of t, or returns why it has ended sooner. It lets go of the mutex meanwhile.
func (e *engine) awaitTurnLocked(p *patience, t *ticket) error {
	e.mu.Unlock()
	p.seen.waits()
	err := p.wait(t.turn, nil, 0)
	e.mu.Lock()
	if err == nil && t.place != nil {
		return errLookAgain
	}
	return err
}

// reserveTime is how long a gate may be kept, for the first time, for somebody who waits for other gates.
const reserveTime = 100 * time.Millisecond

// enterGates waits until the wants are those of this process that may contend for
// their locks. As a rule nobody waits at one gate with another one taken: whose
// lock is free must not wait for somebody who waits for a third one. But where
// all gates have queues nobody would ever pass them together: after a few tries
// gates are kept, in their order and for a moment, which is twice as long each time.
// For as long as way they are to let others go first.
func (e *engine) enterGates(p *patience, wants []want) (way time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.enterGatesLocked(p, wants); err != nil {
		return way, err
	}
	return e.wayLocked(wants), nil
}

// wayLocked is for how long others are to go first.
func (e *engine) wayLocked(wants []want) (way time.Duration) {
	for _, w := range wants {
		if g := w.hold.gate; g != nil && g.streak.way > 0 {
			way = max(way, g.streak.way-e.dog.now())
		}
	}
	return way
}

func (e *engine) enterGatesLocked(p *patience, wants []want) error {
	misses, reserve := 0, reserveTime
	for i := 0; i < len(wants); i++ {
		h := wants[i].hold
		if h.gate != nil || !e.needsGateLocked(h) {
			continue
		}
		if g := e.gateLocked(h.key.id); g.tryEnter() {
			h.gate = g
			continue
		}
		if misses++; misses%3 == 0 {
			if err := e.enterInOrderLocked(p, wants, reserve); err != errTimeUp {
				return err
			}
			if why := e.overUnlocked(p); why != nil { // it was the reserve that was up: of p that is only so if it says so
				return why
			}
			reserve *= 2
			i = -1
			continue
		}
		e.leaveAllLocked(wants)
		if err := e.passOneLocked(p, h); err != nil {
			return err
		}
		i = -1 // with this one, once more from the start
	}
	return nil
}

// overUnlocked says why p is over, or nil. It lets go of the mutex meanwhile: a ctx of the user is asked.
func (e *engine) overUnlocked(p *patience) error {
	e.mu.Unlock()
	defer e.mu.Lock()
	return p.over()
}

// enterInOrderLocked enters all gates and keeps those that it has, for no longer than reserve.
func (e *engine) enterInOrderLocked(p *patience, wants []want, reserve time.Duration) error {
	e.leaveAllLocked(wants)
	soon, keeps := *p, false
	for _, w := range wants {
		if !e.needsGateLocked(w.hold) {
			continue
		}
		if err := e.passOneLocked(&soon, w.hold); err != nil {
			e.leaveAllLocked(wants)
			return err
		}
		if end := time.Now().Add(reserve); !keeps && (p.deadline.IsZero() || end.Before(p.deadline)) {
			soon.deadline = end
		}
		keeps = true
	}
	return nil
}

// passOneLocked waits at the gate of h.
func (e *engine) passOneLocked(p *patience, h *hold) error {
	g := e.gateLocked(h.key.id)
	if err := e.passLocked(p, g); err != nil {
		e.dropGateLocked(h.key.id, g)
		return err
	}
	h.gate = g
	return nil
}

func (e *engine) gateLocked(id lockID) *gate {
	g := e.gates[id]
	if g == nil {
		g = &gate{known: true}
		e.gates[id] = g
	}
	return g
}

func (e *engine) leaveAllLocked(wants []want) {
	for _, w := range wants {
		e.leaveGateLocked(w.hold)
	}
}

// leaveGates leaves all gates but one: those of locks that are not waited for. That
// one somebody else has.
func (e *engine) leaveGates(wants []want, but int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, w := range wants {
		if i != but {
			e.leaveGateLocked(w.hold)
		} else if w.hold.gate != nil {
			w.hold.gate.streak.interrupt()
		}
	}
}

// needsGateLocked says whether h has to be alone in this process to contend for its lock.
func (e *engine) needsGateLocked(h *hold) bool {
	if h.state != fresh || h.backend.passage() != oneByOne {
		return false
	}
	// Whoever is through may wait for this owner's other half: it must not wait for that one.
	kin := e.kinOfLocked(h)
	return kin == nil || kin.state != holding
}

// leaveGateLocked lets the next one contend for the lock of h.
func (e *engine) leaveGateLocked(h *hold) {
	if g := h.gate; g != nil {
		h.gate = nil
		g.leave()
		e.dropGateLocked(h.key.id, g)
	}
}

func (e *engine) dropGateLocked(id lockID, g *gate) {
	if !g.taken && g.open == nil && g.known {
		g.known = false
		delete(e.gates, id)
	}
}
