package fleet

// The events that are still to come, the next one first. Events at the same time are in the order in which they were
// added.

import "time"

type event struct {
	at    time.Duration
	order int
	of    *process
	do    func(*simulation, *process)
}

func (e event) before(other event) bool {
	return e.at < other.at || e.at == other.at && e.order < other.order
}

// A queue is a binary heap without the interfaces of container/heap, because it takes most of the time of a simulation.
type queue struct {
	heap  []event
	added int
}

func (q *queue) add(e event) {
	q.added++
	e.order = q.added
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

// nextAt returns the time of the next event. There always is one.
func (q *queue) nextAt() time.Duration { return q.heap[0].at }

// next removes and returns the next event.
func (q *queue) next() event {
	first, last := q.heap[0], len(q.heap)-1
	e := q.heap[last]
	q.heap = q.heap[:last]
	if last == 0 {
		return first
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= last {
			break
		}
		if right := down + 1; right < last && q.heap[right].before(q.heap[down]) {
			down = right
		}
		if !q.heap[down].before(e) {
			break
		}
		q.heap[i] = q.heap[down]
		i = down
	}
	q.heap[i] = e
	return first
}
