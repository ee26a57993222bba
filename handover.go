package relock

// Handover: how a lock passes from one goroutine of this process to the next without
// a round trip.
//
// Rules: while the record of a lock is trusted, kept by the watchdog, and the streak of
// this process is young (turns.go), a holder that unlocks hands the lock to the first
// waiter in the wait queue, which holds it from that moment on. A waiter that needs a fencing token
// takes the record over with an attempt of its own.

// handOverLocked hands the lock of h, one level of which is being given back, to the first waiter, if
// there is one that can have it, and says whether it did.
func (h *hold) handOverLocked() bool {
	next := h.successorLocked()
	if next == nil || len(h.guards) > 0 { // made while earlier guards were ended: a real release ends them
		return false
	}
	n, g, r := h.name, h.queue, h.record
	g.turns.handedOver()
	n.forgetLocked(h)
	h.state, h.levels, h.queue = over, 0, nil
	h.leaveRecordLocked()
	next.queue = g
	next.handedOver = true
	if next.takesOver = next.lock.fenced(); next.takesOver {
		next.field, r.handedOn = r.field, true
		n.engine.watchdog.remove(&r.lease)
	} else {
		r.joinLocked(next, n.engine.watchdog.now())
		next.owner.Release()
		next.uncollected = true
	}
	g.Release()
	return true
}

// successorLocked is the hold that the lock of h may be handed to, which is being given back; or nil.
func (h *hold) successorLocked() *hold {
	n, g, r := h.name, h.queue, h.record
	e := n.engine
	if n.closed || g == nil || g.First() == nil || h.state != holding || h.levels > 1 || h.leaseUncertain || r.ended {
		return nil
	}
	next, left := g.First().Value, e.watchdog.left(&r.lease)
	switch {
	case next == nil, !g.turns.mayHandOver(e.watchdog.now(), e.pace()):
		return nil
	case h.named, n.otherHalfLocked(h) != nil, n.otherHalfLocked(next) != nil:
		return nil // an attempt on the other half by this field would be granted beside the successor
	case !e.watchdog.renews(&r.lease), !r.isKeptLocked(), left > e.watchdogTimeout: // an explicit lease belongs to its owner alone
		return nil
	}
	return next
}

// An admitted says how a caller of one lock has come past the others of this process. The zero value
// is for callers that cannot be handed anything, as those that want an explicit lease.
type admitted struct {
	hold  *hold // of the caller, which is at it; or nil
	holds bool  // the lock was handed to it: the caller need not ask Redis
}

// admit is where most callers of a hot lock wait: for one level of one lock that another
// goroutine of this process has, or contends for.
func (n *name) admit(p *waitOptions, b lockType, o owner, explicit bool) (admitted, error) {
	key, admission := holdKey{b.id(), o}, b.admission()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holds.get(key) != nil || b.otherHalf() != (lockID{}) && n.holds.get(holdKey{b.otherHalf(), o}) != nil {
		return admitted{}, nil
	}
	switch {
	case admission == independent, admission == shared && explicit:
		return n.admitFirstLocked(n.newHoldLocked(b, key), nil), nil
	case admission == shared:
		return n.shareLocked(p, b, key)
	}
	switch g := n.queueLocked(key.id); {
	case g.TryEnter():
		return n.admitFirstLocked(n.newHoldLocked(b, key), g), nil
	case p.NoWait || explicit:
		return admitted{}, nil
	default:
		return n.enqueueLocked(p, g, n.newHoldLocked(b, key))
	}
}

// admitFirstLocked admits a fresh hold that has found its wait queue open, or has none.
func (n *name) admitFirstLocked(h *hold, g *waitQueue) admitted {
	h.queue, h.field = g, n.engine.newField(h.key.owner)
	return admitted{hold: h}
}

// enqueueLocked waits at g. It lets go of the mutex meanwhile.
func (n *name) enqueueLocked(p *waitOptions, g *waitQueue, h *hold) (admitted, error) {
	w := g.Add(h, n.engine.number(p))
	err := n.engine.awaitLocked(&n.mu, p, w)
	switch {
	case h.handedOver: // before anything else happened: nobody else could release it
		p.span.ends(PathHandover)
		h.uncollected = false
		if !h.takesOver && h.state != over && !h.record.isKeptLocked() {
			return n.refuseLocked(h), nil
		}
		return admitted{hold: h, holds: !h.takesOver}, nil
	case err != nil:
		p.sees(g.obstacle)
		g.Leave(w)
	case w.Err == errAskYourself:
		p.number, p.bypass = w.Number, true
		return admitted{hold: h}, nil
	default:
		err = w.Err
	}
	if err != nil {
		n.dropQueueLocked(g)
		h.unlockHoldLocked()
		return admitted{}, err
	}
	h.queue = g
	return admitted{hold: h}, nil
}

// refuseLocked gives back a lock that was handed to h, as its trust was over, or nearly so, before its caller came to
// it: the process was stopped in between. The caller asks for a hold of its own; the old record is
// cleared meanwhile. It lets go of the mutex for a moment.
func (n *name) refuseLocked(h *hold) admitted {
	e, g, shares := n.engine, h.queue, h.levels > 1 // other callers of the owner have come in meanwhile
	last, guards := true, []*guardEnd(nil)
	if h.state == lost {
		h.levels--
	} else {
		_, last, guards = h.giveBackLocked()
	}
	if shares {
		return admitted{}
	}
	h.queue = nil
	n.forgetLocked(h)
	if last {
		e.workers.spawn(h.clear)
	}
	next := &hold{name: n, lock: h.lock, key: h.key, queue: g}
	n.mu.Unlock()
	endGuards(guards, nil)
	n.mu.Lock()
	if n.holds.get(h.key) != nil {
		next.leaveQueueLocked()
		return admitted{}
	}
	next = n.newHoldLocked(h.lock, h.key)
	next.queue = g
	return admitted{hold: next}
}
