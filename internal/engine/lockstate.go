package engine

// The state of a lock in this process: the owners that hold it, the callers that wait for it, and the records that the
// holds have in Redis. (The field name of holds and duties is their lock state.)
//
// Rules: each lock name that is in use has one lockState, whose mutex guards all that this process knows of the lock:
// its holds, local queues and records. The table knows which lock names are in use, and nothing else of them; only
// Shutdown, Close and tests look at all lock states. While a mutex is held, nothing blocks, no request is sent, and no
// code of the user runs.
//
// Work that follows from a change is a duty: a function that has the mutex notes it, and the next Unlock begins it, on a
// goroutine that Close waits for. A function that does not have the mutex calls workers.Spawn instead, which begins the
// work at once on such a goroutine. Work that has to be done before the call returns, for example canceling guards, is
// neither: a function that has the mutex returns it to its caller (see ending and effect). The end of a step begins the
// duties that it has noted, so a duty is noted only after the change that it follows from is complete.

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/tenancy"
)

// A stateTable has the lock states that are in use, by the names of their locks.
type stateTable struct {
	mu    sync.Mutex // guards names; no other mutex is locked while it is held
	names map[string]*lockState
}

// A lockState is the state of all locks of one name. Both halves of a read/write lock are in it.
type lockState struct {
	engine *Engine
	name   string       // the name of the locks
	users  atomic.Int64 // calls, registered holds and local queues; it rises from 0 under the table's mutex only

	mu     sync.Mutex // guards the fields below, and the fields of holds, local queues and records that say so
	times  uint32     // how often mu was locked: see TestUncontendedLockTakesItsMutexThreeTimes
	holds  holdSet
	queues []*waitQueue  // the local queues, at most one for each half; nil: there was none
	first  waitQueue     // memory for the first of them: most lock states have no other one
	room   [1]*waitQueue // the array of queues
	field  tenancy.Field // memory for the first field
	record record        // memory for the first record
	duties *duty         // the duty that was noted last; see Unlock
	forced time.Duration // when a forced release was last known of: see checkIfForcedLocked
}

// Lock locks the state of s.
func (s *lockState) Lock() {
	s.mu.Lock()
	s.times++
}

// Unlock unlocks the state of s, and begins the duties that were noted while it was locked.
func (s *lockState) Unlock() {
	if s.duties == nil { // as a rule: this much can be inlined
		s.mu.Unlock()
		return
	}
	s.unlockAndBegin()
}

// unlockAndBegin unlocks s, and begins its duties.
func (s *lockState) unlockAndBegin() {
	duties := s.duties
	s.duties = nil
	s.mu.Unlock()
	s.engine.begin(duties)
}

// retain returns the lock state of the locks called text, and counts its caller as a user until the caller calls
// release.
func (e *Engine) retain(text string) *lockState {
	t := &e.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.names[text]
	if s == nil {
		s = &lockState{engine: e, name: text}
		t.names[text] = s
	}
	s.users.Add(1)
	return s
}

// retainMore adds a user to a lock state that has one already.
func (s *lockState) retainMore() { s.users.Add(1) }

// release removes a user. The last user removes the lock state from the table.
func (s *lockState) release() {
	if s.users.Add(-1) > 0 {
		return
	}
	t := &s.engine.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.users.Load() == 0 && t.names[s.name] == s { // otherwise it has come into use again, or was removed already
		delete(t.names, s.name)
	}
}

// all returns the lock states that are in use.
func (t *stateTable) all() []*lockState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.AppendSeq(make([]*lockState, 0, len(t.names)), maps.Values(t.names))
}

// each calls f for each lock state that is in use, with its mutex.
func (t *stateTable) each(f func(s *lockState)) {
	for _, s := range t.all() {
		func() {
			s.Lock()
			defer s.Unlock()
			f(s)
		}()
	}
}

// find returns the hold that o has, or has lost, on the lock with this id; nil if there is none.
func (s *lockState) find(id contract.LockID, o Owner) *hold {
	s.Lock()
	defer s.Unlock()
	return unlessGone(s.holds.get(holdKey{id.Half, o}))
}

// unlessGone returns h, or nil if h is not acquired yet, or has ended. h may be nil.
func unlessGone(h *hold) *hold {
	if h == nil || h.Asks() || h.isOver() {
		return nil
	}
	return h
}

// newHoldLocked returns a new claim, in its hold, and the owner mutex.
func (s *lockState) newHoldLocked(kind contract.Lock, key holdKey) *hold {
	h := &hold{claim: claim{lockState: s, lock: kind, owner: key.owner, registered: true}}
	h.ownerQueue.TryEnter()
	s.holds.put(h)
	s.retainMore()
	return h
}

