package engine

// Slow locks: holds that are old, and waits that take long, are reported while they last.
//
// Rules: one goroutine looks at all holds and waits once a second, while there are any of which warnings are wanted.
// Whether a hold is to be reported follows from its age now and at the last look. So nothing is remembered for a hold or
// a wait: they are found where they are. All reports go through the reporter, at most report.MostLines in a second;
// the others are counted. The terms of an election, and its candidates, are meant to last (Traits.Lasting): they are
// left out everywhere.

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/report"
)

const (
	mostFrames = 32              // how many frames of a stack are kept
	slowPause  = time.Second     // between two looks
	lookupTime = 2 * time.Second // how long one look asks Redis for holders
)

// A slowWatch looks for old holds and long waits. Only its goroutine uses the fields without a comment.
type slowWatch struct {
	*Engine
	pending atomic.Int64 // reports that the reporter has not called yet

	last  time.Duration            // when it last looked
	due   map[string]time.Duration // when the locks that callers wait for, and that were reported, are reported again
	lines report.LineLimit
}

// A slowWait is a lock for which callers wait.
type slowWait struct {
	SlowWait
	lock contract.Lock
}

// A slowHold is a hold that has become too old.
type slowHold struct {
	Subject
	since time.Duration
	stack *[]uintptr
}

// begins starts a goroutine that looks once, unless there is one, or there are no warnings. It is called after a new wait is
// there to be found, or a new hold if there are warnings of holds: run relies on that. The caller may have mutexes.
func (w *slowWatch) begins() {
	if (w.WaitWarning > 0 || w.HoldWarning > 0) && !w.slowWalks.Load() && w.slowWalks.CompareAndSwap(false, true) {
		w.Spawn(w.run)
	}
}

// slowWalkers returns the number of goroutines that look for slow locks.
func (e *Engine) slowWalkers() int64 {
	if e.slowWalks.Load() {
		return 1
	}
	return 0
}

func (w *slowWatch) run() {
	defer func() { // also if a hook has ended the goroutine during a lookup
		if w.slowWalks.Store(false); w.Alive() == nil && w.isNeeded() {
			w.begins()
		}
	}()
	if w.Pause(w.life, slowPause) == nil {
		w.look()
	}
}

// isNeeded reports whether there is anything to look at.
func (w *slowWatch) isNeeded() (needed bool) {
	see := func(*hold, time.Duration) { needed = true }
	if w.WaitWarning > 0 {
		w.eachWaiting(see)
	}
	if w.HoldWarning > 0 {
		w.eachHeld(see)
	}
	return needed
}

// look reports the locks that have become slow since the last look, or twice as slow as when they were last reported.
// The slowest come first, and holds and waits take turns.
func (w *slowWatch) look() {
	now := w.watchdog.Now()
	waits, holds := w.longWaits(now), w.oldHolds(now)
	ctx, cancel := context.WithTimeout(w.life, lookupTime)
	defer cancel()
	for i := range max(len(holds), len(waits)) {
		if i < len(holds) && w.allowed(now) {
			h := holds[i]
			w.later(func() { w.Events.SlowHold(h.Subject, now-h.since, *cmp.Or(h.stack, new([]uintptr))) })
		}
		if i < len(waits) && w.allowed(now) {
			long := waits[i]
			if long.Holder, _ = w.here(long.lock, NoOwner); long.Holder == "" && w.Holder != nil {
				long.Holder = w.Holder(ctx, long.Subject)
			}
			w.later(func() { w.Events.SlowWait(long.SlowWait) })
		}
	}
	if n := w.lines.More(now); n > 0 {
		w.later(func() { w.Events.SlowOmitted(n) })
	}
	w.last = now
}

// allowed reports whether another line may be reported. Lines that a slow Logger has not written yet count, too.
func (w *slowWatch) allowed(now time.Duration) bool {
	return w.lines.Allows(now, w.pending.Load() < report.MostLines)
}

func (w *slowWatch) later(line func()) {
	w.pending.Add(1)
	w.Later(func() {
		defer w.pending.Add(-1)
		line()
	})
}

// oldHolds returns the holds that have become too old since the last look, the oldest first.
func (w *slowWatch) oldHolds(now time.Duration) (all []slowHold) {
	if w.HoldWarning == 0 {
		return nil
	}
	w.eachHeld(func(h *hold, since time.Duration) {
		if crossed(w.HoldWarning, w.last-since, now-since) {
			all = append(all, slowHold{h.subject(), since, h.stack})
		}
	})
	slices.SortFunc(all, func(a, b slowHold) int { return cmp.Compare(a.since, b.since) })
	return all
}

