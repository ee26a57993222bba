package engine

// How a waiter notices a release: by a subscription, or, where Redis does not allow
// one, by asking often at the right time.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/wake"
)

// A subscription listens to the release of the lock that blocks a waiter. The zero value listens to nothing.
type subscription struct {
	names       []string         // of the channels of listeners, where watch has chosen them
	listeners   []*wake.Listener // with one wake channel for all
	unconfirmed []*wake.Listener // listeners that may have come into force after the last attempt
}

// watch listens for t, and returns the channels to wait on. It reports whether it has begun to listen. apart says that
// the holder releases the lock on its channel alone.
func (s *subscription) watch(t target, apart bool) (wake, ready <-chan struct{}, begun bool) {
	grants, releases := "", ""
	if t.Delivery != "" && t.Delivery != Barge {
		grants = t.hold.commands().Grants(t.Attempt)
	}
	if grants == "" || apart {
		releases = t.hold.commands().Channel(t.Attempt)
	}
	if begun = !slices.Equal(s.names, channelNames(grants, releases)); begun {
		s.change(t, grants, releases)
	}
	wake, ready = s.awaited()
	return wake, ready, begun
}

func channelNames(grants, releases string) []string {
	return slices.DeleteFunc([]string{grants, releases}, func(name string) bool { return name == "" })
}

// change listens to these channels instead of those of before, and keeps what it has.
func (s *subscription) change(t target, grants, releases string) {
	e := t.hold.name.engine
	before := s.listeners
	signal := make(chan struct{}, 1)
	if len(before) > 0 {
		signal = before[0].Wake
	}
	s.names, s.listeners = channelNames(grants, releases), nil
	for _, name := range s.names {
		at := slices.IndexFunc(before, func(l *wake.Listener) bool { return l.Name() == name })
		if at >= 0 {
			s.listeners = append(s.listeners, before[at])
			before = slices.Delete(before, at, at+1)
			continue
		}
		l := e.pubsub.JoinFor(signal, name)
		if name == grants {
			kind := t.hold.commands()
			l.Hears(func(message string) { rollbacker{e}.heardGrant(kind, message) })
			if kind.Admission() == Uncoordinated {
				l.Only(isFor(t.Field))
			}
		}
		s.listeners, s.unconfirmed = append(s.listeners, l), append(s.unconfirmed, l)
	}
	for _, l := range before {
		s.unconfirmed = slices.DeleteFunc(s.unconfirmed, func(other *wake.Listener) bool { return other == l })
		l.Leave()
	}
}

// hearsGrants reports whether the next attempt of t can join the line: the caller listens to the channel of grants.
// Where the channel is still subscribed from an earlier wait, it begins to listen.
func (s *subscription) hearsGrants(t target) bool {
	name := t.hold.commands().Grants(t.Attempt)
	if len(s.names) > 0 {
		return s.names[0] == name && s.listeners[0].Confirmed()
	}
	if !t.hold.name.engine.pubsub.IsConfirmed(name) {
		return false
	}
	s.change(t, name, "")
	s.unconfirmed = nil
	return s.listeners[0].Confirmed()
}

// message is what the caller was told on the channel of grants, and has not read before; or "".
func (s *subscription) message() string {
	if len(s.names) == 0 {
		return ""
	}
	return s.listeners[0].Message()
}

// listenTo listens to all, which share a wake channel, and leaves the listeners of before.
func (s *subscription) listenTo(all []*wake.Listener) {
	s.leave()
	s.listeners, s.unconfirmed = all, slices.Clone(all)
}

// awaited returns the channels to wait on: wake for releases; and ready for the confirmation of the subscription,
// if the last attempt was made before that.
func (s *subscription) awaited() (wake, ready <-chan struct{}) {
	if len(s.listeners) > 0 {
		wake = s.listeners[0].Wake
	}
	if len(s.unconfirmed) > 0 {
		ready = s.unconfirmed[0].Ready
	}
	return wake, ready
}

// confirm notes, before the next attempt, which subscriptions are in force.
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

func (s *subscription) leave() {
	for _, l := range s.listeners {
		l.Leave()
	}
	*s = subscription{}
}

// isRefused reports whether Redis does not allow the subscription.
func (s *subscription) isRefused() bool { return len(s.listeners) > 0 && s.listeners[0].Refused() }

const (
	shortPoll  = 10 * time.Millisecond
	rarestPoll = time.Hour              // the poll interval comes first
	hotFor     = 2 * handoff.LongWindow // how long after a change of hands a waiter asks often: longer than a slice
	pollSlack  = 5 * time.Millisecond   // how much later a lease may seem to end because an answer took longer
)

// polling is how often a waiter asks that receives no message of a release. It asks often once it has
// noticed that the lock changed hands while it slept. Then it asks more and more rarely, because each
// request costs Redis time while the lock is held for long. A renewal looks as if the lock had changed hands.
type polling struct {
	end   time.Time     // of the lease in the way
	moved time.Time     // when end was last found to be later than before
	pause time.Duration // after an answer
}

// next is how long to sleep at most after an answer, which said how much of the lease in the way is left.
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
