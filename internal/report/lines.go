package report

import "time"

// MostLines is how many lines a LineLimit allows in any second, including the one of how many were left out.
const MostLines = 10

// A LineLimit allows MostLines lines in any second, and counts those that are left out. One goroutine at a time may use
// it.
type LineLimit struct {
	times [MostLines]time.Duration // when the last lines were allowed, in a ring
	next  int                      // the index of the oldest of them

	Left int // how many lines were left out since the last call of Omitted
}

// NewLineLimit returns a LineLimit that has allowed no line yet.
func NewLineLimit() LineLimit {
	var l LineLimit
	for i := range l.times {
		l.times[i] = -time.Second
	}
	return l
}

// free reports whether n more lines are allowed now.
func (l *LineLimit) free(n int, now time.Duration) bool {
	return now-l.times[(l.next+n-1)%MostLines] >= time.Second
}

// use uses one line.
func (l *LineLimit) use(now time.Duration) {
	l.times[l.next] = now
	l.next = (l.next + 1) % MostLines
}

// Allows reports whether a line may be written. It keeps one line for Omitted.
func (l *LineLimit) Allows(now time.Duration, ready bool) bool {
	if !ready || !l.free(2, now) {
		l.Left++
		return false
	}
	l.use(now)
	return true
}

// More is like Omitted, but returns 0 if no line may be written now.
func (l *LineLimit) More(now time.Duration) int {
	if !l.free(1, now) {
		return 0
	}
	return l.Omitted(now)
}

// Omitted returns how many lines were left out since the last call. If there are any, the caller writes a line about
// that.
func (l *LineLimit) Omitted(now time.Duration) (n int) {
	if n, l.Left = l.Left, 0; n > 0 {
		l.use(now)
	}
	return n
}
