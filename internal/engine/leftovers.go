package engine

// Leftovers: what Redis may have of the attempts of a call that the call does not hold.
//
// Rules: there is no Redis and no clock here. Each attempt says how it ended. When the call ends, its leftovers say
// whether something has to be undone. A call that holds its locks undoes only what it knows to be there; one that has
// failed also undoes what may be there.

// The leftovers of a call. The zero value is that of a call that has not asked yet.
type leftovers struct {
	tries    int  // tries that may have taken the locks, or may still take them, without the call knowing
	entry    bool // an attempt has left the entry of a waiter
	enqueued bool // an attempt may have joined the line, or the caller may have been told that the lock is free
	underWay bool // an attempt was under way when the call left it
}

// attempted notes that an attempt has ended. Of unknown tries nobody knows whether they have run or will run; underWay says
// that the call has left while the attempt was under way, and waits that the attempt has left the entry of a waiter.
func (l *leftovers) attempted(unknown int, underWay, waits bool) {
	l.tries += unknown
	l.underWay = l.underWay || underWay
	l.entry = l.entry || waits
}

// grantNotKept notes that a grant is not kept, or may be there although an error was answered.
func (l *leftovers) grantNotKept() { l.tries = max(l.tries, 1) }

// mayEnqueue notes that an attempt may join the line.
func (l *leftovers) mayEnqueue() { l.enqueued = true }

// inherits notes tries of the caller before, whose place in the line this call has taken over.
func (l *leftovers) inherits(tries int) {
	l.tries += tries
	l.mayEnqueue()
}

// toRollBack reports whether something has to be undone. failed says that the call holds nothing.
func (l *leftovers) toRollBack(failed bool) bool {
	return l.tries > 0 || l.entry || failed && (l.underWay || l.enqueued)
}

// delays reports whether what is left delays others, which stand behind it.
func (l *leftovers) delays() bool { return l.entry || l.enqueued }

// leavesTries is how many tries of the call may still run, if some of them may.
func (l *leftovers) leavesTries() int {
	if l.underWay {
		return l.tries + 1
	}
	return l.tries
}
