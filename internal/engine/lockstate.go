package engine

// The state of a lock's name in this process: the owners that hold it, the callers that wait for it,
// and the records that the holds have in Redis.
//
// Rules: a name that is in use has one object, with one mutex that guards everything
// under that name: holds, wait queues, and records. The table knows the names and
// nothing of their state; only Close looks at all names. No blocking call, no
// request and no code of the user runs while a mutex is held. A caller that needs
// several names locks them in the order of their texts (see names).

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// A stateTable has the names that are in use.
type stateTable struct {
	mu     sync.Mutex // guards below; a leaf
	names  map[string]*lockState
	closed bool
}

// A lockState is the state of one lock name. Both halves of a RWLock are in it.
type lockState struct {
	engine *Engine
	text   string
	users  atomic.Int64 // calls, registered holds, and registered wait queues; it leaves 0 with the mutex of the table alone

	mu     sync.Mutex // guards below, and the fields of holds, wait queues and records that say so
	closed bool       // the Client is
	holds  holdSet
	queues []*waitQueue // one for each half that has one
	multis map[holdKey][]*multiAcquire
	due    *duty // the last one that has come due; see Unlock
}

// Lock locks the state of s.
func (s *lockState) Lock() { s.mu.Lock() }

// Unlock unlocks the state of s, and begins what has come due meanwhile.
func (s *lockState) Unlock() {
	if s.due == nil {
		s.mu.Unlock()
		return
	}
	due := s.due
	s.due = nil
	s.mu.Unlock()
	s.engine.begin(due)
}

// retain returns the name called text. Its caller must call done in the end.
func (e *Engine) retain(text string) *lockState {
	t := &e.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.names[text]
	if s == nil {
		s = &lockState{engine: e, text: text, closed: t.closed}
		t.names[text] = s
	}
	s.users.Add(1)
	return s
}

// retainMore adds a user to a name that is in use.
func (s *lockState) retainMore() { s.users.Add(1) }

// release removes a user. The last user removes the name from the table.
func (s *lockState) release() {
	if s.users.Add(-1) > 0 {
		return
	}
	t := &s.engine.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.users.Load() == 0 && t.names[s.text] == s { // else it has come into use again, or is removed already
		delete(t.names, s.text)
	}
}

// close returns all names; names that are made later are closed from the start.
func (t *stateTable) close() []*lockState {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	all := make([]*lockState, 0, len(t.names))
	for _, s := range t.names {
		all = append(all, s)
	}
	return all
}

// all returns the names that are in use.
func (t *stateTable) all() []*lockState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.names))
}

// lockStates are several names, in the order of their texts and each once. Lock locks all of them.
type lockStates []*lockState

func retainAll(e *Engine, bs []Lock) lockStates {
	var all lockStates
	for _, kind := range bs {
		all = append(all, e.retain(kind.ID().Name))
	}
	slices.SortFunc(all, func(a, b *lockState) int { return cmp.Compare(a.text, b.text) })
	return slices.CompactFunc(all, func(a, b *lockState) bool {
		if a == b {
			b.release()
		}
		return a == b
	})
}

func (ns lockStates) release() {
	for _, s := range ns {
		s.release()
	}
}

func (ns lockStates) Lock() {
	for _, s := range ns {
		s.mu.Lock()
	}
}

func (ns lockStates) Unlock() {
	var all []*duty
	for _, s := range ns {
		all = append(all, s.due)
		s.due = nil
		s.mu.Unlock()
	}
	for _, due := range all {
		ns[0].engine.begin(due)
	}
}

// find returns the hold that o has, or has lost, on the half; nil where there is none.
func (s *lockState) find(id LockID, o Owner) *hold {
	s.Lock()
	defer s.Unlock()
	h := s.holds.get(holdKey{id, o})
	if h == nil || h.state.wanted() || h.state == ended {
		return nil
	}
	return h
}

