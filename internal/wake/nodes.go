package wake

// How a channel moves to the link of the node that serves it.
//
// Rules: the router is called without the mutex held, on the goroutine that writes. A channel without listeners is
// forgotten, and does not move.

import (
	"maps"
	"slices"
	"time"
)

// rerouteWindow is how long a link makes the router find out again, once a second, which node serves which channel,
// after a channel has moved or a connection was opened.
const rerouteWindow = 10 * time.Second

// reroutePause is how long after its refusal a channel is routed again.
const reroutePause = 100 * time.Millisecond

// route moves those of the channels that are still in state from to the links of the nodes that serve them. One that is
// confirmed stays if that is this node, or unknown. All others are subscribed anew.
func (l *link) route(from state, all []*channel) {
	homes := make([]Node, len(all))
	for i, ch := range all {
		homes[i] = l.router.Node(ch.name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ch := range all {
		switch home := homes[i]; {
		case ch.link != l, ch.state != from, from == confirmed && (home.Name == "" || home.Name == l.node.Name):
			continue
		case from == confirmed:
			l.unwanted, l.lostAt = append(l.unwanted, ch.name), time.Now()
		}
		if l.forgetLocked(ch); len(ch.listeners) > 0 {
			l.placeLocked(ch, homes[i])
		}
	}
}

// lookAround moves channels that belong to another node by now although this node has not refused them. If this node
// has become a replica, it would accept a subscription, and deliver its messages late or not at all.
func (l *link) lookAround() {
	all, moving := l.look()
	if moving {
		l.Reload()
	}
	l.route(confirmed, all)
}

// look returns the channels, and whether some of the node may be moving.
func (l *link) look() ([]*channel, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.mine)), l.node.Name != "" && time.Since(l.lostAt) < rerouteWindow
}

// lose records that the node no longer serves the channel called name. It returns what is to be called without the
// mutex.
func (l *link) lose(name string) (then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch := l.mine[name]; ch.isConfirmed() {
		return l.loseLocked(ch)
	}
	return nil
}

// loseLocked records that the node no longer serves ch. After a while, in which the router finds out who does, it is
// routed. loseLocked returns what is to be called without the mutex.
func (l *link) loseLocked(ch *channel) (then func()) {
	ch.state, l.lostAt = pending, time.Now()
	if l.moved = append(l.moved, ch); len(l.moved) > 1 {
		return nil
	}
	due := l.due
	time.AfterFunc(reroutePause, func() { due <- struct{}{} })
	return l.Reload
}

// takeMoved returns the channels that have moved.
func (l *link) takeMoved() (all []*channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, l.moved = l.moved, nil
	return all
}
