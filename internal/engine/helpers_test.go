package engine

// Helpers that look at the state of an engine. No other test code of the package locks a mutex of it.

import (
	"maps"
	"slices"
)

// atWork is how many callers and goroutines are busy.
func (e *Engine) atWork() int64 { return e.workers.AtWork() }

// eachName calls f for every name that is in use, with its mutex.
func (e *Engine) eachName(f func(n *lockState)) {
	e.table.mu.Lock()
	all := slices.Collect(maps.Values(e.table.names))
	e.table.mu.Unlock()
	for _, n := range all {
		n.locked(func() { f(n) })
	}
}

// holds and waitQueues are how many there are.
func (e *Engine) holds() (holds int) {
	e.eachName(func(n *lockState) { holds += n.holds.len() })
	return holds
}

func (e *Engine) waitQueues() (queues int) {
	e.eachName(func(n *lockState) { queues += len(n.queues) })
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
	e.eachName(func(n *lockState) { texts = append(texts, n.text) })
	return texts
}

// locked calls f with the mutex of the name.
func (n *lockState) locked(f func()) {
	n.Lock()
	defer n.Unlock()
	f()
}

// leases is how many leases the watchdog has.
func (e *Engine) leases() int {
	return e.watchdog.Len()
}

// holdOf is the hold of o on the lock called name; f is called with the mutex of the name.
func (e *Engine) holdOf(id LockID, o Owner, f func(h *hold)) {
	n := e.retain(id.Name)
	defer n.release()
	n.locked(func() { f(n.holds.get(holdKey{id, o})) })
}
