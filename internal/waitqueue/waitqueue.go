// Package waitqueue is a first-in, first-out queue for a place that one caller at a time
// may have. Every waiter can leave the queue.
//
// Rules: a Queue does nothing by itself: it never blocks, has no goroutine and no
// mutex. The mutex of its owner guards it, and its Waiters. Release grants the
// place to the first waiter itself, so that no newcomer slips in between.
package waitqueue

import "container/list"

// A Queue admits one caller at a time, in the order of arrival. V is the value that each
// waiter brings. The zero Queue is free.
type Queue[V any] struct {
	taken   bool
	waiters *list.List // of *Waiter[V]; nil: no caller has waited yet
}

// A Waiter is a place in a Queue.
type Waiter[V any] struct {
	Value V
	// Done is closed when the waiter is admitted, or refused with Err.
	Done chan struct{}
	// Err is why the waiter is not admitted. It is written before Done is closed.
	Err error
	// Number orders waiters: see Add.
	Number uint64

	place *list.Element // nil: the waiter is not in the queue any more
}

// TryEnter enters a free queue.
func (q *Queue[V]) TryEnter() bool {
	if q.taken {
		return false
	}
	q.taken = true
	return true
}

// Taken reports whether a caller is admitted.
func (q *Queue[V]) Taken() bool { return q.taken }

// Add appends a waiter, before all waiters with a higher number: a waiter that
// comes back with its old number gets its old place.
func (q *Queue[V]) Add(value V, number uint64) *Waiter[V] {
	if q.waiters == nil {
		q.waiters = list.New()
	}
	w := &Waiter[V]{Value: value, Done: make(chan struct{}), Number: number}
	before := q.waiters.Back()
	for before != nil && before.Value.(*Waiter[V]).Number > number {
		before = before.Prev()
	}
	if before == nil {
		w.place = q.waiters.PushFront(w)
	} else {
		w.place = q.waiters.InsertAfter(w, before)
	}
	return w
}

// First is the waiter that has waited longest, or nil.
func (q *Queue[V]) First() *Waiter[V] {
	if q.waiters == nil || q.waiters.Len() == 0 {
		return nil
	}
	return q.waiters.Front().Value.(*Waiter[V])
}

// Len is the number of waiters.
func (q *Queue[V]) Len() int {
	if q.waiters == nil {
		return 0
	}
	return q.waiters.Len()
}

// All is every waiter, in order.
func (q *Queue[V]) All() (all []*Waiter[V]) {
	if q.waiters == nil {
		return nil
	}
	for place := q.waiters.Front(); place != nil; place = place.Next() {
		all = append(all, place.Value.(*Waiter[V]))
	}
	return all
}

// Remove takes w out of the queue and wakes it. The owner of the queue says by Err or
// by Value whether w is admitted.
func (q *Queue[V]) Remove(w *Waiter[V]) {
	q.waiters.Remove(w.place)
	w.place = nil
	close(w.Done)
}

// Waits reports whether w is still in the queue.
func (w *Waiter[V]) Waits() bool { return w.place != nil }

// Release admits the first waiter, or frees the queue.
func (q *Queue[V]) Release() {
	if first := q.First(); first != nil {
		q.Remove(first)
	} else {
		q.taken = false
	}
}

// Leave gives up the place of w. If w was admitted in the meantime, Leave admits the next waiter.
func (q *Queue[V]) Leave(w *Waiter[V]) {
	switch {
	case w.Waits():
		q.waiters.Remove(w.place)
		w.place = nil
	case w.Err == nil:
		q.Release()
	}
}

// FailBehind refuses all waiters but the first n with err.
func (q *Queue[V]) FailBehind(n int, err error) {
	for i, w := range q.All() {
		if i >= n {
			w.Err = err
			q.Remove(w)
		}
	}
}
