package wake

// The channels of a link, from the first listener until Redis has been told to unsubscribe, and how the answers from
// Redis change them.
//
// Rule: a channel whose answer is still outstanding is kept, so that the answer is not taken for that of a later
// channel of the same name.

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
	answer    state         // the last answer from Redis on any connection, confirmed or refused; 0: none yet
	ready     chan struct{} // closed at the first answer, whether confirmed or refused
	askedAt   time.Time     // when SUBSCRIBE was last sent for it
	idling    bool          // it is in the list idling of its link
	idleSince time.Time

	hear  func(message string) // called with every message; nil: there is no such function
	again func()               // called when the channel is subscribed on another connection; nil: the same
}

// changes returns the channels to subscribe and to unsubscribe now, and the time until the next call. next is 0 when
// the link has had no channels for a while. The link then ends, and the next listener starts another one.
func (l *link) changes(now time.Time) (subscribe, unsubscribe []string, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	unsubscribe, l.unwanted = l.unwanted, nil
	for _, ch := range l.queues[wanted] {
		ch.askedAt = now
		subscribe = append(subscribe, ch.name)
		l.enqueueLocked(ch, subscribing)
	}
	l.queues[wanted] = nil

	next = l.idle
	for range l.idling {
		ch := l.idling[0]
		left := ch.idleSince.Add(l.idleTTL).Sub(now)
		// A channel whose answer is still outstanding stays, because the answer must not be taken for that of a later
		// channel of the same name.
		again := len(ch.listeners) == 0 && ch.isPending() && left <= 0
		if left > 0 && len(ch.listeners) == 0 {
			next = left
			break
		}
		l.idling[0] = nil
		l.idling = l.idling[1:]
		switch {
		case again:
			ch.idleSince = now
			l.idling = append(l.idling, ch)
			next = min(next, l.idleTTL)
		case len(ch.listeners) > 0:
			ch.idling = false
		default:
			delete(l.channels, ch.name)
			l.size--
			if ch.isConfirmed() {
				unsubscribe = append(unsubscribe, ch.name)
			}
		}
	}
	if len(l.queues[unrouted]) > 0 {
		next = min(next, max(l.routeAt.Sub(now), time.Millisecond))
	}

	if l.size > 0 {
		l.emptySince = time.Time{}
		return subscribe, unsubscribe, next
	}
	if l.emptySince.IsZero() {
		l.emptySince = now
	}
	next = l.emptySince.Add(l.idle).Sub(now)
	if next <= 0 {
		delete(l.links, l.node.Name)
		return nil, nil, 0
	}
	return subscribe, unsubscribe, next
}

// unconfirmed reports whether a subscription has been waiting for its answer for longer than the time of three pings.
func (l *link) unconfirmed(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unconfirmedLocked(now)
}

func (l *link) unconfirmedLocked(now time.Time) bool {
	asked := l.queues[subscribing]
	return len(asked) > 0 && now.Sub(asked[0].askedAt) > 3*l.second
}

// noteConfirmed records that the channel called name is subscribed from now on. On a later connection messages may
// have been lost in between, so it also wakes the listeners, and calls the function of Resumes, except at the first
// answer.
func (l *link) noteConfirmed(name string) {
	if again := l.confirm(name); again != nil {
		again()
	}
}

// confirm implements noteConfirmed, and returns the function that is to be called without the mutex.
func (l *link) confirm(name string) (again func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.queues[subscribing], func(ch *channel) bool { return ch.name == name })
	if i < 0 {
		return nil
	}
	ch := l.dequeueLocked(subscribing, i)
	if ch.answeredLocked(confirmed) {
		return nil
	}
	ch.wakeLocked()
	return ch.again
}

// wakeAll wakes all listeners, and calls the functions of Resumes, because the Redis client is closed: callers that wait
// for a message are to find that out.
func (l *link) wakeAll() {
	for _, again := range l.wakeAllStep() {
		again()
	}
}

func (l *link) wakeAllStep() (again []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.channels {
		ch.wakeLocked()
		if ch.again != nil {
			again = append(again, ch.again)
		}
	}
	return again
}

// noteMoved records that the node no longer serves a channel: the confirmed channel called name or, if name is empty,
// the first channel whose answer is outstanding.
func (l *link) noteMoved(name string) {
	if l.evict(name) {
		l.Reload()
	}
}

// evict makes a channel unrouted. first reports whether it is the only unrouted channel of the link.
func (l *link) evict(name string) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := l.channels[name]
	switch {
	case name == "" && len(l.queues[subscribing]) > 0:
		ch = l.dequeueLocked(subscribing, 0)
	case ch == nil || ch.link != l || !ch.isConfirmed():
		return false
	}
	if len(ch.listeners) == 0 {
		ch.state = unrouted // and in no queue, because it is forgotten
		l.forgetLocked(ch)
		return false
	}
	l.enqueueLocked(ch, unrouted)
	if len(l.queues[unrouted]) > 1 {
		return false
	}
	l.lastMoved = time.Now()
	l.routeAt = l.lastMoved.Add(l.reroute)
	l.kickLocked()
	return true
}

// noteRefused records that Redis does not allow the first channel whose answer is outstanding. Its listeners continue
// without wake-ups.
func (l *link) noteRefused(err error) {
	l.mu.Lock()
	var name string
	if len(l.queues[subscribing]) > 0 {
		ch := l.dequeueLocked(subscribing, 0)
		name = ch.name
		ch.answeredLocked(refused)
	}
	quiet := l.refused != nil && name == l.quiet
	l.mu.Unlock()
	if quiet {
		l.refused(err)
	} else {
		l.warnOnce(name, err)
	}
}

// warnOnce calls warn with a refusal, unless it has done so before.
func (l *link) warnOnce(name string, err error) {
	l.mu.Lock()
	first := !l.warned
	l.warned = true
	l.mu.Unlock()
	if first {
		l.warn(name, err)
	}
}

// dropLocked removes a channel, which must not be in a queue, from the link.
func (l *link) dropLocked(ch *channel) {
	l.size--
	if ch.idling {
		ch.idling = false
		l.idling = slices.DeleteFunc(l.idling, func(other *channel) bool { return other == ch })
	}
}

func (l *link) forgetLocked(ch *channel) {
	l.dropLocked(ch)
	delete(l.channels, ch.name)
}

// wakeLocked wakes the listeners, because the channel is subscribed on another connection.
func (ch *channel) wakeLocked() {
	for _, l := range ch.listeners {
		l.causes.Resubscribed = true
		l.wakeUp()
	}
}
