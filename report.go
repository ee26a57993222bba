package relock

// How the Logger and the Observer of the user are called.
//
// Rules: neither is called with a mutex held. A call of the user reports its own
// events before it returns. A goroutine of the reporter reports the events that the Client notices by itself:
// renewals, and losses that no call has asked about. So no renewal, no guard and no other
// caller waits for a slow Logger or Observer. The goroutine of the reporter exists only while there
// are events to report. Close waits for the goroutine, and drops the events that it
// has not reported within reportTime; it leaves a call behind that has not returned within hangTime. Calls of the Logger and
// the Observer are counted, on whatever goroutine they are. A panic of the Logger or the Observer is recovered.

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
	reportTime  = time.Second               // how long Close waits for reports that are not made yet
	hangTime    = reportTime + reportTime/2 // how long Close waits for the Logger and the Observer alone
	mostReports = 1 << 17                   // reports of renewals that wait; further ones are dropped
)

// A reporter reports the events that a Client notices by itself.
type reporter struct {
	spawn func(func()) // runs a function on a goroutine that Close waits for

	mu       sync.Mutex // guards below; a leaf
	losses   []func()   // reports of losses, in order
	renewals [][]func() // reports of renewals, in order; one element for each pipeline
	renewed  int        // number of reports in renewals
	running  bool       // a goroutine reports
	until    time.Time  // after this time nothing is reported; zero: before Close
}

// later queues the report of a loss. A loss is never dropped before Close. later does not block.
func (r *reporter) later(report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until.IsZero() {
		r.losses = append(r.losses, report)
		r.runLocked()
	}
}

// renewal queues reports of renewals, which come after all losses. It drops them if too many wait already. It does
// not block.
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

// run calls the reports until there are none.
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

// close lets the reporter accept no more reports, and bounds how long it goes on.
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
	calls    *atomic.Int64 // under way
}

// calmLogger returns the Logger of the user. calls counts the calls of it that are under way.
func calmLogger(l *slog.Logger, calls *atomic.Int64) *slog.Logger {
	return slog.New(calmHandler{l.Handler(), new(atomic.Bool), calls})
}

// begin begins a call of the Logger, which recovered ends.
func (h calmHandler) begin() calmHandler {
	h.calls.Add(1)
	return h
}

// recovered writes the first panic to standard error: there is no other place left.
func (h calmHandler) recovered() {
	h.calls.Add(-1)
	if what := recover(); what != nil && h.panicked.CompareAndSwap(false, true) {
		fmt.Fprintf(os.Stderr, "relock: the Logger has panicked: %v\n%s\n", what, debug.Stack())
	}
}

func (h calmHandler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer h.begin().recovered()
	return h.Handler.Enabled(ctx, level)
}

func (h calmHandler) Handle(ctx context.Context, r slog.Record) error {
	defer h.begin().recovered()
	return h.Handler.Handle(ctx, r)
}

func (h calmHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calmHandler{h.Handler.WithAttrs(attrs), h.panicked, h.calls}
}

func (h calmHandler) WithGroup(name string) slog.Handler {
	return calmHandler{h.Handler.WithGroup(name), h.panicked, h.calls}
}

// A calmObserver is the Observer of the user, whose panics are recovered.
type calmObserver struct {
	Observer
	log      *slog.Logger
	panicked atomic.Bool
	calls    *atomic.Int64 // under way
}

// begin begins a call of the Observer, which recovered ends.
func (o *calmObserver) begin() *calmObserver {
	o.calls.Add(1)
	return o
}

// recovered logs the first panic.
func (o *calmObserver) recovered() {
	o.calls.Add(-1)
	if what := recover(); what != nil && o.panicked.CompareAndSwap(false, true) {
		o.log.Error("relock: the Observer has panicked; further panics of it are not logged",
			"panic", fmt.Sprint(what), "stack", string(debug.Stack()))
	}
}

func (o *calmObserver) Waiting(ctx context.Context, e WaitingEvent) {
	defer o.begin().recovered()
	o.Observer.Waiting(ctx, e)
}

func (o *calmObserver) Acquired(ctx context.Context, e AcquiredEvent) {
	defer o.begin().recovered()
	o.Observer.Acquired(ctx, e)
}

func (o *calmObserver) GaveUp(ctx context.Context, e GaveUpEvent) {
	defer o.begin().recovered()
	o.Observer.GaveUp(ctx, e)
}

func (o *calmObserver) Renewed(ctx context.Context, e RenewedEvent) {
	defer o.begin().recovered()
	o.Observer.Renewed(ctx, e)
}

func (o *calmObserver) RenewalFailed(ctx context.Context, e RenewalFailedEvent) {
	defer o.begin().recovered()
	o.Observer.RenewalFailed(ctx, e)
}

func (o *calmObserver) Released(ctx context.Context, e ReleasedEvent) {
	defer o.begin().recovered()
	o.Observer.Released(ctx, e)
}

func (o *calmObserver) Lapsed(ctx context.Context, e LapsedEvent) {
	defer o.begin().recovered()
	o.Observer.Lapsed(ctx, e)
}

func (o *calmObserver) Lost(ctx context.Context, e LostEvent) {
	defer o.begin().recovered()
	o.Observer.Lost(ctx, e)
}
