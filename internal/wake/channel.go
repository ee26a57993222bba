package wake

// The channels of a link, from the first listener until Redis is told to unsubscribe, and how the answers from Redis
// change them.
//
//	           the writer         Redis
//	           subscribes         allows it
//	 wanted ────────────► asked ────────────► confirmed
//	   ▲                   │ └──► refused         │
//	   │ 100 ms            ▼                      │
//	   └───────────────  moved  ◄─────────────────┘
//	             the node no longer serves it
//
// Rules:
//   - A channel that is wanted, asked or moved is in that list of its link, once, and is pending. The only exceptions are
//     channels while the router is asked about them.
//   - A channel whose answer is still outstanding is kept, so that the answer is not taken for that of a later channel
//     of the same name.
//   - Whether a channel has listeners is not part of its state: the last one may leave in any state.

import (
	"slices"
	"time"
)

// A channel is one pub/sub channel that is subscribed, or that will be.
type channel struct {
	name      string
	link      *link
	listeners []*Listener
	state     state
	answer    state         // the last answer from Redis on any connection, confirmed or refused; pending: none yet
	ready     chan struct{} // closed at the first answer, whether confirmed or refused
	idleSince time.Time     // when a listener last left

	hear func(message string) // see Hears
}

// A state is what Redis has answered on the current connection.
type state int

const (
	pending   state = iota
	confirmed       // its messages arrive
	refused         // Redis does not allow it
)

// isConfirmed reports whether there is a channel, and it is subscribed on the current connection.
func (ch *channel) isConfirmed() bool { return ch != nil && ch.state == confirmed }

// takeChanges returns the channels to subscribe and to unsubscribe now.
func (l *link) takeChanges(now time.Time) (subscribe []*channel, unsubscribe []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	subscribe, unsubscribe = l.wanted, l.unwanted
	l.wanted, l.unwanted = nil, nil
	l.asked = append(l.asked, subscribe...)
	if len(subscribe) > 0 && l.unanswered.IsZero() {
		l.unanswered = now
	}
	return subscribe, unsubscribe
}

// sweep forgets the channels that have had no listeners for a while. It returns false if the link has had no channels
// for a while: it then ends, and the next listener starts another one.
func (l *link) sweep(now time.Time) (needed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, ch := range l.mine {
		l.usedAt = now
		if len(ch.listeners) > 0 || ch.state == pending || now.Sub(ch.idleSince) < l.idleTTL {
			continue
		}
		if ch.isConfirmed() {
			l.unwanted = append(l.unwanted, name)
		}
		l.forgetLocked(ch)
	}
	if now.Sub(l.usedAt) < idleTime {
		return true
	}
	delete(l.links, l.node.Name)
	return false
}

func (l *link) forgetLocked(ch *channel) {
	delete(l.mine, ch.name)
	delete(l.channels, ch.name)
}

// answer records the answer s, or pending for one that says nothing about the channel, to the first outstanding
// subscription, or to that of the channel called name if it is confirmed. err is the answer if it is an error. It returns
// what is to be called without the mutex.
func (l *link) answer(name string, s state, err error) (then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.asked, func(ch *channel) bool { return s != confirmed || ch.name == name })
	if i < 0 {
		return nil
	}
	ch := l.asked[i]
	copy(l.asked[1:], l.asked[:i]) // i is 0 as a rule
	if l.asked = l.asked[1:]; len(l.asked) == 0 {
		l.unanswered = time.Time{}
	} else if i == 0 { // otherwise an earlier one has got no answer of its own
		l.unanswered = time.Now()
	}
	if s == pending {
		return l.loseLocked(ch)
	}
	first := ch.answer == pending
	if ch.state, ch.answer = s, s; first {
		close(ch.ready)
	}
	switch {
	case s == refused: // the listeners continue without wake-ups
		return func() { l.refused(ch.name, err) }
	case !first:
		ch.wakeLocked()
	}
	return nil
}

// wakeLocked wakes the listeners, because messages may have been lost.
func (ch *channel) wakeLocked() {
	for _, l := range ch.listeners {
		l.causes.Resubscribed = true
		l.wakeUp()
	}
}
