package otel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// A bench is a Redis, a Client of it, and the metrics that its observer has recorded.
type bench struct {
	*testing.T
	mini   *miniredis.Miniredis
	client *relock.Client
	reader *metric.ManualReader

	observer *relockotel.Observer
}

func newBench(t *testing.T, opts ...relockotel.Option) *bench {
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { rdb.Close() })
	reader := metric.NewManualReader()
	o := newObserver(t, append(opts, relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))...)
	client, err := relock.New(
		rdb,
		relock.WithObserver(o),
		relock.WithWatchdogTimeout(300*time.Millisecond),
		relock.WithPollInterval(time.Hour),
	)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return &bench{t, mini, client, reader, o}
}

func newObserver(t *testing.T, opts ...relockotel.Option) *relockotel.Observer {
	o, err := relockotel.New(opts...)
	require.NoError(t, err)
	return o
}

func (b *bench) must(err error) {
	b.Helper()
	require.NoError(b, err)
}

// recorded returns the value of each time series: its sum, the number of its measurements, or the seconds of a gauge,
// rounded up.
func (b *bench) recorded(t require.TestingT) map[string]int64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(context.Background(), &all))
	recorded := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					recorded[series(m.Name, p.Attributes)] = p.Value
				}
			case metricdata.Gauge[float64]:
				assert.Equal(t, "s", m.Unit, "unit of %s", m.Name)
				for _, p := range data.DataPoints {
					recorded[series(m.Name, p.Attributes)] = int64(math.Ceil(p.Value))
				}
			case metricdata.Histogram[float64]:
				assert.Equal(t, "s", m.Unit, "unit of %s", m.Name)
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

// await waits until the time series have these values.
func (b *bench) await(want map[string]int64) {
	b.Helper()
	require.EventuallyWithT(b, func(c *assert.CollectT) {
		got := b.recorded(c)
		for _, s := range slices.Sorted(maps.Keys(want)) {
			assert.Equal(c, want[s], got[s], "%s; all: %v", s, got)
		}
	}, 5*time.Second, time.Millisecond)
}

// awaitAny waits until the time series is above 0.
func (b *bench) awaitAny(series string) {
	b.Helper()
	require.EventuallyWithT(
		b,
		func(c *assert.CollectT) { assert.Positive(c, b.recorded(c)[series]) },
		5*time.Second,
		time.Millisecond,
	)
}

func TestHoldsAndWaitsAreCounted(t *testing.T) {
	b := newBench(t)
	ctx, other := relock.ContextWithOwner(context.Background()), relock.ContextWithOwner(context.Background())
	l := b.client.NewLock("orders:42")
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- l.Lock(other) }()
	b.await(map[string]int64{
		"relock.holders lock": 1, "relock.waiters lock": 1,
		"relock.acquisitions lock immediate": 2, "relock.wait.duration lock immediate": 2,
	})
	ok, err := l.TryLock(relock.ContextWithOwner(ctx), 0, 0)
	require.NoError(t, err)
	require.False(t, ok)
	b.must(l.Unlock(ctx))
	b.must(l.Unlock(ctx))
	b.must(<-got)
	recorded := b.recorded(t)
	assert.Equal(
		t,
		int64(1),
		recorded["relock.acquisitions lock handoff"]+recorded["relock.acquisitions lock queue"],
		"%v",
		recorded,
	)
	b.must(l.Unlock(other))
	b.await(map[string]int64{
		"relock.holders lock": 0, "relock.waiters lock": 0,
		"relock.give_ups lock time_up":       1,
		"relock.hold.duration released lock": 2,
	})
	for s := range b.recorded(t) {
		assert.NotContains(t, s, "orders", "the name of the lock")
	}
}

