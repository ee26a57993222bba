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
	all := Stats{
		Leases: e.watchdog.Len(), Listeners: e.pubsub.Listeners(), Polled: polled, AtWork: e.workers.AtWork(),
		Late: e.late.Fields(), Fields: e.acquisitions.Load(), Leaving: e.isLeaving.Load(),
	}
	for _, s := range e.table.all() {
		all.Names++
		s.Lock()
		all.Holds += s.holds.len()
		all.Queues += len(s.queues)
		s.Unlock()
	}
	return all
}

// Waiters reports how many callers of this process wait for kind in their wait queue, whether one is in front of them, and
// whether it has found the lock busy.
func (p Probe) Waiters(kind Lock) (waiters int, front, busy bool) {
	p.look(kind, func(s *lockState) {
		if q := s.findQueueLocked(kind.ID().Half); q != nil {
			waiters, front, busy = q.Len(), q.Taken(), q.busy
		}
	})
	return waiters, front, busy
}

// Guards is how many guards of different contexts the hold of o on kind has.
func (p Probe) Guards(kind Lock, o Owner) (guards int) {
	p.look(kind, func(s *lockState) { guards = len(s.holds.get(holdKey{kind.ID(), o}).guards) })
	return guards
}

// SetHoldCount makes the engine believe that o holds so many levels of kind.
func (p Probe) SetHoldCount(kind Lock, o Owner, levels int) {
	p.look(kind, func(s *lockState) { s.holds.get(holdKey{kind.ID(), o}).count = levels })
}

// HoldCount is how many levels of kind o holds, as far as the engine knows.
func (p Probe) HoldCount(kind Lock, o Owner) int {
	_, levels := p.e.holdCount(kind, o)
	return levels
}

// LeasesEnd is when the lease of o on kind ends.
func (p Probe) LeasesEnd(kind Lock, o Owner) (end time.Time) {
	p.look(kind, func(s *lockState) { end = p.e.watchdog.End(&s.holds.get(holdKey{kind.ID(), o}).record.lease) })
	return end
}

// LeavePlace leaves the place with field to the next caller of kind; "": takes it away.
func (p Probe) LeavePlace(kind Lock, field string) {
	p.look(kind, func(s *lockState) {
		if q := s.findQueueLocked(kind.ID().Half); field == "" {
			q.place = nil
		} else {
			q.place = &place{field: field}
		}
	})
}

// look calls f with the mutex of the name of kind.
func (p Probe) look(kind Lock, f func(s *lockState)) {
	s := p.e.retain(kind.ID().Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	f(s)
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
	s := p.e.retain(name)
	defer s.release()
	return s.uses(field)
}

// NewField makes a field of o.
func (p Probe) NewField(o Owner) string { return p.e.newField(o) }

// HearGrant has the engine hear a message on the channel of grants of kind.
func (p Probe) HearGrant(kind Record, message string) { rollbacker{p.e}.heardGrant(kind, message) }

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
		for _, s := range e.table.all() {
			all["name "+s.text] = &s.mu
		}
	}
	return all
}
