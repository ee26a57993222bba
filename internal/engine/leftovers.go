package engine

// Leftovers: what Redis may have of the attempts of a call that the call does not hold.
//
// Rules: there is no Redis and no clock here. Each attempt says how it ended. When the call ends, its leftovers say
// whether something has to be undone. A call that holds its locks undoes only what it knows to be there; one that has
// failed also undoes what may be there.

// The leftovers of a call. The zero value is that of a call that has not asked yet.
type leftovers struct {
	grants   int  // tries that may have taken the locks, or may still take them, without the call knowing
	waits    bool // an attempt has left the entry of a waiter
	inLine   bool // an attempt may have joined the line, or the caller may have been told that the lock is free
	underWay bool // an attempt was under way when the call left it
}

// asked notes that an attempt has ended. Of unknown tries nobody knows whether they have run or will run; underWay says
// that the call has left while the attempt was under way, and waits that the attempt has left the entry of a waiter.
func (l *leftovers) asked(unknown int, underWay, waits bool) {
	l.grants += unknown
	l.underWay = l.underWay || underWay
	l.waits = l.waits || waits
}

// refused notes that a grant is not kept, or may be there although an error was answered.
func (l *leftovers) refused() { l.grants = max(l.grants, 1) }

// joins notes that an attempt may join the line.
func (l *leftovers) joins() { l.inLine = true }

// inherits notes tries of the caller before, whose place in the line this call has taken over.
func (l *leftovers) inherits(tries int) {
	l.grants += tries
	l.joins()
}

// toUndo reports whether something has to be undone. failed says that the call holds nothing.
func (l *leftovers) toUndo(failed bool) bool {
	return l.grants > 0 || l.waits || failed && (l.underWay || l.inLine)
}

// delays reports whether what is left delays others, which stand behind it.
func (l *leftovers) delays() bool { return l.waits || l.inLine }

// leavesTries is how many tries of the call may still run, if some of them may.
func (l *leftovers) leavesTries() int {
	if l.underWay {
		return l.grants + 1
	}
	return l.grants
}
