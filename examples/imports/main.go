// Imports is an HTTP service whose handler acquires a lock, and leaves the work to a worker in another process:
//
//	POST /customers/{id}/import   starts to import the data of a customer, unless that is under way: 202 or 409
//
// The handler and the workers are connected by a queue, a list in Redis. The handler detaches the hold, which no process
// then has, and puts its ticket into the queue. A worker attaches the hold, works, and releases the lock. So from the
// request to the end of the work no other import of this customer can start, whichever process is working on it, or
// none. If no worker takes the job within ten minutes, the lock expires.
//
// The queue delivers some jobs twice, as real ones do. A ticket works once, so the second worker gets ErrNotHeld and
// drops the job. After any other error it would put the job back.
//
//	go run ./examples/imports
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless each import that was accepted was done once, and no two imports of a customer
// overlapped. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	customers = 4
	requests  = 10 // for each customer
	workers   = 2
	work      = 50 * time.Millisecond
	keep      = 10 * time.Minute // how long a job may wait in the queue
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "imports:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rdb, stop, err := demo.Connect(ctx)
	if err != nil {
		return err
	}
	defer stop()

	prefix := "relock:imports:" + rand.Text() + ":"
	q := &queue{rdb: rdb, key: prefix + "queue"}
	data := &imported{under: make(map[string]bool), done: make(map[string]int)}
	web, err := newWeb(rdb, prefix, q)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make(chan error, workers)
	for range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			errs <- runWorker(ctx, rdb, q, data)
		}()
	}

	accepted := make(map[string]int)
	for range requests {
		for id := range customers {
			name := fmt.Sprintf("lock:%d", id)
			if post(ctx, fmt.Sprintf("%s/customers/%d/import", web.server.URL, id)) == http.StatusAccepted {
				accepted[prefix+name]++
			}
		}
		time.Sleep(work / 4)
	}
	err = web.close(ctx)
	q.closed.Store(true) // the workers end when the queue is empty
	all.Wait()
	for range workers {
		err = errors.Join(err, <-errs)
	}
	return errors.Join(err, data.check(accepted))
}

// A queue passes texts from the web servers to the workers.
type queue struct {
	rdb    *redis.Client
	key    string
	sent   atomic.Int64
	closed atomic.Bool
}

// put puts a job into the queue, every third one twice.
func (q *queue) put(ctx context.Context, job string) error {
	jobs := []any{job}
	if q.sent.Add(1)%3 == 0 {
		jobs = append(jobs, job)
	}
	return q.rdb.LPush(ctx, q.key, jobs...).Err()
}

// take takes a job out of the queue. ok is false after the last one.
func (q *queue) take(ctx context.Context) (job string, ok bool, err error) {
	for {
		closed := q.closed.Load()
		job, err := q.rdb.RPop(ctx, q.key).Result()
		switch {
		case err == nil:
			return job, true, nil
		case !errors.Is(err, redis.Nil) || closed:
			return "", false, ignoreNil(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// A web is a web server, with a Client of its own.
type web struct {
	client *relock.Client
	prefix string
	queue  *queue
	server *httptest.Server
}

func newWeb(rdb *redis.Client, prefix string, q *queue) (*web, error) {
	client, err := relock.New(rdb)
	if err != nil {
		return nil, err
	}
	w := &web{client: client, prefix: prefix, queue: q}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /customers/{id}/import", w.start)
	w.server = httptest.NewServer(mux)
	return w, nil
}

func (s *web) close(ctx context.Context) error {
	s.server.Close()
	return s.client.Shutdown(ctx)
}

// start acquires the lock of the customer, and passes it to a worker.
func (s *web) start(w http.ResponseWriter, r *http.Request) {
	hold, ok, err := s.client.NewLock(s.prefix+"lock:"+r.PathValue("id")).TryAcquire(r.Context(), 0, 0)
	if err != nil {
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	if !ok {
		http.Error(w, "an import is under way", http.StatusConflict)
		return
	}
	if err := s.pass(r.Context(), hold); err != nil {
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// pass puts the ticket of the hold into the queue. If that fails, the lock is released.
func (s *web) pass(ctx context.Context, hold *relock.Hold) error {
	ticket, err := hold.Detach(ctx, keep)
	if err != nil {
		return errors.Join(err, hold.Release(ctx)) // it may have ended, or go on
	}
	if err := s.queue.put(ctx, ticket); err != nil {
		if back, attached := s.client.Attach(ctx, ticket); attached == nil {
			return errors.Join(err, back.Release(ctx))
		}
		return err
	}
	return nil
}

// runWorker does the jobs of the queue, with a Client of its own, as another process would.
func runWorker(ctx context.Context, rdb *redis.Client, q *queue, data *imported) (err error) {
	client, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Shutdown(ctx)) }()
	for {
		ticket, ok, err := q.take(ctx)
		if err != nil || !ok {
			return err
		}
		hold, err := client.Attach(ctx, ticket)
		if errors.Is(err, relock.ErrNotHeld) {
			data.dropped.Add(1) // another worker has, or had, this job
			continue
		}
		if err != nil {
			return err // a real worker puts the job back: the ticket still works
		}
		err = data.load(hold.Context(), hold.Name())
		if err := errors.Join(err, hold.Release(ctx)); err != nil {
			return err
		}
	}
}

// imported stands for the data of the customers.
type imported struct {
	mu      sync.Mutex // guards the fields below
	under   map[string]bool
	done    map[string]int
	overlap bool

	dropped atomic.Int64
}

// load imports the data of a customer.
func (i *imported) load(ctx context.Context, customer string) error {
	i.mu.Lock()
	i.overlap = i.overlap || i.under[customer]
	i.under[customer] = true
	i.mu.Unlock()
	select {
	case <-time.After(work):
	case <-ctx.Done(): // the lock is lost
		return context.Cause(ctx)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.under[customer] = false
	i.done[customer]++
	return nil
}

func (i *imported) check(accepted map[string]int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	total := 0
	for customer, n := range accepted {
		if i.done[customer] != n {
			return fmt.Errorf("%d imports of %s were accepted, and %d done", n, customer, i.done[customer])
		}
		total += n
	}
	if i.overlap {
		return errors.New("two imports of a customer overlapped")
	}
	fmt.Printf("%d requests: %d imports accepted, each done once by one of %d workers; %d jobs were delivered twice\n",
		requests*customers, total, workers, i.dropped.Load())
	return nil
}

// post returns the status of the answer, or 0 if there is none.
func post(ctx context.Context, url string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}
