package otel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/relock-go/relock"
	relockotel "github.com/relock-go/relock/otel"
)

// A bench is a Redis, a Client of it, and what its observer has recorded.
type bench struct {
	*testing.T
	mini   *miniredis.Miniredis
	client *relock.Client
	reader *metric.ManualReader
}

func newBench(t *testing.T, opts ...relockotel.Option) *bench {
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { rdb.Close() })
	reader := metric.NewManualReader()
	o := newObserver(t, append(opts, relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))...)
	client, err := relock.New(rdb, relock.WithObserver(o), relock.WithWatchdogTimeout(300*time.Millisecond), relock.WithMaxWakeDelay(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &bench{t, mini, client, reader}
}

func newObserver(t *testing.T, opts ...relockotel.Option) *relockotel.Observer {
	o, err := relockotel.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// recorded is what each time series has: its sum, or the number of its measurements.
func (b *bench) recorded() map[string]int64 {
	var all metricdata.ResourceMetrics
	b.must(b.reader.Collect(context.Background(), &all))
	recorded := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					recorded[series(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				if m.Unit != "s" {
					b.Errorf("%s is in %q", m.Name, m.Unit)
				}
				for _, p := range data.DataPoints {
					recorded[series(m.Name, p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return recorded
}

// series is name with the values of attributes, in the order of their keys.
func series(name string, attributes attribute.Set) string {
	for _, a := range attributes.ToSlice() {
		name += " " + a.Value.AsString()
	}
	return name
}

// await waits until that is recorded.
func (b *bench) await(want map[string]int64) {
	b.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		got := b.recorded()
		missing := ""
		for _, s := range slices.Sorted(maps.Keys(want)) {
			if got[s] != want[s] {
				missing += fmt.Sprintf("%s is %d, want %d\n", s, got[s], want[s])
			}
		}
		if missing == "" {
			return
		}
		if time.Since(start) > 5*time.Second {
			b.Fatalf("%sall: %v", missing, got)
		}
	}
}

func TestHoldsAndWaits(t *testing.T) {
	b := newBench(t)
	ctx, other := relock.WithOwner(context.Background()), relock.WithOwner(context.Background())
	l := b.client.NewLock("orders:42")
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- l.Lock(other) }()
	b.await(map[string]int64{
		"relock.holders lock": 1, "relock.waiters lock": 1,
		"relock.acquisitions lock immediate": 2, "relock.wait.duration lock immediate": 2,
	})
	if ok, err := l.TryLock(relock.WithOwner(ctx), 0, 0); ok || err != nil {
		t.Fatal(ok, err)
	}
	b.must(l.Unlock(ctx))
	b.must(l.Unlock(ctx))
	b.must(<-got)
	recorded := b.recorded()
	if n := recorded["relock.acquisitions lock handover"] + recorded["relock.acquisitions lock turn"]; n != 1 {
		t.Errorf("it came in otherwise: %v", recorded)
	}
	b.must(l.Unlock(other))
	b.await(map[string]int64{
		"relock.holders lock": 0, "relock.waiters lock": 0,
		"relock.give_ups lock time_up":       1,
		"relock.hold.duration released lock": 2,
	})
	for s := range b.recorded() {
		if strings.Contains(s, "orders") {
			t.Errorf("the name of the lock: %s", s)
		}
	}
}

func TestRenewalsAndLosses(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	rw := b.client.NewRWLock("prices")
	b.must(rw.Write().Lock(ctx))
	b.must(b.client.NewFairLock("queue").LockLease(ctx, 20*time.Millisecond))
	for b.recorded()["relock.renewals write"] == 0 {
		time.Sleep(time.Millisecond)
	}
	b.mini.Del("prices")
	b.await(map[string]int64{
		"relock.losses write": 1, "relock.hold.duration lost write": 1, "relock.holders write": 0,
		"relock.losses fair": 0, "relock.hold.duration lapsed fair": 1, "relock.holders fair": 0,
	})
	if err := rw.Write().Unlock(ctx); !errors.Is(err, relock.ErrLockLost) {
		t.Error(err)
	}

	b.must(rw.Write().Lock(ctx))
	b.mini.SetError("ERR the power is off")
	for b.recorded()["relock.renewal.failures write"] == 0 {
		time.Sleep(time.Millisecond)
	}
	_ = rw.Write().Unlock(ctx)
	b.await(map[string]int64{"relock.hold.duration unconfirmed write": 1, "relock.holders write": 0})
	b.mini.SetError("")
}

// Any bytes make a name; one that is no UTF-8 must not cost the metrics of all others.
func TestNamesThatAreNoText(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	o := newObserver(t, relockotel.WithLockNames(), relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))))
	for _, name := range []string{"orders:42", "a\xff\x00\n"} {
		o.Acquired(context.Background(), relock.AcquiredEvent{Lock: relock.LockInfo{Name: name, Type: relock.TypeLock}, Path: relock.PathImmediate, Level: 1})
	}
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"orders:42", "a\uFFFD"} {
		if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("status %d, no %q in %.300s", answer.Code, want, answer.Body)
		}
	}
}