func TestRenewalsAndLossesAreCounted(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	rw := b.client.NewRWLock("prices")
	b.must(rw.Write().Lock(ctx))
	b.must(b.client.NewFairLock("queue").LockLease(ctx, 20*time.Millisecond))
	b.awaitAny("relock.renewals write")
	b.mini.Del("prices")
	b.await(map[string]int64{
		"relock.losses write": 1, "relock.hold.duration lost write": 1, "relock.holders write": 0,
		"relock.losses fair": 0, "relock.hold.duration expired fair": 1, "relock.holders fair": 0,
	})
	assert.ErrorIs(t, rw.Write().Unlock(ctx), relock.ErrLockLost)

	hold, err := rw.Write().Acquire(ctx)
	b.must(err)
	ticket, err := hold.Detach(ctx, time.Minute)
	b.must(err)
	b.await(map[string]int64{"relock.hold.duration detached write": 1, "relock.holders write": 0})
	hold, err = b.client.Attach(ctx, ticket)
	b.must(err)
	b.await(map[string]int64{"relock.acquisitions write attached": 1, "relock.holders write": 1, "relock.waiters write": 0})
	b.must(hold.Release(ctx))

	b.must(rw.Write().Lock(ctx))
	b.mini.SetError("ERR the power is off")
	b.awaitAny("relock.renewal.failures write")
	_ = rw.Write().Unlock(ctx)
	b.await(map[string]int64{"relock.hold.duration unconfirmed write": 1, "relock.holders write": 0})
	b.mini.SetError("")
}

// A name may consist of any bytes, and one that is not UTF-8 must not make Prometheus reject all metrics.
func TestNamesThatAreNoTextKeepTheMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
	require.NoError(t, err)
	o := newObserver(
		t,
		relockotel.WithLockNames(),
		relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))),
	)
	for _, name := range []string{"orders:42", "a\xff\x00\n"} {
		o.Acquired(
			context.Background(),
			relock.AcquiredEvent{
				Lock:      relock.LockInfo{Name: name, Type: relock.TypeLock},
				Path:      relock.PathImmediate,
				HoldCount: 1,
			},
		)
	}
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(
		registry,
		promhttp.HandlerOpts{},
	).ServeHTTP(
		answer,
		httptest.NewRequest(http.MethodGet, "/metrics", nil),
	)
	for _, want := range []string{"orders:42", "a\uFFFD"} {
		assert.Equal(t, http.StatusOK, answer.Code)
		assert.Contains(t, answer.Body.String(), want)
	}
}

// Prometheus sees no increase in a time series that begins at 1.
func TestTheFirstLossCanBeSeen(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	b.must(b.client.NewLock("orders:42").Lock(ctx))
	all := b.recorded(t)
	for _, s := range []string{"relock.losses lock", "relock.renewal.failures lock"} {
		n, there := all[s]
		assert.True(t, there, s)
		assert.Zero(t, n, s)
	}
}

func TestWithLockNamesAddsTheName(t *testing.T) {
	b := newBench(t, relockotel.WithLockNames())
	ctx := context.Background()
	for _, name := range []string{"a", "b", "a"} {
		b.must(b.client.NewLock(name).Do(ctx, func(context.Context) error { return nil }))
	}
	b.await(map[string]int64{"relock.acquisitions a lock immediate": 2, "relock.acquisitions b lock immediate": 1})
}

// The reasons are a few words, whatever the texts of the errors are.
func TestGiveUpsHaveAReason(t *testing.T) {
	b := newBench(t)
	ctx := relock.ContextWithOwner(context.Background())
	l := b.client.NewLock("x")
	b.must(l.Lock(ctx))
	cancelled, cancel := context.WithCancel(relock.ContextWithOwner(context.Background()))
	got := make(chan error, 1)
	wait := func(ctx context.Context) {
		go func() { got <- l.Lock(ctx) }()
		b.await(map[string]int64{"relock.waiters lock": 1})
	}
	wait(cancelled)
	cancel()
	<-got
	wait(relock.ContextWithOwner(ctx))
	b.must(b.client.Close())
	<-got
	b.await(map[string]int64{
		"relock.give_ups lock ctx": 1, "relock.give_ups lock closed": 1,
		"relock.wait.duration lock gave_up": 2, "relock.waiters lock": 0,
	})
}

