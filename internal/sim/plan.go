//go:build go1.25

package sim

// The plan: everything that is drawn from a seed before a run begins.
//
// Rules: a plan is data, so that it can be printed, read again and reduced. The actions of a worker in its rounds are
// drawn while it works, from a seed of its own, so that leaving out one worker or fault does not change the others.

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A Plan describes one run.
type Plan struct {
	Seed      uint64
	Processes int
	Servers   int // RedLocks use all of them, other locks the first one

	Watchdog    time.Duration
	WakeDelay   time.Duration
	Slice       time.Duration
	ReadTimeout time.Duration
	Latency     time.Duration // in each direction
	Jitter      time.Duration
	Opaque      bool // connections behave like those with TLS

	// ^ Lacks is a permission that the user of one process does not have.
	Lacks string `json:",omitempty"`
	Poor  int    `json:",omitempty"` // the process

	Phases []Phase
}

// A Phase is a period of work, after which the locks are not used for a while.
type Phase struct {
	Length  time.Duration // of the work
	Crash   bool          // at its end all processes are killed, whatever they are doing
	Idle    time.Duration // between the work and the check of the remaining data
	Workers []Worker
	Faults  []Fault
}

// A Worker is a goroutine that acquires locks of one kind repeatedly.
type Worker struct {
	ID      int // determines its seed
	Process int
	Kind    Kind
	Names   []string // of the locks; a MultiLock has several
	Members []Kind   `json:",omitempty"` // the kinds of the locks of a MultiLock

	Start   time.Duration // since the beginning of the phase
	Rounds  int           // at most
	Section time.Duration // the maximum
	Rest    time.Duration // between two rounds, the maximum
	Steady  bool          // it only acquires and releases the lock, without short waits, cancellations and leases

	MinHold, MaxHold time.Duration

	Wants int  `json:",omitempty"` // permits at once
	Moves bool `json:",omitempty"` // it detaches some holds, and other processes attach them
}

// A Kind is the kind of lock that a worker uses.
type Kind string

const (
	Plain     Kind = "lock"
	FencedOne Kind = "fenced"
	Fair      Kind = "fair"
	ReadWrite Kind = "rw"
	Write     Kind = "write" // with plain locks of the same name, which is not advised
	Permits   Kind = "semaphore"
	Wide      Kind = "wide semaphore" // its workers acquire several permits at once
	Multi     Kind = "multi"
	Red       Kind = "red"
	Leader    Kind = "election"

	// The kinds of Java services.
	JavaPlain     Kind = "java"
	JavaFair      Kind = "java fair"
	JavaReadWrite Kind = "java rw"
	JavaPermits   Kind = "java semaphore"
)

// lockKinds contains all kinds.
var lockKinds = []Kind{Plain, FencedOne, Fair, ReadWrite, Write, Permits, Wide, Multi, Red, Leader, JavaPlain,
	JavaFair, JavaReadWrite, JavaPermits}

// inGo maps the kinds of Java services to the kinds of relock that share their locks.
var inGo = map[Kind]Kind{JavaPlain: Plain, JavaFair: Fair, JavaReadWrite: ReadWrite, JavaPermits: Permits}

// java reports whether the worker is a Java service.
func (w Worker) java() bool { return inGo[w.Kind] != "" }

// counts reports whether the worker acquires permits of a semaphore.
func (w Worker) counts() bool { return w.Kind == Permits || w.Kind == Wide || w.Kind == JavaPermits }

// permits returns how many permits a semaphore of this kind has, until a worker sets another number.
func (k Kind) permits() int {
	if k == Wide {
		return 4
	}
	return 2
}

// readsAndWrites reports whether the worker uses a read/write lock.
func (w Worker) readsAndWrites() bool { return w.Kind == ReadWrite || w.Kind == JavaReadWrite }

// mostWanted is the largest number of permits that a worker wants at once. A semaphore always has as many.
const mostWanted = 3

// movable contains the kinds of locks whose holds can be detached.
var movable = []Kind{Plain, FencedOne, Fair, ReadWrite, Write, Permits, Wide}

