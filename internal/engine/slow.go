package engine

// Slow locks: holds that are old, and waits that take long, are reported while they last.
//
// Rules: one goroutine (slowWalk) looks at all lock states at half of the shortest time that was set. It runs while hold
// warnings are on, or else while callers wait. Whether a hold is to be reported follows from its age now and at the
// last walk. So nothing is remembered for a hold except the stack of the call that acquired it, as program counters,
// and that only while hold warnings are on. The calls that wait are found where they wait: in the local queues, or in a
// list of those that wait for Redis. A wait in a local queue, which may be as short as a hand-off, costs one look at the
// clock for this, and no mutex. All reports go through the reporter, at most mostLines in any second; the others are
// counted. The terms of an election, and its candidates, are meant to last: they are left out everywhere
// (Lock.Lasting).

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
)

const (
	mostLines  = 10              // reports in any second, including the one of how many were left out
	mostFrames = 32              // of a stack
	lookupTime = 2 * time.Second // how long one walk asks Redis for holders
)

// Slow locks are what an engine knows of holds and waits beside its lock states.
type slowLocks struct {
	mu     sync.Mutex // guards the fields below; no other mutex is locked while it is held
	stacks map[*hold][]uintptr
	waits  []*acquireOp // those that wait for Redis, in no order

	walk    slowWalk    // used by its goroutine
	walking atomic.Bool // it has a goroutine
}

// A redisWait is the wait of an acquire operation for a lock that Redis has found busy. The mutex of slowLocks guards
// it.
type redisWait struct {
	hold   *hold         // of the lock
	since  time.Duration // when the call began to wait, on the clock of the watchdog
	listed int           // its index in slowLocks.waits, plus 1; 0: it is not there
}

// A SlowWait describes the calls of this process that wait for one lock.
type SlowWait struct {
	Subject               // the lock, and the owner that has waited for the longest time
	Waiters int           // how many calls wait for the lock
	Waited  time.Duration // how long the first of them has waited
	Holder  string        // describes the current holder; "": it is not known
}

// A slowWatch watches holds and waits for those that last too long.
type slowWatch struct{ *Engine }

// acquired notes the stack of a call of o that has acquired locks, for the holds that it has begun. It is called on the
// goroutine of the caller, by Engine.Acquire.
func (e slowWatch) acquired(locks []contract.Lock, o Owner) {
	if e.HoldWarning == 0 {
		return
	}
	var counters [mostFrames]uintptr
	stack := slices.Clone(counters[:runtime.Callers(3, counters[:])]) // the caller of Engine.Acquire comes first
	for _, l := range locks {
		if !l.Traits().Lasting {
			e.noteStack(l.Traits().ID, o, stack)
		}
	}
}

func (e slowWatch) noteStack(id contract.LockID, o Owner, stack []uintptr) {
	s := e.retain(id.Name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	if h := s.holds.get(holdKey{id.Half, o}); h != nil && h.state.holds() {
		e.slow.noteLocked(h, stack)
	}
}

// noteLocked notes the stack of h, unless a hold that was re-entered has one. The caller has the mutex of the lock
// state, so h is not forgotten meanwhile.
func (s *slowLocks) noteLocked(h *hold, stack []uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stacks == nil {
		s.stacks = make(map[*hold][]uintptr)
	}
	if s.stacks[h] == nil {
		s.stacks[h] = stack
	}
}

// forgetLocked forgets the stack of h, which is no longer in the holds of its lock state.
func (s *slowLocks) forgetLocked(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stacks, h)
}

// stackOf returns the stack of h, or nil.
func (s *slowLocks) stackOf(h *hold) []uintptr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stacks[h]
}

// list notes that a waits for the lock of h, and has waited since then.
func (s *slowLocks) list(a *acquireOp, h *hold, since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &a.redisWait
	w.hold, w.since = h, since
	if w.listed == 0 {
		s.waits = append(s.waits, a)
		w.listed = len(s.waits)
	}
}

