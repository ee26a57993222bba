//go:build go1.25

package sim

// The run: a plan is played, phase after phase, until all is done or the witness has found something.
//
// Rules: after each phase, when faults have ended and nobody uses a lock, every lock that was used must be had by a
// newcomer within seconds, and nothing that should not be there may be left in Redis.

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
	stuck       = 8 * time.Minute  // of real time, after which a run hangs
	stormWindow = 10 * time.Second // in which commands are counted
	stormLimit  = 400              // commands a second, where there are few calls
	leftovers   = 15 * time.Minute // after which nothing but counters is left
)

// others are keys of other programs.
var others = map[string]string{"other": "text", "relock": "text", "lock": "text", "{lock-0}:other": "text",
	"relock_other:{lock-0}": "text"}

// A Verdict is how a run went.
type Verdict struct {
	Plan     Plan
	Found    *Violation // nil: nothing was wrong
	Took     time.Duration
	Holds    int
	Commands int
	Report   string // of a violation: what was going on
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
			v.Found = &Violation{Rule: "nothing is left and nothing panics", What: fmt.Sprint(why)}
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

// watch looks at the world every second.
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

// play plays one phase, and reports whether all was well.
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
		w.close() // which ends every call
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

// untidy reports whether something may be in the way for longer than usual: a lease that the clock of Redis prolongs,
// what lasts longer by design, a Java waiter that has gone, or a process that has vanished without a word.
func (w *world) untidy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.phase.Workers, func(o Worker) bool { return o.MinHold > 0 || o.Kind == JavaFair }) ||
		w.backIn(w.phase) > 0 || w.ghostly() > 0 || time.Now().Before(w.prolonged)
}

// backIn is by how much the clock goes back in a phase. mu is held.
func (w *world) backIn(phase Phase) (sum time.Duration) {
	for _, f := range phase.Faults {
		if f.Kind == "clock back" {
			sum += f.Amount
		}
	}
	return sum
}

// deaf reports whether a process may hear of no grant, because it had no right to subscribe at some time of the phase.
// Then it asks at the poll interval (see security.md), also when it has the right again, until it has not needed the
// channel for a moment.
func (w *world) deaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.began)
	return w.plan.Lacks == "subscribe" || slices.ContainsFunc(w.phase.Faults,
		func(f Fault) bool { return f.Kind == "no subscribe" && f.At <= now })
}

// inLine are the workers of a phase whose records are nothing but those of holders, one for each lock.
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

// semaphores are the names of those that are used in a phase.
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

// present are the processes that are there.
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

// turnsBefore is how many turns of other processes there may be before that of a worker, with some to spare, and
// whether its lock passes in the order of a line.
func (w *world) turnsBefore(of *Worker) (most int, ordered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Who lacks a right waits up to the poll interval where others are told, or has no place: see security.md.
	switch of.Kind {
	case Plain, FencedOne, Fair, Permits:
	default:
		return 0, false
	}
	// After a release a process lets others go first for about a round trip, which is several sections without a
	// length.
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
	if most = beside*(w.plan.Processes-1) + 1; of.Kind == Fair { // each worker has a place of its own
		most = all + 1
	}
	if !steady { // those that give up, and come again
		most = 2*most + 4
	}
	return most, true
}

// patience is how long a call may wait at most for its turn, as it looks now.
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
		if o.Kind == Multi { // it may have one lock while it waits for the other one
			turns = 6
		}
		// These have no place in a line: where the network never varies, others may always be sooner.
		if c.worker.Kind == Multi || c.worker.Kind == Red && w.plan.Jitter == 0 {
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if c.worker.readsAndWrites() && (c.worker.java() || o.java()) {
			// Java readers do not let waiting writers go first, and nobody knows of a Java writer that waits: see
			// mixed-fleets.md.
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		if c.worker.Kind == JavaPermits { // it has no place in the line, and others may always be sooner
			limit = max(limit, w.phase.Length+20*time.Second)
		}
		each := 2*o.Section + o.MinHold + 500*time.Millisecond // the second one after an Extend
		switch w.plan.Lacks {
		case "publish":
			each += w.plan.WakeDelay
			if o.Process == w.plan.Poor && w.phase.hasNoPlace(*c.worker) { // it is not told of a release, and may always ask too late
				limit = max(limit, w.phase.Length+20*time.Second)
			}
		case "subscribe":
			each += 2 * w.plan.WakeDelay
			if c.worker.Kind == Red && c.worker.Process == w.plan.Poor { // it asks once in a while, and those that hear ask at once
				limit = max(limit, w.phase.Length+20*time.Second)
			}
		case "line": // who has no place in it takes a lock that it finds free
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
			// Java waits so long for each waiter that has died, and for ever for one whose timeout was lost.
			limit += javaWait + time.Hour
		}
		if c.worker.Kind == Fair && o.Kind == JavaFair && len(w.phase.Faults) > 0 {
			// A fault may bring back the place of a Java waiter that has left. Redisson keeps it for as long, counted
			// from the place in front of it.
			limit += 2 * javaWait
		}
	}
	now := time.Since(w.began)
	if w.phase.Crash && now >= w.phase.Length {
		limit += w.plan.Watchdog + 2*fairLife + grantLife
	}
	// Records that nobody holds last longer where the clock goes back.
	orphans := w.phase.Crash || slices.ContainsFunc(w.phase.Workers, func(o Worker) bool { return o.MinHold > 0 })
	for _, f := range w.phase.Faults {
		if f.At > now {
			continue
		}
		if f.Kind == "clock back" {
			limit += slack
			continue
		}
		// It may leave a record for a lease, and dead waiters.
		limit += min(f.For, now-f.At) + w.plan.Watchdog + 2*fairLife + grantLife
		if f.Kind == "slow" || f.Kind == "degrade" || f.Kind == "late requests" {
			limit += 20 * f.Amount
		}
		orphans = true
	}
	if orphans { // whose leases last longer by that
		limit += w.backIn(w.phase)
	}
	if before := w.prolonged.Sub(c.began); before > 0 { // by clocks that went back in phases before
		limit += before
	}
	return limit
}

