package engine

// Loss lines: which losses the log gets. Of many losses, which have one cause, it gets at most report.MostLines lines in
// any second; the others are counted. See loss.go.

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/report"
)

// lossLines counts the losses for the log, and decides which of them it gets.
type lossLines struct {
	mu    sync.Mutex // guards lines; no other mutex is locked while it is held
	lines report.LineLimit
}

// next counts a loss at now, on the clock of the watchdog, and reports whether the log gets it. first reports whether it
// is the first one that is left out since the last call of omitted.
func (l *lossLines) next(now time.Duration) (allowed, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	allowed = l.lines.Allows(now, true)
	return allowed, !allowed && l.lines.Left == 1
}

// omitted returns how many losses were left out since the last call.
func (l *lossLines) omitted(now time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Omitted(now) // next has kept a line for it
}