func TestSpansAreChildrenOfTheCallersSpan(t *testing.T) {
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

		ctx, parent := tracer.Start(relock.ContextWithOwner(context.Background()), "job")
		b.must(l.Lock(ctx))
		ok, err := l.TryLock(relock.ContextWithOwner(ctx), 10*time.Millisecond, 0)
		require.NoError(t, err)
		require.False(t, ok)
		b.must(l.Unlock(ctx))
		parent.End()

		var seen []string
		for _, s := range spans.Ended() {
			seen = append(seen, s.Name())
			if s.Name() != "job" {
				assert.Equal(t, parent.SpanContext().SpanID(), s.Parent().SpanID(), "parent of %s", s.Name())
				assert.NotEqual(t, codes.Error, s.Status().Code, "status of %s", s.Name())
			}
			if s.Name() == "relock.wait" {
				assert.GreaterOrEqual(t, s.EndTime().Sub(s.StartTime()), 10*time.Millisecond, "time of the wait")
			}
		}
		want := []string{"relock.wait", "relock.hold", "job"}
		if quiet {
			want = want[2:]
		}
		assert.Equal(t, want, seen, "spans")
		spans.Reset()
	}
}

// The gauges show what has not ended yet, of all Clients that are watched, and go back to 0.
func TestGaugesShowTheOldestHoldAndTheLongestWait(t *testing.T) {
	b := newBench(t, relockotel.WithLockNames(), relockotel.WithLabel("orders-1"))
	const oldest, longest = "relock.hold.oldest orders-1 lock", "relock.wait.longest orders-1 lock"
	ctx, other := relock.ContextWithOwner(context.Background()), relock.ContextWithOwner(context.Background())
	l := b.client.NewLock("orders:42")
	b.must(l.Lock(ctx))
	assert.NotContains(t, b.recorded(t), oldest, "nobody watches")
	stop := b.observer.Watch(b.client)
	got := make(chan error, 1)
	go func() { got <- l.Lock(other) }()
	b.await(map[string]int64{oldest: 1, longest: 1})
	time.Sleep(1100 * time.Millisecond)
	b.must(b.client.NewLock("younger").Lock(ctx))
	all := b.recorded(t)
	assert.GreaterOrEqual(t, all[oldest], int64(2))
	assert.GreaterOrEqual(t, all[longest], int64(2))
	b.must(l.Unlock(ctx))
	b.must(<-got)
	b.must(l.Unlock(other))
	b.must(b.client.NewLock("younger").Unlock(ctx))
	all = b.recorded(t)
	for _, gauge := range []string{oldest, longest} {
		value, there := all[gauge]
		assert.True(t, there && value == 0, "%s is %d", gauge, value)
	}
	b.must(l.Lock(ctx))
	stop()
	assert.Zero(t, b.recorded(t)[oldest], "after stop")
	b.must(l.Unlock(ctx))
}

// A scrape looks at the locks of each Client once, beside calls that acquire and release them.
func TestScrapesWhileLocksAreUsed(t *testing.T) {
	b := newBench(t)
	defer b.observer.Watch(b.client)()
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			for range 50 {
				_ = b.client.NewLock(fmt.Sprint("x", i%2)).Do(context.Background(), func(context.Context) error { return nil })
			}
		})
	}
	for range 50 {
		b.recorded(t)
	}
	users.Wait()
	b.await(map[string]int64{"relock.hold.oldest lock": 0, "relock.wait.longest lock": 0})
}

// everything makes an observer record every metric.
func everything(t *testing.T, o *relockotel.Observer) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { rdb.Close() })
	client, err := relock.New(rdb, relock.WithObserver(o))
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	t.Cleanup(o.Watch(client))
	require.NoError(t, client.NewLock("held").Lock(relock.ContextWithOwner(context.Background())))
	go func() { _ = client.NewLock("held").Lock(context.Background()) }()
	require.Eventually(t, func() bool { return len(client.Slowest().Wait) > 0 }, 5*time.Second, time.Millisecond)
	ctx, l := context.Background(), relock.LockInfo{Name: "x", Type: relock.TypeLock, Owner: 1}
	o.Waiting(ctx, relock.WaitingEvent{Lock: l})
	o.Acquired(ctx, relock.AcquiredEvent{Lock: l, Path: relock.PathPolled, Waited: time.Second, HoldCount: 1})
	o.GaveUp(ctx, relock.GaveUpEvent{Lock: l, Contended: true, Waited: time.Second})
	o.Renewed(ctx, relock.RenewedEvent{Lock: l})
	o.RenewalFailed(ctx, relock.RenewalFailedEvent{Lock: l})
	o.Released(ctx, relock.ReleasedEvent{Lock: l, Held: time.Second})
	o.Lost(ctx, relock.LostEvent{Lock: l, Held: time.Second})
}

