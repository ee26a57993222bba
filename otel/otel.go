// Package otel exports metrics and traces of the locks of relock to OpenTelemetry: how long callers wait and how they
// acquire a lock, how long locks are held and how many there are, and which leases are renewed or lost.
//
//	observer, err := otel.New() // with the global MeterProvider
//	...
//	client, err := relock.New(rdb, relock.WithObserver(observer))
//	...
//	defer observer.Watch(client)() // for the gauges
//
// # Metrics
//
// Every metric has the attribute relock.lock.type: lock, fair, read, write, redlock or semaphore. Times are in seconds.
//
//	relock.wait.duration     histogram  from the call until the caller has the lock, or gives up after it has waited,
//	                                    with relock.path: immediate, queue, handoff, notified, polled,
//	                                    attached, gave_up
//	relock.hold.duration     histogram  from the request that acquired the lock until the hold ends, with
//	                                    relock.end: released, detached, unconfirmed, expired, lost
//	relock.holders           up-down    holds at present; acquiring a lock again does not count
//	relock.waiters           up-down    callers that wait for another owner at present
//	relock.acquisitions      counter    successful calls, including those that acquire a lock again, with relock.path
//	relock.give_ups          counter    calls that returned without the lock, with
//	                                    relock.reason: time_up, ctx, closed, lost, error
//	relock.losses            counter    holds that were lost
//	relock.renewals          counter    renewals that Redis confirmed
//	relock.renewal.failures  counter    renewals that failed, and are retried
//	relock.hold.oldest       gauge      the age of the oldest hold at present
//	relock.wait.longest      gauge      how long the caller that has waited for the longest time has waited
//
// The gauges need [Observer.Watch]. They show a lock that is never released, or a caller that waits in vain, while the
// histograms contain only what has ended. The terms of elections are not in the gauges, because they are meant to last.
// relock.WithHoldWarning and relock.WithWaitWarning log which locks these are.
//
// A MultiLock counts as its locks. A RedLock counts as one redlock, in addition to its locks, whose Clients have
// observers of their own.
//
// relock.losses and relock.renewal.failures are reported, as 0, from the first hold on. A rate of relock.losses above 0
// needs attention, and so does a lasting rate of relock.renewal.failures. A growing share of the path polled means that
// notifications are lost, or that holders crash; fair locks and waiting writers always have some of it.
//
// The name of the lock is not an attribute, because each name would be a time series of its own: see [WithLockNames].
// The file grafana.json in this directory is a dashboard of these metrics, with the names that the OpenTelemetry
// exporter for Prometheus gives them with the strategy UnderscoreEscapingWithSuffixes: relock_wait_duration_seconds and
// so on. The directory example has a program that uses them.
//
// # Traces
//
// If the context of a call carries a recorded span, and the caller had to wait, the wait becomes a child of that span:
// relock.wait. The hold becomes a child of the span in the context of Unlock: relock.hold. Both have the name of the
// lock as an attribute, and are written when they end, so that spans of the work under the lock are siblings of the
// hold and not its children. A hold that was lost has no span, because no call ends it; Unlock returns the error.
package otel

// Rules: an observer has no state except its instruments, the sets of attributes that it has used, and the Clients
// whose gauges it reads. Spans are written when they end, with the start time that follows from the event.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	otelapi "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/relock-go/relock"
)

const scope = "github.com/relock-go/relock/otel"

const (
	typeKey   = attribute.Key("relock.lock.type")
	nameKey   = attribute.Key("relock.lock.name")
	labelKey  = attribute.Key("relock.label")
	pathKey   = attribute.Key("relock.path")
	endKey    = attribute.Key("relock.end")
	reasonKey = attribute.Key("relock.reason")
	tokenKey  = attribute.Key("relock.token")
)

// waitBuckets range from a hand-off in the process (about a microsecond) to a wait longer than most callers allow.
var waitBuckets = []float64{
	1e-5,
	1e-4,
	5e-4,
	.001,
	.0025,
	.005,
	.01,
	.025,
	.05,
	.1,
	.25,
	.5,
	1,
	2.5,
	5,
	10,
	30,
	60,
	300,
}

// holdBuckets range from an empty critical section to a leader that stays for a day.
var holdBuckets = []float64{1e-5, 1e-4, 5e-4, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600, 86400}

