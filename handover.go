package relock

// Handover: how a lock passes from one goroutine of this process to the next
// without a round trip, and how the others get their turn all the same.
//
// Rules: a tenure is one record in Redis, from the attempt that was granted until
// the release. Its field is of that tenure alone, and is released once: when the
// tenure ends. While it is young, trusted and kept by the watchdog, a holder that
// unlocks leaves it to the first in line at the gate, which is held from that
// moment on; one that needs a fencing token takes the record over with an attempt
// of its own. A process whose streak on a name is as long as its slice releases
// really, and then lets the others attempt first.

import "time"

const (
	sliceTrips  = 16                     // a slice lasts that many round trips, where those are long,
	longSlice   = 100 * time.Millisecond // but for their sake no longer than this
	mostPassed  = 1 << 16                // handovers of one streak
	leastWay    = time.Millisecond       // what the others are ahead when we let them go first
	longestWay  = 20 * time.Millisecond
	mostYielded = 1024 // releases after which others are let go first again

	unheardFor = time.Second           // so often a process whose releases nobody hears lets others go first all the same,
	unheardWay = 15 * time.Millisecond // for so long and a round trip: longer than those sleep who may not subscribe
)

// A tenure is the record in Redis that a hold has, and its lease.
type tenure struct {
	engine  *engine
	backend backend
	field   string        // in the record, of this tenure alone
	since   time.Duration // on the clock of the watchdog: of the answer; trust is counted from before that
	lease   lease

	// guarded by engine.mu
	holds []*hold  // whose it is: one, or many that share it
	alone [1]*hold // room for one
	ended bool     // lost, whoever has it by now

	handedOn bool // to a hold that has a tenure of its own in the same field
}

// newTenure is that of h, which was granted by an answer that came at since.
func (h *hold) newTenure(since time.Duration) *tenure {
	t := &h.own
	t.engine, t.backend, t.field, t.since, t.holds = h.engine, h.backend, h.field, since, t.alone[:0]
	t.lease.holder = t
	return t
}

// leaseEnded hears from the watchdog, or from a hold that was lost, that the lease has
// ended: with it end all holds. One that has just left makes no difference to the others.
func (t *tenure) leaseEnded(cause error) {
	for _, h := range t.end(cause) {
		t.engine.reporter.later(h.sawEnd(cause))
	}
}

// end ends all holds of the tenure, and returns those whose loss is to be reported.
func (t *tenure) end(cause error) (lost []*hold) {
	for {
		t.engine.mu.Lock()
		t.ended = true // from now on nobody takes it over, or comes in
		last := len(t.holds) - 1
		if last < 0 {
			t.engine.mu.Unlock()
			return lost
		}
		h := t.holds[last]
		t.engine.mu.Unlock()
		if h.loseAlone(cause) {
			lost = append(lost, h)
		}
	}
}

// A streak is what this process has had of a lock without anybody else in between.
type streak struct {
	// On the clock of the watchdog:
	since time.Duration // 0: there is none
	way   time.Duration // others go first until then

	passed  int  // handovers
	yielded int  // releases still to come after which others go first too
	offered bool // they went first the last time, and
	missed  int  // so often none of them had it then

	unheard time.Duration // since when nobody has heard a release, or others went first because of that; 0: somebody has
}

// handOverLocked leaves the lock of h, one level of which is being given back, to the first in line, if
// there is one who can have it, and says whether it did.
func (e *engine) handOverLocked(h *hold) bool {
	next := e.heirLocked(h)
	if next == nil || len(h.guards) > 0 { // made while those of before were ended: a real release ends them
		return false
	}
	g, t := h.gate, h.tenure
	g.streak.passed++
	e.forgetLocked(h)
	h.state, h.levels, h.gate = over, 0, nil
	h.partLocked()
	next.gate = g
	if next.heir = needsToken(next.backend); next.heir {
		next.field, t.handedOn = t.field, true
		e.dog.remove(&t.lease)
	} else {
		e.joinLocked(t, next)
		next.offered = true
	}
	g.first().left = true
	g.leave()
	return true
}

