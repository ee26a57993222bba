// Example shows the metrics of relock in Prometheus: a few workers share a lock, and then the program reads its own
// /metrics.
//
//	cd otel && go run ./example
//	cd otel && go run ./example -serve    # continue until it is interrupted, for your own Prometheus
//
// It needs only Go: it runs on an embedded miniredis.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/relock-go/relock"
	relockotel "github.com/relock-go/relock/otel"
)

// serveAt is the address of /metrics with -serve: the port that OpenTelemetry uses for Prometheus.
const serveAt = "127.0.0.1:9464"

func main() {
	serve := flag.Bool("serve", false, "continue, with /metrics at "+serveAt+", until an interrupt")
	flag.Parse()
	if err := run(*serve); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run(serve bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	// The names are those that grafana.json uses, whichever Prometheus asks.
	exporter, err := prometheus.New(prometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return err
	}
	meters := metric.NewMeterProvider(metric.WithReader(exporter))
	defer meters.Shutdown(context.WithoutCancel(ctx))
	observer, err := relockotel.New(relockotel.WithMeterProvider(meters))
	if err != nil {
		return err
	}
	address := "127.0.0.1:0"
	if serve {
		address = serveAt
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go server.Serve(listener)
	defer server.Close()

	mini, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer mini.Close()
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithObserver(observer))
	if err != nil {
		return err
	}
	defer client.Close()
	defer observer.Watch(client)()
	url, lock := "http://"+listener.Addr().String()+"/metrics", client.NewLock("lock:report")
	if !serve {
		if err := work(ctx, lock); err != nil {
			return err
		}
		return scrape(ctx, url)
	}
	fmt.Println(url)
	for ctx.Err() == nil {
		if err := work(ctx, lock); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// work makes eight workers take turns. While a worker holds the lock, another owner tries to acquire it without
// waiting.
func work(ctx context.Context, lock *relock.Lock) error {
	var workers sync.WaitGroup
	failed := make(chan error, 8)
	for range 8 {
		workers.Go(func() {
			for range 5 {
				err := lock.Do(ctx, func(context.Context) error {
					time.Sleep(time.Millisecond)
					_, err := lock.TryLock(relock.ContextWithOwner(ctx), 0, 0)
					return err
				})
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	workers.Wait()
	close(failed)
	return <-failed
}

// scrape prints the metrics of relock that Prometheus would read, except for the buckets of histograms.
func scrape(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	fmt.Println(url, "contains, among other things:")
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, "relock_") || strings.Contains(line, "_bucket") {
			continue
		}
		name, value, _ := strings.Cut(line, "} ")
		name, labels, _ := strings.Cut(name, "{")
		var own []string
		for l := range strings.SplitSeq(labels, ",") {
			if strings.HasPrefix(l, "relock_") {
				own = append(own, l)
			}
		}
		fmt.Printf("  %s{%s} %s\n", name, strings.Join(own, ","), value)
	}
	return nil
}
