package report

import "time"

// MostLines is how many lines a LineLimit allows in a second, including the one of how many were left out.
const MostLines = 10

// A LineLimit allows MostLines lines in a second, and counts those that are left out. One goroutine at a time may use
// it.
type LineLimit struct {
	since time.Duration // when the second began, with its first line
	lines int           // how many were allowed in it

	Left int // how many lines were left out since the last call of Omitted
}

// free returns how many lines are allowed now.
func (l *LineLimit) free(now time.Duration) int {
	if now-l.since >= time.Second {
		l.since, l.lines = now, 0
	}
	return MostLines - l.lines
}

// Allows reports whether a line may be written. It keeps one line for Omitted.
func (l *LineLimit) Allows(now time.Duration, ready bool) bool {
	if !ready || l.free(now) < 2 {
		l.Left++
		return false
	}
	l.lines++
	return true
}

// More is like Omitted, but returns 0 if no line may be written now.
func (l *LineLimit) More(now time.Duration) int {
	if l.free(now) < 1 {
		return 0
	}
	return l.Omitted()
}

// Omitted returns how many lines were left out since the last call. If there are any, the caller writes a line about
// that.
func (l *LineLimit) Omitted() (n int) {
	if n, l.Left = l.Left, 0; n > 0 {
		l.lines++
	}
	return n
}