// strike notes that a waits no longer.
func (s *slowLocks) strike(a *acquireOp) {
	if !a.waited {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.redisWait.listed == 0 {
		return
	}
	last := len(s.waits) - 1
	moved := s.waits[last]
	moved.redisWait.listed = a.redisWait.listed
	s.waits[moved.redisWait.listed-1] = moved
	s.waits[last] = nil
	s.waits, a.redisWait = s.waits[:last], redisWait{}
}

// redisWaits returns the waits for Redis.
func (s *slowLocks) redisWaits() []redisWait {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]redisWait, 0, len(s.waits))
	for _, a := range s.waits {
		all = append(all, a.redisWait)
	}
	return all
}

// Slowest returns how old the oldest hold is, and how long the longest wait has lasted, of each type of lock. After
// Close it returns nothing.
func (e *Engine) Slowest() (holds, waits map[string]time.Duration) {
	holds, waits = make(map[string]time.Duration), make(map[string]time.Duration)
	if e.Alive() != nil {
		return holds, waits
	}
	now := e.watchdog.Now()
	slowWatch{e}.eachHeld(func(h *hold) {
		kind := h.lock.Traits().Type
		holds[kind] = max(holds[kind], now-heldSince(h))
	})
	slowWatch{e}.eachWait(func(h *hold, since time.Duration) {
		kind := h.lock.Traits().Type
		waits[kind] = max(waits[kind], now-since)
	})
	return holds, waits
}

// eachHeld calls f for each hold that is not meant to last, with the mutex of its lock state.
func (e slowWatch) eachHeld(f func(h *hold)) {
	for _, s := range e.table.all() {
		eachHeldOf(s, f)
	}
}

func eachHeldOf(s *lockState, f func(h *hold)) {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.state.holds() && !h.lock.Traits().Lasting {
			f(h)
		}
	}
}

// eachWait calls f for each call that waits for a lock, with the hold that it is to get, and with the time when it began
// to wait. f must not lock anything.
func (e slowWatch) eachWait(f func(h *hold, since time.Duration)) {
	report := func(h *hold, since time.Duration) {
		if !h.lock.Traits().Lasting {
			f(h, since)
		}
	}
	for _, s := range e.table.all() {
		eachLocalWait(s, report)
	}
	for _, w := range e.slow.redisWaits() {
		report(w.hold, w.since)
	}
}

// eachLocalWait is eachWait for those that wait in a local queue of s, or for the owner mutex of a hold.
func eachLocalWait(s *lockState, f func(h *hold, since time.Duration)) {
	s.Lock()
	defer s.Unlock()
	for _, q := range s.queues {
		for _, w := range q.All() {
			f(w.Value.hold, w.Value.since)
		}
	}
	for h := range s.holds.all() {
		for _, w := range h.ownerQueue.All() {
			f(h, w.Value.since)
		}
	}
}

// heldSince returns when the owner of h began to hold the lock, on the clock of the watchdog. It is later than h.since
// if the request that acquired the lock was sent long before: a waiter in the line is granted the lock by a message.
func heldSince(h *hold) time.Duration { return max(h.since, h.record.answeredAt) }

// A slowWalk is the goroutine that looks for slow locks. Only this goroutine uses its fields, except pending.
type slowWalk struct {
	slowWatch
	last    time.Duration        // when the last walk began, on the clock of the watchdog
	names   map[string]*slowName // the locks that callers wait for, and that were reported since they do, by name
	lines   lineLimit
	pending atomic.Int64 // reports that the reporter has not called yet
}

// A slowName is a lock for which callers have waited without a break since a wait for it was reported. It is reported
// again when the longest wait has doubled, or else, because the callers of a lock in demand may each wait somewhat too
// long, when the time for which they have been waiting has doubled.
type slowName struct {
	since   time.Duration // when the first of them began to wait, on the clock of the watchdog
	due     time.Duration // how long they will have been waiting when it is reported again
	longest time.Duration // the longest wait that was reported
}

