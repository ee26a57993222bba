// Package late knows the requests that may still run in Redis although no caller waits for them any more, and the most
// that each of them may still do.
//
// An attempt to acquire a lock has a field of its own, and may consist of several tries. The later requests of its hold
// have the same field: re-entries, renewals, extensions, and the renaming by Detach and Attach. A caller may leave
// while a try of its request is under way, and a connection may fail with a try on it. Such a try runs later, or never.
// If it acquires, the lock may be held without an owner. If it sets a lease, the key outlives the lease that this
// process knows. These questions about a field are answered here, and only here:
//
//   - MayAcquire: does a release or a rollback have to leave a tombstone of the field, which makes the try acquire
//     nothing?
//   - Longest: may the key still get another lease, and which one at most?
//
// Rules: no request shortens the lease of a field that is in use, so a try that runs late cannot do that either. A field
// that has ended is never used again. After a connection has failed, a try may be on its way for as long as a tombstone
// lasts (Life). A try whose outcome is known does nothing any more; its handler notes what it has done (see hold.mayLastLocked in
// internal/engine).
package late

import (
	"sync"
	"sync/atomic"
	"time"
)

// Life is for how long a request may be on its way after its connection has failed, and how long a tombstone lasts: see
// internal/lua/line.lua.
const Life = time.Minute

// An Effect is the most that a request with a field may do when it runs.
type Effect struct {
	Acquires bool          // it acquires the lock if the lock is free
	Lease    time.Duration // it makes the key last for at least this long from then on
}

// Requests are the tries that may still run although no caller waits for them. The zero value has none.
type Requests struct {
	n atomic.Int64 // len(all); most processes have none

	mu  sync.Mutex // guards the fields below; no other mutex is locked while it is held
	all map[key]*tries
}

// A key names the tries with one field that acquire, or those that do not.
type key struct {
	field    string
	acquires bool
}

// tries that may still run.
type tries struct {
	open    int           // whose outcome will be known; negative if it was known before the caller had left
	lost    time.Time     // until when tries may run whose outcome stays unknown; zero: there are none
	longest time.Duration // the longest lease that one of them may set
}

// Left records that the caller of a request with field, which may do x, has stopped waiting. orphans is the number of
// its tries whose outcome Heard will record. lost reports whether there may be other tries whose outcome stays unknown.
func (r *Requests) Left(field string, x Effect, orphans int, lost bool) {
	if orphans == 0 && !lost {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key{field, x.Acquires}
	t := r.all[k]
	if t == nil {
		t = new(tries)
		if r.all == nil {
			r.all = make(map[key]*tries)
		}
		r.all[k] = t
	}
	t.open += orphans
	t.longest = max(t.longest, x.Lease)
	if lost {
		if t.lost.IsZero() {
			time.AfterFunc(Life, func() { r.forgetLost(k, t) })
		}
		t.lost = time.Now().Add(Life)
	}
	r.keepLocked(k, t)
}

// Heard records the outcome of one try with field, which could do x. known reports whether it is certain that the try
// has run or never will.
func (r *Requests) Heard(field string, x Effect, known bool) { r.Left(field, x, -1, !known) }

// keepLocked forgets t if the outcomes of all are known.
func (r *Requests) keepLocked(k key, t *tries) {
	if t.open == 0 && t.lost.IsZero() {
		delete(r.all, k)
	}
	r.n.Store(int64(len(r.all)))
}

// forgetLost forgets those of t that are lost when none of them can run any more. One timer waits for that, however many
// are lost meanwhile.
func (r *Requests) forgetLost(k key, t *tries) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rest := time.Until(t.lost); rest > 0 {
		time.AfterFunc(rest, func() { r.forgetLost(k, t) })
		return
	}
	t.lost = time.Time{}
	r.keepLocked(k, t)
}

// find reports whether one of the tries with k may still run, and which lease it may set at most.
func (r *Requests) find(k key) (may bool, lease time.Duration) {
	if r.n.Load() == 0 {
		return false, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.all[k]; t != nil && (t.open > 0 || time.Now().Before(t.lost)) {
		return true, t.longest
	}
	return false, 0
}

// MayAcquire reports whether a try with field that acquires may still run.
func (r *Requests) MayAcquire(field string) bool {
	may, _ := r.find(key{field, true})
	return may
}

// Longest returns the longest lease that a try with field may still set, counted from when it runs: no later than Life
// from now on, unless it is still open. It is 0 if no try may still run.
func (r *Requests) Longest(field string) time.Duration {
	_, acquiring := r.find(key{field, true})
	_, other := r.find(key{field, false})
	return max(acquiring, other)
}

// Len returns the number of fields with such tries, where one counts twice if only some of them acquire. It is for tests.
func (r *Requests) Len() int { return int(r.n.Load()) }
