// Package report reports to the user the events that a Client notices without a call: renewals, and losses that no
// call has asked about.
//
// Rules: a report is a function, and is called without a mutex held. The goroutine of a Reporter exists only while
// there are reports to call. Losses come first, in order. No goroutine waits for a report. Only two kinds of reports
// are dropped: those of renewals while too many are waiting, and those that are left some time after Close.
package report

import (
	"sync"
	"time"
)

// CloseTime is how long after Close a Reporter continues to call the reports that it has.
const CloseTime = time.Second

const mostReports = 1 << 17 // reports of renewals that wait; further ones are dropped

// A Reporter calls reports one after the other, on one goroutine.
type Reporter struct {
	spawn func(func()) // runs a function on a goroutine

	mu       sync.Mutex // guards below; a leaf
	losses   []func()   // reports of losses, in order
	renewals []func()   // reports of renewals, in order
	running  bool       // a goroutine calls reports
	until    time.Time  // no report is called after this time; zero: Close was not called
}

// New returns a Reporter that runs its goroutine with spawn. The Client waits for the goroutines of spawn when it is
// closed.
func New(spawn func(func())) *Reporter { return &Reporter{spawn: spawn} }

// Later queues the report of a loss, which is never dropped before Close. Later does not block.
func (r *Reporter) Later(report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() || time.Now().Before(r.until) { // a loss that has ended Shutdown may come after Close
		r.losses = append(r.losses, report)
		r.runLocked()
	}
}

// Renewals queues reports of renewals, which are called after those of all losses. It drops them if too many are
// waiting already. It does not block.
func (r *Reporter) Renewals(reports []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() && len(r.renewals) < mostReports && len(reports) > 0 {
		r.renewals = append(r.renewals, reports...)
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
		if goesOn { // a function of the Observer has ended the goroutine
			r.spawn(r.run)
		}
	}()
	for report := r.next(); report != nil; report = r.next() {
		report()
	}
	goesOn = false
}

// next returns the next report. If it returns nil, there is none, and the goroutine ends.
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
		report, r.renewals[0] = r.renewals[0], nil
		r.renewals = r.renewals[1:]
		return report
	}
	r.losses, r.renewals, r.running = nil, nil, false
	return nil
}

// Close makes r accept no more reports, and drop those that it has not called within CloseTime. Close does not wait.
func (r *Reporter) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Now().Add(CloseTime)
}

// Busy reports whether a goroutine is calling reports.
func (r *Reporter) Busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}
