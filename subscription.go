package relock

// How a waiter hears of a release: by a subscription, or, where Redis does not allow
// that, by asking often at the right time.

import (
	"slices"
	"time"
)

// A subscription is where a waiter hears of the release of the lock that is in its way. The zero value listens to nothing.
type subscription struct {
	of          lockID
	listeners   []*listener // with one wake between them
	unconfirmed []*listener // those that may have come into force after the last attempt
}

// watch listens for w, and returns what to wait for. It says whether it has begun to listen.
func (s *subscription) watch(w want) (wake, ready <-chan struct{}, begun bool) {
	if begun = s.of != w.hold.key.id; begun {
		channel := w.hold.verbs().channel(w.attempt)
		s.listenTo([]*listener{w.hold.name.engine.pubsub.join(channel)})
		s.of = w.hold.key.id
	}
	wake, ready = s.awaited()
	return wake, ready, begun
}

// listenTo listens to all, which have one wake, and to nothing else any more.
func (s *subscription) listenTo(all []*listener) {
	s.leave()
	s.listeners, s.unconfirmed = all, slices.Clone(all)
}

// awaited is what to wait for: releases; and first a confirmation that a release will be heard, if the last
// attempt was made without one.
func (s *subscription) awaited() (wake, ready <-chan struct{}) {
	if len(s.listeners) > 0 {
		wake = s.listeners[0].wake
	}
	if len(s.unconfirmed) > 0 {
		ready = s.unconfirmed[0].ready
	}
	return wake, ready
}

// confirm notes, before the next attempt, which subscriptions are in force.
func (s *subscription) confirm() {
	s.unconfirmed = slices.DeleteFunc(s.unconfirmed, func(l *listener) bool {
		select {
		case <-l.ready:
			return true
		default:
			return false
		}
	})
}

func (s *subscription) leave() {
	for _, l := range s.listeners {
		l.leave()
	}
	*s = subscription{}
}

// refused says whether Redis does not allow to listen.
func (s *subscription) refused() bool { return len(s.listeners) == 1 && s.listeners[0].refused() }

const (
	shortPoll  = 10 * time.Millisecond
	rarestPoll = time.Hour            // the max wake delay comes first
	hotFor     = 2 * longSlice        // after a lock was seen to change hands: it is really released before that is over
	pollSlack  = 5 * time.Millisecond // by which a lease may seem to have become later because an answer took longer
)

// polling is how often a waiter asks that hears of no release: often once it has seen that the lock
// has changed hands while it slept, and then more and more rarely, because a lock that is
// kept for long costs Redis a request each time. A renewal looks as if the lock had changed hands.
type polling struct {
	end   time.Time     // of the lease in the way
	moved time.Time     // when that was last seen to have become later
	pause time.Duration // after an answer
}

// next is how long to sleep at most after an answer, which said what is left of the lease in the way.
func (p *polling) next(answered time.Time, left time.Duration) time.Duration {
	end := answered.Add(left)
	switch {
	case p.end.IsZero():
		p.pause = rarestPoll
	case left > 0 && end.Sub(p.end) > pollSlack:
		p.moved = answered
	}
	if p.end = end; answered.Sub(p.moved) < hotFor {
		p.pause = shortPoll
	} else {
		p.pause = min(2*p.pause, rarestPoll)
	}
	return p.pause
}