// A Fault is a fault of a plan.
type Fault struct {
	Kind    string
	At, For time.Duration // since the beginning of the phase
	Process int           // -1: all of them
	Server  int
	Amount  time.Duration // of a delay, or by which a clock moves
	Share   float64       // of the requests
	Name    string        // of a lock
}

// String returns the plan in a readable form, with one line for each worker and fault.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan of seed %d: %d processes, %d servers, watchdog %v, poll interval %v, hand-off window %v, "+
		"read timeout %v, latency %v and up to %v more, opaque %v\n",
		p.Seed, p.Processes, p.Servers, p.Watchdog, p.WakeDelay, p.Slice, p.ReadTimeout, p.Latency, p.Jitter, p.Opaque)
	if p.Lacks != "" {
		fmt.Fprintf(&b, "p%d lacks a permission: %s\n", p.Poor, p.Lacks)
	}
	for i, phase := range p.Phases {
		crash := ""
		if phase.Crash {
			crash = " a crash of all,"
		}
		fmt.Fprintf(&b, "phase %d: %v of work,%s then %v idle\n", i, phase.Length, crash, phase.Idle)
		for _, w := range phase.Workers {
			fmt.Fprintf(&b, "  %v\n", w)
		}
		for _, f := range phase.Faults {
			fmt.Fprintf(&b, "  fault %v\n", f)
		}
	}
	return b.String()
}

func (w Worker) String() string {
	s := fmt.Sprintf("worker %d of p%d, %s %v, from %v: %d rounds, section %v, rest %v", w.ID, w.Process, w.Kind, w.Names,
		w.Start, w.Rounds, w.Section, w.Rest)
	if w.Members != nil {
		s += fmt.Sprintf(", of %v", w.Members)
	}
	if w.Steady {
		s += ", steady"
	}
	if w.MinHold > 0 {
		s += fmt.Sprintf(", MinHold %v", w.MinHold)
	}
	if w.MaxHold > 0 {
		s += fmt.Sprintf(", MaxHold %v", w.MaxHold)
	}
	if w.Wants > 0 {
		s += fmt.Sprintf(", %d permits at once", w.Wants)
	}
	if w.Moves {
		s += ", moves holds"
	}
	return s
}

func (f Fault) String() string {
	whose := "all"
	if f.Process >= 0 {
		whose = fmt.Sprintf("p%d", f.Process)
	}
	s := fmt.Sprintf("%s at %v for %v, %s, server %d, %s", f.Kind, f.At, f.For, whose, f.Server, f.Name)
	if f.Amount > 0 {
		s += fmt.Sprintf(", by %v", f.Amount)
	}
	if f.Share > 0 {
		s += fmt.Sprintf(", a share of %.2f", f.Share)
	}
	return s
}

// Length returns about how long a run of the plan takes.
func (p Plan) Length() (d time.Duration) {
	for _, phase := range p.Phases {
		d += phase.Length + phase.Idle
	}
	return d
}

// longestLease returns the longest lease that a worker of relock asks for. See manner and reenter.
func (p Plan) longestLease() time.Duration {
	return time.Second + 2*p.Watchdog + 10*(p.Latency+p.Jitter)
}

// A Focus restricts what is drawn. The zero Focus restricts nothing.
type Focus struct {
	Locks  []Kind
	Faults []string
}

// check returns an error if f contains an unknown name.
func (f Focus) check() error {
	var faults []string
	for _, k := range faultKinds {
		faults = append(faults, k.name)
	}
	for _, kind := range f.Locks {
		if !slices.Contains(lockKinds, kind) {
			return fmt.Errorf("no kind of lock is called %q: there are %q", kind, lockKinds)
		}
	}
	for _, name := range f.Faults {
		if !slices.Contains(faults, name) {
			return fmt.Errorf("no kind of fault is called %q: there are %q", name, faults)
		}
	}
	return nil
}

