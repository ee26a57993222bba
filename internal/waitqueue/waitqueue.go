// Package waitqueue is the queue in which the callers of a process wait: a first-in, first-out queue that admits one
// caller at a time. Every waiter can leave the queue. The local queue of a lock is one, and so is the owner mutex of a
// hold.
//
// Rules: a Queue does nothing by itself: it never blocks, and has no goroutine and no mutex. The mutex of its owner
// guards it and its Waiters. Release itself admits the first waiter, so that no new caller can get ahead of it.
package waitqueue

import (
	"container/list"
	"time"
)

// A Queue admits one caller at a time, in the order of arrival. Each waiter carries a value of type V. The zero Queue
// is free.
type Queue[V any] struct {
	taken   bool
	waiters *list.List // of *Waiter[V]; nil: no caller has waited yet
}

// A Waiter is a caller that waits in a Queue.
type Waiter[V any] struct {
	Value V
	// Done is closed when the waiter is admitted, or refused with Err.
	Done chan struct{}
	// Err is the reason why the waiter is not admitted. It is written before Done is closed.
	Err error
	// Since is when the waiter began to wait. See Add.
	Since time.Duration

	place *list.Element // nil: the waiter is no longer in the queue
}

// TryEnter enters a free queue, and reports whether it was free.
func (q *Queue[V]) TryEnter() bool {
	if q.taken {
		return false
	}
	q.taken = true
	return true
}

// Taken reports whether a caller is admitted.
func (q *Queue[V]) Taken() bool { return q.taken }

// Add inserts a waiter ahead of all that began to wait later, so that a waiter that comes back gets its old position.
func (q *Queue[V]) Add(value V, since time.Duration) *Waiter[V] {
	if q.waiters == nil {
		q.waiters = list.New()
	}
	w := &Waiter[V]{Value: value, Done: make(chan struct{}), Since: since}
	w.place = q.waiters.PushBack(w)
	for last := w.place.Prev(); last != nil && last.Value.(*Waiter[V]).Since > since; last = w.place.Prev() {
		q.waiters.MoveBefore(w.place, last)
	}
	return w
}

// First returns the waiter at the head of the queue, which Release would admit; or nil.
func (q *Queue[V]) First() *Waiter[V] {
	if q.waiters == nil || q.waiters.Len() == 0 {
		return nil
	}
	return q.waiters.Front().Value.(*Waiter[V])
}

// Len returns the number of waiters.
func (q *Queue[V]) Len() int {
	if q.waiters == nil {
		return 0
	}
	return q.waiters.Len()
}

// All returns all waiters, in order.
func (q *Queue[V]) All() (all []*Waiter[V]) {
	if q.waiters == nil {
		return nil
	}
	for place := q.waiters.Front(); place != nil; place = place.Next() {
		all = append(all, place.Value.(*Waiter[V]))
	}
	return all
}

// Remove removes w from the queue and wakes it. The owner of the queue reports in w.Err or w.Value whether w is
// admitted.
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

// Leave removes w from the queue. If w was admitted in the meantime, Leave admits the next waiter.
func (q *Queue[V]) Leave(w *Waiter[V]) {
	switch {
	case w.Waits():
		q.waiters.Remove(w.place)
		w.place = nil
	case w.Err == nil:
		q.Release()
	}
}

// FailBehind refuses all waiters except the first n with err.
func (q *Queue[V]) FailBehind(n int, err error) {
	for i, w := range q.All() {
		if i >= n {
			w.Err = err
			q.Remove(w)
		}
	}
}
