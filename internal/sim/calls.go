//go:build go1.25

package sim

// The calls: the part of the witness that checks when calls return, and with which results.
//
// Rules: a call must return within a time that depends on what was asked for and on the situation. A call that returns
// without its lock must have a reason: others use the lock, its time is up, or there was a fault.

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock"
)

// A call is a call that has not returned yet.
type call struct {
	witness *witness
	p       *process
	worker  *Worker
	what    string
	began   time.Time
	timer   *time.Timer
	taken   int           // holds in total when it began
	asks    bool          // it asks for a lock
	passed  int           // turns of other processes since it began, or since the last fault
	paused  time.Duration // for how long its process was paused during the call
}

// begin records a call that must return within bound. If bound is 0, it must return as soon as it is its turn.
func (w *witness) begin(p *process, worker *Worker, what string, bound time.Duration) *call {
	c := &call{witness: w, p: p, worker: worker, what: what, began: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touch(p, worker)
	w.calls[c] = struct{}{}
	w.watch(c, bound)
	return c
}

// watch arranges for the call to be checked when its time is up. mu is held.
func (w *witness) watch(c *call, bound time.Duration) {
	limit := bound
	if bound == 0 {
		limit = w.world.patience(c)
	}
	c.timer = time.AfterFunc(time.Until(c.began.Add(limit+c.paused)), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, ok := w.calls[c]; !ok {
			return
		}
		if paused := w.world.pausedFor(c.p, c.began); paused > c.paused { // its process could do nothing meanwhile
			c.paused = paused
			w.watch(c, bound)
			return
		}
		if bound == 0 && w.world.patience(c) > limit {
			w.watch(c, 0)
			return
		}
		rule := "every call returns"
		if bound == 0 {
			rule = "no call waits forever"
		}
		var who string
		if c.worker != nil {
			who = fmt.Sprintf("worker %d %v: ", c.worker.ID, c.worker.Names)
		}
		w.report(rule, "%s %s%s takes more than %v; held by %v", c.p.name, who, c.what, limit, w.holdersOf(c))
	})
}

func (w *witness) holdersOf(c *call) (all []*hold) {
	for _, h := range w.holds {
		if c.worker != nil && slices.ContainsFunc(h.names, func(n string) bool {
			return slices.Contains(c.worker.Names, n)
		}) {
			all = append(all, h)
		}
	}
	return all
}

// aloneNow reports whether no other call uses a lock of c, and none has recently left data behind.
func (w *witness) aloneNow(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range w.calls {
		if o != c && o.worker != nil && o.worker.shares(*c.worker) {
			return false
		}
	}
	if slices.ContainsFunc(w.holds, func(h *hold) bool { return h.worker.shares(*c.worker) }) {
		return false
	}
	for _, name := range c.worker.Names {
		if time.Since(w.undone[name]) < 2*callBound {
			return false
		}
	}
	return true
}

// asking records that a call asks for a lock, and reports whether no other call uses it. A waiter that could not
// leave the queue of a fair lock, because its process died or Redis was unreachable, keeps its position for some
// seconds after the next call. That call cannot know whether Redis was unreachable or there was no caller.
func (w *witness) asking(c *call) (alone bool) {
	alone = w.aloneNow(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	c.asks, c.taken = true, w.taken
	for _, name := range c.worker.Names {
		if w.stale[name] {
			alone, w.stale[name], w.undone[name], w.asked[name] = false, false, time.Now(), time.Now()
		}
	}
	return alone
}

// refused checks that a call may return without its lock.
func (w *witness) refused(c *call, alone bool, err error, m manner) {
	still := alone && w.nobodyCame(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left(c)
	p := w.world.plan
	if err == nil && m.wait > 0 && m.cancel == 0 && !c.p.gone.Load() && time.Since(c.began) < m.wait-w.world.delay() {
		w.report("TryLock waits for the whole time", "%s worker %d %v: %v, %v", c.p.name, c.worker.ID, c.worker.Names,
			m.wait, time.Since(c.began))
	}
	if err != nil && m.bound() == 0 && m.lease == 0 && c.worker.Kind != Red && w.world.ridesOut(c, err) {
		w.report("a waiter survives an outage", "%s worker %d %v: %v", c.p.name, c.worker.ID, c.worker.Names, err)
	}
	if c.p.gone.Load() || !w.world.calm(c.began.Add(-p.Watchdog-2*callBound)) || w.world.untidy() {
		return
	}
	switch {
	case err != nil && m.wait > 0 && m.wait < time.Second: // less than an answer may take
	// The nodes of a RedLock have the same time, which is too little for new connections, or without a permission.
	case err != nil && m.wait == 0 && c.worker.Kind == Red:
	// One of several locks was lost before all of them were acquired, or the majority of a RedLock.
	case (errors.Is(err, relock.ErrLockLost) || c.worker.Kind == Red) && w.lostSince(c):
	case err != nil && m.cancel == 0:
		w.report("no error without a reason", "%s worker %d %v: %v", c.p.name, c.worker.ID, c.worker.Names, err)
	case still && (m.cancel == 0 || m.cancel > slack):
		w.report("a free lock is acquired", "%s worker %d %v did not acquire it with %+v, and no owner has it: %v", c.p.name,
			c.worker.ID, c.worker.Names, m, err)
	}
}

// lostSince reports whether a lock of c may have been lost since c began. mu is held.
func (w *witness) lostSince(c *call) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool {
		return slices.Contains(c.worker.Names, l.name) && (l.until.IsZero() || l.until.After(c.began))
	})
}

// nobodyCame reports whether no call has acquired any lock since the call began, and no other call uses this one.
func (w *witness) nobodyCame(c *call) bool {
	alone := w.aloneNow(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	return alone && c.taken == w.taken
}

// end records that a call has returned.
func (c *call) end(err error) {
	w := c.witness
	c.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	_, there := w.calls[c]
	delete(w.calls, c)
	if !there {
		return
	}
	w.ended++
	w.touch(c.p, c.worker)
	if err != nil {
		w.world.note(c.p, "%s: %v", c.what, err)
	}
	if errors.Is(err, relock.ErrInvalid) || errors.Is(err, relock.ErrNotALock) {
		w.report("a valid call is not refused", "%s %s: %v", c.p.name, c.what, err)
	}
}
