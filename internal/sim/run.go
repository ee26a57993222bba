//go:build go1.25

package sim

// The run: a plan is played phase by phase, until it has ended or the witness has found a violation.
//
// Rules: after each phase, when faults have ended and the locks are not used, a new client must be able to acquire
// every lock that was used within seconds, and no unexpected data may be left in Redis.

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/relock-go/relock"
)

const (
	stuck       = 8 * time.Minute  // of real time, after which a run counts as hanging
	stormWindow = 10 * time.Second // the period in which commands are counted
	stormLimit  = 400              // commands per second, if there are few calls
	leftovers   = 15 * time.Minute // after this time nothing except counters may be left
)

// others contains the keys of other programs.
var others = map[string]string{"other": "text", "relock": "text", "lock": "text", "{lock-0}:other": "text",
	"relock_other:{lock-0}": "text"}

// A Verdict is the result of a run.
type Verdict struct {
	Plan     Plan
	Found    *Violation // nil: there was no violation
	Took     time.Duration
	Holds    int
	Commands int
	Report   string // of a violation: what happened before it
}

// options change how a plan is played.
type options struct {
	rewrite func(source string) string // of scripts, or nil
}

// Play plays a plan in a bubble.
func Play(t *testing.T, plan Plan, o options) (v Verdict) {
	v.Plan = plan
	hangs := time.AfterFunc(stuck, func() {
		all := make([]byte, 1<<22)
		panic(fmt.Sprintf("a run hangs; its plan:\n%v\n%s", plan, all[:runtime.Stack(all, true)]))
	})
	defer hangs.Stop()
	defer func() {
		if why := recover(); why != nil {
			v.Found = &Violation{Rule: "no goroutine is left and nothing panics", What: fmt.Sprint(why)}
			all := make([]byte, 1<<20)
			v.Report = string(all[:runtime.Stack(all, true)])
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(plan)
		for _, r := range w.redis {
			r.Rewrite(o.rewrite)
			r.Look(func(m *miniredis.Miniredis) {
				for key, value := range others {
					_ = m.Set(key, value)
				}
			})
		}
		end := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() { w.watch(end) })
		for _, phase := range plan.Phases {
			if !w.play(phase) {
				break
			}
		}
		close(end)
		watching.Wait()
		if w.witness.found != nil && len(w.held) == 0 {
			w.capture()
		}
		w.close()
		v.Found, v.Took, v.Holds = w.witness.found, time.Since(w.start), w.witness.taken
		for _, r := range w.redis {
			v.Commands += r.Count()
		}
		if v.Found != nil {
			v.Report = w.describe()
		}
	})
	return v
}

// watch checks the world every second.
func (w *world) watch(end <-chan struct{}) {
	var before, ended int
	for i := 0; ; i++ {
		select {
		case <-end:
			return
		case <-w.witness.stop:
			w.capture()
			return
		case <-time.After(time.Second):
		}
		w.witness.settle()
		w.witness.look()
		w.witness.sums()
		w.witness.orphans()
		if i%int(stormWindow/time.Second) > 0 {
			continue
		}
		now := 0
		for _, r := range w.redis {
			now += r.Count()
		}
		w.witness.mu.Lock()
		calls := w.witness.ended
		if commands := now - before; commands > int(stormWindow.Seconds())*stormLimit+30*(calls-ended) {
			w.witness.report("no request storm", "%d commands for %d calls in %v", commands, calls-ended, stormWindow)
		}
		w.witness.mu.Unlock()
		before, ended = now, calls
	}
}

