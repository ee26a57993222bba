package main

// Which of the locks a list has, and in which order.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock"
)

// The orders of a list, for --sort.
const (
	byWaiting = "waiting" // those first that others wait for: the longest wait, then the most waiters
	byName    = "name"
	byLease   = "lease" // those first that expire first
)

// A choice has the flags of list and watch.
type choice struct {
	waiting bool   // only locks that others wait for
	sort    string // one of the orders
}

// apply removes the locks that are not wanted, and sorts the others.
func (c choice) apply(locks []relock.Inspection) []relock.Inspection {
	if c.waiting {
		locks = slices.DeleteFunc(locks, func(i relock.Inspection) bool { return !i.QueueUnknown && waitersOf(i) == 0 })
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
			cmp.Compare(longestWait(b), longestWait(a)),
			cmp.Compare(waitersOf(b), waitersOf(a)),
			byNames,
		)
	})
	return locks
}

// waitersOf returns how many wait for a lock, as far as it is known, without those that are gone.
func waitersOf(i relock.Inspection) int { return i.Waiting - i.Gone }

// longestWait returns how long the first of the waiters that are not gone has waited at least.
func longestWait(i relock.Inspection) (longest time.Duration) {
	for _, w := range i.Waiters {
		if !isGone(w) && !w.Since.IsZero() {
			longest = max(longest, i.At.Sub(w.Since).Truncate(time.Second))
		}
	}
	return longest
}

// total returns how many locks there are, and how many of them others wait for.
func total(locks []relock.Inspection) string {
	waitedFor, unknown := 0, 0
	for _, i := range locks {
		switch {
		case waitersOf(i) > 0:
			waitedFor++
		case i.QueueUnknown:
			unknown++
		}
	}
	text := fmt.Sprintf("%d held", len(locks))
	if waitedFor > 0 {
		text += fmt.Sprintf(", %d with waiters", waitedFor)
	}
	if unknown > 0 {
		text += fmt.Sprintf(", %d whose waiters are unknown", unknown)
	}
	return text
}

// nothing returns what is said if no lock is listed.
func (c choice) nothing(pattern string) string {
	of := "No lock"
	if pattern != "*" {
		of += " that matches " + quote(pattern)
	}
	if c.waiting {
		return of + " has waiters."
	}
	return of + " is held."
}
