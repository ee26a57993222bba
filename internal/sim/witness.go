//go:build go1.25

package sim

// The witness: it sees the results of calls and the data in Redis, and reports violations of the rules.
//
// Rules: it knows relock only from its documentation. It sees events as the caller does: a hold begins when its call
// has returned, and ends before its release is called. Faults that lose data of Redis excuse two holders for as long
// as a lease lasts; no other fault does. Rules of progress, and those about the results of calls, apply in calm
// times, which means that there has been no fault for a while.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

const (
	slack     = 2 * time.Second  // for events that must happen at a certain time
	callBound = 7 * time.Second  // how long a call may take at most, in addition to the wait that was asked for
	fairLife  = 10 * time.Second // until a waiter that has died is passed over
	grantLife = 5 * time.Second  // until a grant that its process does not take has expired
	lateLife  = 30 * time.Second // until no request that was sent during a fault can run any more
)

// A Violation is the result of a run that failed.
type Violation struct {
	Rule string // the same for all violations of one kind
	What string
	At   time.Duration // since the beginning of the run
}

// unsafe contains the rules that only a bug of relock can violate. A false report of one of them could only mean that
// the witness does not know all losses of data. All other rules also depend on what the witness considers calm, or a
// long time.
var unsafe = []string{"one holder", "tokens grow", "a holder has its record in Redis", "a hold ends before its record",
	"available and taken permits add up", "a ticket works once", "only a ticket attaches a hold",
	"a token moves with its hold",
	"keys of other programs are not changed", "a valid call is not refused",
	"no goroutine is left and nothing panics"}

// IsUnsafe reports whether the rule that was violated is one of safety.
func (v Violation) IsUnsafe() bool { return slices.Contains(unsafe, v.Rule) }

func (v Violation) String() string { return fmt.Sprintf("%s at %v: %s", v.Rule, v.At, v.What) }

// A hold is a hold that a call returned.
type hold struct {
	p      *process
	worker *Worker
	ids    []string // of the Clients, for each server
	names  []string
	read   []string // those of names of which it is the read lock
	ctx    context.Context
	lease  time.Duration
	asked  time.Time // when the call began
	since  time.Time
	token  int64
	tokens map[string]int64 // of the fenced members of a MultiLock
	until  time.Time        // when an explicit lease must have expired
	again  bool             // it was acquired again, and is renewed since
	over   time.Time        // when it was first seen that it had ended and Done was not closed
	moves  int              // how often it was detached and attached
	first  time.Time        // of a hold that was attached: when it began, in another process
	ticket *ticket          // of a hold that is detached
}

// begun returns when h began, in whichever process.
func (h *hold) begun() time.Time {
	if h.moves > 0 {
		return h.first
	}
	return h.since
}

// permits returns how many permits h has, or 1 if it has none.
func (h *hold) permits() int { return max(1, h.worker.Wants) }

// owns reports whether a field in a record, or a permit, may be that of h. See moves.go for those of detached holds.
func (h *hold) owns(server int, field string) bool {
	return strings.HasPrefix(field, h.ids[server]) &&
		strings.HasPrefix(field, h.ids[server]+detachedOwner) == (h.ticket != nil)
}

// reads reports whether h shares the lock of this name with readers.
func (h *hold) reads(name string) bool { return slices.Contains(h.read, name) }

// tokenOf returns the token of the lock of this name, or 0 if it has none.
func (h *hold) tokenOf(name string) int64 {
	if h.tokens != nil {
		return h.tokens[name]
	}
	return h.token
}

func (h *hold) String() string {
	return fmt.Sprintf("%s worker %d (asked %v ago, acquired %v ago, lease %v, token %d)", h.p.name, h.worker.ID,
		time.Since(h.asked), time.Since(h.since), h.lease, h.token)
}

// A token is a token that a holder received.
type token struct {
	value    int64
	returned time.Time
}