// An Option configures an [Observer].
type Option func(*config)

type config struct {
	meters metric.MeterProvider
	names  bool
	label  string
	spans  bool
}

// WithMeterProvider sets the MeterProvider of the metrics. The default is the global MeterProvider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.meters = p }
}

// WithLockNames adds the attribute relock.lock.name to all metrics except the gauges. Use it only for services with few
// names: names that contain an order number would create a time series for each order. Bytes of a name that are not
// UTF-8 become U+FFFD. By default metrics have no name of a lock.
func WithLockNames() Option {
	return func(c *config) { c.names = true }
}

// WithLabel adds the attribute relock.label to all metrics: the label of this process, as relock.WithLabel passes it to
// the Client. It is not needed if the resource of the MeterProvider has a service.instance.id. By default there is no
// label.
func WithLabel(label string) Option {
	return func(c *config) { c.label = strings.ToValidUTF8(label, "\uFFFD") }
}

// WithoutSpans turns traces off, so that only metrics are recorded. By default spans are written.
func WithoutSpans() Option {
	return func(c *config) { c.spans = false }
}

// An Observer records the events of locks as metrics and spans. Any number of Clients may share one.
type Observer struct {
	relock.NopObserver
	config

	wait, hold                    metric.Float64Histogram
	holders, waiters              metric.Int64UpDownCounter
	acquisitions, giveUps, losses metric.Int64Counter
	renewals, renewalFailures     metric.Int64Counter
	oldest, longest               metric.Float64ObservableGauge
	// Labels -> metric.MeasurementOption; used only without names, because then there are few of them.
	sets sync.Map

	mu      sync.Mutex // guards the fields below; no Client is asked while it is held
	clients map[*relock.Client]bool
	seen    relock.Slowest // the types that a gauge has had a value for
}

// New returns an Observer for [relock.WithObserver]. It returns an error if the MeterProvider refuses an instrument.
func New(opts ...Option) (*Observer, error) {
	o := &Observer{
		config:  config{meters: otelapi.GetMeterProvider(), spans: true},
		clients: make(map[*relock.Client]bool),
		seen: relock.Slowest{
			Hold: make(map[relock.LockType]time.Duration), Wait: make(map[relock.LockType]time.Duration),
		},
	}
	for _, opt := range opts {
		opt(&o.config)
	}
	m := maker{meter: o.meters.Meter(scope)}
	o.wait = m.histogram(
		"relock.wait.duration",
		waitBuckets,
		"Time from the call until the caller has the lock, or gives up after it has waited.",
	)
	o.hold = m.histogram(
		"relock.hold.duration",
		holdBuckets,
		"Time from the request that acquired the lock until the hold ends.",
	)
	o.holders = m.upDown("relock.holders", "{hold}", "Holds at present.")
	o.waiters = m.upDown("relock.waiters", "{caller}", "Callers that wait for another owner to release a lock at present.")
	o.acquisitions = m.counter(
		"relock.acquisitions",
		"{acquisition}",
		"Successful calls, including those that acquire a lock again.",
	)
	o.giveUps = m.counter("relock.give_ups", "{call}", "Calls that returned without the lock.")
	o.losses = m.counter("relock.losses", "{hold}", "Holds that were lost.")
	o.renewals = m.counter("relock.renewals", "{renewal}", "Renewals that Redis confirmed.")
	o.renewalFailures = m.counter("relock.renewal.failures", "{renewal}", "Renewals that failed, and are retried.")
	o.oldest = m.gauge("relock.hold.oldest", "Age of the oldest hold at present.")
	o.longest = m.gauge("relock.wait.longest", "How long the caller that has waited for the longest time has waited.")
	if m.err == nil {
		_, m.err = m.meter.RegisterCallback(o.observe, o.oldest, o.longest)
	}
	if m.err != nil {
		return nil, fmt.Errorf("relock/otel: new: %w", m.err)
	}
	return o, nil
}

// A maker creates instruments, and remembers errors.
type maker struct {
	meter metric.Meter
	err   error
}

func (m *maker) histogram(name string, buckets []float64, what string) metric.Float64Histogram {
	i, err := m.meter.Float64Histogram(
		name,
		metric.WithUnit("s"),
		metric.WithDescription(what),
		metric.WithExplicitBucketBoundaries(buckets...),
	)
	m.err = errors.Join(m.err, err)
	return i
}

