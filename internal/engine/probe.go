package engine

// Probes: how tests of other packages look inside an engine, and at what it knows of one lock.
//
// Rules: only tests and package relocktest call these methods.

import (
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// A Probe looks inside an engine, for tests.
type Probe struct{ e *Engine }

// Probe returns the probe of e.
func (e *Engine) Probe() Probe { return Probe{e} }

// Stats are the numbers of things that an engine has at one moment.
type Stats struct {
	Names     int    // lock states
	Holds     int    // holds, including those that are being acquired
	Queues    int    // local queues
	Listeners int    // listeners to channels of Redis
	Polled    int    // locks that the poller looks at
	AtWork    int64  // calls and goroutines that have not ended, except the one that looks for long waits
	Late      int    // fields with requests that may still run although no caller waits for them
	Fields    uint64 // fields that were made so far
	Leaving   bool   // Shutdown or Close was called
}

// Stats returns the numbers of this moment.
func (p Probe) Stats() Stats {
	e := p.e
	_, polled := e.poller.Running()
	all := Stats{
		Listeners: e.pubsub.Listeners(), Polled: polled,
		AtWork: e.workers.AtWork() - e.slowWalkers(),
		Late:   e.late.Len(), Fields: e.fields.count.Load(), Leaving: e.isLeaving.Load(),
	}
	e.table.each(func(s *lockState) {
		all.Names++
		for range s.holds.all() {
			all.Holds++
		}
		all.Queues += len(s.queues)
	})
	return all
}

// A View is what an engine knows of one lock and one owner at one moment.
type View struct {
	Waiters     int  // callers of this process in the local queue
	Front, Busy bool // the queue has admitted a caller; the last attempt of an admitted caller has found the lock busy

	// Of the hold that the owner has, or has lost and not released; zero: there is none.
	Field     string
	HoldCount int
	Guards    int       // with different parents
	LeaseEnds time.Time // until when the lease is valid
}

// Look returns what the engine knows of kind and o.
func (p Probe) Look(kind contract.Lock, o Owner) (v View) {
	half, s := kind.Traits().ID.Half, p.e.retain(kind.Traits().ID.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	if q := s.findQueueLocked(half); q != nil {
		v.Waiters, v.Front, v.Busy = q.Len(), q.Taken(), q.reply != nil
	}
	if h := s.holds.get(holdKey{half, o}); h != nil && h.record != nil {
		v.Field, v.HoldCount, v.Guards = h.Field().ID, h.Count(), len(h.guards)
		v.LeaseEnds = p.e.watchdog.End(&h.record.lease)
	}
	return v
}

// HearsOfForce makes the Client hear of forced releases from now on, also while its holds are younger than a second. It
// returns when Redis has answered the subscription, or after a second.
func (p Probe) HearsOfForce() {
	l := p.e.pubsub.Join(p.e.Channel)
	l.Hears(p.e.hints.Heard)
	select {
	case <-l.Ready:
	case <-time.After(time.Second):
	}
}

// SetHoldCount sets the hold count of the hold of o on kind, in this process only.
func (p Probe) SetHoldCount(kind contract.Lock, o Owner, count int) {
	h, _ := p.e.holdCount(kind, o)
	h.lockState.Lock()
	defer h.lockState.Unlock()
	for h.Count() > count {
		h.Lowered()
	}
	for h.Count() < count {
		h.Reentered()
	}
}

// HearGrant makes the engine handle message as one that came on the channel of grants of kind.
func (p Probe) HearGrant(kind contract.Record, message string) {
	p.e.heardGrant(kind, message)
}

// Sender returns the sender of the engine.
func (p Probe) Sender() *send.Sender { return p.e.sender }
