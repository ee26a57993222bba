// Package growth has the rule by which relockctl and relockui tell whether the lease of a hold grows, which means that
// the process of its holder is alive.
//
// The rule: the end of a lease moves only if its process renews it, or acquires the lock once more. A lease that is
// renewed is so whenever a third of it has passed. So if the time t is left of it, it grows before a third of t has
// passed. A lease that does not grow may belong to a process that has ended, or be one that was not to be renewed:
// Redis does not tell which. All times are those of Redis.
package growth

import "time"

const (
	moved = 100 * time.Millisecond // an end of a lease that is so much later is another one
	late  = time.Second            // how late a renewal may be
)

// Grows reports whether a lease has grown whose end is that much later than it was.
func Grows(later time.Duration) bool { return later > moved }

// Same reports whether two ends of a lease with this difference are one: it neither grew nor shrank.
func Same(later time.Duration) bool { return later.Abs() <= moved }

// Within returns the time after which a lease of which left remained has grown if it is renewed at all.
func Within(left time.Duration) time.Duration { return left/3 + late }
