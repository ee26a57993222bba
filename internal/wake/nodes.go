package wake

// How a channel moves to the link of the node that serves it.
//
// Rules: the router is called without the mutex held, on the goroutine that writes. A channel without listeners is
// forgotten, and does not move.

import "time"

// rerouteWindow is how long a link makes the router find out again, once a second, which node serves which channel,
// after a channel has moved or a connection was opened.
const rerouteWindow = 10 * time.Second

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
	if !l.router.Moves() {
		return
	}
	if l.isMoving(time.Now()) {
		l.Reload()
	}
	l.route(confirmed, l.in(confirmed))
}

func (l *link) isMoving(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.lostAt) < rerouteWindow
}

// noteMoved records that the node no longer serves a channel: the confirmed channel called name or, if name is empty,
// the first channel whose answer is outstanding. After a while, in which the router finds out who does, it is routed.
func (l *link) noteMoved(name string) {
	if l.evict(name) {
		l.Reload()
	}
}

// evict implements noteMoved. first reports whether no other channel has moved that was not routed yet.
func (l *link) evict(name string) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := l.mine[name]
	switch {
	case name == "" && len(l.asked) > 0:
		ch, _ = l.answeredLocked(0, pending)
	case ch == nil || !ch.isConfirmed():
		return false
	}
	ch.state, l.lostAt = pending, time.Now()
	if l.moved = append(l.moved, ch); len(l.moved) > 1 {
		return false
	}
	due := l.due
	time.AfterFunc(l.reroute, func() { due <- struct{}{} })
	return true
}

// takeMoved returns the channels that have moved.
func (l *link) takeMoved() (all []*channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, l.moved = l.moved, nil
	return all
}
