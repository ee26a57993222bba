package engine

// Subscriptions: how a waiter notices a release. It subscribes to channels of Redis, or polls if Redis does not allow
// the subscription.
//
// Rules: a message is a hint, and may be lost: after each sleep the caller makes another attempt, unless it was granted
// the lock. It also makes one when its subscription is confirmed, because a release before that may have gone
// unnoticed.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A subscription has the channels on which a waiter learns that its lock was released, or granted to it. The zero value
// listens to nothing.
type subscription struct {
	listeners   []*wake.Listener // they share one wake channel; that of grants comes first, if the caller listens for them
	unconfirmed []*wake.Listener // those that were perhaps not subscribed yet when the last attempt was made
}

// watch listens to the channels that t has to wait for, besides those that the caller listens to already. onChannel is set
// if the release is announced to the caller on the channel of the lock only: see standing.
func (s *subscription) watch(t target, onChannel bool) {
	grants := ""
	if t.Delivery != "" && t.Delivery != contract.Barge {
		grants = t.hold.commands().Grants(t.Attempt)
	}
	if grants != "" {
		if l := s.join(t, grants, 0); l != nil {
			hearGrants(l, t)
		}
	}
	if grants == "" || onChannel {
		s.join(t, t.hold.commands().Channel(t.Attempt), len(s.listeners))
	}
}

// join listens to the channel called name, too, and returns the listener, which is put at this index of s.listeners. It
// returns nil if s has one already, or if name is "".
func (s *subscription) join(t target, name string, at int) *wake.Listener {
	if name == "" || slices.ContainsFunc(s.listeners, func(l *wake.Listener) bool { return l.Name() == name }) {
		return nil
	}
	signal := make(chan struct{}, 1)
	if len(s.listeners) > 0 {
		signal = s.listeners[0].Wake
	}
	l := t.hold.lockState.engine.pubsub.JoinFor(signal, name)
	s.listeners, s.unconfirmed = slices.Insert(s.listeners, at, l), append(s.unconfirmed, l)
	return l
}

// hearGrants makes l, which listens to the channel of grants, hear those of t.
func hearGrants(l *wake.Listener, t target) {
	kind, e := t.hold.commands(), t.hold.lockState.engine
	l.Hears(func(message string) { e.heardGrant(kind, message) })
	if kind.Traits().Admission == contract.Uncoordinated {
		l.Only(isFor(t.Field))
	}
}

// hearsGrants reports whether the next attempt of t can join the line, because the caller listens to the channel of
// grants and the subscription is confirmed. If the channel is still subscribed from an earlier wait, hearsGrants begins
// to listen to it.
func (s *subscription) hearsGrants(t target) bool {
	name := t.hold.commands().Grants(t.Attempt)
	if len(s.listeners) > 0 {
		return s.listeners[0].Name() == name && s.listeners[0].Confirmed()
	}
	// One look finds the subscription and keeps it: it may end at any moment while no caller listens.
	l := t.hold.lockState.engine.pubsub.JoinConfirmed(name)
	if l == nil {
		return false
	}
	hearGrants(l, t)
	s.listeners = []*wake.Listener{l}
	return true
}

// message returns the last message of the first channel that it has not returned before; or "".
func (s *subscription) message() string {
	if len(s.listeners) == 0 {
		return ""
	}
	return s.listeners[0].Message()
}

// listenTo listens to all, which share a wake channel, instead of the previous listeners.
func (s *subscription) listenTo(all []*wake.Listener) {
	s.leave()
	s.listeners, s.unconfirmed = all, slices.Clone(all)
}

// awaited returns the Go channels to wait on: wake receives a value for each message, and ready is closed when a
// subscription is confirmed or refused that was not confirmed when the last attempt was made. Each may be nil.
func (s *subscription) awaited() (wake, ready <-chan struct{}) {
	if len(s.listeners) > 0 {
		wake = s.listeners[0].Wake
	}
	if len(s.unconfirmed) > 0 {
		ready = s.unconfirmed[0].Ready
	}
	return wake, ready
}

// wakeUp returns why a sleep on the channels of awaited has ended: a message arrived, or a subscription began, for the
// first time or on another connection. Both are false if the time was up, if the subscription was refused, or if the
// caller was woken by somebody else, such as the poller. It is called once after each sleep, before confirm.
func (s *subscription) wakeUp() (message, begun bool) {
	begun = slices.ContainsFunc(s.unconfirmed, (*wake.Listener).Confirmed)
	for _, l := range s.listeners {
		causes := l.Causes()
		message, begun = message || causes.Message, begun || causes.Resubscribed
	}
	return message, begun
}

// confirm notes, before the next attempt, which subscriptions are confirmed or refused by now.
func (s *subscription) confirm() {
	s.unconfirmed = slices.DeleteFunc(s.unconfirmed, func(l *wake.Listener) bool {
		select {
		case <-l.Ready:
			return true
		default:
			return false
		}
	})
}

// mayHaveMissed reports whether a message since the last attempt may not have arrived.
func (s *subscription) mayHaveMissed() bool {
	return len(s.unconfirmed) > 0 ||
		slices.ContainsFunc(s.listeners, func(l *wake.Listener) bool { return l.IsSilent(send.MinWait) })
}

// leave ends listening.
func (s *subscription) leave() {
	for _, l := range s.listeners {
		l.Leave()
	}
	*s = subscription{}
}

// isRefused reports whether Redis has refused the subscription.
func (s *subscription) isRefused() bool { return len(s.listeners) > 0 && s.listeners[0].Refused() }

const (
	shortPoll  = 10 * time.Millisecond  // the pause between two attempts while the lock changes hands
	rarestPoll = time.Hour              // in effect no limit: the poll interval is shorter
	hotFor     = 2 * handoff.LongWindow // how long a waiter polls often after that: longer than a hand-off window
	pollSlack  = 5 * time.Millisecond   // how much later a lease may seem to expire because an answer took longer
)

// polling decides how often a waiter that may not subscribe makes attempts. It makes them often after it has noticed
// that the lock has changed hands, and then more and more rarely, because attempts cost Redis time while one owner
// keeps the lock for long. A lock has changed hands if its lease expires later than before, so a renewal looks the
// same.
type polling struct {
	end   time.Time     // when the lease of the current holder expires
	moved time.Time     // when end was last found to be later than before
	pause time.Duration // how long the waiter sleeps after an answer, at most
}

// next returns how long to sleep at most after an answer that came at answered, when left was left of the lease of the
// current holder.
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