// start starts the goroutine if there are hold warnings. Otherwise the first call that waits starts it.
func (e slowWatch) start() {
	e.slow.walk.slowWatch, e.slow.walk.lines = e, newLineLimit()
	if e.HoldWarning > 0 {
		e.startOnce()
	}
}

// startForWaits starts the goroutine if there are wait warnings. It is called when eachWait can see the new wait,
// because slowWalk.stop relies on that. The caller may have mutexes.
func (e slowWatch) startForWaits() {
	if e.WaitWarning > 0 && !e.slow.walking.Load() {
		e.startOnce()
	}
}

func (e slowWatch) startOnce() {
	if w := &e.slow.walk; e.slow.walking.CompareAndSwap(false, true) {
		w.last, w.names = e.watchdog.Now(), nil
		e.workers.Spawn(w.run)
	}
}

func (w *slowWalk) run() {
	ended := false
	defer func() {
		if !ended { // a hook has ended the goroutine during a lookup
			w.workers.Spawn(w.run)
		}
	}()
	pause := w.HoldWarning / 2
	if pause == 0 || w.WaitWarning > 0 && w.WaitWarning/2 < pause {
		pause = w.WaitWarning / 2
	}
	for w.Pause(w.life, pause) == nil {
		w.walk()
		if w.HoldWarning == 0 && !w.isAwaited() && w.stop() {
			break
		}
	}
	ended = true
}

// atWork returns the number of goroutines that look for slow locks.
func (s *slowLocks) atWork() int64 {
	if s.walking.Load() {
		return 1
	}
	return 0
}

// stop reports whether the goroutine is to end. If a call has begun to wait since the last walk, and has found that
// there is a goroutine, it goes on.
func (w *slowWalk) stop() bool {
	w.slow.walking.Store(false)
	return !w.isAwaited() || !w.slow.walking.CompareAndSwap(false, true)
}

// isAwaited reports whether a call waits.
func (w *slowWalk) isAwaited() (awaited bool) {
	w.eachWait(func(*hold, time.Duration) { awaited = true })
	return awaited
}

// An oldHold is a hold that a walk has found too old.
type oldHold struct {
	hold *hold
	held time.Duration
}

// walk reports the locks that have become slow since the last walk, or twice as slow as when they were last reported.
// The slowest come first, and holds and waits take turns.
func (w *slowWalk) walk() {
	now := w.watchdog.Now()
	waits := w.longWaits(now)
	holds := w.oldHolds(now, waits)
	ctx, cancel := context.WithTimeout(w.life, lookupTime)
	defer cancel()
	for i := range max(len(holds), len(waits)) {
		if i < len(holds) && w.allowed(now) {
			h, held := holds[i].hold, holds[i].held
			stack := w.slow.stackOf(h)
			w.report(func() { w.Events.SlowHold(h.subject(), held, stack) })
		}
		if i < len(waits) && w.allowed(now) {
			slow := *waits[i]
			if slow.Holder == "" && w.Holder != nil {
				slow.Holder = w.Holder(ctx, slow.Subject)
			}
			w.report(func() { w.Events.SlowWait(slow) })
		}
	}
	if n := w.lines.more(now); n > 0 {
		w.report(func() { w.Events.SlowOmitted(n) })
	}
	w.last = now
}

// allowed reports whether another line may be reported. Lines that a slow Logger has not written yet count, too.
func (w *slowWalk) allowed(now time.Duration) bool {
	return w.lines.allows(now, w.pending.Load() < mostLines)
}

func (w *slowWalk) report(line func()) {
	w.pending.Add(1)
	w.reporter.Later(func() {
		defer w.pending.Add(-1)
		line()
	})
}