// Draw draws the plan of a seed.
func Draw(seed uint64, focus Focus) Plan {
	d := drawer{rand.New(rand.NewPCG(seed, 0)), focus}
	p := Plan{
		Seed:        seed,
		Processes:   2 + d.IntN(3),
		Servers:     1,
		Watchdog:    pick(d, 3*time.Second, 10*time.Second, 30*time.Second, 30*time.Second),
		WakeDelay:   pick(d, 300*time.Millisecond, time.Second, time.Second),
		Slice:       pick(d, 0, 10*time.Millisecond, 10*time.Millisecond),
		ReadTimeout: pick(d, 300*time.Millisecond, time.Second, 5*time.Second),
		Latency:     pick(d, 100*time.Microsecond, time.Millisecond, 10*time.Millisecond),
		Jitter:      pick(d, 0, time.Millisecond, 5*time.Millisecond),
		Opaque:      d.IntN(4) == 0,
	}
	if d.IntN(6) == 0 || slices.Contains(focus.Locks, Red) {
		p.Servers = 3
	}
	if d.IntN(8) == 0 {
		p.Lacks, p.Poor = pick(d, "publish", "subscribe"), d.IntN(p.Processes)
	}
	id := 0
	for range 2 + d.IntN(4) {
		phase := Phase{
			Length: d.about(20*time.Second, 30*time.Minute),
			Crash:  d.IntN(3) == 0,
			Idle:   pick(d, 0, 3*time.Second, time.Minute, 6*time.Minute, 16*time.Minute),
		}
		for _, i := range d.Perm(3)[:1+d.IntN(3)] {
			for _, w := range d.scene(p, phase, i) {
				w.ID = id
				id++
				phase.Workers = append(phase.Workers, w)
			}
		}
		at := d.upTo(phase.Length)
		for range d.IntN(9) {
			f := d.fault(p, phase)
			switch d.IntN(4) { // faults that happen together, or at the end, find more than single ones
			case 0, 1:
				f.At = min(at+d.about(time.Millisecond, 20*time.Second), phase.Length)
			case 2:
				f.At = max(0, phase.Length-d.about(time.Millisecond, 20*time.Second))
			}
			at = f.At
			phase.Faults = append(phase.Faults, f)
		}
		slices.SortFunc(phase.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
		p.Phases = append(p.Phases, phase)
	}
	return p
}

// javaUses reports whether Java services use the lock of this name.
func (p Plan) javaUses(name string) bool {
	return slices.ContainsFunc(p.Phases, func(phase Phase) bool {
		return slices.ContainsFunc(phase.Workers, func(w Worker) bool { return w.java() && slices.Contains(w.Names, name) })
	})
}

// permitsOf returns how many permits the semaphore of this name has, until a worker sets another number.
func (p Plan) permitsOf(name string) int {
	for _, phase := range p.Phases {
		for _, w := range phase.Workers {
			if w.counts() && slices.Contains(w.Names, name) {
				return w.Kind.permits()
			}
		}
	}
	return Permits.permits()
}

// javaAlone reports whether only Java services use a name.
func (p Plan) javaAlone(name string) bool {
	return p.javaUses(name) && !slices.ContainsFunc(p.Phases, func(phase Phase) bool {
		return slices.ContainsFunc(phase.Workers, func(w Worker) bool { return !w.java() && slices.Contains(w.Names, name) })
	})
}

// A drawer draws parts of a plan.
type drawer struct {
	*rand.Rand
	focus Focus
}

func pick[T any](d drawer, from ...T) T { return from[d.IntN(len(from))] }

// upTo returns a time of at most most.
func (d drawer) upTo(most time.Duration) time.Duration {
	return time.Duration(d.Int64N(int64(most) + 1)).Round(time.Millisecond)
}

// about returns a time between least and most, whose order of magnitude is drawn first.
func (d drawer) about(least, most time.Duration) time.Duration {
	return time.Duration(float64(least) * math.Pow(float64(most)/float64(least), d.Float64())).Round(time.Millisecond)
}

// A pace describes how fast a worker works.
type pace struct {
	section, rest time.Duration
	rounds        int
}

// scene returns some workers that use the same locks. Scenes with different numbers have no names in common.
func (d drawer) scene(p Plan, phase Phase, number int) (all []Worker) {
	kinds := []Kind{Plain, Plain, FencedOne, Fair, Fair, Fair, ReadWrite, ReadWrite, Write, Permits, Wide, Multi, Multi,
		Leader, JavaPlain, JavaFair, JavaReadWrite, JavaPermits}
	if p.Servers > 1 {
		kinds = append(kinds, Red, Red, Red, Red, Red, Red)
	}
	if len(d.focus.Locks) > 0 {
		kinds = d.focus.Locks
	}
	kind := kinds[d.IntN(len(kinds))]
	crowd := pace{500 * time.Millisecond, 5 * time.Millisecond, 250}
	how := pick(d,
		pace{5 * time.Millisecond, 20 * time.Millisecond, 60},
		pace{300 * time.Millisecond, 2 * time.Second, 50},
		crowd,
		pace{20 * time.Second, time.Minute, 20},
		pace{3 * time.Minute, 5 * time.Minute, 8})
	if kind == Multi && d.IntN(3) == 0 { // together with a line that is never empty
		how = crowd
	}
	name := fmt.Sprintf("%s-%d", kind, number)
	steady := d.IntN(3) == 0
	begin, together := d.upTo(phase.Length), d.IntN(3) > 0
	somewhere, member := d.IntN(p.Processes), d.IntN(2)
	members := []Kind{Plain, Plain}
	if d.IntN(2) == 0 {
		members = []Kind{pick(d, Plain, FencedOne, Fair, ReadWrite), pick(d, Plain, FencedOne, Fair, ReadWrite)}
	}
	moves := !steady && slices.Contains(movable, kind) && d.IntN(3) == 0
	for i := range 2 + d.IntN(5) {
		w := Worker{Process: (somewhere + i) % p.Processes, Kind: kind, Names: []string{name},
			Start: d.upTo(phase.Length), Rounds: how.rounds, Section: how.section, Rest: how.rest, Steady: steady}
		if together {
			w.Start = begin + d.about(time.Millisecond, 10*time.Second)
		}
		switch {
		case kind == Multi && i > 0 && d.IntN(3) > 0: // this worker uses one member by itself
			w.Kind, w.Names = members[member], []string{fmt.Sprintf("%s-member-%d", name, member)}
		case kind == Multi:
			w.Names, w.Members = []string{name + "-member-0", name + "-member-1"}, members
		case kind == Write && i%2 == 1:
			w.Kind = Plain
		case w.java():
			if i > 0 && d.IntN(3) > 0 {
				w.Kind = inGo[kind]
			}
		case kind == Plain || kind == FencedOne || kind == Fair:
			switch n := d.IntN(12); {
			case n == 0:
				w.MinHold = d.upTo(2 * time.Second)
			case n == 1 || moves && n < 5: // a hold that moves has to keep this limit
				w.MaxHold = time.Second + d.upTo(2*p.Watchdog)
			}
		case kind == Wide:
			w.Wants = 1 + d.IntN(mostWanted)
		}
		w.Moves = moves && d.IntN(3) > 0
		all = append(all, w)
	}
	return all
}

// fault draws one fault of a phase.
func (d drawer) fault(p Plan, phase Phase) Fault {
	f := Fault{At: d.upTo(phase.Length), For: d.about(10*time.Millisecond, 10*time.Minute),
		Process: d.IntN(p.Processes+1) - 1, Server: d.IntN(p.Servers)}
	if len(phase.Workers) > 0 {
		names := phase.Workers[d.IntN(len(phase.Workers))].Names
		f.Name = names[d.IntN(len(names))]
	}
	kinds := slices.DeleteFunc(slices.Clone(faultKinds), func(k faultKind) bool {
		return k.single && p.Servers > 1 || k.several && p.Servers == 1
	})
	if len(d.focus.Faults) > 0 {
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(k faultKind) bool {
			return !slices.Contains(d.focus.Faults, k.name)
		})
	}
	if len(kinds) == 0 { // the focus is on faults of other plans
		kinds = slices.DeleteFunc(slices.Clone(faultKinds), func(k faultKind) bool { return k.name != "cut" })
	}
	k := kinds[d.IntN(len(kinds))]
	f.Kind = k.name
	if k.instant {
		f.For = 0
	}
	if k.draw != nil {
		k.draw(d, p, &f)
	}
	return f
}
