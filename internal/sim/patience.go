//go:build go1.25

package sim

// What the witness may expect of a phase: how long calls wait at most, whose turn it is, and what a process can hear.
//
// Rules: a time is the sum of what may be in the way of a call in the plan. It is rather too long than too short.

import (
	"slices"
	"time"
)

// untidy reports whether a lock may be blocked for longer than usual: by a lease that the clock of Redis has
// prolonged, by a hold that lasts longer by design, by a Java waiter that has gone, or by a process that has vanished
// silently.
func (w *world) untidy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.phase.Workers, func(o Worker) bool { return o.MinHold > 0 || o.Kind == JavaFair }) ||
		w.backIn(w.phase) > 0 || w.ghostly() > 0 || time.Now().Before(w.prolonged)
}

// backIn returns by how much the clock of Redis is set back in a phase. mu is held.
func (w *world) backIn(phase Phase) (sum time.Duration) {
	for _, f := range phase.Faults {
		if f.Kind == "clock back" {
			sum += f.Amount
		}
	}
	return sum
}

// missesGrants reports whether a process may not receive grants, because it was not permitted to subscribe at some time
// of the phase. It then polls (see docs/security.md), even when it has the permission again, until it has not needed the
// channel for a moment.
func (w *world) missesGrants() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.began)
	return w.plan.Lacks == "subscribe" || slices.ContainsFunc(w.phase.Faults,
		func(f Fault) bool { return f.Kind == "no subscribe" && f.At <= now })
}

// inLine returns workers of a phase whose records contain only holders, one worker for each lock.
func (w *world) inLine() (all []Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.phase.Workers {
		shares := func(other Worker) bool { return other.shares(o) }
		minimal := slices.ContainsFunc(w.phase.Workers, func(other Worker) bool {
			return other.shares(o) && other.MinHold > 0
		})
		if (o.Kind == Plain || o.Kind == FencedOne || o.Kind == Fair || o.Kind == Leader) && !minimal &&
			!slices.ContainsFunc(all, shares) {
			all = append(all, o)
		}
	}
	return all
}

// semaphores returns the names of the semaphores that are used in a phase.
func (w *world) semaphores() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.phase.Workers {
		if o.counts() && !slices.Contains(all, o.Names[0]) {
			all = append(all, o.Names[0])
		}
	}
	return all
}

// turnsBefore returns how many turns of other processes may precede that of a worker, with a margin, and whether its
// lock is handed off in the order of a line.
func (w *world) turnsBefore(of *Worker) (most int, ordered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A process that lacks a permission waits up to the poll interval while others are notified, or has no position
	// in the line: see docs/security.md.
	switch of.Kind {
	case Plain, FencedOne, Fair, Permits, Wide:
	default:
		return 0, false
	}
	// After a release a process lets others go first for about a round trip. While the workers finish, sections take
	// no time, so that other processes can have several turns within that.
	if w.plan.Lacks != "" || w.unlined || w.ending {
		return 0, false
	}
	beside := 0 // workers of its process, each of which may need a turn of the process
	all, steady := 0, true
	for _, o := range w.phase.Workers {
		if o.shares(*of) && o.Kind != of.Kind {
			return 0, false
		}
		if o.shares(*of) && o.Process == of.Process {
			beside++
		}
		if o.shares(*of) {
			all++
			steady = steady && o.Steady
		}
	}
	if most = beside*(w.plan.Processes-1) + 1; of.Kind == Fair { // each worker has a position of its own
		most = all + 1
	}
	if !steady { // these workers give up, and come again
		most = 2*most + 4
	}
	return most, true
}

