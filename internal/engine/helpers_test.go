package engine

// Helpers of several test files that need no bubble. fake_test.go has those that do.
//
// A test file has the name of its source file, and the tests of that part. These are about more than one part:
//
//	conformance   the rules that every lock type keeps
//	property      random use of the wait queue, the watchdog and the subscriptions, against models
//	fair_model    the queue of a FairLock in every order of events, against a model
//	fuzz          what Redis and users may pass in
//	storm, soak   many clients under faults for a while, and for long; the history is judged
//	process       processes that are paused, killed and starved
//	faults        faults between a Client and Redis; faults_server: faults of Redis itself
//	fault_rows    which test tries which row of docs/reliability.md
//	cluster       Redis Cluster; replication, synced: replicas and failovers
//	notalock      keys that hold something other than a lock
//	security      TLS, rights in Redis, and secrets in texts
//	docs, readme  the code and the texts in the documentation; example: that code
//	light         what importing the package costs
//	bench         benchmarks
//	fake, helpers, main, race, norace   no tests

import (
	"maps"
	"slices"
	"sync"
)

// atWork is how many callers and goroutines are busy.
func (e *Engine) atWork() int64 { return e.workers.AtWork() }

// The helpers from here on look at the state of an engine. No other test code locks a mutex of the package.

// eachName calls f for every name that is in use, with its mutex.
func (e *Engine) eachName(f func(n *name)) {
	e.table.mu.Lock()
	all := slices.Collect(maps.Values(e.table.names))
	e.table.mu.Unlock()
	for _, n := range all {
		n.locked(func() { f(n) })
	}
}

// holds and waitQueues are how many there are.
func (e *Engine) holds() (holds int) {
	e.eachName(func(n *name) { holds += n.holds.len() })
	return holds
}

func (e *Engine) waitQueues() (queues int) {
	e.eachName(func(n *name) { queues += len(n.queues) })
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
	e.eachName(func(n *name) { texts = append(texts, n.text) })
	return texts
}

// locked calls f with the mutex of the name.
func (n *name) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// nameMutexes are the mutexes of the names that are in use.
func (e *Engine) nameMutexes() map[string]*sync.Mutex {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	mutexes := make(map[string]*sync.Mutex)
	for text, n := range e.table.names {
		mutexes[text] = &n.mu
	}
	return mutexes
}

// leases is how many leases the watchdog has.
func (e *Engine) leases() int {
	return e.watchdog.Len()
}

// holdOf is the hold of o on the lock called name; f is called with the mutex of the name.
func (e *Engine) holdOf(id LockID, o Owner, f func(h *hold)) {
	n := e.use(id.Name)
	defer n.done()
	n.locked(func() { f(n.holds.get(holdKey{id, o})) })
}
