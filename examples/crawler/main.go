// Crawler shows a limit that several services share: three crawlers, each with ten workers and connections of its own,
// fetch the pages of two hosts, and no host serves more than five requests at a time.
//
//	go run ./examples/crawler
//
// There is a semaphore for each host. A worker acquires a permit of the host, fetches a page, and releases the permit.
// With a limit inside each service, each would have a fixed share of the five, and a service with nothing to fetch
// would not use its share.
//
// One of the services stops half way and keeps its permits, as a crash would. They expire, and the others continue with
// all five.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis. The hosts
// are HTTP servers of this program.
//
// Rules: the hosts count their requests. The exit status is 1 if a host served more than its limit at once, if it never
// reached the limit, or if a page was not fetched. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
	"github.com/relock-go/relock/internal/waitgroup"
)

const (
	limit    = 5 // requests to one host at a time
	hosts    = 2
	pages    = 100 // of each host
	services = 3
	workers  = 10 // of each service
	work     = 20 * time.Millisecond
	lease    = 500 * time.Millisecond // how long the permits of a crashed service are missing
	crashAt  = pages / 2              // number of pages of the first host after which a service crashes
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "crawler:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options, stop, err := demo.Start()
	if err != nil {
		return err
	}
	defer stop()

	var web []*host
	for range hosts {
		h := newHost()
		defer h.server.Close()
		web = append(web, h)
	}
	fmt.Printf("%d services with %d workers each fetch %d pages of each of %d hosts, at most %d at a time\n",
		services, workers, pages, hosts, limit)
	start := time.Now()
	var all sync.WaitGroup
	failed := make(chan error, services)
	for i := range services {
		waitgroup.Go(&all, func() { failed <- service(ctx, i, options, web) })
	}
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	for i, h := range web {
		fmt.Printf("host %d: %d requests, at most %d at a time\n", i+1, h.served.Load(), h.most.Load())
		err = errors.Join(err, h.check(i+1))
	}
	fmt.Printf("done in %v\n", time.Since(start).Round(10*time.Millisecond))
	return errors.Join(err, tidy(options, web))
}

// service is one crawler. The first one crashes half way.
func service(ctx context.Context, number int, options *redis.Options, web []*host) error {
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithWatchdogTimeout(lease))
	if err != nil {
		return err
	}
	defer client.Close()

	var all sync.WaitGroup
	failed := make(chan error, workers)
	for w := range workers {
		h := web[w%hosts]
		permits := client.NewSemaphore(h.name, limit)
		waitgroup.Go(&all, func() { failed <- crawl(ctx, permits, h, number == 0) })
	}
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	return err
}

// crawl fetches the pages of h that are left, each with a permit. A crawl that crashes ends half way, and keeps its
// permit.
func crawl(ctx context.Context, permits *relock.Semaphore, h *host, crashes bool) error {
	for !h.finished() {
		if err := permits.Lock(ctx); err != nil {
			return err
		}
		guarded, err := permits.Guard(ctx) // cancels a request when its permit is lost
		if err != nil {
			return errors.Join(err, permits.Unlock(ctx))
		}
		page, found := h.next()
		if crashes && h.fetched.Load() >= crashAt {
			if found {
				h.again(page) // as a queue does whose job was not acknowledged
			}
			return nil // client.Close ends the renewal, and the permit expires
		}
		if found {
			err = fetch(guarded, h, page)
		}
		if err := errors.Join(err, permits.Unlock(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// fetch gets one page.
func fetch(ctx context.Context, h *host, page int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/%d", h.server.URL, page), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	h.fetched.Add(1)
	return err
}

// A host is a server, the name of its semaphore, and the pages that are left.
type host struct {
	server *httptest.Server
	name   string
	pages  chan int

	now, most, served atomic.Int64 // requests
	fetched           atomic.Int64 // pages
}

func newHost() *host {
	h := &host{name: "relock:crawler:" + rand.Text(), pages: make(chan int, pages)}
	for i := range pages {
		h.pages <- i
	}
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := h.now.Add(1)
		defer h.now.Add(-1)
		for most := h.most.Load(); now > most && !h.most.CompareAndSwap(most, now); most = h.most.Load() {
		}
		h.served.Add(1)
		time.Sleep(work)
		fmt.Fprintln(w, "a page")
	}))
	return h
}

// next takes a page that has not been fetched.
func (h *host) next() (page int, found bool) {
	select {
	case page = <-h.pages:
		return page, true
	default:
		return 0, false
	}
}

func (h *host) again(page int) { h.pages <- page }

func (h *host) finished() bool { return h.fetched.Load() == pages }

func (h *host) check(number int) error {
	switch {
	case h.most.Load() > limit:
		return fmt.Errorf("host %d served %d requests at a time", number, h.most.Load())
	case h.most.Load() < limit:
		return fmt.Errorf("host %d never served %d requests at a time", number, limit)
	case !h.finished():
		return fmt.Errorf("host %d: %d pages were fetched", number, h.fetched.Load())
	}
	return nil
}

// tidy waits until all permits are free, and deletes the semaphores, which Redis would keep.
func tidy(options *redis.Options, web []*host) error {
	ctx := context.Background()
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, h := range web {
		permits := client.NewSemaphore(h.name, limit)
		for end := time.Now().Add(10 * lease); ; time.Sleep(lease / 10) {
			free, err := permits.Available(ctx)
			if err != nil {
				return err
			}
			if free == limit {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("%d of %d permits came back", free, limit)
			}
		}
		if err := rdb.Del(ctx, h.name, "{"+h.name+"}:timeout").Err(); err != nil {
			return err
		}
	}
	return nil
}
