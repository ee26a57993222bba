package engine

// A group: how one caller takes several locks of one Redis together.
//
// Rules: the caller makes an attempt with the owner mutexes of all holds, and after the wait queues of all locks that
// the owner does not hold have admitted it. A caller that waits for an owner mutex, in a wait queue or for a release
// keeps no owner mutex and no level: other callers of its owner can unlock, lock and re-enter meanwhile. After
// every wait the caller looks again which locks its owner holds by then. An acquisition has one field for
// each lock, and asks with that field for as long as its owner does not hold the lock.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A multiAcquire is the backend of several locks.
type multiAcquire struct {
	acquireOp
	locks  []Lock
	signal chan struct{} // a token: the owner has come to hold one of the locks

	// One for each lock:
	fresh []*hold  // the hold that the acquisition asks for while its owner holds nothing: its field, and its wait queue
	asked []target // the last attempt on fresh; no hold: there was none
	again []target // the last attempt on a re-entry; no hold: there was none

	locked []target // the caller has the owner mutexes of these holds now; wants are those of the last attempt
}

// newMultiAcquire begins an acquisition. The caller must call end.
func (e *Engine) newMultiAcquire(p *waitOptions, bs []Lock, o Owner, r Request) *multiAcquire {
	g := &multiAcquire{
		acquireOp: acquireOp{waitOptions: *p, engine: e, owner: o, request: r, names: retainAll(e, bs)},
		locks:     slices.Clone(bs), // Clone: a caller of one lock needs no slice on the heap
		signal:    make(chan struct{}, 1),
		fresh:     make([]*hold, len(bs)), asked: make([]target, len(bs)), again: make([]target, len(bs)),
	}
	g.backend = g
	g.names.Lock()
	defer g.names.Unlock()
	for i, b := range bs {
		n, key := g.names.of(b), holdKey{b.ID(), o}
		g.fresh[i] = &hold{name: n, lock: b, key: key, field: e.newField(o)}
		if n.multis == nil {
			n.multis = make(map[holdKey][]*multiAcquire)
		}
		n.multis[key] = append(n.multis[key], g)
	}
	return g
}

// of is the name that b belongs to.
func (ns lockStates) of(b Lock) *lockState {
	for _, n := range ns {
		if n.text == b.ID().Name {
			return n
		}
	}
	panic("bug: a lock of another group")
}

// end unlocks the holds of the caller, and gives up the holds that were not granted.
func (g *multiAcquire) end() {
	g.names.Lock()
	for _, w := range g.locked {
		w.hold.unlockHoldLocked()
	}
	for _, h := range g.fresh {
		if h.state == fresh {
			h.leaveQueueLocked()
			h.state = ended // attempts for it that are still under way will be undone
		}
		n := h.name
		left := slices.DeleteFunc(n.multis[h.key], func(other *multiAcquire) bool { return other == g })
		if n.multis[h.key] = left; len(left) == 0 {
			delete(n.multis, h.key)
		}
	}
	g.names.Unlock()
	g.names.release()
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
	if err == nil {
		return g.checkFields(res)
	}
	return res, err
}