func (m *maker) upDown(name, unit, what string) metric.Int64UpDownCounter {
	i, err := m.meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	m.err = errors.Join(m.err, err)
	return i
}

func (m *maker) counter(name, unit, what string) metric.Int64Counter {
	i, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
	m.err = errors.Join(m.err, err)
	return i
}

func (m *maker) gauge(name, what string) metric.Float64ObservableGauge {
	i, err := m.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(what))
	m.err = errors.Join(m.err, err)
	return i
}

// Watch makes the gauges include the locks of c, which was created with this Observer, until stop is called. Each time
// that the metrics are collected, the locks that c uses are looked at once: see [relock.Client.Slowest]. Call stop when
// c is closed, so that the Observer forgets it. Watching a Client twice has no effect, and one stop ends it.
func (o *Observer) Watch(c *relock.Client) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clients[c] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.clients, c)
	}
}

// observe sets the gauges: for each type of lock the highest value of all Clients. A type that has had a value before
// is 0 when it has none, so that its time series does not end at an old value.
func (o *Observer) observe(_ context.Context, to metric.Observer) error {
	var all []relock.Slowest
	for _, c := range o.watched() {
		all = append(all, c.Slowest())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	hold, wait := maps.Clone(o.seen.Hold), maps.Clone(o.seen.Wait)
	for _, s := range all {
		raise(hold, o.seen.Hold, s.Hold)
		raise(wait, o.seen.Wait, s.Wait)
	}
	for kind, age := range hold {
		to.ObserveFloat64(o.oldest, age.Seconds(), o.attributes(relock.LockInfo{Type: kind}, "", ""))
	}
	for kind, waited := range wait {
		to.ObserveFloat64(o.longest, waited.Seconds(), o.attributes(relock.LockInfo{Type: kind}, "", ""))
	}
	return nil
}

// raise raises the values of all to those of one Client, and adds its types to seen, whose values are 0.
func raise(all, seen, of map[relock.LockType]time.Duration) {
	for kind, d := range of {
		all[kind], seen[kind] = max(all[kind], d), 0
	}
}

// watched returns the Clients that are watched.
func (o *Observer) watched() []*relock.Client {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.clients))
}

// Waiting counts a waiter: see [relock.Observer].
func (o *Observer) Waiting(ctx context.Context, e relock.WaitingEvent) {
	o.waiters.Add(ctx, 1, o.attributes(e.Lock, "", ""))
}

// Acquired records the wait and counts the hold: see [relock.Observer].
func (o *Observer) Acquired(ctx context.Context, e relock.AcquiredEvent) {
	byPath := o.attributes(e.Lock, pathKey, string(e.Path))
	o.acquisitions.Add(ctx, 1, byPath)
	o.wait.Record(ctx, e.Waited.Seconds(), byPath)
	bare := o.attributes(e.Lock, "", "")
	if e.HoldCount == 1 {
		o.holders.Add(ctx, 1, bare)
		// A series that begins at 1 has no increase in Prometheus, so the first loss would be missed.
		o.losses.Add(ctx, 0, bare)
		o.renewalFailures.Add(ctx, 0, bare)
	}
	if e.Path == relock.PathImmediate || e.Path == relock.PathAttached { // it has not waited
		return
	}
	o.waiters.Add(ctx, -1, bare)
	if s := o.span(ctx, "relock.wait", e.Lock, e.Waited); s != nil {
		s.SetAttributes(pathKey.String(string(e.Path)))
		if e.Token != 0 {
			s.SetAttributes(tokenKey.Int64(e.Token))
		}
		s.End()
	}
}

// GaveUp records the wait and the reason: see [relock.Observer].
func (o *Observer) GaveUp(ctx context.Context, e relock.GaveUpEvent) {
	why := reason(e.Err)
	o.giveUps.Add(ctx, 1, o.attributes(e.Lock, reasonKey, why))
	if !e.Contended {
		return
	}
	o.wait.Record(ctx, e.Waited.Seconds(), o.attributes(e.Lock, pathKey, "gave_up"))
	o.waiters.Add(ctx, -1, o.attributes(e.Lock, "", ""))
	if s := o.span(ctx, "relock.wait", e.Lock, e.Waited); s != nil {
		s.SetAttributes(pathKey.String("gave_up"), reasonKey.String(why))
		failed(s, e.Err)
		s.End()
	}
}

