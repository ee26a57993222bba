package engine

// Multi-acquire: how one caller acquires several locks on one Redis together.
//
// Rules: for an attempt the caller has the owner mutexes of all holds, and the local queues of all locks that its owner
// does not hold have admitted it. While it waits for an owner mutex, in a local queue or for a release, it keeps no
// owner mutex and holds none of the locks, so that other callers of its owner can acquire and release them meanwhile.
// After every wait it looks again which of the locks its owner holds. The operation has one field for each lock, and
// uses it in all attempts for as long as its owner does not hold that lock.

import (
	"cmp"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
)

// A multiAcquire is the operation and the backend of a caller that acquires several locks.
type multiAcquire struct {
	acquireOp
	owner   Owner
	request Request
	locks   []contract.Lock
	signal  chan struct{} // a value in it wakes the caller: see hold.changed
	late    bool          // a late answer may have granted the locks; guarded by the mutexes of states

	// Each slice has one element for each lock:
	fresh []*hold  // the claims while the owner has no hold: their fields, and their local queues
	asked []target // the last attempt for fresh; without a hold: there was none
	again []target // the last attempt to re-enter a hold of the owner; without a hold: there was none

	// locked has the holds whose owner mutexes the caller has now. The targets are those of the last attempt.
	locked []target
}

// newMultiAcquire begins an operation. The caller must call end.
func (e *Engine) newMultiAcquire(op *waitOptions, bs []contract.Lock, o Owner, r Request) *multiAcquire {
	g := &multiAcquire{
		acquireOp: acquireOp{waitOptions: *op, engine: e, states: retainAll(e, bs)},
		owner:     o,
		request:   r,
		locks:     slices.Clone(bs), // Clone: otherwise the slice of a caller of one lock would escape to the heap
		signal:    make(chan struct{}, 1),
		fresh:     make([]*hold, len(bs)), asked: make([]target, len(bs)), again: make([]target, len(bs)),
	}
	g.backend = g
	g.states.Lock()
	defer g.states.Unlock()
	for i, kind := range bs {
		s, key := g.states.of(kind), holdKey{kind.Traits().ID.Half, o}
		g.fresh[i] = &hold{claim: claim{lockState: s, lock: kind, owner: o}}
		g.fresh[i].newField()
		if s.multis == nil {
			s.multis = make(map[holdKey][]chan struct{})
		}
		s.multis[key] = append(s.multis[key], g.signal)
	}
	return g
}

// of returns the state of the lock kind, which is one of ns.
func (ns lockStates) of(kind contract.Lock) *lockState {
	for _, s := range ns {
		if s.name == kind.Traits().ID.Name {
			return s
		}
	}
	panic("bug: a lock of another multi-acquire")
}

// end unlocks the holds of the caller, and gives up the holds that were not acquired.
func (g *multiAcquire) end() {
	g.states.Lock()
	for _, t := range g.locked {
		t.hold.unlockHoldLocked()
	}
	for _, h := range g.fresh {
		if h.Asks() {
			h.leaveQueueLocked()
			h.givesUpLocked() // attempts for it that are still under way will be rolled back
		}
		s := h.lockState
		left := slices.DeleteFunc(s.multis[h.key()], func(signal chan struct{}) bool { return signal == g.signal })
		if s.multis[h.key()] = left; len(left) == 0 {
			delete(s.multis, h.key())
		}
	}
	g.states.Unlock()
	g.states.release()
}

func (g *multiAcquire) admit() (err error) {
	if g.targets, err = g.lockAll(); err != nil {
		return err
	}
	g.targets = withCounterparts(g.targets)
	g.noteAttempt(g.targets)
	g.dropPlaces()
	return nil
}

func (g *multiAcquire) ask(lastReply time.Time) (Answer, error) {
	res, err := g.askRedis(lastReply)
	if err != nil {
		return res, err
	}
	if res.stays { // the caller must hold none of the locks while it waits
		g.leftovers.GrantNotKept()
		if res.Status == contract.Busy {
			return res, errRestart
		}
	}
	return g.checkFields(res)
}