var identifier = regexp.MustCompile(`\brelock_\w+`)

// emittedNames returns the metrics that the exporter emits, with their series and labels. The request accepts names
// with dots, too.
func emittedNames(t *testing.T) (families, names map[string]bool) {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry),
		promexporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	require.NoError(t, err)
	everything(t, newObserver(t, relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter)))))
	scrape := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	scrape.Header.Set("Accept", "text/plain;version=1.0.0;escaping=allow-utf-8")
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, scrape)

	names, families = make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(answer.Body.String()) {
		if family, ok := strings.CutPrefix(line, "# TYPE relock_"); ok {
			family, _, _ = strings.Cut(family, " ")
			families["relock_"+family] = true
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, name := range identifier.FindAllString(line, -1) {
			names[name] = true
		}
	}
	assert.Len(t, families, 11, "%s", answer.Body)
	return families, names
}

// The dashboard queries only metrics that the exporter emits, and shows all of them.
func TestDashboardUsesTheNamesThatAreEmitted(t *testing.T) {
	families, emitted := emittedNames(t)

	dashboard, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var parsed any
	require.NoError(t, json.Unmarshal(dashboard, &parsed))
	used := make(map[string]bool)
	expressions(parsed, func(e string) {
		for _, name := range identifier.FindAllString(e, -1) {
			used[name] = true
			assert.True(t, emitted[name], "%s is not emitted: %s", name, e)
		}
	})
	for family := range families {
		assert.True(t, used[family] || used[family+"_bucket"], "the dashboard does not show %s", family)
	}
}

// A panel distinguishes "no data" from 0, and can be limited to one service or one instance.
func TestDashboardTellsNoDataFromZero(t *testing.T) {
	text, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	assert.NotContains(t, string(text), "vector(0)")
	var dashboard struct {
		Panels []struct {
			Title, Type string
			FieldConfig struct{ Defaults struct{ NoValue string } }
			Targets     []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	for _, p := range dashboard.Panels {
		if p.Type == "stat" {
			assert.Equal(t, "no data", p.FieldConfig.Defaults.NoValue, p.Title)
		}
		for _, target := range p.Targets {
			assert.Equal(t, strings.Count(target.Expr, "relock_lock_type=~"),
				strings.Count(target.Expr, `{job=~"$service",instance=~"$instance",`), "%s: %s", p.Title, target.Expr)
		}
	}
}

// The alert rules use names that are emitted, and promtool, if it is installed, runs their tests.
func TestAlertRules(t *testing.T) {
	_, emitted := emittedNames(t)
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml"} {
		rules, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range identifier.FindAllString(string(rules), -1) {
			assert.True(t, emitted[name], "%s: %s is not emitted", file, name)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("no promtool on the PATH")
	}
	require.NoError(t, err, "the rules are not tried")
	said, err := exec.Command(promtool, "test", "rules", "alerts_test.yaml").CombinedOutput()
	assert.NoError(t, err, string(said))
}

// expressions calls f for each query that Grafana would send to Prometheus, and for each legend.
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
	everything(t, newObserver(t, relockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))))
	source, err := os.ReadFile("otel.go")
	require.NoError(t, err)
	doc, _, _ := strings.Cut(string(source), "\npackage ")
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &all))
	for _, m := range all.ScopeMetrics[0].Metrics {
		assert.Contains(t, doc, "//\t"+m.Name+" ", "the doc does not name %s", m.Name)
	}
}
