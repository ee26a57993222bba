//go:build go1.25

package sim

// The faults, and what the witness has to know about them.
//
// Rules: a fault begins and ends at the times in the plan, or with its phase. A fault that removes data from Redis,
// or makes leases expire early there, tells the witness before it does so (lose). This excuses two holders for as
// long as the documentation says; nothing else does.

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/relock-go/relock/internal/bubble"
)

// A faultKind is a kind of fault that a plan can contain.
type faultKind struct {
	name    string
	instant bool // it has no end
	single  bool // only with one server, because a RedLock does not cover it
	several bool // only with several servers
	draw    func(d drawer, p Plan, f *Fault)
	begin   func(w *world, f Fault) (end func()) // end may be nil
}

var faultKinds []faultKind

func init() { // the functions below use the kinds
	type beginning = func(w *world, f Fault) (end func())
	conditions := func(set func(f Fault, c *bubble.Conditions), unset func(c *bubble.Conditions)) beginning {
		return func(w *world, f Fault) func() {
			links := w.linksOf(f)
			for _, l := range links {
				l.Set(func(c *bubble.Conditions) { set(f, c) })
			}
			return func() {
				for _, l := range links {
					l.Set(unset)
				}
			}
		}
	}
	share := func(least, most float64) func(drawer, Plan, *Fault) {
		return func(d drawer, _ Plan, f *Fault) { f.Share = least + d.Float64()*(most-least) }
	}
	short := func(most time.Duration) func(drawer, Plan, *Fault) {
		return func(d drawer, _ Plan, f *Fault) { f.For = d.about(10*time.Millisecond, most) }
	}
	amount := func(least, most time.Duration) func(drawer, Plan, *Fault) {
		return func(d drawer, _ Plan, f *Fault) { f.Amount = d.about(least, most) }
	}
	held := func(up, down bool) beginning {
		return conditions(func(_ Fault, c *bubble.Conditions) { c.Held[bubble.ToRedis], c.Held[bubble.FromRedis] = up, down },
			func(c *bubble.Conditions) { c.Held = [2]bool{} })
	}
	deny := func(right string) beginning {
		return func(w *world, f Fault) func() {
			if right == "line" {
				w.mu.Lock()
				w.unlined = true
				w.mu.Unlock()
			}
			w.redis[f.Server].Deny(lacking[right])
			return func() { w.redis[f.Server].Deny(nil) }
		}
	}

	faultKinds = []faultKind{
		{name: "cut", instant: true, begin: func(w *world, f Fault) func() {
			for _, l := range w.linksOf(f) {
				l.Cut()
			}
			return nil
		}},
		{name: "refuse", begin: func(w *world, f Fault) func() {
			end := conditions(func(_ Fault, c *bubble.Conditions) { c.Refused = true },
				func(c *bubble.Conditions) { c.Refused = false })(w, f)
			for _, l := range w.linksOf(f) {
				l.Cut()
			}
			return end
		}},
		{name: "hold", begin: held(true, true)},
		{name: "hold up", begin: held(true, false)},
		{name: "hold down", begin: held(false, true)},
		{name: "slow", draw: amount(10*time.Millisecond, 2*time.Second), begin: func(w *world, f Fault) func() {
			usual := bubble.Conditions{Latency: w.plan.Latency, Jitter: w.plan.Jitter}
			return conditions(func(f Fault, c *bubble.Conditions) { c.Latency, c.Jitter = f.Amount/4, f.Amount },
				func(c *bubble.Conditions) { c.Latency, c.Jitter = usual.Latency, usual.Jitter })(w, f)
		}},
		// The network is slow first, and then nothing arrives for longer than a lease.
		{name: "degrade", draw: func(d drawer, p Plan, f *Fault) {
			f.Amount = d.about(50*time.Millisecond, 2*time.Second)
			f.For = 5*p.Watchdog/2 + d.upTo(p.Watchdog)
		}, begin: func(w *world, f Fault) func() {
			usual := bubble.Conditions{Latency: w.plan.Latency, Jitter: w.plan.Jitter}
			links := w.linksOf(f)
			for _, l := range links {
				l.Set(func(c *bubble.Conditions) { c.Latency, c.Jitter = f.Amount/4, f.Amount })
			}
			silent := time.AfterFunc(f.For/2, func() {
				for _, l := range links {
					l.Set(func(c *bubble.Conditions) { c.Held = [2]bool{true, true} })
				}
			})
			return func() {
				silent.Stop()
				for _, l := range links {
					l.Set(func(c *bubble.Conditions) { c.Held, c.Latency, c.Jitter = [2]bool{}, usual.Latency, usual.Jitter })
				}
			}
		}},
		{name: "lost answers", draw: share(0.05, 0.6), begin: conditions(
			func(f Fault, c *bubble.Conditions) { c.Lost = f.Share },
			func(c *bubble.Conditions) { c.Lost = 0 })},
		{name: "stalled answers", draw: share(0.05, 0.4), begin: conditions(
			func(f Fault, c *bubble.Conditions) { c.Stalled = f.Share },
			func(c *bubble.Conditions) { c.Stalled = 0 })},
		{name: "late requests", draw: func(d drawer, _ Plan, f *Fault) {
			f.Share, f.Amount = 0.05+d.Float64()/2, d.about(100*time.Millisecond, 20*time.Second)
		}, begin: conditions(func(f Fault, c *bubble.Conditions) { c.Delayed, c.Late = f.Share, f.Amount },
			func(c *bubble.Conditions) { c.Delayed = 0 })},
		{name: "kill", begin: func(w *world, f Fault) func() { return w.killThem(f, false) }},
		{name: "kill", begin: func(w *world, f Fault) func() { return w.killThem(f, false) }},
		{name: "vanish", begin: func(w *world, f Fault) func() { return w.killThem(f, true) }},
		{name: "pause", begin: func(w *world, f Fault) func() {
			end := held(true, true)(w, f)
			resume := w.pause(f)
			return func() { resume(); end() }
		}},
		{name: "close", instant: true, begin: func(w *world, f Fault) func() { w.closeThem(f, false); return nil }},
		{name: "shutdown", begin: func(w *world, f Fault) func() { w.closeThem(f, true); return nil }},
		{name: "outage", begin: func(w *world, f Fault) func() {
			w.redis[f.Server].Stop()
			return w.redis[f.Server].Return
		}},
		{name: "wipe", single: true, begin: func(w *world, f Fault) func() {
			r := w.redis[f.Server]
			r.Stop()
			return func() {
				w.witness.lose("wiped", "")
				r.Restore(bubble.Snapshot{})
				r.Return()
			}
		}},
		// One server of a RedLock loses all its data, the same server throughout a run. It stays away for longer than
		// a lease, as row 47 of tests/faults/README.md requires of the operator, so that no majority ever loses a hold that
		// is valid.
		{name: "wipe one", several: true, draw: func(d drawer, p Plan, f *Fault) {
			f.Server, f.For = int(p.Seed%uint64(p.Servers)), p.longestLease()+d.about(time.Second, 5*time.Minute)
		}, begin: func(w *world, f Fault) func() {
			r := w.redis[f.Server]
			r.Stop()
			back := time.Now().Add(w.plan.longestLease() + slack)
			return func() {
				time.Sleep(time.Until(back)) // even if the phase ends before
				w.witness.loseOne(f.Server)
				r.Restore(bubble.Snapshot{})
				r.Return()
			}
		}},
		{name: "rewind", single: true, draw: func(d drawer, _ Plan, f *Fault) {
			f.Amount = d.about(10*time.Millisecond, time.Minute)
			f.For = d.about(10*time.Millisecond, 30*time.Second)
		}, begin: func(w *world, f Fault) func() {
			r := w.redis[f.Server]
			then := r.Save()
			time.Sleep(min(f.Amount, f.For)) // the replica that takes over has not received the writes of this time
			r.Stop()
			return func() {
				w.witness.lose("rewound", "")
				r.Restore(then)
				r.Return()
			}
		}},
		{name: "freeze", draw: short(2 * time.Minute), begin: func(w *world, f Fault) func() {
			w.redis[f.Server].Freeze()
			return w.redis[f.Server].Thaw
		}},
		{name: "clock ahead", instant: true, single: true, draw: amount(100*time.Millisecond, time.Hour),
			begin: func(w *world, f Fault) func() {
				w.witness.lose("clock ahead", "")
				w.redis[f.Server].MoveClock(f.Amount)
				return nil
			}},
		{name: "clock back", instant: true, draw: amount(100*time.Millisecond, time.Hour),
			begin: func(w *world, f Fault) func() {
				w.witness.setBack(f.Amount)
				w.prolong(f.Amount)
				w.redis[f.Server].MoveClock(-f.Amount)
				return nil
			}},
		{name: "evict", instant: true, single: true, begin: func(w *world, f Fault) func() { w.evict(f); return nil }},
		{name: "delete", instant: true, single: true, begin: func(w *world, f Fault) func() {
			w.witness.lose("deleted", f.Name)
			w.redis[f.Server].Look(func(m *miniredis.Miniredis) { m.Del(f.Name) })
			return nil
		}},
		{name: "full", begin: func(w *world, f Fault) func() {
			w.redis[f.Server].Fill(true)
			return func() { w.redis[f.Server].Fill(false) }
		}},
		{name: "scripts", instant: true, begin: func(w *world, f Fault) func() {
			w.redis[f.Server].FlushScripts()
			return nil
		}},
		{name: "watched", begin: func(w *world, f Fault) func() { return w.redis[f.Server].Watch() }},
		{name: "no publish", begin: deny("publish")},
		{name: "no subscribe", begin: deny("subscribe")},
		{name: "no line", begin: deny("line")},
	}
}

