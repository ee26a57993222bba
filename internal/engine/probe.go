package engine

// A look inside an engine, for tests of the lock types: what it has at work, and what it knows of one lock. Nothing
// else calls these methods.

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
)

// A Probe looks inside an engine.
type Probe struct{ e *Engine }

// Probe returns a look inside e.
func (e *Engine) Probe() Probe { return Probe{e} }

// Stats are what an engine has at work.
type Stats struct {
	Names     int    // of locks that are held, or waited for
	Holds     int    // of owners, those that are being acquired too
	Queues    int    // in which callers of this process wait
	Leases    int    // that the watchdog looks after
	Listeners int    // to channels
	Polled    int    // locks that the poller looks after
	AtWork    int64  // calls and goroutines
	Late      int    // fields of requests that may still run although nobody waits for them
	Fields    uint64 // that were made
	Leaving   bool   // from Shutdown or Close on
}

// Stats counts what the engine has at work.
func (p Probe) Stats() Stats {
	e := p.e
	_, polled := e.poller.Running()
	s := Stats{
		Leases: e.watchdog.Len(), Listeners: e.pubsub.Listeners(), Polled: polled, AtWork: e.workers.AtWork(),
		Late: e.late.Fields(), Fields: e.acquisitions.Load(), Leaving: e.isLeaving.Load(),
	}
	for _, n := range e.table.all() {
		s.Names++
		n.Lock()
		s.Holds += n.holds.len()
		s.Queues += len(n.queues)
		n.Unlock()
	}
	return s
}

// Waiters reports how many callers of this process wait for b in their wait queue, whether one is in front of them, and
// whether it has found the lock busy.
func (p Probe) Waiters(b Lock) (waiters int, front, busy bool) {
	p.look(b, func(n *lockState) {
		if q := n.findQueueLocked(b.ID().Half); q != nil {
			waiters, front, busy = q.Len(), q.Taken(), q.busy
		}
	})
	return waiters, front, busy
}

// Guards is how many guards of different contexts the hold of o on b has.
func (p Probe) Guards(b Lock, o Owner) (guards int) {
	p.look(b, func(n *lockState) { guards = len(n.holds.get(holdKey{b.ID(), o}).guards) })
	return guards
}

// SetHoldCount makes the engine believe that o holds so many levels of b.
func (p Probe) SetHoldCount(b Lock, o Owner, levels int) {
	p.look(b, func(n *lockState) { n.holds.get(holdKey{b.ID(), o}).count = levels })
}

// HoldCount is how many levels of b o holds, as far as the engine knows.
func (p Probe) HoldCount(b Lock, o Owner) int {
	_, levels := p.e.holdCount(b, o)
	return levels
}

// LeasesEnd is when the lease of o on b ends.
func (p Probe) LeasesEnd(b Lock, o Owner) (end time.Time) {
	p.look(b, func(n *lockState) { end = p.e.watchdog.End(&n.holds.get(holdKey{b.ID(), o}).record.lease) })
	return end
}

// LeavePlace leaves the place with field to the next caller of b; "": takes it away.
func (p Probe) LeavePlace(b Lock, field string) {
	p.look(b, func(n *lockState) {
		if q := n.findQueueLocked(b.ID().Half); field == "" {
			q.place = nil
		} else {
			q.place = &place{field: field}
		}
	})
}

// look calls f with the mutex of the name of b.
func (p Probe) look(b Lock, f func(n *lockState)) {
	n := p.e.retain(b.ID().Name)
	defer n.release()
	n.Lock()
	defer n.Unlock()
	f(n)
}

// SleepInLine is how long a waiter with a place sleeps that hears channel, where so much of the lease in its way is
// left.
func (p Probe) SleepInLine(name, channel string, left time.Duration) time.Duration {
	hears := p.e.pubsub.Join(channel)
	defer hears.Leave()
	delay, stop := looking{p.e}.awaitInLine(name, "", hears, Answer{Outcome: Outcome{Wait: left}})
	stop()
	return delay
}

// Uses reports whether field belongs to a wait or a hold of the lock called name.
func (p Probe) Uses(name, field string) bool {
	n := p.e.retain(name)
	defer n.release()
	return n.uses(field)
}

// NewField makes a field of o.
func (p Probe) NewField(o Owner) string { return p.e.newField(o) }

// HearGrant has the engine hear a message on the channel of grants of b.
func (p Probe) HearGrant(b Record, message string) { rollbacker{p.e}.heardGrant(b, message) }

// KeepInUse keeps a name in use until done is called.
func (p Probe) KeepInUse(name string) (done func()) { return p.e.retain(name).release }

// Sender sends the requests of the engine.
func (p Probe) Sender() *send.Sender { return p.e.sender }

// Poller looks after locks that waiters in a line want.
func (p Probe) Poller() *poller.Poller { return p.e.poller }

// Mutexes are all mutexes of the engine and its parts, by what they guard. Those of names are among them if names is
// set.
func (p Probe) Mutexes(names bool) map[string]*sync.Mutex {
	e := p.e
	all := map[string]*sync.Mutex{
		"names": &e.table.mu, "workers": e.workers.Mutex(), "lapsed": &e.expired.mu, "watchdog": e.watchdog.Mutex(),
		"pubsub": e.pubsub.Mutex(), "reporter": e.reporter.Mutex(),
	}
	for part, mu := range e.sender.Mutexes() {
		all[part] = mu
	}
	if names {
		for _, n := range e.table.all() {
			all["name "+n.text] = &n.mu
		}
	}
	return all
}
