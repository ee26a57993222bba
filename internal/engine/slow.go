package engine

// Slow locks: what internal/slow looks at, and how its reports become events.
//
// Rules: the terms of an election, and its candidates, are meant to last (Traits.Lasting): they are left out everywhere.

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/slow"
)

// mostFrames is how many frames of a stack are kept.
const mostFrames = 32

// A slowHost has the holds and waits of an engine for slow.Watch: it is a slow.Host.
type slowHost struct{ *Engine }

// newWatch returns the slow.Watch of e.
func (e slowHost) newWatch() *slow.Watch[*hold] {
	return slow.New(slow.Config{
		Hold: e.HoldWarning, Wait: e.WaitWarning,
		Life: e.life, Now: e.watchdog.Now, Pause: e.Pause, Spawn: e.workers.Spawn, Later: e.reporter.Later,
	}, e)
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
		e.slow.Begins()
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
	slowHost{e}.Held(longest(holds))
	slowHost{e}.Waiting(longest(waits))
	return holds, waits
}

// Held calls f for each hold that is not meant to last, with the mutex of its lock state.
func (e slowHost) Held(f func(h *hold, since time.Duration)) {
	e.table.each(func(s *lockState) {
		for h := range s.holds.all() {
			if h.Holds() && !h.lock.Traits().Lasting {
				f(h, heldSince(h))
			}
		}
	})
}

// Waiting calls f for each call that waits in a local queue, for the owner mutex of a hold, or for Redis, with the mutex
// of the lock state.
func (e slowHost) Waiting(f func(h *hold, since time.Duration)) {
	see := func(h *hold, since time.Duration) {
		if !h.lock.Traits().Lasting {
			f(h, since)
		}
	}
	e.table.each(func(s *lockState) {
		for _, q := range s.queues {
			for _, w := range q.All() {
				see(w.Value.hold, w.Value.since)
			}
		}
		for h := range s.holds.all() {
			for _, w := range h.ownerQueue.All() {
				see(h, w.Value.since)
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

func (slowHost) Name(h *hold) string { return h.lock.Traits().Name }

func (e slowHost) Owner(h *hold) string {
	return fmt.Sprintf("%v of %s", h.owner.principal(), e.process())
}

func (e slowHost) Holder(ctx context.Context, h *hold) string {
	if e.Engine.Holder == nil {
		return ""
	}
	return e.Engine.Holder(ctx, h.subject())
}

func (e slowHost) OldHold(h *hold, held time.Duration) {
	e.Events.SlowHold(h.subject(), held, h.stackOf())
}

// stackOf returns the stack of the call that has acquired h; nil: it is not known.
func (h *hold) stackOf() []uintptr {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.stack == nil {
		return nil
	}
	return *h.stack
}

func (e slowHost) LongWait(w slow.LongWait[*hold]) {
	e.Events.SlowWait(SlowWait{w.First.subject(), w.Waiters, w.Waited, w.Holder})
}

func (e slowHost) Omitted(n int) { e.Events.SlowOmitted(n) }
