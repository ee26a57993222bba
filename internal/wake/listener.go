package wake

// Listeners: what a goroutine that waits for a message has of a channel.
//
// Rule: Wake and Ready never change, and the mutex of the hub guards the rest.

import (
	"slices"
	"time"
)

// A Listener is woken by the messages of its channel.
type Listener struct {
	Wake    chan struct{}   // one slot: wake-ups that were not received yet count as one
	Ready   <-chan struct{} // closed when messages are sure to come, or sure not to come
	channel *channel
	hub     *Hub
	filter  func(message string) bool // for which messages the listener is woken; nil: for all
	last    string                    // message that was received
}

// Name is the name of the channel that l listens to.
func (l *Listener) Name() string { return l.channel.name }

// Only has l receive no messages but those for which filter is true. The mutex of the Hub is held while filter is
// called, so filter looks at the message and at nothing else.
func (l *Listener) Only(filter func(message string) bool) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.filter = filter
}

// Hears has every message of the channel of l given to hear before a listener, as long as the channel
// is subscribed. hear must not block.
func (l *Listener) Hears(hear func(message string)) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.channel.hear = hear
}

// Message is the last message that l has received, and not returned before; or "".
func (l *Listener) Message() string {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	m := l.last
	l.last = ""
	return m
}

// Confirmed reports whether the subscription of l is in force.
func (l *Listener) Confirmed() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.channel.isConfirmed()
}

// Refused reports whether Redis does not allow the channel: no message will come.
func (l *Listener) Refused() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.channel.answer == refused
}

// IsSilent reports whether l may have missed a message: its channel is not subscribed, or a ping of its connection has
// had no answer for so long.
func (l *Listener) IsSilent(silence time.Duration) bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	pinged := l.channel.link.pingedAt
	return !l.channel.isConfirmed() || !pinged.IsZero() && time.Since(pinged) > silence
}

// Leave ends listening. The channel stays subscribed for a moment, for the next listener.
func (l *Listener) Leave() {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := l.channel
	if i := slices.Index(ch.listeners, l); i >= 0 {
		ch.listeners = slices.Delete(ch.listeners, i, i+1)
	}
	if len(ch.listeners) > 0 {
		return
	}
	ch.idleSince = time.Now()
	if !ch.idling {
		ch.idling = true
		ch.link.idling = append(ch.link.idling, ch)
		if len(ch.link.idling) == 1 {
			ch.link.kickLocked()
		}
	}
}

const (
	leastRenewPause = time.Second
	mostRenewPause  = time.Minute
)

// Renew has the connection of l replaced: the server that announces on the channel does not know the subscription. The
// connection ends at another server, which was the master before. If the next one is no better, there is something
// between the Client and Redis that keeps subscriptions for itself; so each connection lasts longer than the one
// before.
func (l *Listener) Renew() {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	link, now := l.channel.link, time.Now()
	switch since := now.Sub(link.renewedAt); {
	case !l.channel.isConfirmed(), since < link.renewPause:
		return
	case since > 10*mostRenewPause:
		link.renewPause = 0
	}
	link.stale, link.renewedAt = true, now
	link.renewPause = min(max(2*link.renewPause, leastRenewPause), mostRenewPause)
	link.kickLocked()
}

func (l *Listener) wakeUp() {
	select {
	case l.Wake <- struct{}{}:
	default:
	}
}