// heirLocked is the hold that the lock of h may be left to, which is being given back; or nil.
func (e *engine) heirLocked(h *hold) *hold {
	g, t := h.gate, h.tenure
	if e.isClosed || g == nil || g.first() == nil || h.state != holding || h.levels > 1 || h.stretched || t.ended {
		return nil
	}
	next, left := g.first().heir, e.dog.left(&t.lease)
	switch {
	case next == nil, g.streak.passed >= mostPassed, e.dog.now()-g.streak.since >= e.sliceTime():
		return nil
	case h.wasKin, e.kinOfLocked(h) != nil, e.kinOfLocked(next) != nil:
		return nil // who asks for the other half by this field would have it beside the next one
	case !e.dog.renews(&t.lease), !lasts(left, trust(e.watchdogTimeout)), left > e.watchdogTimeout: // an explicit lease is nobody else's
		return nil
	}
	return next
}

// kinOfLocked is the hold that the owner of h has on the other half of its lock, or asks for.
func (e *engine) kinOfLocked(h *hold) *hold {
	if h.backend.kin() == (lockID{}) {
		return nil
	}
	return e.holds[holdKey{h.backend.kin(), h.key.owner}]
}

// sliceTime is how long a streak may last: where round trips are long, as long as it
// takes that the time in between, when nobody has the lock, does not count.
func (e *engine) sliceTime() time.Duration {
	if e.slice == 0 {
		return 0
	}
	return max(e.slice, min(sliceTrips*time.Duration(e.trip.Load()), longSlice))
}

// noteTrip learns how long a round trip takes; outliers count little.
func (e *engine) noteTrip(d time.Duration) {
	old := e.trip.Load()
	switch d := int64(d); {
	case old == 0:
		e.trip.Store(d)
	case d < old:
		e.trip.Store(old - (old-d)/4)
	default:
		e.trip.Store(old + min(d-old, old)/16)
	}
}

// wayTime is how far ahead of us we let others go.
func (e *engine) wayTime() time.Duration {
	return min(leastWay+time.Duration(e.trip.Load()), longestWay)
}

// endStreakLocked notes at the gate of h that its lock was really released, which so
// many others have heard. If the streak was long enough, they go first: now, and until
// each of them has had the lock once. They are given longer if none of them was quick enough.
// Where nobody has heard it, there may be others who cannot: they go first once in a while.
func (e *engine) endStreakLocked(h *hold, others int) {
	g := h.gate
	if g == nil || e.dog.now()-g.streak.since < e.sliceTime() {
		return
	}
	last, now := g.streak, e.dog.now()
	g.streak = streak{}
	switch {
	case others == 0 && last.unheard == 0:
		g.streak.unheard = now
	case others == 0 && now-last.unheard < unheardFor:
		g.streak.unheard = last.unheard
	case others == 0: // those who may not subscribe, or hear of releases that may not be announced
		g.streak.unheard = now
		g.streak.way = now + unheardWay + min(time.Duration(e.trip.Load()), longestWay)
	default:
		if last.offered {
			g.streak.missed = min(last.missed+1, 8)
		}
		g.streak.offered = true
		g.streak.way = now + min(e.wayTime()<<g.streak.missed, longestWay)
		g.streak.yielded = min(others-1, mostYielded)
	}
}

// interrupt notes that somebody else has the lock.
func (s *streak) interrupt() {
	s.since, s.passed, s.offered, s.missed, s.unheard = 0, 0, false, 0, 0
}

// others is how many have heard of the release of h: other processes, and those of
// this one who wait for the other half.
func (e *engine) others(h *hold, r released) int {
	if r.heard > 0 && e.wakeups.hearsForNobody(h.backend.channel(attempt{})) {
		return r.heard - 1
	}
	return r.heard
}

// heardRelease notes that the lock of h was released by somebody else.
func (e *engine) heardRelease(h *hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := h.gate; g != nil && g.streak.yielded > 0 {
		g.streak.yielded--
		g.streak.way = e.dog.now() + e.wayTime()
	}
}

