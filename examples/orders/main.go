// Orders is an HTTP service in two replicas, with a lock for each order:
//
//	POST /orders/{id}/charge   charges the order, unless that has been done
//	POST /orders/{id}/ship     starts to ship it, and answers at once
//
// A client that is impatient sends its request twice, and the load balancer may send it to both replicas. The lock
// makes the second request wait for the first, and then it finds the order charged. The charge runs in the handler.
// Shipping takes longer than a client should wait: the handler hands the lock to a worker, which releases it.
//
// A request that has waited in vain is answered with 409 if another request has the order, and with 503 if Redis cannot
// be asked, or the charge takes too long: a client sends it again in both cases, but only the second one is an alarm.
//
// A process may be killed between any two lines. If that happens between a charge and the record of it, the next
// request charges again: so a payment provider is given a key that makes the second charge the same as the first, such
// as the number of the order. An order that was handed to a worker is in the memory of its process: so it is recorded
// before the request is answered, and the other replica looks for orders that were recorded and not shipped. Here one
// replica is killed before it has shipped anything.
//
//	go run ./examples/orders
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless each order is charged once and shipped once. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	orders   = 5
	repeats  = 8               // how often the clients send each request
	patience = 5 * time.Second // how long a request may wait for the lock, and as long again for the work
	lease    = 2 * time.Second // how long the locks of a replica stay that was killed
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
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

	db := newDatabase()
	prefix := "relock:orders:" + rand.Text() + ":"
	var replicas []*service
	for range 2 {
		s, err := newService(options, prefix, db)
		if err != nil {
			return err
		}
		replicas = append(replicas, s)
	}
	killed, other := replicas[0], replicas[1]
	other.work()
	fmt.Printf("%d orders; each request is sent %d times, to two replicas\n", orders, repeats)
	for _, what := range []string{"charge", "ship"} {
		statuses := sendAll(ctx, replicas, what)
		fmt.Printf("%-6s  %v\n", what, statuses)
	}
	fmt.Printf("one replica is killed, with %d orders that it has not shipped\n", len(killed.jobs))
	killed.kill()
	return errors.Join(other.resume(ctx), other.close(), db.check())
}

// A service is one replica, with a Client of its own.
type service struct {
	db     *database
	rdb    *redis.Client
	client *relock.Client
	prefix string        // of the names of its locks
	wait   time.Duration // how long a request waits for the lock
	limit  time.Duration // how long a charge takes
	server *httptest.Server
	jobs   chan job
	worker sync.WaitGroup
}

// A job is an order to ship, with the lock for it.
type job struct {
	order string
	hold  *relock.Hold
}

func newService(options *redis.Options, prefix string, db *database) (*service, error) {
	rdb := redis.NewClient(options)
	client, err := relock.New(rdb, relock.WithWatchdogTimeout(lease),
		relock.WithLogger(slog.New(slog.DiscardHandler))) // it would log the locks of the replica that is killed
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	s := &service{db: db, rdb: rdb, client: client, prefix: prefix, jobs: make(chan job, orders*repeats),
		wait: patience, limit: patience}
	s.server = httptest.NewServer(s.handler())
	return s, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/charge", s.charge)
	mux.HandleFunc("POST /orders/{id}/ship", s.ship)
	return mux
}

// work starts the worker.
func (s *service) work() {
	s.worker.Add(1)
	go func() {
		defer s.worker.Done()
		for j := range s.jobs {
			s.deliver(j)
		}
	}()
}

// kill ends the service as if its process were killed: it neither ships its orders nor releases their locks.
func (s *service) kill() {
	_ = s.rdb.Close()
	s.server.Close()
	_ = s.client.Close()
}

// resume ships the orders that were accepted and not shipped, perhaps by a replica that was killed. A service does that
// when it starts, and from time to time.
func (s *service) resume(ctx context.Context) error {
	for _, order := range s.db.unshipped() {
		hold, err := s.lock(order).Acquire(ctx) // a replica may be shipping it
		if err != nil {
			return err
		}
		s.jobs <- job{order, hold}
	}
	return nil
}

// close stops the service in the order that a service needs on SIGTERM: no more requests, no more jobs, no more locks.
func (s *service) close() error {
	s.server.Close()
	close(s.jobs)
	s.worker.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(s.client.Shutdown(ctx), s.rdb.Close())
}

func (s *service) lock(order string) *relock.Lock { return s.client.NewLock(s.prefix + order) }