// patience returns how long a call may wait for its turn at most, in the current situation.
func (w *world) patience(c *call) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	limit := 20*time.Second + w.ghostly()
	if c.worker == nil {
		return limit
	}
	turns := time.Duration(2)
	switch c.worker.Kind {
	case ReadWrite, Write, Permits, Wide, Multi, Red, JavaReadWrite, JavaPermits: // no line, or several
		turns = 6
	}
	for _, o := range w.phase.Workers {
		if o.ID == c.worker.ID && !o.Moves || !w.phase.together(o, *c.worker) {
			continue
		}
		if o.Kind == Multi { // it may hold one lock while it waits for the other one
			turns = 6
		}
		// These have no position in a line. If the network never varies, others may always be sooner.
		if c.worker.Kind == Multi || c.worker.Kind == Red && w.plan.Jitter == 0 {
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if (c.worker.Kind == Write) != (o.Kind == Write) {
			// While one type of lock of a name is contended, the other may never get it: see docs/which-lock.md.
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if c.worker.readsAndWrites() && (c.worker.java() || o.java()) {
			// Java readers do not let waiting writers go first, and relock does not know about Java writers that
			// wait: see docs/from-redisson.md.
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if c.worker.Kind == JavaPermits { // it has no position in the line, and others may always be sooner
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		each := 2*o.Section + o.MinHold + 500*time.Millisecond // the second one after an Extend
		if o.Moves {
			each += mostMoves * (w.plan.Watchdog + callBound + o.Section)
		}
		switch w.plan.Lacks {
		case "publish":
			each += w.plan.WakeDelay
			// It is not notified of a release, and its attempts may always come too late.
			if o.Process == w.plan.Poor && w.phase.hasNoPlace(*c.worker) {
				limit = max(limit, w.phase.Length+20*time.Second)
			}
		case "subscribe":
			each += 2 * w.plan.WakeDelay
			// It polls, and processes that receive messages make an attempt at once.
			if c.worker.Kind == Red && c.worker.Process == w.plan.Poor {
				limit = max(limit, w.phase.Length+20*time.Second)
			}
		}
		if w.unlined {
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		limit += turns * each
		if o.java() {
			limit += turns * (o.Section + 10*time.Second)
		}
		if c.worker.Kind == JavaFair && (w.phase.kills() || len(w.phase.Faults) > 0) {
			// Java waits this long for each waiter that has died, and forever for one whose timeout was lost.
			limit += javaWait + time.Hour
		}
		if c.worker.Kind == Fair && o.Kind == JavaFair && len(w.phase.Faults) > 0 {
			// A fault may restore the position of a Java waiter that has left. Redisson keeps it for this time,
			// starting at the position ahead of it.
			limit += 2 * javaWait
		}
	}
	now := time.Since(w.began)
	if w.phase.Crash && now >= w.phase.Length {
		limit += w.plan.Watchdog + 2*fairLife + grantLife
	}
	// Records without a holder last longer if the clock goes back.
	orphans := w.phase.Crash || slices.ContainsFunc(w.phase.Workers, func(o Worker) bool { return o.MinHold > 0 })
	for _, f := range w.phase.Faults {
		if f.At > now {
			continue
		}
		if f.Kind == "clock back" {
			limit += slack
			continue
		}
		// The fault may leave a record for the time of a lease, and dead waiters.
		limit += min(f.For, now-f.At) + w.plan.Watchdog + 2*fairLife + grantLife
		if f.Kind == "slow" || f.Kind == "degrade" || f.Kind == "late requests" {
			limit += 20 * f.Amount
		}
		orphans = true
	}
	if orphans { // their leases last longer
		limit += w.backIn(w.phase)
	}
	if before := w.prolonged.Sub(c.began); before > 0 { // clocks went back in previous phases
		limit += before
	}
	return limit
}

// hasNoPlace reports whether a call of the worker may wait without a position in the line. This applies to calls of a
// Java service, and to calls that wait behind a MultiLock of their own process.
func (p Phase) hasNoPlace(a Worker) bool {
	return a.java() || slices.ContainsFunc(p.Workers, func(o Worker) bool {
		return o.Kind == Multi && o.Process == a.Process && o.shares(a)
	})
}

// together reports whether one worker may have to wait for the other, because they share a lock, or because each
// shares one with a MultiLock.
func (p Phase) together(a, b Worker) bool {
	return a.shares(b) || slices.ContainsFunc(p.Workers, func(o Worker) bool {
		return o.Kind == Multi && o.shares(a) && o.shares(b)
	})
}

// count returns the number of workers that use locks of this kind.
func (p Phase) count(kind Kind) (n int) {
	for _, w := range p.Workers {
		if w.Kind == kind {
			n++
		}
	}
	return n
}

// java reports whether Java services work in the phase.
func (p Phase) java() bool {
	return slices.ContainsFunc(p.Workers, Worker.java)
}

// kills reports whether processes die in the phase.
func (p Phase) kills() bool {
	return p.Crash || slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == "kill" || f.Kind == "vanish" })
}