// A witness watches one world.
type witness struct {
	world *world

	mu      sync.Mutex // guards below
	found   *Violation // the first one
	stop    chan struct{}
	holds   []*hold
	calls   map[*call]struct{}
	losses  []loss
	forgot  bool                 // counters of tokens were lost
	back    time.Duration        // by how much the clock of Redis was set back
	tokens  map[string][]token   // by name
	taken   int                  // holds so far
	moved   int                  // those that a process has attached
	last    map[string]*process  // the process that last had a lock
	free    map[string]time.Time // when a release of a lock last returned
	touched map[string]time.Time // by process and lock: when one of its calls or holds last began or ended
	ended   int                  // calls so far
	undone  map[string]time.Time // by name: when a call or a lost hold last left, and may have left something there
	stale   map[string]bool      // by fair lock: no call has asked since a waiter left
	asked   map[string]time.Time // by fair lock: when a call last was the first to ask after a waiter had left
	numbers map[string][]number  // by semaphore
	setting map[string]int       // by semaphore: calls under way that set its number
	setEver map[string]int       // by semaphore: the calls so far that set its number
	kept    map[string]kept      // by name: the last hold with MinHold
}

func newWitness(w *world) *witness {
	return &witness{world: w, stop: make(chan struct{}), calls: map[*call]struct{}{}, tokens: map[string][]token{},
		undone: map[string]time.Time{}, stale: map[string]bool{}, last: map[string]*process{}, free: map[string]time.Time{},
		touched: map[string]time.Time{}, asked: map[string]time.Time{}, numbers: map[string][]number{},
		setting: map[string]int{}, setEver: map[string]int{}, kept: map[string]kept{}}
}

// report reports a violation. The first one ends the run. mu is held.
func (w *witness) report(rule, format string, args ...any) {
	if w.found == nil {
		w.found = &Violation{rule, fmt.Sprintf(format, args...), time.Since(w.world.start)}
		close(w.stop)
	}
}

