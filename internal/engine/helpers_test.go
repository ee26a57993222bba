package engine

// Helpers that look at the state of an engine. No other code of the tests locks a mutex of an engine.

import (
	"slices"

	"github.com/relock-go/relock/internal/contract"
)

// atWork returns the number of callers and goroutines that are at work.
func (e *Engine) atWork() int64 { return e.workers.AtWork() }

// holds returns the number of holds.
func (e *Engine) holds() (holds int) {
	e.table.each(func(s *lockState) { holds += len(slices.Collect(s.holds.all())) })
	return holds
}

// waitQueues returns the number of wait queues.
func (e *Engine) waitQueues() (queues int) {
	e.table.each(func(s *lockState) { queues += len(s.queues) })
	return queues
}

// names returns the number of locks that are in use.
func (e *Engine) names() int {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return len(e.table.names)
}

// textsInUse returns the names of the locks that are in use.
func (e *Engine) textsInUse() (texts []string) {
	e.table.each(func(s *lockState) { texts = append(texts, s.name) })
	return texts
}

// locked calls f with the mutex of s held.
func (s *lockState) locked(f func()) {
	s.Lock()
	defer s.Unlock()
	f()
}

// leases returns the number of leases that the watchdog keeps.
func (e *Engine) leases() int {
	return e.watchdog.Len()
}

// holdOf calls f with the hold of o on the lock id, or nil, and with the mutex of its state held.
func (e *Engine) holdOf(id contract.LockID, o Owner, f func(h *hold)) {
	s := e.retain(id.Name)
	defer s.release()
	s.locked(func() { f(s.holds.get(holdKey{id.Half, o})) })
}