// leaseLeft is what is left of the leases of records, 0 where there are none.
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

// hasNoPlace reports whether a call of the worker may wait without a place in the line: that of a Java service, and one
// that stands behind a MultiLock of its own process.
func (p Phase) hasNoPlace(a Worker) bool {
	return a.java() || slices.ContainsFunc(p.Workers, func(o Worker) bool {
		return o.Kind == Multi && o.Process == a.Process && o.shares(a)
	})
}

// together reports whether one worker may have to wait for the other: they share a lock, or each shares one with a
// MultiLock.
func (p Phase) together(a, b Worker) bool {
	return a.shares(b) || slices.ContainsFunc(p.Workers, func(o Worker) bool {
		return o.Kind == Multi && o.shares(a) && o.shares(b)
	})
}

// count is how many workers use locks of this kind.
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

// probe lets a newcomer take each lock that was used in a phase, and looks at what is left.
func (w *world) probe(phase Phase) {
	if !w.well() {
		return
	}
	w.note(nil, "a newcomer comes")
	w.mu.Lock()
	back, ghostly := max(w.backIn(phase), time.Until(w.prolonged)), w.ghostly()
	w.mu.Unlock()
	if w.deaf() { // a process of which no subscription is known does not count as dead, and a grant waits for it
		ghostly += time.Duration(w.plan.Processes) * grantLife
	}
	// A fault may bring back Java waiters that have gone, or keep them from leaving. They are waited for one after the
	// other.
	if len(phase.Faults) > 0 {
		ghostly += javaWait * time.Duration(phase.count(JavaFair))
	}
	limit := 10*time.Second + ghostly
	settled := phase.Idle > w.plan.Watchdog+grantLife+fairLife
	if !settled { // what the dead have sent may still arrive, and take a lock for a lease
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
		if spec.counts() { // whose leases are not those of a key
			left = lasts
		}
		if left > lasts && !phase.java() {
			w.witness.Report("a lease ends", "%v: %v is left of a lease, and %v is the longest", spec.Names, left, lasts)
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
			w.witness.Report("a newcomer gets a free lock",
				"%s %v, %v after its last use, with %v left of a lease: %v after %v, %v", spec.Kind, spec.Names, phase.Idle, left,
				ok, time.Since(started), err)
			break
		}
		// The dead in front count as dead after four seconds at the latest, and the newcomer asks once a second. Those in
		// several queues are passed over one after the other.
		soon := time.Duration(len(spec.Names)) * (5*time.Second + 10*(w.plan.Latency+w.plan.Jitter))
		if took := time.Since(started); settled && took > left+ghostly+soon {
			w.witness.Report("a newcomer gets a free lock",
				"%s %v, %v after its last use, with %v left of a lease: only after %v", spec.Kind, spec.Names, phase.Idle, left,
				took)
		}
		if err := l.Unlock(ctx); err != nil {
			w.witness.Report("Unlock of a live hold is nil", "a newcomer, %v: %v", spec.Names, err)
		}
		if s, ok := l.(*relock.Semaphore); ok && settled && back == 0 && ghostly == 0 && !phase.java() {
			w.witness.allFree(s)
		}
	}
	for i, c := range fresh.clients {
		if err := c.Close(); err != nil {
			w.witness.Report("Close", "%v", err)
		}
		_ = fresh.rdbs[i].Close()
	}
}

// tidy reports what nobody needs any more, and what was done to the keys of others.
func (w *world) tidy(phase Phase) {
	for i, r := range w.redis {
		var lost bool
		w.witness.mu.Lock()
		lost = len(w.witness.losses) > 0
		w.witness.mu.Unlock()
		r.Look(func(m *miniredis.Miniredis) {
			for key, value := range others {
				if got, err := m.Get(key); (err != nil || got != value) && !lost {
					w.witness.Report("the keys of others are left alone", "%s is %q, %v", key, got, err)
				}
			}
			for _, key := range m.Keys() {
				java := strings.Contains(key, string(JavaFair)) // which Redisson leaves there
				_, other := others[key]
				if other || m.TTL(key) > 0 || java || strings.HasPrefix(key, "redisson_lock_token:") ||
					strings.Contains(key, string(Permits)) {
					continue
				}
				w.witness.Report("nothing is left without a lease", "server %d, after %v without use: %s %s", i, phase.Idle,
					m.Type(key), key)
			}
		})
	}
}

// describe is what was going on.
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
