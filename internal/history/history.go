// Package history checks whether the answers that the users of a lock received are possible.
//
// Workers record every call with a [Recorder]: its start, its end, and its answer. The part of the test that injects
// faults records those. Afterwards [Check] looks for events that no lock may allow. The package is for tests.
package history

// The records, and the Recorder that makes them.
//
// Rules: one monotonic clock is used for all. A time is recorded at the point where it proves least: the start of a
// call before the call, a grant after its answer, and the end of the validity as the last moment at which the lock
// still reported the hold as valid. So every delay by a busy machine makes a history more possible.

import (
	"slices"
	"sync"
	"time"
)

// A Kind is the kind of a call.
type Kind int

const (
	Take  Kind = iota // acquires the lock once
	Count             // asks for the hold count
	Give              // releases the lock once
)

func (k Kind) String() string { return [...]string{"take", "count", "give"}[k] }

// An Outcome is the result of a call.
type Outcome int

const (
	Done    Outcome = iota
	Refused         // another owner has the lock, and the time was up
	Unsure          // an error: it may have happened, or may still happen
	Lost            // the hold was lost
	NotHeld         // there was no hold
)

func (o Outcome) String() string {
	return [...]string{"done", "refused", "unsure", "lost", "not held"}[o]
}

// An Op is one call.
type Op struct {
	Kind         Kind
	Name         string
	Owner        string
	Client       int
	Shared       bool          // with other shared holds
	Lease        time.Duration // that was asked for; 0: renewed
	Once         bool          // a single attempt that does not wait
	GiveUp       time.Duration // when the caller wanted to return, with the lock or without it; 0: never
	Call, Return time.Duration
	Outcome      Outcome
	Level        int // the hold count. Take: after the call; Count: that was returned; Give: that is left
	Token        int64
}

// A Hold is a Take that succeeded, with the later calls of its owner until it was released.
type Hold struct {
	Take Op
	Then []Op // one after the other

	Trusted time.Duration // the last moment at which the lock reported the hold as valid
	Untold  time.Duration // the last moment at which the owner had not been notified of its end

	// Overtaken is a moment after which the protected resource had refused its token because of a greater one; 0:
	// never.
	Overtaken time.Duration
}

// renewed reports whether the hold is renewed, and returns the longest lease that was asked for.
func (h Hold) renewed() (bool, time.Duration) {
	renewed, longest := h.Take.Lease == 0, h.Take.Lease
	for _, op := range h.Then {
		if op.Kind == Take {
			renewed, longest = renewed || op.Lease == 0, max(longest, op.Lease)
		}
	}
	return renewed, longest
}

// over returns the time at which the last of its calls had returned.
func (h Hold) over() time.Duration {
	end := max(h.Take.Return, h.Trusted)
	for _, op := range h.Then {
		end = max(end, op.Return)
	}
	return end
}

// A FaultKind describes what a fault excuses.
type FaultKind int

const (
	Disturbs FaultKind = iota // requests are late, answers lost, or connections cut
	Silences                  // a request that is sent between From and To is not answered before To
	Forgets                   // the record is gone
	Stalls                    // the machine of the test stood still
)

// A Fault is a fault that affected a lock.
type Fault struct {
	Kind     FaultKind
	What     string
	Name     string // the lock; "": all
	Client   int    // the client that it affected, or AllClients
	From, To time.Duration
}

// AllClients means that the fault affected all clients.
const AllClients = -1

func (f Fault) hits(op Op) bool {
	return (f.Name == "" || f.Name == op.Name) && (f.Client == AllClients || f.Client == op.Client)
}

// A Queued is an observation of a waiter in the queue of a fair lock.
type Queued struct {
	Name, Owner string
	From, At    time.Duration // when the look began, and when it had found the waiter
}

// A History is everything that was recorded.
type History struct {
	Holds   []Hold
	Failed  []Op // that acquired nothing
	Pending []Op // that have not returned
	Faults  []Fault
	Queued  []Queued
}

// A Recorder records events. It may be used by several goroutines.
type Recorder struct {
	start time.Time

	mu      sync.Mutex // guards below
	h       History
	pending map[int]Op // the call that each worker has not returned from
}

// New returns a Recorder whose clock starts now.
func New() *Recorder { return &Recorder{start: time.Now(), pending: make(map[int]Op)} }

// Now returns the time for records.
func (r *Recorder) Now() time.Duration { return time.Since(r.start) }

// Begin records that a worker calls op now. End records that it returned.
func (r *Recorder) Begin(worker int, op Op) Op {
	op.Call = r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[worker] = op
	return op
}

// End records the outcome of op.
func (r *Recorder) End(worker int, op Op, outcome Outcome) Op {
	op.Return, op.Outcome = r.Now(), outcome
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, worker)
	return op
}

// Fail records a Take that acquired nothing.
func (r *Recorder) Fail(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Failed = append(r.h.Failed, op)
}

// Hold records a hold that has ended.
func (r *Recorder) Hold(h Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Holds = append(r.h.Holds, h)
}

// Fault records a fault that has ended.
func (r *Recorder) Fault(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Faults = append(r.h.Faults, f)
}

// Queued records that a waiter was in the queue.
func (r *Recorder) Queued(q Queued) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Queued = append(r.h.Queued, q)
}

// History returns everything that was recorded until now.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := History{
		Holds:  slices.Clone(r.h.Holds),
		Failed: slices.Clone(r.h.Failed),
		Faults: slices.Clone(r.h.Faults),
		Queued: slices.Clone(r.h.Queued),
	}
	for _, op := range r.pending {
		op.Return = r.Now()
		h.Pending = append(h.Pending, op)
	}
	return h
}
