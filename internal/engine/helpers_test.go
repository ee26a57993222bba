package engine

// Helpers that look at the state of an engine. No other test code of the package locks a mutex of it.

import (
	"maps"
	"slices"
)

// atWork is how many callers and goroutines are busy.
func (e *Engine) atWork() int64 { return e.workers.AtWork() }

// eachName calls f for every name that is in use, with its mutex.
func (e *Engine) eachName(f func(s *lockState)) {
	e.table.mu.Lock()
	all := slices.Collect(maps.Values(e.table.names))
	e.table.mu.Unlock()
	for _, s := range all {
		s.locked(func() { f(s) })
	}
}

// holds and waitQueues are how many there are.
func (e *Engine) holds() (holds int) {
	e.eachName(func(s *lockState) { holds += s.holds.len() })
	return holds
}

func (e *Engine) waitQueues() (queues int) {
	e.eachName(func(s *lockState) { queues += len(s.queues) })
	return queues
}

// names is how many names are in use.
func (e *Engine) names() int {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return len(e.table.names)
}

// textsInUse are the names that are in use.
func (e *Engine) textsInUse() (texts []string) {
	e.eachName(func(s *lockState) { texts = append(texts, s.text) })
	return texts
}

// locked calls f with the mutex of the name.
func (s *lockState) locked(f func()) {
	s.Lock()
	defer s.Unlock()
	f()
}

// leases is how many leases the watchdog has.
func (e *Engine) leases() int {
	return e.watchdog.Len()
}

// holdOf is the hold of o on the lock called name; f is called with the mutex of the name.
func (e *Engine) holdOf(id LockID, o Owner, f func(h *hold)) {
	s := e.retain(id.Name)
	defer s.release()
	s.locked(func() { f(s.holds.get(holdKey{id, o})) })
}
