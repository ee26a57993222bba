package engine

// Multi-acquire: how one caller acquires several locks on one Redis together.
//
// Rules: for an attempt the caller has the owner mutexes of all holds, and the wait queues of all locks that its owner
// does not hold have admitted it. While it waits for an owner mutex, in a wait queue or for a release, it keeps no
// owner mutex and holds none of the locks, so that other callers of its owner can acquire and release them meanwhile.
// After every wait it looks again which of the locks its owner holds. The operation has one field for each lock, and
// uses it in all attempts for as long as its owner does not hold that lock.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
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
	fresh []*hold  // the hold to be acquired while the owner has none: its field, and its wait queue
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
		g.fresh[i] = &hold{lockState: s, lock: kind, key: key}
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
		if h.State() == tenancy.Fresh {
			h.leaveQueueLocked()
			h.endedLocked() // attempts for it that are still under way will be rolled back
		}
		s := h.lockState
		left := slices.DeleteFunc(s.multis[h.key], func(signal chan struct{}) bool { return signal == g.signal })
		if s.multis[h.key] = left; len(left) == 0 {
			delete(s.multis, h.key)
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
		// The caller asks again as soon as the subscription is in force, and keeps its wait queues until then, but not
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

// waiting returns the options of a wait that also ends when the owner acquires one of the locks.
func (g *multiAcquire) waiting() *waitOptions {
	patient := g.waitOptions
	patient.changed = g.signal
	return &patient
}

// lockAll waits for the owner mutexes of all holds, and for the wait queues of all locks that the owner does not hold.
// It returns the targets of the next attempt. If it returns an error, the caller has no owner mutex and no wait queue.
func (g *multiAcquire) lockAll() ([]target, error) {
	e, op := g.engine, &g.waitOptions
	bypass := false  // the next attempt bypasses the wait queues
	yielded := false // the caller has let other processes go first
	g.states.Lock()
	defer g.states.Unlock()
	var kept *hold // the caller has the owner mutex of this hold already
	for {
		select {
		case <-g.signal: // the code below looks at the holds anyway
		default:
		}
		other := g.lockHoldsLocked(kept)
		kept = nil
		if other != nil {
			switch err := g.awaitHoldUnlocking(op, other); err {
			case nil:
				kept = other
			case errOwnerChanged:
			default:
				return nil, err
			}
			continue
		}
		bypass, g.late = bypass || g.late, false
		if late := g.expiredLocked(); late != nil {
			g.unlockHoldsLocked()
			g.states.Unlock()
			late.expireIfDue()
			g.states.Lock()
			continue
		}
		if !bypass && !g.tryQueuesLocked() {
			var err error
			if bypass, err = g.awaitQueuesUnlocking(op); err != nil {
				return nil, err
			}
			continue
		}
		if d := (entrance{e}).yieldLocked(g.locked); d > 0 && !yielded && op.HasTime(d) {
			yielded = true
			if err := g.yieldUnlocking(op, d); err != nil {
				return nil, err
			}
			continue
		}
		return g.prepareLocked()
	}
}

// awaitHoldUnlocking waits for the owner mutex of other, which another caller of the owner has. If that caller asks for
// the lock, it must not wait for what a late answer has granted to this one: that is rolled back, and this one begins
// again.
func (g *multiAcquire) awaitHoldUnlocking(op *waitOptions, other *hold) error {
	g.engine.slow.Strike(&g.redisWait) // it waits no longer for the lock that Redis has last found busy
	g.leaveQueuesLocked()
	if other.Holds() {
		return entrance{g.engine}.enterOwnersUnlocking(g.states, op, other)
	}
	if g.late && other.Wanted() {
		g.leftovers.GrantNotKept()
		return errRestart
	}
	patient := g.waiting()
	err := entrance{g.engine}.enterUnlocking(g.states, patient, &other.ownerQueue, other)
	op.waitedAs(patient)
	switch err {
	case nil:
	case errOwnerChanged:
		op.number = patient.number
	default:
		s := other.lockState
		op.found.waitsBehindLocked(s.name, s.findQueueLocked(other.key.half))
	}
	return err
}

// awaitQueuesUnlocking waits for all wait queues, and reports whether the next attempt bypasses them.
func (g *multiAcquire) awaitQueuesUnlocking(op *waitOptions) (bypass bool, err error) {
	g.engine.slow.Strike(&g.redisWait)
	patient := g.waiting()
	err = entrance{g.engine}.enterQueuesUnlocking(g.states, patient, g.awaitedLocked())
	op.found, op.number = patient.found, patient.number
	op.waitedAs(patient)
	if err == errOwnerChanged || err == errBypassQueue {
		return err == errBypassQueue, nil
	}
	return false, err
}

// yieldUnlocking lets other processes go first for the duration d.
func (g *multiAcquire) yieldUnlocking(op *waitOptions, d time.Duration) error {
	g.unlockHoldsLocked()
	err := op.sleepUnlocking(g.states, nil, d)
	if err != nil {
		g.leaveQueuesLocked()
	}
	return err
}

// prepareLocked sets the attempts of all targets.
func (g *multiAcquire) prepareLocked() ([]target, error) {
	var loss error
	for i := range g.locked {
		if err := g.locked[i].prepareLocked(g.request, g.part); loss == nil {
			loss = err
		}
	}
	if loss != nil {
		g.unlockHoldsLocked()
		g.leaveQueuesLocked()
		return nil, loss
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
			if h.State() == tenancy.Ended {
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

// unlockHoldsLocked unlocks the owner mutexes of all holds. The holds of g.fresh keep their wait queues.
func (g *multiAcquire) unlockHoldsLocked() {
	for _, t := range g.locked {
		if t.hold.State() == tenancy.Fresh {
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

// tryQueuesLocked enters all wait queues that the attempt has to pass. If another caller is in one of them, it unlocks
// the holds and returns false.
func (g *multiAcquire) tryQueuesLocked() bool {
	for _, t := range g.locked {
		h := t.hold
		if h.queue != nil || !h.needsQueueLocked() {
			continue
		}
		queue := h.lockState.queueLocked(h.key.half)
		if !queue.TryEnter() {
			g.unlockHoldsLocked()
			return false
		}
		h.queue = queue
	}
	return true
}

// awaitedLocked returns the targets that the owner does not hold.
func (g *multiAcquire) awaitedLocked() (targets []target) {
	for _, h := range g.fresh {
		if held := h.lockState.holds.get(h.key); held == nil || held.Wanted() {
			targets = append(targets, target{hold: h})
		}
	}
	return targets
}

func (g *multiAcquire) leaveQueuesLocked() {
	for _, h := range g.fresh {
		if h.State() == tenancy.Fresh {
			h.leaveQueueLocked()
		}
	}
}

// unlockAll unlocks all holds before the caller waits for the release of targets[at]. The caller keeps the wait queue
// of that lock, which another process holds. If all is set, it keeps all wait queues, because it asks again in a
// moment.
func (g *multiAcquire) unlockAll(at int, all bool) {
	g.states.Lock()
	defer g.states.Unlock()
	for _, t := range g.locked {
		if h := t.hold; h.Holds() && !t.Renewed {
			// The attempt may have set it, and its rollback does not shorten it.
			h.mayLastLocked(bounded(t.Lease) + late.Life)
		}
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
// If a late answer may have granted them, the next attempt bypasses the wait queues: the caller in one of them may wait
// for that.
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
