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
	"maps"
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

	hear  func(message string) // called with every message; nil: there is no such function
	again func()               // called when the channel is subscribed on another connection; nil: the same
}

// A state is what Redis has answered on the current connection.
type state int

const (
	pending   state = iota
	confirmed       // its messages arrive
	refused         // Redis does not allow it
)

// isConfirmed reports whether the channel is subscribed on the current connection.
func (ch *channel) isConfirmed() bool { return ch.state == confirmed }

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
	if now.Sub(l.usedAt) < l.idle {
		return true
	}
	delete(l.links, l.node.Name)
	return false
}

func (l *link) forgetLocked(ch *channel) {
	delete(l.mine, ch.name)
	delete(l.channels, ch.name)
}

// in returns the channels in state s.
func (l *link) in(s state) []*channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(l.mine)), func(ch *channel) bool { return ch.state != s })
}

// answeredLocked records the answer s, or pending for one that says nothing about the channel, to the outstanding
// subscription at index i, which is 0 as a rule. first reports whether no answer was recorded before.
func (l *link) answeredLocked(i int, s state) (ch *channel, first bool) {
	ch = l.asked[i]
	copy(l.asked[1:], l.asked[:i])
	if l.asked = l.asked[1:]; len(l.asked) == 0 {
		l.unanswered = time.Time{}
	} else {
		l.unanswered = time.Now()
	}
	if ch.state = s; s == pending {
		return ch, false
	}
	if first = ch.answer == pending; first {
		close(ch.ready)
	}
	ch.answer = s
	return ch, first
}

// noteConfirmed records that the channel called name is subscribed from now on. On a later connection messages may
// have been lost in between.
func (l *link) noteConfirmed(name string) {
	if ch := l.confirm(name); ch != nil {
		l.resume(ch)
	}
}

// confirm implements noteConfirmed, and returns the channel if messages may have been lost.
func (l *link) confirm(name string) *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.asked, func(ch *channel) bool { return ch.name == name })
	if i < 0 {
		return nil
	}
	ch, first := l.answeredLocked(i, confirmed)
	if first {
		return nil
	}
	return ch
}

// resume wakes the listeners of channels, and calls the functions of Resumes, because messages may have been lost.
func (h *Hub) resume(all ...*channel) {
	for _, again := range h.wake(all) {
		again()
	}
}

// wake implements resume, and returns the functions that are to be called without the mutex.
func (h *Hub) wake(all []*channel) (again []func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range all {
		for _, l := range ch.listeners {
			l.causes.Resubscribed = true
			l.wakeUp()
		}
		if ch.again != nil {
			again = append(again, ch.again)
		}
	}
	return again
}

// noteRefused records that Redis does not allow the first channel whose answer is outstanding. Its listeners continue
// without wake-ups.
func (l *link) noteRefused(err error) { l.refused(l.refuse(), err) }

func (l *link) refuse() (name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) == 0 {
		return ""
	}
	ch, _ := l.answeredLocked(0, refused)
	return ch.name
}