// newHoldLocked makes a fresh hold. Its caller has the owner mutex of the hold, and is woken through changed (or nil)
// when its owner comes to hold the other half.
func (s *lockState) newHoldLocked(kind Lock, key holdKey, changed chan struct{}) *hold {
	h := &hold{name: s, lock: kind, key: key, changed: changed, registered: true}
	h.owner.TryEnter()
	s.holds.put(h)
	s.retainMore()
	return h
}

// forgetLocked takes h out of the registered holds.
func (s *lockState) forgetLocked(h *hold) {
	if h.registered {
		h.registered = false
		s.holds.remove(h)
		s.release()
	}
}

// counterpartLocked is the hold that the owner of h has on the other half of its lock, or asks for.
func (s *lockState) counterpartLocked(h *hold) *hold {
	if h.lock.Counterpart() == (LockID{}) {
		return nil
	}
	return s.holds.get(holdKey{h.lock.Counterpart(), h.key.owner})
}

// queueLocked is the wait queue of a half.
func (s *lockState) queueLocked(half string) *waitQueue {
	if q := s.findQueueLocked(half); q != nil {
		return q
	}
	q := &waitQueue{half: half, registered: true}
	s.queues = append(s.queues, q)
	s.retainMore()
	return q
}

// findQueueLocked is the wait queue of a half, or nil.
func (s *lockState) findQueueLocked(half string) *waitQueue {
	for _, q := range s.queues {
		if q.half == half {
			return q
		}
	}
	return nil
}

// dropQueueLocked forgets a wait queue that is free and has no record for newcomers to share. It gives up the place in
// the line that the last caller has left.
func (s *lockState) dropQueueLocked(q *waitQueue) {
	if !q.Taken() {
		s.dropPlaceLocked(q)
	}
	if !q.Taken() && q.shared == nil && !q.kept && q.registered {
		q.registered = false
		s.queues = slices.DeleteFunc(s.queues, func(other *waitQueue) bool { return other == q })
		s.release()
	}
}

// keepQueueLocked keeps q for a while: a process of one goroutine would forget with each Unlock that other processes go
// first.
func (s *lockState) keepQueueLocked(q *waitQueue) {
	if !q.kept {
		q.kept = true
		s.oweLocked(duty{keep: q})
	}
}

// endKeeping forgets q when the while is over, unless it is used.
func (s *lockState) endKeeping(q *waitQueue) {
	s.Lock()
	defer s.Unlock()
	q.kept = false
	s.dropQueueLocked(q)
}

// recordsOf are the records that this process has of a half.
func (s *lockState) recordsOf(id LockID) (all []*record) {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.key.id == id && h.state.holds() {
			all = append(all, h.record)
		}
	}
	return all
}

// A holdSet is the holds of a name by their keys. Most names have one hold, which needs no map.
type holdSet struct {
	one  *hold
	more map[heldKey]*hold
}

// A heldKey is a holdKey without the name, which is the same for all holds of a name.
type heldKey struct {
	half  string
	owner Owner
}

func (k *holdKey) held() heldKey { return heldKey{k.id.Half, k.owner} }

func (s *holdSet) get(key holdKey) *hold {
	if s.one != nil && s.one.key == key {
		return s.one
	}
	return s.more[key.held()]
}

func (s *holdSet) put(h *hold) {
	if s.one == nil && s.more[h.key.held()] == nil {
		s.one = h
		return
	}
	if s.more == nil {
		s.more = make(map[heldKey]*hold)
	}
	s.more[h.key.held()] = h
}

func (s *holdSet) remove(h *hold) {
	if s.one != nil && s.one.key == h.key {
		s.one = nil
	} else {
		delete(s.more, h.key.held())
	}
}

func (s *holdSet) len() int {
	n := len(s.more)
	if s.one != nil {
		n++
	}
	return n
}

func (s *holdSet) all() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		if s.one != nil && !yield(s.one) {
			return
		}
		for _, h := range s.more {
			if !yield(h) {
				return
			}
		}
	}
}