func (g *multiAcquire) await(res Answer) (Answer, error) {
	in := g.targets[res.at]
	if g.NoWait {
		g.noteBusy(in.hold, res, nil)
		return res, send.ErrTimeUp
	}
	wake, ready, begun := g.listen(in, res)
	delay, stop := g.nextPoll(in, res)
	defer stop()
	if begun {
		// The caller asks again as soon as the subscription is in force, and keeps its local queues until then, but not
		// for long. Otherwise other callers that pass these queues meanwhile would each ask too.
		delay = min(delay, reserveTime)
	}
	g.unlockAll(res.at, begun)
	err := g.sleepUntilFree(g.waiting(), in, wake, ready, delay)
	if err == nil {
		g.subscription.confirm()
	} else {
		g.targets = nil
	}
	return res, err
}

func (g *multiAcquire) rollback(res Answer, err error, returned bool) {
	failed := g.hasFailed(err, returned)
	if !g.leftovers.ToRollBack(failed) {
		return
	}
	var granted []target
	if !failed && res.Status == contract.Held {
		granted = g.targets
	}
	if left := g.unwanted(granted, g.leftovers.Tries()); len(left) > 0 {
		g.rollBack(left, failed, err)
	}
}

// A multiEntry is a call of lockAll.
type multiEntry struct {
	kept    *hold // the caller has the owner mutex of this hold already; or nil
	bypass  bool  // the next attempt bypasses the local queues
	yielded bool  // the caller has let other processes go first
}

// lockAll waits for the owner mutexes of all holds, and for the local queues of all locks that the owner does not hold.
// It returns the targets of the next attempt. If it returns an error, the caller has no owner mutex and no local queue.
func (g *multiAcquire) lockAll() ([]target, error) {
	var in multiEntry
	for {
		targets, todo, err := g.lockStep(&in)
		if err != nil || todo == nil {
			return targets, err
		}
		if err := g.carryOut(&in, todo); err != nil {
			return nil, err
		}
	}
}

// lockStep is a step of lockAll. If it returns an effect or an error, the caller has no owner mutex.
func (g *multiAcquire) lockStep(in *multiEntry) (targets []target, todo *effect, err error) {
	g.states.Lock()
	defer g.states.Unlock()
	select {
	case <-g.signal: // the code below looks at the holds anyway
	default:
	}
	other := g.lockHoldsLocked(in.kept)
	if in.kept = nil; other != nil {
		todo, err = g.joinOwnersLocked(other)
		return nil, todo, err
	}
	in.bypass, g.late = in.bypass || g.late, false
	if late := g.expiredLocked(); late != nil {
		g.unlockHoldsLocked()
		return nil, &effect{look: late}, nil
	}
	if !in.bypass && !g.tryQueuesLocked() {
		g.engine.slow.Strike(&g.redisWait)
		return nil, &effect{queues: g.awaitedLocked(), states: g.states}, nil
	}
	if d := (entrance{g.engine}).yieldLocked(g.locked); d > 0 && !in.yielded && g.HasTime(d) {
		in.yielded = true
		g.unlockHoldsLocked()
		return nil, &effect{pause: d}, nil
	}
	targets, err = g.prepareLocked()
	return targets, todo, err
}

// joinOwnersLocked makes the caller wait for the owner mutex of other, which another caller of the owner has. If that
// caller asks for the lock, it must not wait for what a late answer has granted to this one: that is rolled back, and
// this one begins again.
func (g *multiAcquire) joinOwnersLocked(other *hold) (todo *effect, err error) {
	g.engine.slow.Strike(&g.redisWait) // it waits no longer for the lock that Redis has last found busy
	g.leaveQueuesLocked()
	held := other.Holds()
	if !held && g.late && other.Wanted() {
		g.leftovers.GrantNotKept()
		return todo, errRestart
	}
	return other.lockState.joinOwnersLocked(&g.waitOptions, other, held)
}

