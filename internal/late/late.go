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
	n atomic.Int64 // len(fields); most processes have none

	mu     sync.Mutex // guards the fields below; no other mutex is locked while it is held
	fields map[string]*requestsOf
}

// requestsOf are the tries with one field.
type requestsOf struct {
	all       tries
	acquiring tries         // those of them that acquire
	longest   time.Duration // the longest lease that one of them may set
}

// none reports whether the outcomes of all tries are known. That of one may have been recorded before its caller is known
// to have left, so that as many are known as there are, and one that acquires is open nevertheless.
func (f *requestsOf) none() bool { return f.all.none() && f.acquiring.none() }

// tries that may still run.
type tries struct {
	open int       // whose outcome will be known; negative if it was known before the caller had left
	lost time.Time // until when tries may run whose outcome stays unknown; zero: there are none
}

// add adds open tries, and a lost one if lost is not zero.
func (t *tries) add(open int, lost time.Time) {
	t.open += open
	if lost.After(t.lost) {
		t.lost = lost
	}
}

// none reports whether the outcomes of all tries are known.
func (t *tries) none() bool { return t.open == 0 && t.lost.IsZero() }

// mayRun reports whether one of the tries may still run.
func (t *tries) mayRun() bool { return t.open > 0 || time.Now().Before(t.lost) }

// Left records that the caller of a request with field, which may do x, has stopped waiting. orphans is the number of
// its tries whose outcome Heard will record. lost reports whether there may be other tries whose outcome stays unknown.
func (r *Requests) Left(field string, x Effect, orphans int, lost bool) {
	if orphans == 0 && !lost {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(field, x, orphans, lost)
}

// Heard records the outcome of one try with field, which could do x. known reports whether it is certain that the try
// has run or never will.
func (r *Requests) Heard(field string, x Effect, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(field, x, -1, !known)
}

func (r *Requests) addLocked(field string, x Effect, open int, lost bool) {
	f := r.fields[field]
	if f == nil {
		f = new(requestsOf)
		if r.fields == nil {
			r.fields = make(map[string]*requestsOf)
		}
		r.fields[field] = f
	}
	var until time.Time
	if lost {
		until = time.Now().Add(Life)
		if f.all.lost.IsZero() {
			time.AfterFunc(Life, func() { r.forgetLost(field, f) })
		}
	}
	f.all.add(open, until)
	f.longest = max(f.longest, x.Lease)
	if x.Acquires {
		f.acquiring.add(open, until)
	}
	r.keepLocked(field, f)
}

// keepLocked forgets f, the tries with field, if the outcomes of all are known.
func (r *Requests) keepLocked(field string, f *requestsOf) {
	if f.none() {
		delete(r.fields, field)
	}
	r.n.Store(int64(len(r.fields)))
}

// forgetLost forgets the lost tries with field when none of them can run any more. One timer waits for that, however many
// are lost meanwhile.
func (r *Requests) forgetLost(field string, f *requestsOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rest := time.Until(f.all.lost); rest > 0 {
		time.AfterFunc(rest, func() { r.forgetLost(field, f) })
		return
	}
	f.all.lost, f.acquiring.lost = time.Time{}, time.Time{}
	r.keepLocked(field, f)
}

// find calls f with the tries with field, if there are any.
func (r *Requests) find(field string, f func(*requestsOf)) {
	if r.n.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if of := r.fields[field]; of != nil {
		f(of)
	}
}

// MayAcquire reports whether a try with field that acquires may still run.
func (r *Requests) MayAcquire(field string) (may bool) {
	r.find(field, func(f *requestsOf) { may = f.acquiring.mayRun() })
	return may
}

// Longest returns the longest lease that a try with field may still set, counted from when it runs: no later than Life
// from now on, unless it is still open. It is 0 if no try may still run.
func (r *Requests) Longest(field string) (lease time.Duration) {
	r.find(field, func(f *requestsOf) {
		if f.all.mayRun() {
			lease = f.longest
		}
	})
	return lease
}

// Fields returns the number of fields that have such tries.
func (r *Requests) Fields() int { return int(r.n.Load()) }