// Prometheus sees no increase in a time series that begins at 1.
func TestTheFirstLossCanBeSeen(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	b.must(b.client.NewLock("orders:42").Lock(ctx))
	all := b.recorded()
	for _, s := range []string{"relock.losses lock", "relock.renewal.failures lock"} {
		if n, there := all[s]; !there || n != 0 {
			t.Errorf("%s: %d, there: %v", s, n, there)
		}
	}
}

func TestWithLockNames(t *testing.T) {
	b := newBench(t, relockotel.WithLockNames())
	ctx := context.Background()
	for _, name := range []string{"a", "b", "a"} {
		b.must(b.client.NewLock(name).Do(ctx, func(context.Context) error { return nil }))
	}
	b.await(map[string]int64{"relock.acquisitions a lock immediate": 2, "relock.acquisitions b lock immediate": 1})
}

// The reasons are few words, whatever the errors say.
func TestReasons(t *testing.T) {
	b := newBench(t)
	ctx := relock.WithOwner(context.Background())
	l := b.client.NewLock("x")
	b.must(l.Lock(ctx))
	cancelled, cancel := context.WithCancel(relock.WithOwner(context.Background()))
	got := make(chan error, 1)
	wait := func(ctx context.Context) {
		go func() { got <- l.Lock(ctx) }()
		b.await(map[string]int64{"relock.waiters lock": 1})
	}
	wait(cancelled)
	cancel()
	<-got
	wait(relock.WithOwner(ctx))
	b.must(b.client.Close())
	<-got
	b.await(map[string]int64{
		"relock.give_ups lock ctx": 1, "relock.give_ups lock closed": 1,
		"relock.wait.duration lock gave_up": 2, "relock.waiters lock": 0,
	})
}

func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("test")
	for _, quiet := range []bool{false, true} {
		var opts []relockotel.Option
		if quiet {
			opts = append(opts, relockotel.WithoutSpans())
		}
		b := newBench(t, opts...)
		l := b.client.NewLock("x")
		b.must(l.Do(context.Background(), func(context.Context) error { return nil })) // without a span

		ctx, parent := tracer.Start(relock.WithOwner(context.Background()), "job")
		b.must(l.Lock(ctx))
		if ok, err := l.TryLock(relock.WithOwner(ctx), 10*time.Millisecond, 0); ok || err != nil {
			t.Fatal(ok, err)
		}
		b.must(l.Unlock(ctx))
		parent.End()

		var seen []string
		for _, s := range spans.Ended() {
			if s.Name() != "job" && (s.Parent().SpanID() != parent.SpanContext().SpanID() || s.Status().Code == codes.Error) {
				t.Errorf("%s: parent %v, status %v", s.Name(), s.Parent(), s.Status())
			}
			seen = append(seen, s.Name())
			if took := s.EndTime().Sub(s.StartTime()); s.Name() == "relock.wait" && took < 10*time.Millisecond {
				t.Errorf("the wait took %v", took)
			}
		}
		want := []string{"relock.wait", "relock.hold", "job"}
		if quiet {
			want = want[2:]
		}
		if !slices.Equal(seen, want) {
			t.Errorf("spans %v, want %v", seen, want)
		}
		spans.Reset()
	}
}