// carryOut carries out the effect of a step. A wait for other owners also ends when the owner acquires one of the
// locks.
func (g *multiAcquire) carryOut(in *multiEntry, todo *effect) error {
	wait := g.waiting()
	if todo.held || todo.pause > 0 {
		wait.changed = nil
	}
	err := todo.carryOut(wait)
	g.found, g.number = wait.found, wait.number
	g.waitedAs(wait)
	switch w := todo.waiter; {
	case err == errBypassQueue:
		in.bypass = true
	case err == errOwnerChanged:
		if w != nil {
			g.number = w.Number
		}
	case err != nil:
		g.leaveQueues()
		return err
	case w != nil:
		in.kept = w.Value.hold
	}
	return nil
}

// waiting returns the options of a wait that also ends when the owner acquires one of the locks.
func (g *multiAcquire) waiting() *waitOptions {
	patient := g.waitOptions
	patient.changed = g.signal
	return &patient
}

// prepareLocked sets the attempts of all targets.
func (g *multiAcquire) prepareLocked() ([]target, error) {
	var loss, refused error // a loss comes first, because no other call of the owner returns it
	for i := range g.locked {
		t := &g.locked[i]
		if err := t.prepareLocked(&g.request, g.part); t.hold.IsLost() {
			loss = cmp.Or(loss, err)
		} else {
			refused = cmp.Or(refused, err)
		}
	}
	if err := cmp.Or(loss, refused); err != nil {
		g.unlockHoldsLocked()
		g.leaveQueuesLocked()
		return nil, err
	}
	return slices.Clone(g.locked), nil
}

// lockHoldsLocked locks the owner mutexes of all holds, and makes new holds for the locks that the owner does not hold.
// If another caller has one of the owner mutexes, it returns the hold of that mutex, and locks none. The caller has the
// owner mutex of kept already.
func (g *multiAcquire) lockHoldsLocked(kept *hold) (other *hold) {
	lock := func(s *lockState, key holdKey) (h *hold, busy bool) {
		for {
			switch h = s.holdOfLocked(key, g.part, true); {
			case h == nil:
				return nil, false
			case h == kept:
				kept = nil // it is one of the targets now
			case !h.ownerQueue.TryEnter():
				return h, true
			}
			if h.isOver() {
				s.forgetLocked(h)
			} else if !s.makeRoomLocked(h, g.part) {
				return h, false
			}
			h.ownerQueue.Release()
		}
	}
	for i, kind := range g.locks {
		s, key := g.fresh[i].lockState, holdKey{kind.Traits().ID.Half, g.owner}
		h, busy := lock(s, key)
		if busy {
			other = h
			break
		}
		if h == nil {
			h = s.newHoldLocked(kind, key, g.signal)
			h.asksLocked(g.fresh[i].Field())
			h.queue, g.fresh[i].queue = g.fresh[i].queue, nil
			g.fresh[i] = h
		} else {
			g.fresh[i].leaveQueueLocked()
		}
		g.locked = append(g.locked, target{hold: h})
	}
	if kept != nil {
		kept.unlockHoldLocked() // it has ended, or is not needed this time
	}
	if other != nil {
		g.unlockHoldsLocked()
	}
	return other
}

// unlockHoldsLocked unlocks the owner mutexes of all holds. The holds of g.fresh keep their local queues.
func (g *multiAcquire) unlockHoldsLocked() {
	for _, t := range g.locked {
		if t.hold.Asks() {
			t.hold.lockState.forgetLocked(t.hold)
			t.hold.ownerQueue.Release()
		} else {
			t.hold.unlockHoldLocked()
		}
	}
	g.locked = nil
}

// expiredLocked returns a hold that is not valid any more, even if the watchdog has not noticed it yet; or nil.
func (g *multiAcquire) expiredLocked() *hold {
	for _, t := range g.locked {
		if h := t.hold; h.Holds() && !g.engine.watchdog.IsValid(&h.record.lease) {
			return h
		}
	}
	return nil
}

