package tenancy

// Leftovers: what the attempts of an acquire operation may have left in Redis that the caller does not hold.
//
// Rules: each attempt is noted when it has ended. When the operation has failed, its leftovers report whether there may be
// something to roll back.

// Leftovers are what the attempts of one operation have left. The zero value belongs to an operation that has made no attempt.
type Leftovers struct {
	tries    int  // tries whose outcome is unknown: they may have acquired the locks, or may still do so
	enqueued bool // an attempt may have joined the line, or has left the entry of a waiter, behind which others wait
	underWay bool // the caller has left while an attempt was under way
}

// Attempted notes that an attempt has ended. unknown is the number of its tries of which it is not known whether they
// have run or will run. underWay means that the caller left while the attempt was under way, and waits that the attempt
// has left the entry of a waiter.
func (l *Leftovers) Attempted(unknown int, underWay, waits bool) {
	l.tries += unknown
	l.underWay = l.underWay || underWay
	l.enqueued = l.enqueued || waits
}

// GrantNotKept notes a grant that the caller does not keep, or that may exist although Redis has answered with an
// error.
func (l *Leftovers) GrantNotKept() { l.tries = max(l.tries, 1) }

// MayEnqueue notes that an attempt may join the line.
func (l *Leftovers) MayEnqueue() { l.enqueued = true }

// ToRollBack reports whether something may have to be rolled back.
func (l *Leftovers) ToRollBack() bool { return l.tries > 0 || l.underWay || l.enqueued }

// Tries returns the number of tries whose outcome is unknown.
func (l *Leftovers) Tries() int { return l.tries }

// MayBeEnqueued reports whether the operation may have a place in the line, which delays other clients.
func (l *Leftovers) MayBeEnqueued() bool { return l.enqueued }
