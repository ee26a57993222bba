package relockui

// Whether the lease of a hold grows. The rule by which it is judged is that of the package growth.

import (
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/growth"
)

// A lapse is what was seen of the lease of a hold. It does not change.
type lapse struct {
	since time.Time // when its present end was seen first
	end   time.Time
	grew  bool // its end was an earlier one before
}

// seen returns the lapse of h, which was inspected at that time, after those that were seen before. A zero one was not.
func seen(h relock.Holder, at time.Time, before ...lapse) lapse {
	now := lapse{since: at, end: at.Add(h.Remaining)}
	for _, b := range before {
		if b.since.IsZero() {
			continue
		}
		later := at.Add(h.Remaining).Sub(b.end)
		now.grew = now.grew || b.grew || growth.Grows(later)
		if growth.Same(later) && b.since.Before(now.since) {
			now.since, now.end = b.since, b.end
		}
	}
	return now
}

// A fate is what becomes of a lease.
type fate int

const (
	unknown  fate = iota // it was not looked at for long enough
	grows                // it grows
	runsOut              // it does not grow
	endless              // it has no end
	detached             // no process has the hold
	expired
)

// fate returns what becomes of the lease of h, as it was seen until a time.
func (l lapse) fate(h relock.Holder, at time.Time) fate {
	switch {
	case h.Detached:
		return detached
	case h.Remaining < 0:
		return endless
	case h.Remaining == 0:
		return expired
	case l.since.IsZero():
		return unknown
	case at.Sub(l.since) > growth.Within(l.end.Sub(l.since)):
		return runsOut
	case l.grew:
		return grows
	}
	return unknown
}

// text returns whether the lease of h grows, as it was seen until a time.
func (l lapse) text(h relock.Holder, at time.Time) string {
	looked := at.Sub(l.since)
	switch l.fate(h, at) {
	case grows:
		return "yes: its process is alive"
	case runsOut:
		return "no, not in the last " + duration(looked) +
			": its process has ended, is paused, cannot reach Redis, or asked for a lease that is not renewed"
	case endless:
		return "it has no end"
	case detached:
		return "no: the hold was detached, and no process has attached it yet"
	case expired:
		return "no: it has expired"
	}
	if l.since.IsZero() {
		return "not known yet"
	}
	due := growth.Within(l.end.Sub(l.since)) - looked + time.Second - 1 // rounded up
	return "watching for " + duration(looked) + "; a renewal is due within " + duration(due)
}

// verdict is like text, for a page that does not change while it is shown: it has nothing that is soon out of date.
func (l lapse) verdict(h relock.Holder, at time.Time) string {
	switch l.fate(h, at) {
	case grows:
		return "its process is alive (the lease grows)"
	case runsOut:
		return "its process has ended, is paused, cannot reach Redis, or asked for a lease that is not renewed " +
			"(the lease does not grow)"
	case endless:
		return "the lease has no end"
	case detached:
		return "the hold was detached, and no process has attached it yet"
	case expired:
		return "the lease has expired"
	}
	return ""
}