// forgetLocked removes h from the holds of s.
func (s *lockState) forgetLocked(h *hold) {
	if h.registered {
		h.registered = false
		s.holds.remove(h)
		s.release()
	}
}

// forget is forgetLocked for callers without the mutex.
func (s *lockState) forget(h *hold) {
	s.Lock()
	defer s.Unlock()
	s.forgetLocked(h)
}

// queueLocked returns the local queue of a half, which it makes if there is none.
func (s *lockState) queueLocked(half string) *waitQueue {
	if q := s.findQueueLocked(half); q != nil {
		return q
	}
	var q *waitQueue
	if s.queues == nil {
		q, s.queues = &s.first, s.room[:0]
	} else { // a queue that was dropped may still be in use, so its memory is used once
		q = new(waitQueue)
	}
	q.half, q.registered = half, true
	s.queues = append(s.queues, q)
	s.retainMore()
	return q
}

// findQueueLocked returns the local queue of a half, or nil.
func (s *lockState) findQueueLocked(half string) *waitQueue {
	for _, q := range s.queues {
		if q.half == half {
			return q
		}
	}
	return nil
}

// dropQueueLocked forgets q if no caller is admitted to it, newcomers share no record of it, and it is not kept. If no
// caller is admitted, it also gives up the place in the line that the last caller has left.
func (s *lockState) dropQueueLocked(q *waitQueue) {
	if !q.Taken() {
		s.dropPlaceLocked(q)
		q.owned = false
	}
	if !q.Taken() && q.shared == nil && !q.kept && q.registered {
		q.registered = false
		s.queues = slices.DeleteFunc(s.queues, func(other *waitQueue) bool { return other == q })
		s.release()
	}
}

// keepQueueLocked makes q stay for some time although no caller uses it. Otherwise a process with a single goroutine
// would forget with each Unlock that it has to let other processes go first.
func (s *lockState) keepQueueLocked(q *waitQueue) {
	if !q.kept {
		q.kept = true
		time.AfterFunc(2*handoff.MostUnannounced, func() { s.endKeeping(q) })
	}
}

// endKeeping ends what keepQueueLocked has begun: q is forgotten unless it is used.
func (s *lockState) endKeeping(q *waitQueue) {
	s.Lock()
	defer s.Unlock()
	q.kept = false
	s.dropQueueLocked(q)
}

// A holdSet has the holds of one lock state by their keys. Most lock states have one hold, which needs no map.
type holdSet struct {
	one  *hold // or nil
	more map[holdKey]*hold
}

// get returns the hold with this key, or nil.
func (s *holdSet) get(key holdKey) *hold {
	if s.one != nil && s.one.key() == key {
		return s.one
	}
	return s.more[key]
}

// put adds h, which must not be in the set, and no other hold with its key.
func (s *holdSet) put(h *hold) {
	switch {
	case s.one == nil:
		s.one = h
		return
	case s.more == nil:
		s.more = make(map[holdKey]*hold)
	}
	s.more[h.key()] = h
}

// remove removes h, which must be in the set.
func (s *holdSet) remove(h *hold) {
	if s.one == h {
		s.one = nil
	} else {
		delete(s.more, h.key())
	}
}

// all returns the holds. The loop may remove the hold that it is at.
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

// dropPlaceLocked gives up the place in the line that the last caller of q has left to the next one.
func (s *lockState) dropPlaceLocked(q *waitQueue) {
	if p := q.place; p != nil {
		q.place = nil
		s.oweLocked(duty{rollBack: p.lock, attempt: p.attempt()})
	}
}

// A duty is background work that must not begin before the lock state is unlocked: to delete the record of a hold, or to
// roll back an attempt.
type duty struct {
	clear    *hold           // the hold to clear; or nil
	rollBack contract.Record // the lock of the attempt to roll back; or nil

	before  *duty            // the duty that was noted before this one; or nil
	attempt contract.Attempt // rollBack: the attempt
}

// oweLocked notes a duty, which the next Unlock of s begins.
func (s *lockState) oweLocked(d duty) {
	d.before = s.duties
	s.duties = &d
}

// begin begins last, and all duties that were noted before it. The caller has unlocked the lock state.
func (e *Engine) begin(last *duty) {
	for d := last; d != nil; d = d.before {
		e.workers.Spawn(func() { e.fulfil(d) })
	}
}
