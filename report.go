package relock

// How the Logger and the Observer of the user are called.
//
// Rules: neither is called with a mutex held. A call of the user reports what it
// causes before it returns. A goroutine of the reporter reports what the Client notices by itself:
// renewals, and losses that no call has asked about. So
// nothing waits for a Logger or an Observer that is slow. That
// goroutine exists only while there is something to report; Close waits for it, and
// drops what it has not reported within reportTime. A panic of either is recovered.

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	reportTime  = time.Second // what Close gives to reports that are not made yet
	mostReports = 1 << 17     // reports of renewals that wait; more are dropped
)

// A reporter makes the reports of what a Client notices by itself.
type reporter struct {
	spawn func(func()) // runs a function on a goroutine that Close waits for

	mu       sync.Mutex // guards below; a leaf
	losses   []func()   // to be reported, in order
	renewals [][]func() // the same of one pipeline each
	renewed  int        // reports in renewals
	running  bool       // a goroutine reports
	until    time.Time  // after that nothing is reported; zero: before Close
}

// later has a loss reported, which is never dropped before Close. It does not block.
func (r *reporter) later(report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() {
		r.losses = append(r.losses, report)
		r.runLocked()
	}
}

// renewal has renewals reported, after all losses, unless too many wait already. It does not block.
func (r *reporter) renewal(reports []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() && r.renewed < mostReports && len(reports) > 0 {
		r.renewals = append(r.renewals, reports)
		r.renewed += len(reports)
		r.runLocked()
	}
}

func (r *reporter) runLocked() {
	if !r.running {
		r.running = true
		r.spawn(r.run)
	}
}

// run makes the reports until there are none.
func (r *reporter) run() {
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
func (r *reporter) next() (report func()) {
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

// close has the reporter accept no more reports, and bounds how long it goes on.
func (r *reporter) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Now().Add(reportTime)
}

// busy says whether a report is under way.
func (r *reporter) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// A calmHandler is the handler of the user's Logger, whose panics are recovered.
type calmHandler struct {
	slog.Handler
	panicked *atomic.Bool
}

func calmLogger(l *slog.Logger) *slog.Logger {
	return slog.New(calmHandler{l.Handler(), new(atomic.Bool)})
}

// recovered tells of the first panic on standard error: there is no other place left.
func (h calmHandler) recovered() {
	if what := recover(); what != nil && h.panicked.CompareAndSwap(false, true) {
		fmt.Fprintf(os.Stderr, "relock: the Logger has panicked: %v\n%s\n", what, debug.Stack())
	}
}

func (h calmHandler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer h.recovered()
	return h.Handler.Enabled(ctx, level)
}

func (h calmHandler) Handle(ctx context.Context, r slog.Record) error {
	defer h.recovered()
	return h.Handler.Handle(ctx, r)
}

func (h calmHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calmHandler{h.Handler.WithAttrs(attrs), h.panicked}
}

func (h calmHandler) WithGroup(name string) slog.Handler {
	return calmHandler{h.Handler.WithGroup(name), h.panicked}
}

// A calmObserver is the Observer of the user, whose panics are recovered.
type calmObserver struct {
	Observer
	log      *slog.Logger
	panicked atomic.Bool
}

// recovered logs the first panic.
func (o *calmObserver) recovered() {
	if what := recover(); what != nil && o.panicked.CompareAndSwap(false, true) {
		o.log.Error("relock: the Observer has panicked; further panics of it are not logged",
			"panic", fmt.Sprint(what), "stack", string(debug.Stack()))
	}
}

func (o *calmObserver) Waiting(ctx context.Context, e WaitingEvent) {
	defer o.recovered()
	o.Observer.Waiting(ctx, e)
}

func (o *calmObserver) Acquired(ctx context.Context, e AcquiredEvent) {
	defer o.recovered()
	o.Observer.Acquired(ctx, e)
}

func (o *calmObserver) GaveUp(ctx context.Context, e GaveUpEvent) {
	defer o.recovered()
	o.Observer.GaveUp(ctx, e)
}

func (o *calmObserver) Renewed(ctx context.Context, e RenewedEvent) {
	defer o.recovered()
	o.Observer.Renewed(ctx, e)
}

func (o *calmObserver) RenewalFailed(ctx context.Context, e RenewalFailedEvent) {
	defer o.recovered()
	o.Observer.RenewalFailed(ctx, e)
}

func (o *calmObserver) Released(ctx context.Context, e ReleasedEvent) {
	defer o.recovered()
	o.Observer.Released(ctx, e)
}

func (o *calmObserver) Lapsed(ctx context.Context, e LapsedEvent) {
	defer o.recovered()
	o.Observer.Lapsed(ctx, e)
}

func (o *calmObserver) Lost(ctx context.Context, e LostEvent) {
	defer o.recovered()
	o.Observer.Lost(ctx, e)
}
