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

// ordered sorts locks: those first that others wait for, the longest wait first.
func ordered(locks []relock.Inspection) {
	slices.SortFunc(locks, func(a, b relock.Inspection) int {
		return cmp.Or(
			cmp.Compare(min(waitersOf(b), 1), min(waitersOf(a), 1)),
			firstSince(a).Compare(firstSince(b)), // not how long: the locks were not looked at in the same moment
			cmp.Compare(waitersOf(b), waitersOf(a)),
			cmp.Compare(a.Name, b.Name),
		)
	})
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

// nothing returns what is said if no lock is listed.
func (p *program) nothing(pattern string, found finding) string {
	state := "is held"
	if p.waiting {
		state = "has waiters"
	}
	text := fmt.Sprintf("No lock that matches %s %s at %s.", quote(pattern), state, p.redis.where)
	if found.held == 0 && !strings.ContainsAny(pattern, wildcards) {
		text += fmt.Sprintf(" Did you mean %s?", shellWord(pattern+"*"))
	}
	return text
}
