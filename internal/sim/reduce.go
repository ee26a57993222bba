//go:build go1.25

package sim

// The reducer: a plan that fails is made smaller while it still violates the same rule.
//
// Rules: the changes that leave out most are tried first. The order in which goroutines run is not part of a plan, so
// each plan is played more than once before it counts as one that does not fail.

import (
	"cmp"
	"slices"
	"time"
)

// Reduce makes a plan that fails smaller while it still violates the same rule. tries is how often each plan is
// played.
func Reduce(plan Plan, tries int, fails func(Plan) *Violation, log func(string, ...any)) Plan {
	first := ""
	bad := func(p Plan) bool {
		for range tries {
			if v := fails(p); v != nil && (first == "" || v.Rule == first) {
				first = cmp.Or(first, v.Rule)
				return true
			}
		}
		return false
	}
	if !bad(plan) {
		log("not found again in %d tries", tries)
		return plan
	}
	for smaller := true; smaller; {
		smaller = false
		for _, try := range shorter(plan) {
			if bad(try) {
				plan, smaller = try, true
				log("%d phases, %d workers with %d rounds, %d faults, %v", len(plan.Phases), plan.workers(), plan.rounds(),
					plan.faults(), plan.Length())
				break
			}
		}
	}
	return plan
}

func (p Plan) workers() (n int) {
	for _, phase := range p.Phases {
		n += len(phase.Workers)
	}
	return n
}

func (p Plan) rounds() (n int) {
	for _, phase := range p.Phases {
		for _, w := range phase.Workers {
			n += w.Rounds
		}
	}
	return n
}

func (p Plan) faults() (n int) {
	for _, phase := range p.Phases {
		n += len(phase.Faults)
	}
	return n
}

// shorter returns plans that lack a part of p, beginning with those that lack most.
func shorter(p Plan) (all []Plan) {
	with := func(i int, change func(*Phase)) {
		q := p
		q.Phases = slices.Clone(p.Phases)
		change(&q.Phases[i])
		all = append(all, q)
	}
	for i := range p.Phases {
		if len(p.Phases) > 1 {
			q := p
			q.Phases = slices.Delete(slices.Clone(p.Phases), i, i+1)
			all = append(all, q)
		}
	}
	for _, simpler := range []func(*Plan){
		func(p *Plan) { p.Lacks, p.Poor = "", 0 },
		func(p *Plan) { p.Jitter = 0 },
		func(p *Plan) { p.Opaque = false },
	} {
		q := p
		if simpler(&q); q.Lacks != p.Lacks || q.Jitter != p.Jitter || q.Opaque != p.Opaque {
			all = append(all, q)
		}
	}
	for i, phase := range p.Phases {
		if phase.Crash {
			with(i, func(f *Phase) { f.Crash = false })
		}
		if phase.Idle > 0 {
			with(i, func(f *Phase) { f.Idle = 0 })
		}
		for _, half := range []int{2, 1} { // half of them, and then each of them
			n := max(1, len(phase.Workers)/half)
			if half == 1 {
				n = 1
			}
			for j := 0; j < len(phase.Workers) && len(phase.Workers) > 1; j += n {
				with(i, func(f *Phase) { f.Workers = slices.Delete(slices.Clone(f.Workers), j, min(j+n, len(f.Workers))) })
			}
		}
		for j := range phase.Faults {
			with(i, func(f *Phase) { f.Faults = slices.Delete(slices.Clone(f.Faults), j, j+1) })
		}
		if phase.Length > time.Minute {
			with(i, func(f *Phase) { f.Length /= 2 })
		}
		for j, w := range phase.Workers {
			if w.Rounds > 1 {
				with(i, func(f *Phase) { f.Workers = slices.Clone(f.Workers); f.Workers[j].Rounds /= 2 })
			}
		}
	}
	return all
}
