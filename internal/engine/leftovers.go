package engine

// Leftovers: what the attempts of an acquire operation may have left in Redis that the caller does not hold.
//
// Rules: this file knows neither Redis nor a clock. Each attempt is noted when it has ended. When the operation ends,
// its leftovers report whether something has to be rolled back. An operation that holds its locks rolls back only what
// is there for certain, or may be there because of tries without an answer. An operation that has failed rolls back
// everything that may be there.

// The leftovers of an operation. The zero value belongs to an operation that has made no attempt.
type leftovers struct {
	tries    int  // tries whose outcome is unknown: they may have acquired the locks, or may still do so
	entry    bool // an attempt has left the entry of a waiter
	enqueued bool // an attempt may have joined the line, or a message may have told the caller that the lock is free
	underWay bool // the caller has left while an attempt was under way
}

// attempted notes that an attempt has ended. unknown is the number of its tries of which it is not known whether they
// have run or will run. underWay means that the caller left while the attempt was under way, and waits that the attempt
// has left the entry of a waiter.
func (l *leftovers) attempted(unknown int, underWay, waits bool) {
	l.tries += unknown
	l.underWay = l.underWay || underWay
	l.entry = l.entry || waits
}

// grantNotKept notes a grant that the caller does not keep, or that may exist although Redis has answered with an
// error.
func (l *leftovers) grantNotKept() { l.tries = max(l.tries, 1) }

// mayEnqueue notes that an attempt may join the line.
func (l *leftovers) mayEnqueue() { l.enqueued = true }

// inherits notes the unknown tries of the caller before, whose place in the line this operation has taken over.
func (l *leftovers) inherits(tries int) {
	l.tries += tries
	l.mayEnqueue()
}

// toRollBack reports whether something has to be rolled back. failed means that the operation holds nothing.
func (l *leftovers) toRollBack(failed bool) bool {
	return l.tries > 0 || l.entry || failed && (l.underWay || l.enqueued)
}

// delays reports whether the leftovers delay other clients, which wait behind them.
func (l *leftovers) delays() bool { return l.entry || l.enqueued }

// leavesTries returns how many tries of the operation may still run, if some of them may.
func (l *leftovers) leavesTries() int {
	if l.underWay {
		return l.tries + 1
	}
	return l.tries
}
