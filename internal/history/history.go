// Package history checks whether the answers that users of a lock got are possible.
//
// Workers note every call with a [Recorder]: its begin, its end, and its answer.
// The nemesis notes its faults. Afterwards [Check] looks for events that no lock may
// allow. The package is for tests.
package history

// The notes, and the recorder that takes them.
//
// Rules: one monotonic clock for all. A time is noted on the side where it proves
// least: the begin of a call before the call, a grant after its answer, and the end
// of trust as the last moment at which the lock still vouched for the hold. So each
// delay by a busy machine makes a history more possible.

import (
	"slices"
	"sync"
	"time"
)

// A Kind is what was called.
type Kind int

const (
	Take  Kind = iota // one level
	Count             // of levels
	Give              // one level back
)

func (k Kind) String() string { return [...]string{"take", "count", "give"}[k] }

// An Outcome is what was answered.
type Outcome int

const (
	Done    Outcome = iota
	Refused         // another owner has it, and the time was up
	Unsure          // an error: it may have happened, or may still
	Lost            // the hold was lost
	NotHeld         // there was none
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
	Shared       bool          // with others who share
	Lease        time.Duration // asked for; 0: renewed
	Once         bool          // a try that does not wait
	GiveUp       time.Duration // when the caller wanted to be back with or without it; 0: never
	Call, Return time.Duration
	Outcome      Outcome
	Level        int // Take: levels with it; Count: levels told; Give: levels left
	Token        int64
}

// A Hold is a Take that was done, and what its owner did until it gave it back.
type Hold struct {
	Take Op
	Then []Op // one after the other

	Trusted time.Duration // the last moment at which the lock was seen to vouch for it
	Untold  time.Duration // the last moment at which its owner had not been told of its end

	// A moment after which what the lock protects had refused its token for a greater one; 0: never.
	Overtaken time.Duration
}

// renewed reports whether the hold is renewed, and the longest lease asked for.
func (h Hold) renewed() (bool, time.Duration) {
	renewed, longest := h.Take.Lease == 0, h.Take.Lease
	for _, op := range h.Then {
		if op.Kind == Take {
			renewed, longest = renewed || op.Lease == 0, max(longest, op.Lease)
		}
	}
	return renewed, longest
}

// over is when the last of its calls had returned.
func (h Hold) over() time.Duration {
	end := max(h.Take.Return, h.Trusted)
	for _, op := range h.Then {
		end = max(end, op.Return)
	}
	return end
}

// A FaultKind is what a fault excuses.
type FaultKind int

const (
	Disturbs FaultKind = iota // requests are late, answers lost, connections cut
	Silences                  // whatever is sent between From and To is not answered before To
	Forgets                   // the record is gone
	Stalls                    // the machine of the test itself
)

// A Fault is what was done to a lock.
type Fault struct {
	Kind     FaultKind
	What     string
	Name     string // the lock; "": all
	Client   int    // AllClients, or the one that it was done to
	From, To time.Duration
}

// AllClients suffer the fault.
const AllClients = -1

func (f Fault) hits(op Op) bool {
	return (f.Name == "" || f.Name == op.Name) && (f.Client == AllClients || f.Client == op.Client)
}

// A Queued is the sight of a waiter in the queue of a fair lock.
type Queued struct {
	Name, Owner string
	From, At    time.Duration // when the look began, and when it had seen the waiter
}

// A History is all that was noted.
type History struct {
	Holds   []Hold
	Failed  []Op // that gave nothing
	Pending []Op // that have not come back
	Faults  []Fault
	Queued  []Queued
}

// A Recorder notes what happens. It may be used by any number of goroutines.
type Recorder struct {
	start time.Time

	mu      sync.Mutex // guards below
	h       History
	pending map[int]Op // what each worker is at
}

// New returns a Recorder whose clock begins now.
func New() *Recorder { return &Recorder{start: time.Now(), pending: make(map[int]Op)} }

// Now is the time that is noted.
func (r *Recorder) Now() time.Duration { return time.Since(r.start) }

// Begin notes that a worker calls op now, and End that it came back.
func (r *Recorder) Begin(worker int, op Op) Op {
	op.Call = r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[worker] = op
	return op
}

// End notes what op answered.
func (r *Recorder) End(worker int, op Op, outcome Outcome) Op {
	op.Return, op.Outcome = r.Now(), outcome
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, worker)
	return op
}

// Fail notes a Take that gave nothing.
func (r *Recorder) Fail(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Failed = append(r.h.Failed, op)
}

// Hold notes a hold that is over.
func (r *Recorder) Hold(h Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Holds = append(r.h.Holds, h)
}

// Fault notes a fault that is over.
func (r *Recorder) Fault(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Faults = append(r.h.Faults, f)
}

// Queued notes that a waiter stands in the queue.
func (r *Recorder) Queued(q Queued) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Queued = append(r.h.Queued, q)
}

// History is what was noted until now.
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