func (w *witness) Report(rule, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(rule, format, args...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// recorded reports whether the records of h are in Redis, which for a RedLock means a majority of them. Only the
// Client knows which permit belongs to which hold, so it must have at least as many permits as holds.
func (w *witness) recorded(h *hold) bool {
	if w.isBeingAttached(h) {
		return true // its field is one of several, and those of other processes are not known
	}
	if h.worker.counts() {
		w.mu.Lock()
		permits := h.permits()
		for _, o := range w.holds {
			if o != h && o.ids[0] == h.ids[0] && o.names[0] == h.names[0] && (o.ticket != nil) == (h.ticket != nil) &&
				o.ctx.Err() == nil && !w.excused(o) && !o.ticket.isAsked() {
				permits += o.permits()
			}
		}
		w.mu.Unlock()
		return w.permitsOf(h) >= permits
	}
	count := func(server int, names []string) (n int) {
		w.world.redis[server].Look(func(m *miniredis.Miniredis) {
			for _, name := range names {
				fields, _ := m.HKeys(name)
				if slices.ContainsFunc(fields, func(f string) bool { return h.owns(server, f) }) {
					n++
				}
			}
		})
		return n
	}
	if h.worker.Kind != Red {
		return count(0, h.names) == len(h.names)
	}
	n := 0
	for i := range w.world.redis {
		n += count(i, h.names)
	}
	return n > len(w.world.redis)/2
}

// held records a hold that a call has returned.
func (w *witness) held(h *hold) {
	h.since = time.Now()
	recorded := w.recorded(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.p.gone.Load() {
		return
	}
	w.taken++
	w.touch(h.p, h.worker)
	w.world.note(h.p, "worker %d holds %v, token %d %v", h.worker.ID, h.names, h.token, h.tokens)
	if !recorded && h.ctx.Err() == nil && !w.excused(h) {
		w.report("a holder has its record in Redis", "%v: %v has no record", h.names, h)
	}
	w.begins(h)
	for _, name := range h.names {
		w.alone(h, name)
		if (recorded || !w.excused(h)) && h.moves == 0 {
			w.inOrder(h, name)
		}
		if h.moves == 0 { // else it did not wait for its turn
			w.inTurn(h, name)
			w.atOnce(h, name)
		}
		delete(w.free, name)
	}
	w.holds = append(w.holds, h)
}

// alone reports other holders of the lock of h. mu is held.
func (w *witness) alone(h *hold, name string) {
	if h.ctx.Err() != nil || w.excused(h) {
		return
	}
	var beside []*hold
	used, most := h.permits(), 1
	for _, o := range w.holds {
		together := o.reads(name) && h.reads(name)
		if o != h && slices.Contains(o.names, name) && !together && o.ctx.Err() == nil && !w.excused(o) {
			beside = append(beside, o)
			used += o.permits()
		}
	}
	if h.worker.counts() {
		most = w.mostPermits(name, h.asked)
	}
	if used > most {
		w.report("one holder", "%s: %v beside %v", name, h, beside)
	}
}

// inOrder reports a token that is not greater than earlier ones. It is not called for a hold that a process has handed
// off inside itself after Redis lost the record: its token is lower than that of a new holder. mu is held.
func (w *witness) inOrder(h *hold, name string) {
	if h.tokenOf(name) == 0 {
		return
	}
	for _, t := range w.tokens[name] {
		if t.returned.Before(h.asked) && t.value >= h.tokenOf(name) && !(w.back > 0 && (w.forgot || len(w.losses) > 0)) {
			w.report("tokens grow", "%s: %v, and token %d was returned before it asked", name, h, t.value)
		}
	}
	w.tokens[name] = append(w.tokens[name], token{h.tokenOf(name), time.Now()})
	if n := len(w.tokens[name]); n > 200 {
		w.tokens[name] = slices.Clone(w.tokens[name][n-100:])
	}
}

// inTurn reports a call that has waited for more turns of other processes than can be ahead of it. mu is held.
func (w *witness) inTurn(h *hold, name string) {
	if w.last[name] == h.p {
		return
	}
	w.last[name] = h.p
	for c := range w.calls {
		if !c.asks || c.p == h.p || !slices.Contains(c.worker.Names, name) {
			continue
		}
		if c.worker.counts() && time.Since(c.began) < w.world.delay() { // it has no position in the line yet
			continue
		}
		if c.passed++; !w.world.calm(c.began.Add(-w.world.plan.Watchdog-2*callBound)) || w.world.untidy() {
			c.passed = 0
			continue
		}
		if most, ordered := w.world.turnsBefore(c.worker); ordered && c.passed > most {
			w.report("first come, first served",
				"%s worker %d has waited for %v for %v, and other processes have acquired %s %d times since; the last one: %v",
				c.p.name, c.worker.ID, c.worker.Names, time.Since(c.began), name, c.passed, h)
		}
	}
}

// touch records that a call or a hold begins or ends. mu is held.
func (w *witness) touch(p *process, worker *Worker) {
	if worker == nil {
		return
	}
	for _, name := range worker.Names {
		w.touched[p.name+" "+name] = time.Now()
	}
}

// orphans reports records of processes that are alive, but neither hold the lock nor have a call for it. After a
// fault there may be such a record for the time of a lease: of a request that was held up for longer than its
// rollback was repeated, or one that Redis lost the deletion of. A request that is held up runs after the fault.
func (w *witness) orphans() {
	if !w.world.calm(time.Now().Add(-w.world.plan.Watchdog-callBound-lateLife)) || w.world.untidy() {
		return
	}
	for _, worker := range w.world.inLine() {
		name, fields := worker.Names[0], []string(nil)
		w.world.redis[0].Look(func(m *miniredis.Miniredis) { fields, _ = m.HKeys(name) })
		for _, p := range w.world.present() {
			if !slices.ContainsFunc(fields, func(f string) bool {
				return strings.HasPrefix(f, p.clients[0].ID()) && !strings.HasPrefix(f, p.clients[0].ID()+detachedOwner)
			}) {
				continue
			}
			w.mu.Lock()
			used := time.Since(w.touched[p.name+" "+name]) < 2*callBound
			for c := range w.calls {
				used = used || c.p == p && c.worker != nil && slices.Contains(c.worker.Names, name)
			}
			for _, h := range w.holds {
				used = used || h.p == p && slices.Contains(h.names, name)
			}
			if !used {
				w.report("a record belongs to a holder", "%s has a record of %s, %v, and none of its callers uses it", p.name, name,
					fields)
			}
			w.mu.Unlock()
		}
	}
}

// freed records that the release of a hold has returned.
func (w *witness) freed(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range h.names {
		if _, ok := w.free[name]; ok { // no process has it yet
			w.free[name] = time.Now()
		}
	}
}

// atOnce reports a lock that was free for a while although h was waiting for it. mu is held.
func (w *witness) atOnce(h *hold, name string) {
	if _, ordered := w.world.turnsBefore(h.worker); !ordered || w.world.untidy() || w.excused(h) || w.free[name].IsZero() {
		return
	}
	if slices.ContainsFunc(w.holds, func(o *hold) bool { return slices.Contains(o.names, name) }) {
		return
	}
	if !w.asked[name].Before(h.asked) || w.world.missesGrants() { // see asking
		return
	}
	plan := w.world.plan
	since := later(w.free[name], h.asked)
	if time.Since(since) > w.world.delay() &&
		w.world.calm(since.Add(-plan.Watchdog-2*callBound)) {
		w.report("a free lock is handed off at once", "%s was free for %v, and %v was waiting", name, time.Since(since), h)
	}
}

// given records that the release of a hold begins. It reports whether the hold is valid, so that its release must not
// return an error.
func (w *witness) given(h *hold) (alive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = slices.DeleteFunc(w.holds, func(o *hold) bool { return o == h })
	w.keeps(h)
	for _, name := range h.names {
		w.free[name] = time.Now()
		if h.ctx.Err() != nil { // an explicit lease that has expired here lasts a little longer in Redis
			w.undone[name] = time.Now()
		}
	}
	return w.isValid(h)
}

// isValid reports whether h is held, and must be valid. mu is held.
func (w *witness) isValid(h *hold) bool {
	return h.ctx.Err() == nil && !w.excused(h) && w.world.calm(h.asked.Add(-w.leaseOf(h)-slack)) && !h.p.gone.Load()
}

// lives reports whether h is held, and must be valid.
func (w *witness) lives(h *hold) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.isValid(h)
}

// lost records that the context of a hold was canceled before its release.
func (w *witness) lost(h *hold) {
	cause := context.Cause(h.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.world.note(h.p, "worker %d has lost %v: %v", h.worker.ID, h.names, cause)
	limited := h.lease > 0 || h.worker.MaxHold > 0 || h.p.gone.Load()
	if most := max(h.worker.MaxHold, h.worker.MinHold); h.worker.MaxHold > 0 && h.lease == 0 && !h.p.gone.Load() &&
		!w.excused(h) && w.world.calm(h.asked.Add(-w.leaseOf(h)-slack)) &&
		time.Since(h.asked) < most-most/50-w.world.delay() {
		w.report("MaxHold ends no hold early", "%v: %v: %v", h.names, h, cause)
	}
	if !limited && !w.excused(h) && w.world.calm(h.since.Add(-w.leaseOf(h)-slack)) {
		w.report("no hold is lost without a reason", "%v: %v: %v", h.names, h, cause)
	}
}

// killed records that a process sends nothing any more.
func (w *witness) killed(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = slices.DeleteFunc(w.holds, func(h *hold) bool { return h.p == p && h.ticket == nil })
	for c := range w.calls {
		if c.p == p {
			delete(w.calls, c)
			w.left(c)
		}
	}
}

// left records that a call leaves without the lock. mu is held.
func (w *witness) left(c *call) {
	if c.worker == nil {
		return
	}
	for _, name := range c.worker.Names {
		w.undone[name], w.stale[name] = time.Now(), c.worker.Kind == Fair
	}
}

// look compares the holds with the data in Redis.
func (w *witness) look() {
	w.mu.Lock()
	holds := slices.Clone(w.holds)
	w.mu.Unlock()
	w.tellsAll(holds)
	w.mu.Lock()
	for _, h := range w.holds { // including those that were excused when they began
		for _, name := range h.names {
			w.alone(h, name)
		}
	}
	w.mu.Unlock()
	for _, h := range holds {
		if h.ctx.Err() != nil || w.recorded(h) {
			continue
		}
		w.mu.Lock()
		if slices.Contains(w.holds, h) && h.ctx.Err() == nil && !w.excused(h) {
			w.report("a holder has its record in Redis", "%v: %v no longer has a record", h.names, h)
		}
		w.mu.Unlock()
	}
}