// lacking contains the commands that Redis refuses to a user who lacks a permission.
var lacking = map[string]func(cmd string, args []string) bool{
	"publish":   func(cmd string, _ []string) bool { return cmd == "PUBLISH" },
	"subscribe": func(cmd string, _ []string) bool { return cmd == "SUBSCRIBE" },
	"line": func(cmd string, args []string) bool { // Redis refuses a whole script because of one of its keys
		if (cmd == "EVAL" || cmd == "EVALSHA") && len(args) > 2 {
			n, _ := strconv.Atoi(args[1])
			args = args[2:min(2+n, len(args))]
		}
		return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "relock_line:") })
	},
}

func beginOf(kind string) func(*world, Fault) func() {
	i := slices.IndexFunc(faultKinds, func(k faultKind) bool { return k.name == kind })
	return faultKinds[i].begin
}

// evict deletes some of the keys that accompany the records.
func (w *world) evict(f Fault) {
	rng := rand.New(rand.NewPCG(w.plan.Seed, uint64(f.At)))
	w.witness.forgetTokens()
	w.redis[f.Server].Look(func(m *miniredis.Miniredis) {
		for _, key := range m.Keys() {
			_, other := others[key]
			beside := strings.HasPrefix(key, "relock_") || strings.HasPrefix(key, "redisson_")
			if beside && !other && rng.IntN(2) == 0 {
				m.Del(key)
				w.note(nil, "evicted %s", key)
			}
		}
	})
}