// play plays one phase, and reports whether there was no violation.
func (w *world) play(phase Phase) bool {
	w.mu.Lock()
	w.phase, w.began, w.ending = phase, time.Now(), false
	w.mu.Unlock()
	w.note(nil, "a phase of %v begins", phase.Length)
	over, healed := make(chan struct{}), make(chan struct{})
	var workers, faults sync.WaitGroup
	for _, f := range phase.Faults {
		faults.Go(func() { w.inflict(f, healed) })
	}
	for _, spec := range phase.Workers {
		worker := &worker{Worker: spec, world: w, rng: newRand(w.plan.Seed, spec.ID), over: over}
		workers.Go(worker.run)
	}
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	select {
	case <-w.witness.stop:
	case <-time.After(phase.Length):
	}
	close(healed)
	faults.Wait()
	if phase.Crash && w.well() {
		w.killThem(Fault{Process: -1}, false)()
	}
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	close(over)
	w.note(nil, "the workers are to finish")
	select {
	case <-w.witness.stop:
	case <-done:
	}
	if !w.well() {
		w.close() // this ends every call
		<-done
		return false
	}
	select {
	case <-w.witness.stop:
	case <-time.After(phase.Idle):
	}
	if phase.Idle > leftovers {
		w.tidy(phase)
	}
	w.probe(phase)
	return w.well()
}

func (w *world) well() bool {
	select {
	case <-w.witness.stop:
		return false
	default:
		return true
	}
}

// untidy reports whether a lock may be blocked for longer than usual: by a lease that the clock of Redis has
// prolonged, by a hold that lasts longer by design, by a Java waiter that has gone, or by a process that has vanished
// silently.
func (w *world) untidy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.phase.Workers, func(o Worker) bool { return o.MinHold > 0 || o.Kind == JavaFair }) ||
		w.backIn(w.phase) > 0 || w.ghostly() > 0 || time.Now().Before(w.prolonged)
}

// backIn returns by how much the clock of Redis is set back in a phase. mu is held.
func (w *world) backIn(phase Phase) (sum time.Duration) {
	for _, f := range phase.Faults {
		if f.Kind == "clock back" {
			sum += f.Amount
		}
	}
	return sum
}

// deaf reports whether a process may not receive grants, because it was not permitted to subscribe at some time of
// the phase. It then polls (see security.md), even when it has the permission again, until it has not needed the
// channel for a moment.
func (w *world) deaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.began)
	return w.plan.Lacks == "subscribe" || slices.ContainsFunc(w.phase.Faults,
		func(f Fault) bool { return f.Kind == "no subscribe" && f.At <= now })
}

// inLine returns workers of a phase whose records contain only holders, one worker for each lock.
func (w *world) inLine() (all []Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.phase.Workers {
		shares := func(other Worker) bool { return other.shares(o) }
		minimal := slices.ContainsFunc(w.phase.Workers, func(other Worker) bool {
			return other.shares(o) && other.MinHold > 0
		})
		if (o.Kind == Plain || o.Kind == FencedOne || o.Kind == Fair || o.Kind == Leader) && !minimal &&
			!slices.ContainsFunc(all, shares) {
			all = append(all, o)
		}
	}
	return all
}

// semaphores returns the names of the semaphores that are used in a phase.
func (w *world) semaphores() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.phase.Workers {
		if o.counts() && !slices.Contains(all, o.Names[0]) {
			all = append(all, o.Names[0])
		}
	}
	return all
}

// present returns the current processes.
func (w *world) present() (all []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if !p.gone.Load() {
			all = append(all, p)
		}
	}
	return all
}

// turnsBefore returns how many turns of other processes may precede that of a worker, with a margin, and whether its
// lock is handed off in the order of a line.
func (w *world) turnsBefore(of *Worker) (most int, ordered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A process that lacks a permission waits up to the poll interval while others are notified, or has no position
	// in the line: see security.md.
	switch of.Kind {
	case Plain, FencedOne, Fair, Permits:
	default:
		return 0, false
	}
	// After a release a process lets others go first for about a round trip. While the workers finish, sections take
	// no time, so that other processes can have several turns within that.
	if w.plan.Lacks != "" || w.unlined || w.ending {
		return 0, false
	}
	beside := 0 // workers of its process, each of which may need a turn of the process
	all, steady := 0, true
	for _, o := range w.phase.Workers {
		if o.shares(*of) && o.Kind != of.Kind {
			return 0, false
		}
		if o.shares(*of) && o.Process == of.Process {
			beside++
		}
		if o.shares(*of) {
			all++
			steady = steady && o.Steady
		}
	}
	if most = beside*(w.plan.Processes-1) + 1; of.Kind == Fair { // each worker has a position of its own
		most = all + 1
	}
	if !steady { // these workers give up, and come again
		most = 2*most + 4
	}
	return most, true
}

