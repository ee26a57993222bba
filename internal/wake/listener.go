package wake

// Listeners: the view that a waiting goroutine has of a channel.
//
// Rule: Wake and Ready never change; the mutex of the hub guards the rest.

import (
	"slices"
	"time"
)

// Causes are why a Listener was woken. Its channel Wake may have received wake-ups from other sources, too: see JoinFor.
type Causes struct {
	Message      bool // a message arrived
	Resubscribed bool // the channel is subscribed on another connection: messages in between were lost
}

// A Listener is woken by the messages of its channel.
type Listener struct {
	Wake chan struct{} // holds one wake-up: several that were not received yet count as one
	// Ready is closed when the subscription is in force or was refused. It stays closed, also while the channel has
	// no subscription on a later connection. A goroutine that sleeps a second time must not select on it again,
	// because it would wake up at once.
	Ready   <-chan struct{}
	channel *channel
	hub     *Hub
	filter  func(message string) bool // selects the messages that wake the listener; nil: all of them do
	last    string                    // the last message that was received, unless Message has returned it
	causes  Causes                    // why it was woken, unless Causes has returned it
}

// Name returns the name of the channel that l listens to.
func (l *Listener) Name() string { return l.channel.name }

// Only restricts l to the messages for which filter returns true. The mutex of the Hub is held while filter is
// called, so filter must look at nothing but the message.
func (l *Listener) Only(filter func(message string) bool) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.filter = filter
}

// Hears sets the function that is called with every message of the channel of l, before any listener is woken. It belongs
// to the channel and not to l: it replaces one that was set through another listener, and stays until the channel is
// unsubscribed, also after l has left. It is called without the mutex held, on the goroutine that reads from the
// connection, so it must not block.
func (l *Listener) Hears(hear func(message string)) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.channel.hear = hear
}

// Message returns the last message that l received, or "" if there is none or Message has returned it already.
func (l *Listener) Message() string {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	m := l.last
	l.last = ""
	return m
}

// Causes returns why l was woken since Causes was last called.
func (l *Listener) Causes() Causes {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	c := l.causes
	l.causes = Causes{}
	return c
}

// Confirmed reports whether the subscription of l is in force.
func (l *Listener) Confirmed() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.channel.isConfirmed()
}

// Refused reports whether Redis refused the channel when it last answered. No messages arrive then, unless a later
// connection is allowed to subscribe.
func (l *Listener) Refused() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.channel.answer == refused
}

// IsSilent reports whether l may have missed a message, because its channel is not subscribed, or because a ping of
// its connection has been without an answer for longer than silence.
func (l *Listener) IsSilent(silence time.Duration) bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	pinged := l.channel.link.pingedAt
	return !l.channel.isConfirmed() || !pinged.IsZero() && time.Since(pinged) > silence
}

// Leave stops listening. The channel stays subscribed for a moment, in case another listener joins.
func (l *Listener) Leave() {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := l.channel
	ch.listeners = slices.DeleteFunc(ch.listeners, func(other *Listener) bool { return other == l })
	ch.idleSince = time.Now()
}

const renewPause = 5 * time.Second

// Renew replaces the connection of l, because the server that serves the channel does not know the subscription. The
// connection may lead to a different server, which was the master before. If the new connection is no better,
// something between the Client and Redis keeps subscriptions for itself, so it is kept for a while.
func (l *Listener) Renew() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if link, now := l.channel.link, time.Now(); l.channel.isConfirmed() && now.Sub(link.renewedAt) >= renewPause {
		link.renewedAt = now
		link.end(nil)
	}
}

func (l *Listener) wakeUp() {
	select {
	case l.Wake <- struct{}{}:
	default:
	}
}