// everything has an observer record all that it can.
func everything(o *relockotel.Observer) {
	ctx, l := context.Background(), relock.LockInfo{Name: "x", Type: relock.TypeLock, Owner: 1}
	o.Waiting(ctx, relock.WaitingEvent{Lock: l})
	o.Acquired(ctx, relock.AcquiredEvent{Lock: l, Path: relock.PathPolled, Waited: time.Second, Level: 1})
	o.GaveUp(ctx, relock.GaveUpEvent{Lock: l, Waiting: true, Waited: time.Second})
	o.Renewed(ctx, relock.RenewedEvent{Lock: l})
	o.RenewalFailed(ctx, relock.RenewalFailedEvent{Lock: l})
	o.Released(ctx, relock.ReleasedEvent{Lock: l, Held: time.Second})
	o.Lost(ctx, relock.LostEvent{Lock: l, Held: time.Second})
}

var identifier = regexp.MustCompile(`\brelock_\w+`)

// The dashboard asks for what the exporter emits, and shows all of it. The Prometheus
// that asks here would take names with dots too.
func TestDashboardUsesTheNamesThatAreEmitted(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry),
		promexporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		t.Fatal(err)
	}
	everything(newObserver(t, relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter)))))
	scrape := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	scrape.Header.Set("Accept", "text/plain;version=1.0.0;escaping=allow-utf-8")
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, scrape)

	emitted := make(map[string]bool) // series and labels
	families := make(map[string]bool)
	for line := range strings.Lines(answer.Body.String()) {
		if family, ok := strings.CutPrefix(line, "# TYPE relock_"); ok {
			family, _, _ = strings.Cut(family, " ")
			families["relock_"+family] = true
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, name := range identifier.FindAllString(line, -1) {
			emitted[name] = true
		}
	}
	if len(families) != 9 {
		t.Errorf("%d metrics: %v\n%s", len(families), families, answer.Body)
	}

	dashboard, err := os.ReadFile("grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var parsed any
	if err := json.Unmarshal(dashboard, &parsed); err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	expressions(parsed, func(e string) {
		for _, name := range identifier.FindAllString(e, -1) {
			used[name] = true
			if !emitted[name] {
				t.Errorf("%s is not emitted: %s", name, e)
			}
		}
	})
	for family := range families {
		if !used[family] && !used[family+"_bucket"] {
			t.Errorf("the dashboard does not show %s", family)
		}
	}
}

// expressions calls f for whatever Grafana would send to Prometheus, and for legends.
func expressions(v any, f func(string)) {
	switch v := v.(type) {
	case map[string]any:
		for key, v := range v {
			if s, ok := v.(string); ok && slices.Contains([]string{"expr", "query", "definition", "legendFormat"}, key) {
				f(s)
			}
			expressions(v, f)
		}
	case []any:
		for _, v := range v {
			expressions(v, f)
		}
	}
}

// The package comment names every metric.
func TestDocNamesAllMetrics(t *testing.T) {
	reader := metric.NewManualReader()
	everything(newObserver(t, relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))))
	source, err := os.ReadFile("otel.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, _, _ := strings.Cut(string(source), "\npackage ")
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if !strings.Contains(doc, "//\t"+m.Name+" ") {
			t.Errorf("the doc does not name %s", m.Name)
		}
	}
}