// A legacy is what those leave to the next one who were at a gate before.
type legacy struct {
	hold   *hold // of the next one: it is through
	all    bool  // the lock; it need not ask anybody
	record bool  // only the record in Redis
	clear  bool  // nothing: nobody of this process was in the way, and so nobody is to go first
}

// standInLine is where most of those wait who ask for a hot lock: for one level of
// one lock that somebody else of this process has, or contends for. It returns
// what was left to the caller; the zero legacy is for those who cannot be left anything,
// as those who want an explicit lease.
func (e *engine) standInLine(p *patience, b backend, o owner, explicit bool) (legacy, error) {
	key, way := holdKey{b.id(), o}, b.passage()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holds[key] != nil || b.kin() != (lockID{}) && e.holds[holdKey{b.kin(), o}] != nil {
		return legacy{}, nil
	}
	switch {
	case way == eachForItself, way == together && explicit:
		return e.goesFirstLocked(e.newHoldLocked(b, key), nil), nil
	case way == together:
		return e.shareLocked(p, b, key)
	}
	switch g := e.gateLocked(key.id); {
	case g.tryEnter():
		return e.goesFirstLocked(e.newHoldLocked(b, key), g), nil
	case p.once || explicit:
		return legacy{}, nil
	default:
		return e.lineUpLocked(p, g, e.newHoldLocked(b, key))
	}
}

// goesFirstLocked is the legacy of a fresh hold that has found its gate open, or has none.
func (e *engine) goesFirstLocked(h *hold, g *gate) legacy {
	h.gate, h.field = g, e.fieldLocked(h.key.owner)
	return legacy{hold: h, clear: true}
}

// lineUpLocked waits at g for what is left to h. It lets go of the mutex meanwhile.
func (e *engine) lineUpLocked(p *patience, g *gate, h *hold) (legacy, error) {
	t := g.enqueue(h, e.numberLocked(p))
	err := e.awaitTurnLocked(p, t)
	switch {
	case t.left: // before anything else happened: nobody else could release it
		p.seen.ends(PathHandover)
		h.offered = false
		if !h.heir && h.state != over && !e.isKeptLocked(h.tenure) {
			return e.refuseLocked(h), nil
		}
		return legacy{hold: h, all: !h.heir, record: h.heir}, nil
	case err != nil:
		p.sees(g.obstacle)
		g.cancel(t)
	case t.err == errAskYourself:
		p.number, p.past = t.number, true
		return legacy{hold: h}, nil
	default:
		err = t.err
	}
	if err != nil {
		e.dropGateLocked(h.key.id, g)
		e.endTurnLocked(h)
		return legacy{}, err
	}
	h.gate = g
	return legacy{hold: h}, nil
}

// refuseLocked gives back what was left to h, as its trust was over, or nearly so, before its caller came to
// it: the process was stopped in between. The caller asks for a hold of its own; the old record is
// cleared meanwhile. It lets go of the mutex for a moment.
func (e *engine) refuseLocked(h *hold) legacy {
	g, shared := h.gate, h.levels > 1 // other callers of the owner have come in meanwhile
	last, guards := true, []*guardEnd(nil)
	if h.state == lost {
		h.levels--
	} else {
		_, last, guards = h.giveBackLocked()
	}
	if shared {
		return legacy{}
	}
	h.gate = nil
	e.forgetLocked(h)
	if last {
		e.spawn(h.clear)
	}
	next := &hold{engine: e, backend: h.backend, key: h.key, gate: g}
	e.mu.Unlock()
	endGuards(guards, nil)
	e.mu.Lock()
	if e.holds[h.key] != nil {
		e.leaveGateLocked(next)
		return legacy{}
	}
	next = e.newHoldLocked(h.backend, h.key)
	next.gate = g
	return legacy{hold: next}
}

// A tokened backend may draw a fencing token for each hold.
type tokened interface{ tokens() bool }

func needsToken(b backend) bool {
	t, ok := b.(tokened)
	return ok && t.tokens()
}
