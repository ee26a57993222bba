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

// text returns whether the lease of h grows, as it was seen until a time.
func (l lapse) text(h relock.Holder, at time.Time) string {
	looked := at.Sub(l.since)
	switch {
	case h.Detached:
		return "no: the hold was detached, and no process has attached it yet"
	case h.Remaining < 0:
		return "it has no end, and nobody renews it"
	case h.Remaining == 0:
		return "no: it has expired"
	case l.since.IsZero():
		return "not known yet"
	case looked > growth.Within(l.end.Sub(l.since)):
		return "no, not in the last " + duration(looked) +
			": its process has ended, cannot reach Redis, or asked for a lease that is not renewed"
	case l.grew:
		return "yes: its process is alive"
	}
	return "not known yet: not in the last " + duration(looked)
}