// charge holds the lock while it charges the order. A charge that has begun goes on if the client leaves, and the answer
// is that of the charge, whatever became of the lock.
func (s *service) charge(w http.ResponseWriter, r *http.Request) {
	hold := s.acquire(w, r, s.wait)
	if hold == nil {
		return
	}
	defer hold.Release(r.Context())
	ctx, cancel := context.WithTimeout(hold.Context(), s.limit)
	defer cancel()
	if err := s.db.charge(ctx, r.PathValue("id")); err != nil { // it takes too long, the lock was lost, or this process stops
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}

// ship hands the lock to the worker, which releases it.
func (s *service) ship(w http.ResponseWriter, r *http.Request) {
	hold := s.acquire(w, r, 0)
	if hold == nil {
		return
	}
	order := r.PathValue("id")
	s.db.accept(order) // before the answer: what is in the memory of this process may be lost
	s.jobs <- job{order, hold}
	w.WriteHeader(http.StatusAccepted)
}

// clientLeft is the status of a request whose client has left: only the log of requests has it.
const clientLeft = 499

// acquire acquires the lock of the order. If it cannot, it answers the request, and returns nil.
func (s *service) acquire(w http.ResponseWriter, r *http.Request, wait time.Duration) *relock.Hold {
	hold, ok, err := s.lock(r.PathValue("id")).TryAcquire(r.Context(), wait, 0)
	switch {
	case ok:
		return hold
	case errors.Is(r.Context().Err(), context.Canceled):
		w.WriteHeader(clientLeft)
	case err == nil, errors.Is(err, relock.ErrBusy): // the second if the request has a deadline
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another request has the order", http.StatusConflict)
	default: // Redis cannot be asked, or this process stops
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
	return nil
}

// deliver does the job. The context of the hold is canceled if the lock is lost, and not when the request has ended.
func (s *service) deliver(j job) {
	err := s.db.ship(j.hold.Context(), j.order)
	if err := errors.Join(err, j.hold.Release(context.Background())); err != nil {
		fmt.Fprintln(os.Stderr, "order", j.order, err)
	}
}

// sendAll sends the request for every order several times at once, and returns how many answers had which status.
func sendAll(ctx context.Context, replicas []*service, what string) map[int]int {
	var mu sync.Mutex // guards statuses
	statuses := make(map[int]int)
	var all sync.WaitGroup
	for i := range orders * repeats {
		all.Add(1)
		go func() {
			defer all.Done()
			url := fmt.Sprintf("%s/orders/%d/%s", replicas[i%len(replicas)].server.URL, i/repeats, what)
			status := post(ctx, url)
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		}()
	}
	all.Wait()
	return statuses
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

// A database stands for one that both replicas use. It does not notice that a row has changed between reading and
// writing it.
type database struct {
	takes time.Duration // for a charge or a shipment

	mu                 sync.Mutex // guards below
	charges, shipments map[string]int
	accepted           map[string]bool // to be shipped
}

func newDatabase() *database {
	return &database{
		takes:   20 * time.Millisecond,
		charges: make(map[string]int), shipments: make(map[string]int), accepted: make(map[string]bool),
	}
}

func (db *database) accept(order string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.accepted[order] = true
}

// unshipped returns the orders that were accepted and not shipped.
func (db *database) unshipped() (all []string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for order := range db.accepted {
		if db.shipments[order] == 0 {
			all = append(all, order)
		}
	}
	return all
}

func (db *database) charge(ctx context.Context, order string) error {
	return db.once(ctx, db.charges, order)
}

func (db *database) ship(ctx context.Context, order string) error {
	return db.once(ctx, db.shipments, order)
}

// once adds one to the count of the order, unless it was counted before.
func (db *database) once(ctx context.Context, counts map[string]int, order string) error {
	db.mu.Lock()
	done := counts[order] > 0
	db.mu.Unlock()
	if done {
		return nil
	}
	select {
	case <-time.After(db.takes): // the work, such as a call of a payment provider
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	counts[order]++
	return nil
}

func (db *database) check() error {
	for i := range orders {
		order := fmt.Sprint(i)
		if db.charges[order] != 1 || db.shipments[order] != 1 {
			return fmt.Errorf("order %s was charged %d times and shipped %d times",
				order, db.charges[order], db.shipments[order])
		}
	}
	fmt.Println("each order was charged once and shipped once")
	return nil
}
