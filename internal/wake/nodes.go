package wake

// How a channel moves to the link of the node that serves it.
//
// Rule: the router is called without the mutex held. Channels about which it is asked are in no queue during that
// time.

import (
	"slices"
	"time"
)

// rerouteNow finds out to which nodes the unrouted channels belong now.
func (l *link) rerouteNow(now time.Time) {
	moving := l.takeUnrouted(now)
	homes := make([]Node, len(moving))
	for i, ch := range moving {
		homes[i] = l.router.Node(ch.name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ch := range moving {
		switch {
		case homes[i].Name == l.node.Name:
			l.node = homes[i] // its dial function may have changed
			// It may have been elsewhere for a moment: see lookAround.
			l.unwanted = slices.DeleteFunc(l.unwanted, func(name string) bool { return name == ch.name })
			l.enqueueLocked(ch, wanted)
		case len(ch.listeners) == 0:
			l.forgetLocked(ch)
		default:
			l.dropLocked(ch)
			l.placeLocked(ch, homes[i])
		}
	}
}

// takeUnrouted removes the unrouted channels from their queue, if it is time to find their nodes.
func (l *link) takeUnrouted(now time.Time) []*channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.routeAt) {
		return nil
	}
	moving := l.queues[unrouted]
	l.queues[unrouted] = nil
	return moving
}

// rerouteWindow is how long a link keeps checking which nodes serve its channels, after a channel has moved or a
// connection was opened.
const rerouteWindow = 10 * time.Second

// lookAround moves channels that belong to another node by now although this node has not refused them. If this node
// has become a replica, it would accept a subscription, and deliver its messages late or not at all.
func (l *link) lookAround() {
	if !l.router.Moves() {
		return
	}
	var mine []*channel
	l.mu.Lock()
	for _, ch := range l.channels {
		if ch.link == l && ch.isConfirmed() {
			mine = append(mine, ch)
		}
	}
	trouble := time.Since(l.lastMoved) < rerouteWindow
	l.mu.Unlock()
	if trouble {
		l.Reload()
	}
	mine = slices.DeleteFunc(mine, func(ch *channel) bool {
		home := l.router.Node(ch.name).Name
		return home == "" || home == l.node.Name // the node is unknown, or it is this one
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range mine {
		if l.channels[ch.name] == ch && ch.isConfirmed() {
			l.unwanted = append(l.unwanted, ch.name)
			l.enqueueLocked(ch, unrouted)
			l.lastMoved = time.Now()
			l.routeAt = l.lastMoved
		}
	}
}
