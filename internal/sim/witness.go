//go:build go1.25

package sim

// The witness: it sees what calls return and what Redis holds, and says what may never happen.
//
// Rules: it knows relock from its documentation alone. What it hears late it takes as the caller heard it: a
// hold begins when its call has returned, and ends before its release is called. Faults that lose what Redis had
// excuse two holders, for as long as a lease lasts; other faults excuse nothing but time.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/relock-go/relock"
)

const (
	slack     = 2 * time.Second  // for what is to happen at a time
	callBound = 7 * time.Second  // what a call takes at most beyond the wait that was asked for
	fairLife  = 10 * time.Second // until a waiter that has died is passed over
	grantLife = 5 * time.Second  // until the grant of a process that does not take it is over
)

// A Violation is what a run found.
type Violation struct {
	Rule string // the same for what is the same mistake
	What string
	At   time.Duration // since the begin of the run
}

func (v Violation) String() string { return fmt.Sprintf("%s at %v: %s", v.Rule, v.At, v.What) }

// A hold is one that a call returned.
type hold struct {
	p      *process
	worker *Worker
	ids    []string // of the Clients, for each server
	names  []string
	shared bool
	ctx    context.Context
	lease  time.Duration
	asked  time.Time // when the call began
	since  time.Time
	token  int64
	again  bool // it was entered again, and is renewed since
}

func (h *hold) String() string {
	return fmt.Sprintf("%s worker %d (asked %v ago, had it %v ago, lease %v, token %d)", h.p.name, h.worker.ID,
		time.Since(h.asked), time.Since(h.since), h.lease, h.token)
}

// A loss is a time at which Redis lost something.
type loss struct {
	at   time.Time
	name string // of a lock; "": of all
	what string
}

// A token is one that a holder was given.
type token struct {
	value    int64
	returned time.Time
}

// A witness watches one world.
type witness struct {
	world *world

	mu      sync.Mutex // guards below
	found   *Violation // the first
	stop    chan struct{}
	holds   []*hold
	calls   map[*call]struct{}
	losses  []loss
	forgot  bool                 // counters of tokens were lost
	back    time.Duration        // by how much the clock of Redis was set back
	tokens  map[string][]token   // of a name
	taken   int                  // holds so far
	last    map[string]*process  // that had a lock
	free    map[string]time.Time // when a release of a lock last returned
	touched map[string]time.Time // of a process and a lock: when a call or a hold of it last began or ended
	ended   int                  // calls so far
	undone  map[string]time.Time // of a name: when a call last left without the lock, or may have left something there
	stale   map[string]bool      // of a fair lock: nobody has asked since a waiter left
}

func newWitness(w *world) *witness {
	return &witness{world: w, stop: make(chan struct{}), calls: map[*call]struct{}{}, tokens: map[string][]token{}, undone: map[string]time.Time{}, stale: map[string]bool{}, last: map[string]*process{}, free: map[string]time.Time{}, touched: map[string]time.Time{}}
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

// lose notes that Redis has lost something, and sees to it that its holders notice.
func (w *witness) lose(what, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses = append(w.losses, loss{time.Now(), name, what})
	for _, h := range w.holds {
		if !slices.Contains(h.names, name) && name != "" || h.worker.Kind == Red {
			continue
		}
		time.AfterFunc(w.leaseOf(h)+slack, func() {
			recorded := h.worker.counts() || w.recorded(h)
			w.mu.Lock()
			defer w.mu.Unlock()
			if !recorded && slices.Contains(w.holds, h) && h.ctx.Err() == nil {
				w.report("a lost hold is noticed", "%v: %s, and %v does not know it after %v", h.names, what, h, w.leaseOf(h)+slack)
			}
		})
	}
}

func (w *witness) setBack(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.back += by
}

// forgetTokens notes that Redis may have lost a counter of tokens. The next tokens follow its clock.
func (w *witness) forgetTokens() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgot = true
}

