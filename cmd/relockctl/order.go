package main

// Which of the locks a list has, and in which order.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock"
)

// The orders of a list, for --sort.
const (
	byWaiting = "waiting" // those first that others wait for: the longest wait, then the most waiters
	byName    = "name"
	byLease   = "lease" // those first that expire first
)

var orders = []string{byWaiting, byName, byLease}

// A choice has the flags of list and watch.
type choice struct {
	waiting bool   // only locks that others wait for
	sort    string // one of the orders
}

// apply removes the locks that are not wanted, and sorts the others.
func (c choice) apply(locks []relock.Inspection) []relock.Inspection {
	if c.waiting {
		locks = slices.DeleteFunc(locks, func(i relock.Inspection) bool { return waitersOf(i) == 0 })
	}
	slices.SortStableFunc(locks, func(a, b relock.Inspection) int {
		byNames := cmp.Compare(a.Name, b.Name)
		switch c.sort {
		case byName:
			return byNames
		case byLease:
			return cmp.Or(cmp.Compare(uint64(a.TTL), uint64(b.TTL)), byNames) // a lease without end is negative
		}
		return cmp.Or(
			cmp.Compare(min(waitersOf(b), 1), min(waitersOf(a), 1)),
			firstSince(a).Compare(firstSince(b)), // not how long: the locks were not looked at in the same moment
			cmp.Compare(waitersOf(b), waitersOf(a)),
			byNames,
		)
	})
	return locks
}

// waitersOf returns how many wait for a lock, without those that are gone.
func waitersOf(i relock.Inspection) int { return i.Waiting - i.Gone }

// never is later than any wait.
var never = time.Unix(1<<40, 0)

// firstSince returns the time since which the first of the waiters that are not gone has waited, or never if that is not
// known.
func firstSince(i relock.Inspection) time.Time {
	first := never
	for _, w := range i.Waiters {
		if !isGone(w) && !w.Since.IsZero() && w.Since.Before(first) {
			first = w.Since
		}
	}
	return first
}

// longestWait returns how long the first of the waiters that are not gone has waited at least, or -1 if that is not
// known.
func longestWait(i relock.Inspection) time.Duration {
	first := firstSince(i)
	if first.Equal(never) {
		return -1
	}
	return max(0, i.At.Sub(first).Truncate(time.Second))
}

// total returns how many locks there are, and how many of them others wait for, which may be all that a list has.
func (p *program) total(found finding) string {
	if !p.choice.waiting {
		return total(found.Locks)
	}
	n := waitedFor(found.Locks)
	verb := "have"
	if n == 1 {
		verb = "has"
	}
	return fmt.Sprintf("%d of %s %s waiters", n, count(found.held, "lock"), verb)
}

// total returns how many locks there are, and how many of them others wait for.
func total(locks []relock.Inspection) string {
	text := fmt.Sprintf("%d held", len(locks))
	if n := waitedFor(locks); n > 0 {
		text += fmt.Sprintf(", %d with waiters", n)
	}
	return text
}

// waitedFor returns how many of the locks others wait for.
func waitedFor(locks []relock.Inspection) (n int) {
	for _, i := range locks {
		if waitersOf(i) > 0 {
			n++
		}
	}
	return n
}

// nothing returns what is said if no lock is listed.
func (p *program) nothing(pattern string, found finding) string {
	text := "No lock"
	if pattern != "*" {
		text += " that matches " + quote(pattern)
	}
	state := "is held"
	if p.choice.waiting {
		state = "has waiters"
	}
	text += fmt.Sprintf(" %s at %s.", state, p.redis.where)
	if found.held == 0 && !strings.ContainsAny(pattern, wildcards) {
		text += fmt.Sprintf(" Did you mean %s?", shellWord(pattern+"*"))
	}
	return text
}
