// Package slow watches holds that are old, and waits that take long, and has them reported while they last.
//
// Rules: one goroutine looks at all holds and waits once a second, while there are any of which warnings are wanted.
// Whether a hold is to be reported follows from its age now and at the last look. So nothing is remembered for a hold or
// a wait: the Host finds them where they are. All reports go through the reporter, at most report.MostLines in any
// second; the others are counted.
//
// The package knows no locks: an H is a hold, or what a call that waits is to get, and only the Host looks into it.
package slow

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/report"
)

const (
	pause      = time.Second     // between two looks
	lookupTime = 2 * time.Second // how long one look asks Redis for holders
)

// A Host has the holds and the waits that a Watch looks at, and reports those that are slow. Holds that are meant to
// last, and waits that are meant to be long, are left out everywhere.
type Host[H any] interface {
	// Held calls f for each hold, with the time when its owner began to hold the lock. f must not lock anything.
	Held(f func(h H, since time.Duration))
	// Waiting calls f for each call that waits for a lock, with what it is to get, and with the time when it began to
	// wait. f must not lock anything.
	Waiting(f func(h H, since time.Duration))
	// Name returns the name of the lock of h.
	Name(h H) string
	// Owner describes the owner of h, in this process.
	Owner(h H) string
	// Holder asks Redis for the holder of the lock of h, and describes it; "" if it is not known.
	Holder(ctx context.Context, h H) string

	OldHold(h H, held time.Duration) // reports a hold
	// LongWait reports the calls that wait for a lock.
	LongWait(w LongWait[H])
	// Omitted reports how many holds and waits were not reported.
	Omitted(n int)
}

// A LongWait describes the calls of this process that wait for one lock.
type LongWait[H any] struct {
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

// A Watch looks for old holds and long waits. Only its goroutine uses the fields without a comment.
type Watch[H any] struct {
	Config
	host    Host[H]
	walking atomic.Bool  // there is a goroutine
	pending atomic.Int64 // reports that the reporter has not called yet

	last  time.Duration    // when it last looked
	names map[string]*name // the locks that callers wait for, and that were reported since they do, by name
	lines report.LineLimit
}

// New returns a Watch of the holds and waits of host.
func New[H any](c Config, host Host[H]) *Watch[H] {
	return &Watch[H]{Config: c, host: host, lines: report.NewLineLimit()}
}

// Begins starts the goroutine if there are warnings. It is called when the Host shows a new wait, or a new hold if there
// are warnings of holds, because stop relies on that. The caller may have mutexes.
func (w *Watch[H]) Begins() {
	if (w.Wait > 0 || w.Hold > 0) && !w.walking.Load() && w.walking.CompareAndSwap(false, true) {
		w.last, w.names = w.Now(), nil
		w.Spawn(w.run)
	}
}

// AtWork returns the number of goroutines that look for slow locks.
func (w *Watch[H]) AtWork() int64 {
	if w.walking.Load() {
		return 1
	}
	return 0
}