// Renewed counts the renewal: see [relock.Observer].
func (o *Observer) Renewed(ctx context.Context, e relock.RenewedEvent) {
	o.renewals.Add(ctx, 1, o.attributes(e.Lock, "", ""))
}

// RenewalFailed counts the failed renewal: see [relock.Observer].
func (o *Observer) RenewalFailed(ctx context.Context, e relock.RenewalFailedEvent) {
	o.renewalFailures.Add(ctx, 1, o.attributes(e.Lock, "", ""))
}

// Released records the hold if it has ended: see [relock.Observer].
func (o *Observer) Released(ctx context.Context, e relock.ReleasedEvent) {
	if e.HoldCount > 0 {
		return
	}
	end := "released"
	switch {
	case e.Err != nil:
		end = "unconfirmed"
	case e.Detached:
		end = "detached"
	}
	o.ended(ctx, e.Lock, e.Held, end)
	if s := o.span(ctx, "relock.hold", e.Lock, e.Held); s != nil {
		s.SetAttributes(endKey.String(end))
		failed(s, e.Err)
		s.End()
	}
}

// Expired records the hold: see [relock.Observer].
func (o *Observer) Expired(ctx context.Context, e relock.ExpiredEvent) {
	o.ended(ctx, e.Lock, e.Held, "expired")
}

// Lost records the hold and counts the loss: see [relock.Observer].
func (o *Observer) Lost(ctx context.Context, e relock.LostEvent) {
	o.losses.Add(ctx, 1, o.attributes(e.Lock, "", ""))
	o.ended(ctx, e.Lock, e.Held, "lost")
}

func (o *Observer) ended(ctx context.Context, l relock.LockInfo, held time.Duration, end string) {
	o.holders.Add(ctx, -1, o.attributes(l, "", ""))
	o.hold.Record(ctx, held.Seconds(), o.attributes(l, endKey, end))
}

// labels are the attributes of a time series, except for the name of the lock.
type labels struct {
	of    relock.LockType
	key   attribute.Key // "" if there is none
	value string
}

// attributes returns the attributes of l, and one more if there is a key. A gauge is about many locks, and has no name.
func (o *Observer) attributes(l relock.LockInfo, key attribute.Key, value string) metric.MeasurementOption {
	is := labels{l.Type, key, value}
	if !o.names {
		if known, ok := o.sets.Load(is); ok {
			return known.(metric.MeasurementOption)
		}
	}
	all := append(make([]attribute.KeyValue, 0, 4), typeKey.String(string(l.Type)))
	if key != "" {
		all = append(all, key.String(value))
	}
	if o.names && l.Name != "" {
		all = append(all, lockName(l))
	}
	if o.label != "" {
		all = append(all, labelKey.String(o.label))
	}
	set := metric.WithAttributeSet(attribute.NewSet(all...))
	if !o.names {
		o.sets.Store(is, set)
	}
	return set
}

// lockName returns the name of l in UTF-8. A name may consist of any bytes, and if one is not UTF-8, Prometheus rejects
// all metrics of the process.
func lockName(l relock.LockInfo) attribute.KeyValue {
	return nameKey.String(strings.ToValidUTF8(l.Name, "\uFFFD"))
}

// span returns a span that has lasted for took and ends now, or nil if ctx has no recorded span.
func (o *Observer) span(ctx context.Context, name string, l relock.LockInfo, took time.Duration) trace.Span {
	parent := trace.SpanFromContext(ctx)
	if !o.spans || !parent.IsRecording() {
		return nil
	}
	_, s := parent.TracerProvider().Tracer(scope).Start(ctx, name,
		trace.WithTimestamp(time.Now().Add(-took)),
		trace.WithAttributes(typeKey.String(string(l.Type)), lockName(l)))
	return s
}

func failed(s trace.Span, err error) {
	if err != nil {
		s.RecordError(err)
		s.SetStatus(codes.Error, err.Error())
	}
}

// reason returns why a caller gave up, as one of a few words.
func reason(err error) string {
	switch {
	case err == nil:
		return "time_up"
	case errors.Is(err, relock.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "ctx"
	case errors.Is(err, relock.ErrLockLost):
		return "lost"
	}
	return "error"
}