// patience returns how long a call may wait for its turn at most, in the current situation.
func (w *world) patience(c *call) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	limit := 20*time.Second + w.ghostly()
	if c.worker == nil {
		return limit
	}
	turns := time.Duration(2)
	switch c.worker.Kind {
	case ReadWrite, Write, Permits, Multi, Red, JavaReadWrite, JavaPermits: // no line, or several
		turns = 6
	}
	for _, o := range w.phase.Workers {
		if o.ID == c.worker.ID || !w.phase.together(o, *c.worker) {
			continue
		}
		if o.Kind == Multi { // it may hold one lock while it waits for the other one
			turns = 6
		}
		// These have no position in a line. If the network never varies, others may always be sooner.
		if c.worker.Kind == Multi || c.worker.Kind == Red && w.plan.Jitter == 0 {
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if c.worker.readsAndWrites() && (c.worker.java() || o.java()) {
			// Java readers do not let waiting writers go first, and relock does not know about Java writers that
			// wait: see mixed-fleets.md.
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if c.worker.Kind == JavaPermits { // it has no position in the line, and others may always be sooner
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		each := 2*o.Section + o.MinHold + 500*time.Millisecond // the second one after an Extend
		switch w.plan.Lacks {
		case "publish":
			each += w.plan.WakeDelay
			// It is not notified of a release, and its attempts may always come too late.
			if o.Process == w.plan.Poor && w.phase.hasNoPlace(*c.worker) {
				limit = max(limit, w.phase.Length+20*time.Second)
			}
		case "subscribe":
			each += 2 * w.plan.WakeDelay
			// It polls, and processes that receive messages make an attempt at once.
			if c.worker.Kind == Red && c.worker.Process == w.plan.Poor {
				limit = max(limit, w.phase.Length+20*time.Second)
			}
		case "line": // a process that has no position in it acquires a lock that it finds free
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if w.unlined {
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		limit += turns * each
		if o.java() {
			limit += turns * (o.Section + 10*time.Second)
		}
		if c.worker.Kind == JavaFair && (w.phase.kills() || len(w.phase.Faults) > 0) {
			// Java waits this long for each waiter that has died, and forever for one whose timeout was lost.
			limit += javaWait + time.Hour
		}
		if c.worker.Kind == Fair && o.Kind == JavaFair && len(w.phase.Faults) > 0 {
			// A fault may restore the position of a Java waiter that has left. Redisson keeps it for this time,
			// starting at the position ahead of it.
			limit += 2 * javaWait
		}
	}
	now := time.Since(w.began)
	if w.phase.Crash && now >= w.phase.Length {
		limit += w.plan.Watchdog + 2*fairLife + grantLife
	}
	// Records without a holder last longer if the clock goes back.
	orphans := w.phase.Crash || slices.ContainsFunc(w.phase.Workers, func(o Worker) bool { return o.MinHold > 0 })
	for _, f := range w.phase.Faults {
		if f.At > now {
			continue
		}
		if f.Kind == "clock back" {
			limit += slack
			continue
		}
		// The fault may leave a record for the time of a lease, and dead waiters.
		limit += min(f.For, now-f.At) + w.plan.Watchdog + 2*fairLife + grantLife
		if f.Kind == "slow" || f.Kind == "degrade" || f.Kind == "late requests" {
			limit += 20 * f.Amount
		}
		orphans = true
	}
	if orphans { // their leases last longer
		limit += w.backIn(w.phase)
	}
	if before := w.prolonged.Sub(c.began); before > 0 { // clocks went back in previous phases
		limit += before
	}
	return limit
}

// leaseLeft returns the remaining lease of records, or 0 if there are none.
func (w *world) leaseLeft(names []string) (left time.Duration) {
	for _, r := range w.redis {
		r.Look(func(m *miniredis.Miniredis) {
			for _, name := range names {
				left = max(left, m.TTL(name))
			}
		})
	}
	return left
}

// hasNoPlace reports whether a call of the worker may wait without a position in the line. This applies to calls of a
// Java service, and to calls that wait behind a MultiLock of their own process.
func (p Phase) hasNoPlace(a Worker) bool {
	return a.java() || slices.ContainsFunc(p.Workers, func(o Worker) bool {
		return o.Kind == Multi && o.Process == a.Process && o.shares(a)
	})
}

// together reports whether one worker may have to wait for the other, because they share a lock, or because each
// shares one with a MultiLock.
func (p Phase) together(a, b Worker) bool {
	return a.shares(b) || slices.ContainsFunc(p.Workers, func(o Worker) bool {
		return o.Kind == Multi && o.shares(a) && o.shares(b)
	})
}

// count returns the number of workers that use locks of this kind.
func (p Phase) count(kind Kind) (n int) {
	for _, w := range p.Workers {
		if w.Kind == kind {
			n++
		}
	}
	return n
}

// java reports whether Java services work in the phase.
func (p Phase) java() bool {
	return slices.ContainsFunc(p.Workers, Worker.java)
}

// kills reports whether processes die in the phase.
func (p Phase) kills() bool {
	return p.Crash || slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == "kill" || f.Kind == "vanish" })
}

// probe lets a new client acquire each lock that was used in a phase, and checks what is left.
func (w *world) probe(phase Phase) {
	if !w.well() {
		return
	}
	w.note(nil, "a new client tries the locks")
	w.mu.Lock()
	back, ghostly := max(w.backIn(phase), time.Until(w.prolonged)), w.ghostly()
	w.mu.Unlock()
	// A process without a known subscription does not count as dead, and a grant waits for it.
	if w.deaf() {
		ghostly += time.Duration(w.plan.Processes) * grantLife
	}
	// A fault may restore the positions of Java waiters that have gone, or prevent them from leaving. Each of them is
	// waited for in turn.
	if len(phase.Faults) > 0 {
		ghostly += javaWait * time.Duration(phase.count(JavaFair))
	}
	limit := 10*time.Second + ghostly
	settled := phase.Idle > w.plan.Watchdog+grantLife+fairLife
	if !settled { // requests of dead processes may still arrive, and acquire a lock for a lease
		limit += fairLife + grantLife + w.plan.Watchdog
	}
	var seen []string
	fresh := w.newProcess(w.plan.Processes)
	for _, spec := range phase.Workers {
		key := fmt.Sprint(spec.Names)
		if slices.Contains(seen, key) {
			continue
		}
		seen = append(seen, key)
		spec.MinHold, spec.MaxHold = 0, 0
		left, lasts := w.leaseLeft(spec.Names), w.plan.Watchdog+back+slack
		if spec.counts() { // their leases are not those of a key
			left = lasts
		}
		if left > lasts && !phase.java() {
			w.witness.Report("a lease expires", "%v: %v is left of a lease, and %v is the longest", spec.Names, left, lasts)
		}
		if spec.Kind == Leader {
			spec.Kind = FencedOne
		} else if spec.java() {
			spec.Kind = inGo[spec.Kind]
		}
		probe := &worker{Worker: spec, world: w, rng: newRand(w.plan.Seed, spec.ID)}
		l, _ := probe.lock(fresh)
		ctx := relock.ContextWithOwner(context.Background())
		started := time.Now()
		ok, err := l.TryLock(ctx, left+limit, 0)
		if !ok || err != nil {
			w.witness.Report("a new client acquires a free lock",
				"%s %v, %v after its last use, with %v left of a lease: %v after %v, %v", spec.Kind, spec.Names, phase.Idle, left,
				ok, time.Since(started), err)
			break
		}
		// Dead waiters ahead are recognized after at most four seconds, and the new client polls once a second.
		// Waiters in several queues are passed over one after the other.
		soon := time.Duration(len(spec.Names)) * (5*time.Second + 10*(w.plan.Latency+w.plan.Jitter))
		if took := time.Since(started); settled && took > left+ghostly+soon {
			w.witness.Report("a new client acquires a free lock",
				"%s %v, %v after its last use, with %v left of a lease: only after %v", spec.Kind, spec.Names, phase.Idle, left,
				took)
		}
		if err := l.Unlock(ctx); err != nil {
			w.witness.Report("Unlock of a valid hold returns nil", "the new client, %v: %v", spec.Names, err)
		}
		if s, ok := l.(*relock.Semaphore); ok && settled && back == 0 && ghostly == 0 && !phase.java() {
			w.witness.allFree(s)
		}
	}
	for i, c := range fresh.clients {
		if err := c.Close(); err != nil {
			w.witness.Report("Close returns nil", "%v", err)
		}
		_ = fresh.rdbs[i].Close()
	}
}

// tidy reports keys that are no longer needed, and changes of the keys of other programs.
func (w *world) tidy(phase Phase) {
	for i, r := range w.redis {
		var lost bool
		w.witness.mu.Lock()
		lost = len(w.witness.losses) > 0
		w.witness.mu.Unlock()
		r.Look(func(m *miniredis.Miniredis) {
			for key, value := range others {
				if got, err := m.Get(key); (err != nil || got != value) && !lost {
					w.witness.Report("keys of other programs are not changed", "%s is %q, %v", key, got, err)
				}
			}
			for _, key := range m.Keys() {
				java := strings.Contains(key, string(JavaFair)) // Redisson leaves these keys there
				_, other := others[key]
				if other || m.TTL(key) > 0 || java || strings.HasPrefix(key, "redisson_lock_token:") ||
					strings.Contains(key, string(Permits)) {
					continue
				}
				w.witness.Report("no key is left without a lease", "server %d, after %v without use: %s %s", i, phase.Idle,
					m.Type(key), key)
			}
		})
	}
}

// describe returns what happened before the violation.
func (w *world) describe() string {
	var b strings.Builder
	w.mu.Lock()
	names := make([]string, 0, len(w.events))
	for name := range w.events {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s:\n", name)
		all := w.events[name]
		for _, e := range all[max(0, len(all)-eventsKept):] {
			fmt.Fprintf(&b, "  %s\n", e)
		}
	}
	w.mu.Unlock()
	w.witness.mu.Lock()
	for c := range w.witness.calls {
		fmt.Fprintf(&b, "not returned for %v: %s %s\n", time.Since(c.began), c.p.name, c.what)
	}
	w.witness.mu.Unlock()
	for i, r := range w.redis {
		fmt.Fprintf(&b, "Redis %d ran:\n", i)
		for _, c := range r.Recent() {
			args := shorten(named(c.Args, r.Source))
			fmt.Fprintf(&b, "  %12v %s %s\n", c.At.Sub(w.start).Round(time.Microsecond), c.Link, args)
		}
		fmt.Fprintf(&b, "Redis %d held:\n%s", i, w.held[i])
	}
	return b.String()
}

func shorten(args []string) string {
	for i, a := range args {
		if len(a) > 60 {
			args = slices.Clone(args)
			args[i] = a[:20] + "..." + fmt.Sprint(len(a))
		}
	}
	return strings.Join(args, " ")
}
