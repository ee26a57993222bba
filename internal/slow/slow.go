// Package slow watches holds that are old, and waits that take long, and has them reported while they last.
//
// Rules: one goroutine (walk) looks at all holds and waits at half of the shortest time that was set. It runs while
// hold warnings are on, or else while callers wait. Whether a hold is to be reported follows from its age now and at
// the last walk. So nothing is remembered for a hold except the stack of the call that acquired it, as program
// counters, and that only while hold warnings are on. The calls that wait are found where they wait: in the local
// queues (Host), or in a list of those that wait for Redis. A wait in a local queue, which may be as short as a
// hand-off, costs one look at the clock for this, and no mutex. All reports go through the reporter, at most
// report.MostLines in any second; the others are counted.
//
// The package knows no locks: an H is a hold, or what a call that waits is to get, and only the Host looks into it.
package slow

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/report"
)

// lookupTime is how long one walk asks Redis for holders.
const lookupTime = 2 * time.Second

// A Host has the holds and the waits that a Watch looks at, and reports those that are slow. Holds that are meant to
// last, and waits that are meant to be long, are left out everywhere. Its methods are called without the mutex of the
// Watch.
type Host[H comparable] interface {
	// Held calls f for each hold, with the time when its owner began to hold the lock. f must not lock anything.
	Held(f func(h H, since time.Duration))
	// Queued calls f for each call that waits in a local queue, with the time when it began to wait. f must not lock
	// anything.
	Queued(f func(h H, since time.Duration))
	// Name returns the name of the lock of h.
	Name(h H) string
	// Owner describes the owner of h, in this process.
	Owner(h H) string
	// Holder asks Redis for the holder of the lock of h, and describes it; "" if it is not known.
	Holder(ctx context.Context, h H) string

	// OldHold reports a hold, and the stack of the call that has acquired it; nil if it is not known.
	OldHold(h H, held time.Duration, stack []uintptr)
	// LongWait reports the calls that wait for a lock.
	LongWait(w LongWait[H])
	// Omitted reports how many holds and waits were not reported.
	Omitted(n int)
}

// A LongWait describes the calls of this process that wait for one lock.
type LongWait[H comparable] struct {
	First   H             // of the call that has waited for the longest time
	Waiters int           // how many calls wait for the lock
	Waited  time.Duration // how long the first of them has waited
	Holder  string        // describes the current holder; "": it is not known
}

// A Config has the limits of a Watch, and what it needs of its Client.
type Config struct {
	Hold time.Duration // holds that are older are reported; 0: they are not
	Wait time.Duration // the same for waits

	Life  context.Context // done at Close
	Now   func() time.Duration
	Pause func(ctx context.Context, d time.Duration) error // sleeps for d; an error: ctx is done, or the Client is closed
	Spawn func(job func())
	Later func(report func())
}

// A Watch looks for old holds and long waits.
type Watch[H comparable] struct {
	Config
	host Host[H]

	mu     sync.Mutex // guards the fields below, and each Wait; no other mutex is locked while it is held
	stacks map[H][]uintptr
	waits  []*Wait[H] // those that wait for Redis, in no order

	walk    walk[H]     // used by its goroutine
	walking atomic.Bool // it has a goroutine
}

// New returns a Watch of the holds and waits of host. It starts its goroutine if there are hold warnings. Otherwise the
// first call that waits starts it.
func New[H comparable](c Config, host Host[H]) *Watch[H] {
	w := &Watch[H]{Config: c, host: host}
	w.walk.Watch, w.walk.lines = w, report.NewLineLimit()
	if w.Hold > 0 {
		w.start()
	}
	return w
}

// A Wait is the wait of a call for a lock that Redis has found busy.
type Wait[H comparable] struct {
	of     H             // what it is to get
	since  time.Duration // when the call began to wait
	index  int           // in Watch.waits
	listed bool          // it is there; only its call changes that
}

// Note notes the stack of the call that has acquired h, unless a hold that was re-entered has one. The caller has a
// mutex, so h is not forgotten meanwhile.
func (w *Watch[H]) Note(h H, stack []uintptr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stacks == nil {
		w.stacks = make(map[H][]uintptr)
	}
	if w.stacks[h] == nil {
		w.stacks[h] = stack
	}
}

// Forget forgets the stack of h, which the Host does not have any more.
func (w *Watch[H]) Forget(h H) {
	if w.Hold == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stacks, h)
}

// stackOf returns the stack of h, or nil.
func (w *Watch[H]) stackOf(h H) []uintptr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stacks[h]
}

// List notes that a call waits for what h is to get, and has waited since then.
func (w *Watch[H]) List(wait *Wait[H], h H, since time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait.of, wait.since = h, since
	if !wait.listed {
		wait.listed, wait.index = true, len(w.waits)
		w.waits = append(w.waits, wait)
	}
}

// Strike notes that the call of wait waits no longer.
func (w *Watch[H]) Strike(wait *Wait[H]) {
	if !wait.listed {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.waits) - 1
	moved := w.waits[last]
	moved.index = wait.index
	w.waits[moved.index], w.waits[last] = moved, nil
	w.waits, *wait = w.waits[:last], Wait[H]{}
}

// listed returns the waits for Redis.
func (w *Watch[H]) listed() []Wait[H] {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]Wait[H], 0, len(w.waits))
	for _, wait := range w.waits {
		all = append(all, *wait)
	}
	return all
}

// Waiting calls f for each call that waits for a lock, with what it is to get, and with the time when it began to wait.
// f must not lock anything.
func (w *Watch[H]) Waiting(f func(h H, since time.Duration)) {
	w.host.Queued(f)
	for _, wait := range w.listed() {
		f(wait.of, wait.since)
	}
}

// Begins starts the goroutine if there are wait warnings. It is called when Waiting can see the new wait, because stop
// relies on that. The caller may have mutexes.
func (w *Watch[H]) Begins() {
	if w.Wait > 0 && !w.walking.Load() {
		w.start()
	}
}

func (w *Watch[H]) start() {
	if w.walking.CompareAndSwap(false, true) {
		w.walk.last, w.walk.names = w.Now(), nil
		w.Spawn(w.walk.run)
	}
}

// AtWork returns the number of goroutines that look for slow locks.
func (w *Watch[H]) AtWork() int64 {
	if w.walking.Load() {
		return 1
	}
	return 0
}

// Kept returns how many stacks and waits the Watch has, for tests.
func (w *Watch[H]) Kept() (stacks, waits int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.stacks), len(w.waits)
}

// Mutex returns the mutex of w, for tests which check that the user's code is never called with it held.
func (w *Watch[H]) Mutex() *sync.Mutex { return &w.mu }