func (g *multiAcquire) await(res Answer) (Answer, error) {
	if g.NoWait {
		return res, send.ErrTimeUp
	}
	in := g.targets[res.at]
	wake, ready, begun := g.listen(in, res)
	delay, stop := g.nextPoll(in, res)
	defer stop()
	if begun {
		// The caller asks again in a moment. Other callers that passed its wait queues before would each ask too.
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
	if !g.leftovers.toRollBack(failed) {
		return
	}
	var granted []target
	if !failed && res.Status == Held {
		granted = g.targets
	}
	if left := g.unwanted(granted, g.leftovers.tries); len(left) > 0 {
		g.rollBack(left, failed, err)
	}
}

// wakeOwnerLocked wakes the callers of the owner of h that wait for what h decides: groups that ask for
// the lock, and all that ask for its other half. Redis grants or refuses these at once.
func (n *lockState) wakeOwnerLocked(h *hold) {
	n.wakeMultiLocked(h.key)
	if h.lock.Counterpart() == (LockID{}) {
		return
	}
	n.wakeMultiLocked(holdKey{h.lock.Counterpart(), h.key.owner})
	if other := n.counterpartLocked(h); other != nil && other.state.wanted() {
		wakeCaller(other.changed)
	}
}

func (n *lockState) wakeMultiLocked(key holdKey) {
	for _, g := range n.multis[key] {
		wakeCaller(g.signal)
	}
}

// wakeCaller leaves a token in changed, which may be nil.
func wakeCaller(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// waiting are the options of a wait that also ends when the owner comes to hold one of the locks.
func (g *multiAcquire) waiting() *waitOptions {
	patient := g.waitOptions
	patient.changed = g.signal
	return &patient
}

// lockAll waits for the owner mutexes of all holds and for the wait queues of all locks that are not held, and
// returns the wants of the next attempt. On an error it keeps no mutex and no queue.
func (g *multiAcquire) lockAll() ([]target, error) {
	e, p := g.engine, &g.waitOptions
	bypass := false  // the next attempt bypasses the wait queues
	yielded := false // other processes have had the chance to go first
	g.names.Lock()
	defer g.names.Unlock()
	var kept *hold // whose owner mutex the caller has already
	for {
		select {
		case <-g.signal: // the code below looks at the holds anyway
		default:
		}
		other := g.lockHoldsLocked(kept)
		kept = nil
		if other != nil {
			if err := g.awaitHoldLocked(p, other); err != nil {
				return nil, err
			}
			kept = other
			continue
		}
		if late := g.expiredLocked(); late != nil {
			g.unlockHoldsLocked()
			g.names.Unlock()
			late.expireIfDue()
			g.names.Lock()
			continue
		}
		if !bypass && !g.tryQueuesLocked() {
			var err error
			if bypass, err = g.awaitQueuesLocked(p); err != nil {
				return nil, err
			}
			continue
		}
		if d := (entrance{e}).yieldLocked(g.locked); d > 0 && !yielded && p.HasTime(d) {
			yielded = true
			if err := g.yieldLocked(p, d); err != nil {
				return nil, err
			}
			continue
		}
		return g.prepareLocked()
	}
}

// awaitHoldLocked waits for the owner mutex of other, which another caller has.
func (g *multiAcquire) awaitHoldLocked(p *waitOptions, other *hold) error {
	g.leaveQueuesLocked()
	if other.state.holds() {
		return entrance{g.engine}.enterOwnersLocked(g.names, p, &other.owner)
	}
	patient := *p
	return entrance{g.engine}.enterLocked(g.names, &patient, &other.owner)
}

// awaitQueuesLocked waits for all wait queues, and reports whether the next attempt is to bypass them.
func (g *multiAcquire) awaitQueuesLocked(p *waitOptions) (bypass bool, err error) {
	patient := g.waiting()
	err = entrance{g.engine}.enterQueuesLocked(g.names, patient, g.awaitedLocked())
	p.sees(patient.blocker)
	if err == errOwnerChanged || err == errBypassQueue {
		return err == errBypassQueue, nil
	}
	return false, err
}

// yieldLocked lets other processes go first for d.
func (g *multiAcquire) yieldLocked(p *waitOptions, d time.Duration) error {
	g.unlockHoldsLocked()
	g.names.Unlock()
	p.span.waits()
	err := p.sleep(nil, nil, d)
	g.names.Lock()
	if err != nil {
		g.leaveQueuesLocked()
	}
	return err
}

// prepareLocked sets the attempts of all wants.
func (g *multiAcquire) prepareLocked() ([]target, error) {
	var loss error
	for i := range g.locked {
		if err := g.locked[i].prepareLocked(g.request); loss == nil {
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

// lockHoldsLocked takes the owner mutexes of all holds, and makes fresh holds where there are none; or it
// takes no mutex and returns a hold that another caller uses. The caller has the owner mutex of kept already.
func (g *multiAcquire) lockHoldsLocked(kept *hold) (other *hold) {
	for i, b := range g.locks {
		n, key := g.fresh[i].name, holdKey{b.ID(), g.owner}
		h := n.holds.get(key)
		if h != nil && h != kept && !h.owner.TryEnter() {
			other = h
			break
		}
		if h == kept {
			kept = nil // it is one of the wants now
		}
		if h != nil && (h.state.isForgotten() || h.state == ended) {
			n.forgetLocked(h)
			h.owner.Release()
			h = nil
		}
		if h == nil {
			h = n.newHoldLocked(b, key, g.signal)
			h.field, h.queue, g.fresh[i].queue = g.fresh[i].field, g.fresh[i].queue, nil
			g.fresh[i] = h
		} else {
			g.fresh[i].leaveQueueLocked()
		}
		g.locked = append(g.locked, target{hold: h})
	}
	if kept != nil {
		kept.unlockHoldLocked() // it is over by now, or not wanted this time
	}
	if other != nil {
		g.unlockHoldsLocked()
	}
	return other
}

// unlockHoldsLocked unlocks all holds. The holds of g.fresh keep their wait queues.
func (g *multiAcquire) unlockHoldsLocked() {
	for _, w := range g.locked {
		if w.hold.state == fresh {
			w.hold.name.forgetLocked(w.hold)
			w.hold.owner.Release()
		} else {
			w.hold.unlockHoldLocked()
		}
	}
	g.locked = nil
}

// expiredLocked is a hold whose validity is over, also before the watchdog has noticed; or nil.
func (g *multiAcquire) expiredLocked() *hold {
	for _, w := range g.locked {
		if h := w.hold; h.state.holds() && !g.engine.watchdog.IsValid(&h.record.lease) {
			return h
		}
	}
	return nil
}

// tryQueuesLocked enters all wait queues that have to admit the attempt. If one is taken, it unlocks the holds.
func (g *multiAcquire) tryQueuesLocked() bool {
	for _, w := range g.locked {
		h := w.hold
		if h.queue != nil || !h.needsQueueLocked() {
			continue
		}
		queue := h.name.queueLocked(h.key.id.Half)
		if !queue.TryEnter() {
			g.unlockHoldsLocked()
			return false
		}
		h.queue = queue
	}
	return true
}

// awaitedLocked are the wants that the owner does not hold.
func (g *multiAcquire) awaitedLocked() (wants []target) {
	for _, h := range g.fresh {
		if held := h.name.holds.get(h.key); held == nil || held.state.wanted() {
			wants = append(wants, target{hold: h})
		}
	}
	return wants
}

func (g *multiAcquire) leaveQueuesLocked() {
	for _, h := range g.fresh {
		if h.state == fresh {
			h.leaveQueueLocked()
		}
	}
}

// unlockAll unlocks all holds before the caller waits for the release of wants[at]. The caller keeps the wait queue of
// that lock, which another process has; or all wait queues, if all is set because it asks again in a moment.
func (g *multiAcquire) unlockAll(at int, all bool) {
	g.names.Lock()
	defer g.names.Unlock()
	for _, w := range g.locked {
		if h := w.hold; h.state.holds() && !w.Renewed {
			h.leaseUncertain = true // the attempt has set a longer lease, and the undo does not shorten it
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

// noteAttempt notes an attempt on wants.
func (g *multiAcquire) noteAttempt(wants []target) {
	for i, w := range wants {
		if w.hold == g.fresh[i] {
			g.asked[i] = w
		} else {
			g.again[i] = w
		}
	}
}

// dropPlaces gives up the places in the line that other callers have left to this one, which stands in no line.
func (g *multiAcquire) dropPlaces() {
	g.names.Lock()
	defer g.names.Unlock()
	for _, h := range g.fresh {
		if h.queue != nil {
			h.name.dropPlaceLocked(h.queue)
		}
	}
}

// present is wants with the holds of now: every attempt makes a new hold, with the field of the acquisition.
func (g *multiAcquire) present(wants []target) []target {
	g.names.Lock()
	defer g.names.Unlock()
	wants = slices.Clone(wants)
	for i, h := range g.fresh {
		if wants[i].Field == h.field {
			wants[i].hold = h
		}
	}
	return wants
}

// unwanted are the attempts that may have left a hold or an entry in Redis which the caller does not have. granted
// are the wants that were granted, or nil.
func (g *multiAcquire) unwanted(granted []target, unknown int) (wants []target) {
	for i, w := range g.asked {
		if w.hold != nil && (granted == nil || granted[i].Field != w.Field) {
			wants = append(wants, w)
		}
	}
	for _, w := range g.again {
		if w.hold != nil && granted == nil && unknown > 0 {
			wants = append(wants, w)
		}
	}
	return wants
}