// longWaits returns the locks for which a call has waited too long, and which are to be reported now, the longest wait
// first. A lock is reported again when as much time has passed as the longest wait has lasted then.
func (w *slowWatch) longWaits(now time.Duration) (all []*slowWait) {
	if w.WaitWarning == 0 {
		return nil
	}
	found := make(map[string]*slowWait)
	w.eachWaiting(func(h *hold, since time.Duration) {
		long := found[h.lock.Traits().Name]
		if long == nil {
			long = new(slowWait)
			found[h.lock.Traits().Name] = long
		}
		if long.Waiters++; now-since >= long.Waited {
			long.lock, long.Subject, long.Waited = h.lock, h.subject(), now-since
		}
	})
	due := make(map[string]time.Duration)
	for of, long := range found {
		again := w.due[of]
		if long.Waited >= w.WaitWarning && now >= again {
			again = now + long.Waited
			all = append(all, long)
		}
		if again > 0 {
			due[of] = again
		}
	}
	w.due = due
	slices.SortFunc(all, func(a, b *slowWait) int { return cmp.Compare(b.Waited, a.Waited) })
	return all
}

// crossed reports whether a time that was before at the last look, and is after now, has reached limit, or limit
// doubled any number of times, between the two looks.
func crossed(limit, before, after time.Duration) bool {
	if after < limit {
		return false
	}
	for limit <= after/2 {
		limit *= 2
	}
	return before < limit
}

// noteStack notes the stack of a call that has acquired h, unless it is a re-entry. It is called on the goroutine of
// the caller, by Engine.Attach and Engine.Acquire, or when a Report is told.
func (e *Engine) noteStack(h *hold) {
	if e.HoldWarning == 0 || h.lock.Traits().Lasting {
		return
	}
	var counters [mostFrames]uintptr
	stack := slices.Clone(counters[:runtime.Callers(3, counters[:])])
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.Holds() {
		h.stack = cmp.Or(h.stack, &stack)
		e.slowBegins()
	}
}

// Slowest returns how old the oldest hold is, and how long the longest wait has lasted, of each type of lock. After
// Close it returns nothing.
func (e *Engine) Slowest() (holds, waits map[string]time.Duration) {
	holds, waits = make(map[string]time.Duration), make(map[string]time.Duration)
	if e.Alive() != nil {
		return holds, waits
	}
	now := e.watchdog.Now()
	longest := func(of map[string]time.Duration) func(h *hold, since time.Duration) {
		return func(h *hold, since time.Duration) {
			kind := h.lock.Traits().Type
			of[kind] = max(of[kind], now-since)
		}
	}
	e.eachHeld(longest(holds))
	e.eachWaiting(longest(waits))
	return holds, waits
}

// eachHeld calls f for each hold that is not meant to last, with the time when its owner began to hold the lock, and with the
// mutex of its lock state.
func (e *Engine) eachHeld(f func(h *hold, since time.Duration)) {
	e.table.each(func(s *lockState) {
		for h := range s.holds.all() {
			if h.Holds() && !h.lock.Traits().Lasting {
				f(h, heldSince(h))
			}
		}
	})
}

// eachWaiting calls f for each call that waits in a local queue, for the owner mutex of a hold, or for Redis, with the time
// when it began to wait, and with the mutex of the lock state.
func (e *Engine) eachWaiting(f func(h *hold, since time.Duration)) {
	see := func(h *hold, since time.Duration) {
		if !h.lock.Traits().Lasting {
			f(h, since)
		}
	}
	e.table.each(func(s *lockState) {
		for _, q := range s.queues {
			for _, w := range q.All() {
				see(w.Value.hold, w.Since)
			}
		}
		for h := range s.holds.all() {
			for _, w := range h.ownerQueue.All() {
				see(h, w.Since)
			}
			if h.waits != nil {
				see(h, *h.waits)
			}
		}
	})
}

// heldSince returns when the owner of h began to hold the lock, on the clock of the watchdog. It is later than h.since
// if the request that acquired the lock was sent long before: a waiter in the line is granted the lock by a message.
func heldSince(h *hold) time.Duration { return max(h.since, h.record.answeredAt) }
