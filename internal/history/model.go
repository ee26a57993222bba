package history

// The lock as a state machine for Porcupine: its holders with their hold counts, and the last token.
//
// Rules: a Take whose outcome is not known is left out, because if it did happen it only excluded others. A hold
// whose release is not certain ends at some time after it was last valid. A history is checked in windows of complete
// holds, because a possible history stays possible when a hold is left out.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	window    = 60 // in holds; every hold is in two windows
	modelTime = 10 * time.Second
)

// A step is one operation of the state machine.
type step struct {
	kind   stepKind
	hold   int
	owner  string
	shared bool
	level  int
	token  int64
}

type stepKind int

const (
	grants stepKind = iota
	enters
	counts
	leaves
	ends // it expires, if it is there
)

func (s step) String() string {
	verb := [...]string{"granted to", "entered again by", "counted by", "released by", "ended, of"}[s.kind]
	return fmt.Sprintf("%s %s, level %d, token %d, shared %v", verb, s.owner, s.level, s.token, s.shared)
}

// A lockState describes who holds a lock. It is immutable.
type lockState struct {
	token   int64
	holders []holder
}

type holder struct {
	hold   int
	owner  string
	shared bool
	level  int
}

func (s lockState) at(hold int) int {
	return slices.IndexFunc(s.holders, func(h holder) bool { return h.hold == hold })
}

// with returns s with h, or without the hold if its count is 0.
func (s lockState) with(h holder) lockState {
	n := lockState{
		token:   s.token,
		holders: slices.DeleteFunc(slices.Clone(s.holders), func(o holder) bool { return o.hold == h.hold }),
	}
	if h.level > 0 {
		n.holders = append(n.holders, h)
		slices.SortFunc(n.holders, func(a, b holder) int { return cmp.Compare(a.hold, b.hold) })
	}
	return n
}

// take applies a step, and reports whether the lock may do it.
func (s lockState) take(x step) (bool, lockState) {
	h := holder{x.hold, x.owner, x.shared, x.level}
	at := s.at(x.hold)
	switch {
	case x.kind == grants:
		for _, o := range s.holders {
			if o.owner != x.owner && !(o.shared && x.shared) {
				return false, s
			}
		}
		n := s.with(h)
		if x.token != 0 {
			n.token = x.token
		}
		return at < 0 && (x.token == 0 || x.token > s.token), n
	case x.kind == ends:
		h.level = 0
		return true, s.with(h)
	case at < 0:
		return false, s
	}
	level := s.holders[at].level
	switch x.kind {
	case enters:
		return x.level == level+1, s.with(h)
	case counts:
		return x.level == level, s
	default:
		return x.level == level-1, s.with(h)
	}
}

var machine = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) { return stepOf(state.(lockState).take(input.(step))) },
	Equal: func(a, b any) bool {
		x, y := a.(lockState), b.(lockState)
		return x.token == y.token && slices.Equal(x.holders, y.holders)
	},
}

func stepOf(ok bool, s lockState) (bool, any) { return ok, s }

// model checks that there is an order of all calls in which the lock could have answered as it did.
func model(h History, _ Rules) (wrong []string) {
	for name, of := range spans(h) {
		slices.SortFunc(of, func(a, b span) int { return cmp.Compare(a.Take.Call, b.Take.Call) })
		for at := 0; at == 0 || at+window/2 < len(of); at += window / 2 {
			part := of[at:min(at+window, len(of))]
			var ops []porcupine.Operation
			for i, s := range part {
				ops = append(ops, s.steps(i)...)
			}
			if result := porcupine.CheckOperationsTimeout(machine, ops, modelTime); result != porcupine.Ok {
				verdict := map[porcupine.CheckResult]string{porcupine.Illegal: "impossible",
					porcupine.Unknown: "not decided"}[result]
				wrong = append(
					wrong,
					fmt.Sprintf("%s: %d calls from %v on: %s\n%s", name, len(ops), part[0].Take.Call, verdict, listing(ops)),
				)
			}
		}
	}
	return wrong
}

// steps returns the operations of one hold.
func (s span) steps(hold int) (ops []porcupine.Operation) {
	add := func(kind stepKind, op Op, from, to time.Duration) {
		ops = append(ops, porcupine.Operation{
			Input: step{kind, hold, s.Take.Owner, s.Take.Shared, op.Level, op.Token},
			Call:  int64(from), Return: int64(to),
		})
	}
	add(grants, s.Take, s.Take.Call, s.Take.Return)
	for _, op := range s.Then {
		switch {
		case op.Outcome == Lost || op.Outcome == NotHeld || op.Return > s.until && !(op.Kind == Give && op.Level == 0):
			add(ends, Op{}, s.until, math.MaxInt64)
			return ops
		case op.Kind == Give && op.Level == 0 && op.Outcome == Done && s.until == s.Trusted:
			add(leaves, op, s.until, op.Return)
			return ops
		case op.Kind == Give && op.Level == 0:
			add(ends, Op{}, s.until, math.MaxInt64)
			return ops
		case op.Kind == Give: // hold counts are kept locally, so the outcome in Redis does not matter
			add(leaves, op, op.Call, op.Return)
		case op.Outcome != Done:
		case op.Kind == Take:
			add(enters, Op{Level: op.Level}, op.Call, op.Return)
		case op.Kind == Count:
			add(counts, op, op.Call, op.Return)
		}
	}
	add(ends, Op{}, s.until, math.MaxInt64)
	return ops
}

func listing(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, op := range ops {
		until := time.Duration(op.Return).String()
		if op.Return == math.MaxInt64 {
			until = "some time"
		}
		fmt.Fprintf(&b, "\t%v to %s: %v\n", time.Duration(op.Call), until, op.Input)
	}
	return b.String()
}
