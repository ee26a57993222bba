// Package report reports to the user the events that a Client notices by itself: renewals, and losses that no call has
// asked about.
//
// Rules: a report is a function, and is called without a mutex held. The goroutine of a Reporter exists only while
// there are reports to call. Losses come first, in order. Nobody waits for a report: only renewals are
// dropped, when too many wait, and what is left some time after Close.
package report

import (
	"sync"
	"time"
)

// CloseTime is how long after Close a Reporter still calls the reports that it has.
const CloseTime = time.Second

const mostReports = 1 << 17 // reports of renewals that wait; further ones are dropped

// A Reporter calls reports one after the other, on one goroutine.
type Reporter struct {
	spawn func(func()) // runs a function on a goroutine

	mu       sync.Mutex // guards below; a leaf
	losses   []func()   // reports of losses, in order
	renewals [][]func() // reports of renewals, in order; one element for each pipeline
	renewed  int        // number of reports in renewals
	running  bool       // a goroutine reports
	until    time.Time  // after this time nothing is reported; zero: before Close
}

// New returns a Reporter that runs its goroutine with spawn. The Client waits for the goroutines of spawn when it
// closes.
func New(spawn func(func())) *Reporter { return &Reporter{spawn: spawn} }

// Later queues the report of a loss. A loss is never dropped before Close. Later does not block.
func (r *Reporter) Later(report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() {
		r.losses = append(r.losses, report)
		r.runLocked()
	}
}

// Renewals queues reports of renewals, which come after all losses. It drops them if too many wait already. It does
// not block.
func (r *Reporter) Renewals(reports []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() && r.renewed < mostReports && len(reports) > 0 {
		r.renewals = append(r.renewals, reports)
		r.renewed += len(reports)
		r.runLocked()
	}
}

func (r *Reporter) runLocked() {
	if !r.running {
		r.running = true
		r.spawn(r.run)
	}
}

// run calls the reports until there are none.
func (r *Reporter) run() {
	goesOn := true
	defer func() {
		if goesOn { // the Observer has ended the goroutine
			r.spawn(r.run)
		}
	}()
	for report := r.next(); report != nil; report = r.next() {
		report()
	}
	goesOn = false
}

// next is the next report; nil: there is none, and the goroutine ends.
func (r *Reporter) next() (report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch late := !r.until.IsZero() && time.Now().After(r.until); {
	case late:
	case len(r.losses) > 0:
		report, r.losses[0] = r.losses[0], nil
		r.losses = r.losses[1:]
		return report
	case len(r.renewals) > 0:
		report, r.renewals[0] = r.renewals[0][0], r.renewals[0][1:]
		if len(r.renewals[0]) == 0 {
			r.renewals = r.renewals[1:]
		}
		r.renewed--
		return report
	}
	r.losses, r.renewals, r.renewed, r.running = nil, nil, 0, false
	return nil
}

// Close makes r accept no more reports, and drop those that it has not called within CloseTime. Close does not wait.
func (r *Reporter) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Now().Add(CloseTime)
}

// Busy reports whether a report is under way.
func (r *Reporter) Busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// Mutex is the mutex of r, for tests that no code of the user is called with it held.
func (r *Reporter) Mutex() *sync.Mutex { return &r.mu }
