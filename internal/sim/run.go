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
	Moved    int // those that a process has attached
	Commands int
	Report   string // of a violation: what happened before it
}

// Play plays a plan in a bubble.
func Play(t *testing.T, plan Plan) (v Verdict) {
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
		v.Found, v.Took = w.witness.found, time.Since(w.start)
		v.Holds, v.Moved = w.witness.taken, w.witness.moved
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
	if w.missesGrants() {
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
		if s, ok := l.(counted); ok && settled && back == 0 && ghostly == 0 && !phase.java() {
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