// leaseOf is the longest time for which h can be valid without a word from Redis.
func (w *witness) leaseOf(h *hold) time.Duration {
	return max(h.lease, w.world.plan.Watchdog) // a re-entry, or an Extend
}

// excused says whether h may be held beside another one: Redis has lost its record, and it need not know yet. mu is held.
func (w *witness) excused(h *hold) bool {
	return slices.ContainsFunc(w.losses, func(l loss) bool {
		return (l.name == "" || slices.Contains(h.names, l.name)) &&
			!l.at.Before(h.asked.Add(-200*time.Millisecond)) && // what a process hands over inside it may be lost already
			time.Now().Before(later(l.at, h.since).Add(w.leaseOf(h)+slack))
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// recorded says whether the records of h are in Redis: a majority of those of a RedLock.
func (w *witness) recorded(h *hold) bool {
	count := func(server int, names []string) (n int) {
		w.world.redis[server].Look(func(m *miniredis.Miniredis) {
			for _, name := range names {
				fields, _ := m.HKeys(name)
				if slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, h.ids[server]) }) {
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

// held notes a hold that a call has returned.
func (w *witness) held(h *hold) {
	h.since = time.Now()
	recorded := h.worker.counts() || w.recorded(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.p.gone.Load() {
		return
	}
	w.taken++
	w.touch(h.p, h.worker)
	w.world.note(h.p, "worker %d holds %v, token %d", h.worker.ID, h.names, h.token)
	if !recorded && h.ctx.Err() == nil && !w.excused(h) {
		w.report("who holds is in Redis", "%v: %v has no record", h.names, h)
	}
	for _, name := range h.names {
		w.alone(h, name)
		w.inOrder(h, name)
		w.inTurn(h, name)
		w.atOnce(h, name)
		delete(w.free, name)
	}
	w.holds = append(w.holds, h)
}

// alone reports holders beside h. mu is held.
func (w *witness) alone(h *hold, name string) {
	if h.ctx.Err() != nil || w.excused(h) {
		return
	}
	var beside []*hold
	for _, o := range w.holds {
		if slices.Contains(o.names, name) && !(o.shared && h.shared) && o.ctx.Err() == nil && !w.excused(o) {
			beside = append(beside, o)
		}
	}
	most := 0
	if h.worker.counts() {
		most = permits - 1
	}
	if len(beside) > most {
		w.report("one holder", "%s: %v beside %v", name, h, beside)
	}
}

// inOrder reports a token that is not greater than those before it. mu is held.
func (w *witness) inOrder(h *hold, name string) {
	if h.token == 0 {
		return
	}
	for _, t := range w.tokens[name] {
		if t.returned.Before(h.asked) && t.value >= h.token && !(w.back > 0 && (w.forgot || len(w.losses) > 0)) {
			w.report("tokens grow", "%s: %v, and %d was given before it asked", name, h, t.value)
		}
	}
	w.tokens[name] = append(w.tokens[name], token{h.token, time.Now()})
	if n := len(w.tokens[name]); n > 200 {
		w.tokens[name] = slices.Clone(w.tokens[name][n-100:])
	}
}

// inTurn reports a call that has waited for more turns of other processes than there can be in front of it. mu is held.
func (w *witness) inTurn(h *hold, name string) {
	if w.last[name] == h.p {
		return
	}
	w.last[name] = h.p
	for c := range w.calls {
		if !c.asks || c.p == h.p || !slices.Contains(c.worker.Names, name) {
			continue
		}
		if c.passed++; !w.world.calm(c.began.Add(-w.world.plan.Watchdog-2*callBound)) || w.world.untidy() {
			c.passed = 0
			continue
		}
		if most, ordered := w.world.turnsBefore(c.worker); ordered && c.passed > most {
			w.report("first come, first served", "%s worker %d waits for %v since %v, and other processes had %s for %d turns since; the last one: %v",
				c.p.name, c.worker.ID, c.worker.Names, time.Since(c.began), name, c.passed, h)
		}
	}
}

// touch notes that a call or a hold begins or ends. mu is held.
func (w *witness) touch(p *process, worker *Worker) {
	if worker == nil {
		return
	}
	for _, name := range worker.Names {
		w.touched[p.name+" "+name] = time.Now()
	}
}

// orphans reports records of processes that are alive, and neither hold the lock nor ask for it. After a fault there may be
// one for a lease: of a request that was held up for longer than its undo was repeated, or that Redis had forgotten to delete.
func (w *witness) orphans() {
	if !w.world.calm(time.Now().Add(-w.world.plan.Watchdog-callBound)) || w.world.untidy() {
		return
	}
	for _, worker := range w.world.inLine() {
		name, fields := worker.Names[0], []string(nil)
		w.world.redis[0].Look(func(m *miniredis.Miniredis) { fields, _ = m.HKeys(name) })
		for _, p := range w.world.present() {
			if !slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, p.clients[0].ID()) }) {
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
				w.report("who has a record holds the lock", "%s has a record of %s, %v, and nobody there uses it", p.name, name, fields)
			}
			w.mu.Unlock()
		}
	}
}

// freed notes that the release of a hold has returned.
func (w *witness) freed(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range h.names {
		if _, ok := w.free[name]; ok { // nobody has it yet
			w.free[name] = time.Now()
		}
	}
}

// atOnce reports a lock that was free for a while, although h was waiting for it. mu is held.
func (w *witness) atOnce(h *hold, name string) {
	if _, ordered := w.world.turnsBefore(h.worker); !ordered || w.world.untidy() || w.excused(h) || w.free[name].IsZero() {
		return
	}
	if slices.ContainsFunc(w.holds, func(o *hold) bool { return slices.Contains(o.names, name) }) {
		return
	}
	plan := w.world.plan
	since := later(w.free[name], h.asked)
	if most := 300*time.Millisecond + 20*(plan.Latency+plan.Jitter); time.Since(since) > most && w.world.calm(since.Add(-plan.Watchdog-2*callBound)) {
		w.report("a lock passes at once", "%s was free for %v, and %v was waiting", name, time.Since(since), h)
	}
}

// given notes that the release of a hold begins. It says whether the hold is alive, and must be released without an error.
func (w *witness) given(h *hold) (alive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = slices.DeleteFunc(w.holds, func(o *hold) bool { return o == h })
	for _, name := range h.names {
		w.free[name] = time.Now()
	}
	return h.ctx.Err() == nil && !w.excused(h) && w.world.calm(h.asked.Add(-w.leaseOf(h)-slack)) && !h.p.gone.Load()
}

// lost notes that the context of a hold has ended before its release.
func (w *witness) lost(h *hold) {
	cause := context.Cause(h.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.world.note(h.p, "worker %d has lost %v: %v", h.worker.ID, h.names, cause)
	limited := h.lease > 0 || h.worker.MaxHold > 0 || h.p.gone.Load()
	if !limited && !w.excused(h) && w.world.calm(h.since.Add(-w.leaseOf(h)-slack)) {
		w.report("nothing is lost without a reason", "%v: %v: %v", h.names, h, cause)
	}
}

// killed notes that a process says nothing any more.
func (w *witness) killed(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = slices.DeleteFunc(w.holds, func(h *hold) bool { return h.p == p })
	for c := range w.calls {
		if c.p == p {
			delete(w.calls, c)
			w.left(c)
		}
	}
}

// left notes that a call leaves without the lock. mu is held.
func (w *witness) left(c *call) {
	if c.worker == nil {
		return
	}
	for _, name := range c.worker.Names {
		w.undone[name], w.stale[name] = time.Now(), c.worker.Kind == Fair
	}
}

// look compares the holds with what Redis holds.
func (w *witness) look() {
	w.mu.Lock()
	holds := slices.Clone(w.holds)
	w.mu.Unlock()
	for _, h := range holds {
		if h.worker.counts() || h.ctx.Err() != nil || w.recorded(h) {
			continue
		}
		w.mu.Lock()
		if slices.Contains(w.holds, h) && h.ctx.Err() == nil && !w.excused(h) {
			w.report("who holds is in Redis", "%v: %v has no record any more", h.names, h)
		}
		w.mu.Unlock()
	}
}

// A call is one that has not returned yet.
type call struct {
	witness *witness
	p       *process
	worker  *Worker
	what    string
	began   time.Time
	timer   *time.Timer
	taken   int  // holds of all, when it began
	asks    bool // for a lock
	passed  int  // turns of other processes since it began, or since the last fault
}

// begin notes a call that returns within bound. bound 0: as soon as it is its turn.
func (w *witness) begin(p *process, worker *Worker, what string, bound time.Duration) *call {
	c := &call{witness: w, p: p, worker: worker, what: what, began: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touch(p, worker)
	w.calls[c] = struct{}{}
	w.watch(c, bound)
	return c
}

// watch has the call looked at when its time is over. mu is held.
func (w *witness) watch(c *call, bound time.Duration) {
	limit := bound
	if bound == 0 {
		limit = w.world.patience(c)
	}
	c.timer = time.AfterFunc(time.Until(c.began.Add(limit)), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, ok := w.calls[c]; !ok {
			return
		}
		if bound == 0 && w.world.patience(c) > limit {
			w.watch(c, 0)
			return
		}
		rule := "every call ends"
		if bound == 0 {
			rule = "nobody waits for ever"
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
		if c.worker != nil && slices.ContainsFunc(h.names, func(n string) bool { return slices.Contains(c.worker.Names, n) }) {
			all = append(all, h)
		}
	}
	return all
}

// aloneNow says whether nobody else uses a lock of c, or has lately left something undone.
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

// asking notes that a call asks for a lock, and says whether nobody else uses it. A waiter that could not leave the queue
// of a fair lock, because its process died or Redis was away, has its place until a heartbeat after the next call: that
// call cannot tell whether Redis was away or nobody was there.
func (w *witness) asking(c *call) (alone bool) {
	alone = w.aloneNow(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	c.asks, c.taken = true, w.taken
	for _, name := range c.worker.Names {
		if w.stale[name] {
			alone, w.stale[name], w.undone[name] = false, false, time.Now()
		}
	}
	return alone
}

// refused judges that a call did not get its lock.
func (w *witness) refused(c *call, alone bool, err error, m manner) {
	still := alone && w.nobodyCame(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left(c)
	p := w.world.plan
	if err != nil && m.bound() == 0 && m.lease == 0 && c.worker.Kind != Red && w.world.ridesOut(c, err) {
		w.report("a waiter rides out an outage", "%s worker %d %v: %v", c.p.name, c.worker.ID, c.worker.Names, err)
	}
	if c.p.gone.Load() || !w.world.calm(c.began.Add(-p.Watchdog-2*callBound)) || w.world.untidy() {
		return
	}
	switch {
	case err != nil && m.wait > 0 && m.wait < time.Second: // less than an answer may take
	case err != nil && m.cancel == 0:
		w.report("no error without a reason", "%s worker %d %v: %v", c.p.name, c.worker.ID, c.worker.Names, err)
	case still && (m.cancel == 0 || m.cancel > slack):
		w.report("a free lock is had", "%s worker %d %v did not get it with %+v, and nobody has it: %v", c.p.name, c.worker.ID, c.worker.Names, m, err)
	}
}

// nobodyCame says whether nobody has had the lock since the call began, and nobody else uses it.
func (w *witness) nobodyCame(c *call) bool {
	alone := w.aloneNow(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	return alone && c.taken == w.taken
}

// end notes that a call has returned.
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
