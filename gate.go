package relock

// A gate lets one through at a time, in the order in which they came.
//
// Rules: the mutex of the engine guards every gate, so its methods never block;
// waiting happens in patience.wait, on the channel of a ticket. leave hands the
// gate to the next in line itself: nobody can slip in between.

// The zero gate is open.
type gate struct {
	taken  bool
	holder owner // whoever is through, where it matters; 0: nobody, or on the way
	queue  []*ticket
}

// A ticket is a place in the queue of a gate; its channel is closed when its turn has come.
type ticket struct {
	turn chan struct{}
}

// tryEnter enters an open gate.
func (g *gate) tryEnter() bool {
	if g.taken {
		return false
	}
	g.taken = true
	return true
}

// enqueue takes a place behind all who wait.
func (g *gate) enqueue() *ticket {
	t := &ticket{turn: make(chan struct{})}
	g.queue = append(g.queue, t)
	return t
}

// cancel gives up a place. If its turn had come already, the next one's comes.
func (g *gate) cancel(t *ticket) {
	for i, other := range g.queue {
		if other == t {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return
		}
	}
	g.leave()
}

// leave hands the gate to the next in line, or opens it.
func (g *gate) leave() {
	if len(g.queue) == 0 {
		g.taken = false
		return
	}
	next := g.queue[0]
	g.queue[0] = nil
	g.queue = g.queue[1:]
	close(next.turn)
}