// tryQueuesLocked enters all local queues that the attempt has to pass. If another caller is in one of them, it unlocks
// the holds, leaves the local queues, and returns false.
func (g *multiAcquire) tryQueuesLocked() bool {
	for _, t := range g.locked {
		if !t.hold.tryQueueLocked() {
			g.unlockHoldsLocked()
			g.leaveQueuesLocked()
			return false
		}
	}
	return true
}

// awaitedLocked returns the targets that the owner does not hold.
func (g *multiAcquire) awaitedLocked() (targets []target) {
	for _, h := range g.fresh {
		if held := h.lockState.holds.get(h.key()); held == nil || held.Wanted() {
			targets = append(targets, target{hold: h})
		}
	}
	return targets
}

func (g *multiAcquire) leaveQueues() {
	g.states.Lock()
	defer g.states.Unlock()
	g.leaveQueuesLocked()
}

func (g *multiAcquire) leaveQueuesLocked() {
	for _, h := range g.fresh {
		if h.Asks() {
			h.leaveQueueLocked()
		}
	}
}

// unlockAll unlocks all holds before the caller waits for the release of targets[at]. The caller keeps the local queue
// of that lock, which another process holds. If all is set, it keeps all local queues, because it asks again in a
// moment.
func (g *multiAcquire) unlockAll(at int, all bool) {
	g.states.Lock()
	defer g.states.Unlock()
	for _, t := range g.locked {
		h := t.hold
		if h.queue != nil {
			h.queue.request = inquiry{} // the answer was one about all locks
		}
		if !h.Holds() {
			continue
		}
		// The attempt may have set its lease, and its rollback does not shorten it.
		length := bounded(t.Lease)
		if !g.engine.watchdog.Renews(&h.record.lease) {
			length += late.Life
		}
		h.mayLastLocked(length)
	}
	g.unlockHoldsLocked()
	if all {
		return
	}
	for i, h := range g.fresh {
		if i != at {
			h.leaveQueueLocked()
		} else if h.queue != nil {
			h.queue.policy.Interrupted()
		}
	}
}

// noteAttempt notes that an attempt on targets is about to be made.
func (g *multiAcquire) noteAttempt(targets []target) {
	for i, t := range targets {
		if t.hold == g.fresh[i] {
			g.asked[i] = t
		} else {
			g.again[i] = t
		}
	}
}

// dropPlaces gives up the places in lines that other callers have left to this one. A multi-acquire does not wait in a
// line.
func (g *multiAcquire) dropPlaces() {
	g.states.Lock()
	defer g.states.Unlock()
	g.asksLocked(g.targets, send.MinWait)
	for _, h := range g.fresh {
		if h.queue != nil {
			h.lockState.dropPlaceLocked(h.queue)
		}
	}
}

// present returns targets with the holds of now: each attempt makes new holds, which have the fields of the operation.
// If a late answer may have granted them, the next attempt bypasses the local queues: the caller in one of them may
// wait for that.
func (g *multiAcquire) present(targets []target, mayHold bool) []target {
	g.states.Lock()
	defer g.states.Unlock()
	g.late = g.late || mayHold
	targets = slices.Clone(targets)
	for i, h := range g.fresh {
		if targets[i].Field == h.Field().ID {
			targets[i].hold = h
		}
	}
	return targets
}

// unwanted returns the attempts that may have left a hold or an entry in Redis that the caller does not have. granted
// has the targets that the caller holds now; nil if it holds none. unknown is the number of tries without an answer.
func (g *multiAcquire) unwanted(granted []target, unknown int) (targets []target) {
	for i, t := range g.asked {
		if t.hold != nil && (granted == nil || granted[i].Field != t.Field) {
			targets = append(targets, t)
		}
	}
	for _, t := range g.again {
		if t.hold != nil && granted == nil && unknown > 0 {
			targets = append(targets, t)
		}
	}
	return targets
}