// oldHolds returns the holds that have become too old since the last walk, the oldest first. It also notes the holders
// in this process of the locks of waits.
func (w *slowWalk) oldHolds(now time.Duration, waits []*SlowWait) (all []oldHold) {
	if w.HoldWarning == 0 && len(waits) == 0 {
		return nil
	}
	awaited := make(map[string]*SlowWait, len(waits))
	for _, slow := range waits {
		awaited[slow.Name] = slow
	}
	others := make(map[*SlowWait]int)
	w.eachHeld(func(h *hold) {
		if held := now - heldSince(h); w.HoldWarning > 0 && crossed(w.HoldWarning, w.last-heldSince(h), held) {
			all = append(all, oldHold{h, held})
		}
		switch slow := awaited[h.lock.Traits().Name]; {
		case slow == nil:
		case slow.Holder != "":
			others[slow]++
		default:
			slow.Holder = fmt.Sprintf("%v of %s", h.key.owner, w.process())
		}
	})
	for slow, n := range others {
		slow.Holder += fmt.Sprintf(", and %d more here", n)
	}
	slices.SortFunc(all, func(a, b oldHold) int { return cmp.Compare(b.held, a.held) })
	return all
}

// longWaits returns the locks for which a call has waited too long, and which are to be reported now, the longest wait
// first.
func (w *slowWalk) longWaits(now time.Duration) (all []*SlowWait) {
	if w.WaitWarning == 0 {
		return nil
	}
	found := make(map[string]*SlowWait)
	w.eachWait(func(h *hold, since time.Duration) {
		slow := found[h.lock.Traits().Name]
		if slow == nil {
			slow = new(SlowWait)
			found[h.lock.Traits().Name] = slow
		}
		if slow.Waiters++; now-since >= slow.Waited {
			slow.Subject, slow.Waited = h.subject(), now-since
		}
	})
	still := make(map[string]*slowName)
	for name, slow := range found {
		known := w.names[name]
		if known == nil {
			known = &slowName{since: now - slow.Waited}
		}
		if slow.Waited >= w.WaitWarning && (now-known.since >= known.due || slow.Waited/2 >= known.longest) {
			known.due, known.longest = 2*(now-known.since), max(known.longest, slow.Waited)
			all = append(all, slow)
		}
		if known.due > 0 {
			still[name] = known
		}
	}
	w.names = still
	slices.SortFunc(all, func(a, b *SlowWait) int { return cmp.Compare(b.Waited, a.Waited) })
	return all
}

// crossed reports whether a time that was before at the last walk, and is after now, has reached limit, or limit
// doubled any number of times, between the two walks.
func crossed(limit, before, after time.Duration) bool {
	if after < limit {
		return false
	}
	for limit <= after/2 {
		limit *= 2
	}
	return before < limit
}

// A lineLimit allows mostLines lines in any second, and counts those that are left out.
type lineLimit struct {
	times   [mostLines]time.Duration // when the last lines were allowed, in a ring
	next    int                      // the index of the oldest of them
	omitted int
}

func newLineLimit() lineLimit {
	var l lineLimit
	for i := range l.times {
		l.times[i] = -time.Second
	}
	return l
}

// free reports whether n more lines are allowed now.
func (l *lineLimit) free(n int, now time.Duration) bool {
	return now-l.times[(l.next+n-1)%mostLines] >= time.Second
}

// use uses one line.
func (l *lineLimit) use(now time.Duration) {
	l.times[l.next] = now
	l.next = (l.next + 1) % mostLines
}

// allows reports whether a line may be written. It keeps one line for more.
func (l *lineLimit) allows(now time.Duration, ready bool) bool {
	if !ready || !l.free(2, now) {
		l.omitted++
		return false
	}
	l.use(now)
	return true
}

// more returns how many lines were left out, if a line may be written about that now, and otherwise 0.
func (l *lineLimit) more(now time.Duration) (omitted int) {
	if l.omitted == 0 || !l.free(1, now) {
		return 0
	}
	l.use(now)
	omitted, l.omitted = l.omitted, 0
	return omitted
}
