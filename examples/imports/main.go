// Imports is an HTTP service whose handler acquires a lock, and leaves the work to a worker in another process:
//
//	POST /customers/{id}/import   starts to import the data of a customer, unless that is under way: 202 or 409
//
// The handler and the workers are connected by a queue. The handler detaches the hold, which no process then has, and
// puts its ticket into the queue. A worker attaches the hold, works, and releases the lock. So from the request to the
// end of the work no other import of this customer can start, whichever process is working on it, or none. If no worker
// takes the job within ten minutes, the lock expires. The functions startImport and finishImport are those of
// docs/cookbook.md#a-lock-that-moves-to-another-process.
//
// The queue does what real ones do. It delivers some jobs twice, it fails, and sometimes it has the job all the same.
// And workers are killed: when they have the lock, half way through an import, and when the import is done. A ticket
// works once, so the worker that gets such a job again is told ErrNotHeld. That does not mean that the job is done. The
// record of the imports that are done tells, and if the job is not in it, the worker acquires the lock anew: when the
// lease of the worker that was killed has expired.
//
//	go run ./examples/imports
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless each import that was accepted is done once, no two imports of a customer overlap,
// and no lock stays detached whose job could not be put into the queue. Nothing is left in Redis.
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
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	customers = 4
	rounds    = 40 // of requests, one for each customer, at least
	workers   = 2
	work      = 40 * time.Millisecond
	lease     = 600 * time.Millisecond // how long the lock of a worker stays that was killed
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
	options, stop, err := demo.Start()
	if err != nil {
		return err
	}
	defer stop()

	prefix := "relock:imports:" + rand.Text() + ":"
	q := new(queue)
	data := &imported{under: make(map[string]bool), done: make(map[string]int)}
	web, err := newWeb(options, prefix, q)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make(chan error, workers)
	for range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			errs <- keepWorking(ctx, options, q, data)
		}()
	}
	for round := 0; round < rounds || !q.hasKilled() && ctx.Err() == nil; round++ {
		for id := range customers {
			web.post(ctx, id)
		}
		time.Sleep(work / 2)
	}
	q.close() // the workers end when the queue is empty
	all.Wait()
	for range workers {
		err = errors.Join(err, <-errs)
	}
	return errors.Join(err, web.close(ctx), check(web, q, data))
}

// ---- The recipe -----------------------------------------------------------

type importJob struct { // a message of the queue
	ID     string // of this import: your record of what has been done knows it
	Lock   string
	Ticket string
}

// startImport acquires the lock, and passes it to a worker. If the job cannot be put into the queue, the lock is
// released.
func startImport(
	ctx context.Context,
	client *relock.Client,
	lock, id string,
	enqueue func(context.Context, importJob) error,
) (started bool, err error) {
	hold, ok, err := client.NewLock(lock).TryAcquire(ctx, 0, 0)
	if err != nil || !ok {
		return false, err // if there is no error, an import is under way
	}
	ticket, err := hold.Detach(ctx, 10*time.Minute) // longer than a job waits in the queue
	if err != nil {
		_ = hold.Release(ctx) // the hold goes on if the request was not sent
		return false, err
	}
	if err := enqueue(ctx, importJob{id, lock, ticket}); err != nil {
		back, failed := client.Attach(context.WithoutCancel(ctx), ticket)
		if failed == nil {
			_ = back.Release(ctx) // otherwise it would be locked for ten minutes
		}
		return false, err
	}
	return true, nil
}

// finishImport does a job, unless it has been done. If it returns nil, the job is to be acknowledged; otherwise the
// queue has to deliver it again.
func finishImport(
	ctx context.Context,
	client *relock.Client,
	wait time.Duration, // longer than the lease of a worker that was killed
	job importJob,
	isDone func(ctx context.Context, id string) (bool, error),
	work func(ctx context.Context, id string) error, // also records that the job is done
) (err error) {
	hold, err := client.Attach(ctx, job.Ticket)
	if errors.Is(err, relock.ErrNotHeld) {
		// Another worker has used the ticket. It has done the job, or is doing it, or has crashed: the record knows.
		if done, err := isDone(ctx, job.ID); err != nil || done {
			return err
		}
		var ok bool
		hold, ok, err = client.NewLock(job.Lock).TryAcquire(ctx, wait, 0)
		if err == nil && !ok {
			err = errors.New("another import is under way")
		}
	}
	if err != nil {
		return err // let the queue deliver the job again
	}
	defer func() { err = errors.Join(err, hold.Release(ctx)) }()
	if done, err := isDone(hold.Context(), job.ID); err != nil || done { // perhaps meanwhile
		return err
	}
	return work(hold.Context(), job.ID)
}

// ---- The web server -------------------------------------------------------

// A web is a web server, with a Client of its own.
type web struct {
	rdb      *redis.Client
	client   *relock.Client
	prefix   string
	queue    *queue
	server   *httptest.Server
	statuses map[int]int // how many answers had which status

	mu       sync.Mutex // guards the fields below
	accepted []string   // the IDs of the imports that were accepted
	detached int        // locks that were left detached although their jobs are lost
}

func newWeb(options *redis.Options, prefix string, q *queue) (*web, error) {
	rdb := redis.NewClient(options)
	client, err := relock.New(rdb)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	w := &web{rdb: rdb, client: client, prefix: prefix, queue: q, statuses: make(map[int]int)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /customers/{id}/import", w.start)
	w.server = httptest.NewServer(mux)
	return w, nil
}

func (s *web) close(ctx context.Context) error {
	s.server.Close()
	return errors.Join(s.client.Shutdown(ctx), s.rdb.Close())
}

func (s *web) start(w http.ResponseWriter, r *http.Request) {
	customer := r.PathValue("id")
	lock, id := s.prefix+customer, customer+" "+rand.Text()
	started, err := startImport(r.Context(), s.client, lock, id, s.queue.put)
	switch {
	case err != nil:
		if errors.Is(err, errLost) {
			s.checkReleased(r.Context(), lock)
		}
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	case !started:
		http.Error(w, "an import is under way", http.StatusConflict)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.accepted = append(s.accepted, id)
		w.WriteHeader(http.StatusAccepted)
	}
}

// checkReleased checks that nobody has to wait until a lock expires whose job is lost.
func (s *web) checkReleased(ctx context.Context, lock string) {
	i, err := s.client.Inspect(ctx, lock)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || len(i.Holders) > 0 && i.Holders[0].Detached {
		s.detached++
	}
}

// post asks for an import, and counts the answer.
func (s *web) post(ctx context.Context, customer int) {
	url := fmt.Sprintf("%s/customers/%d/import", s.server.URL, customer)
	status := 0
	if request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil); err == nil {
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
			status = response.StatusCode
		}
	}
	s.statuses[status]++
}

// ---- The workers ----------------------------------------------------------

// The moments at which a worker is killed.
const (
	never = iota
	whenAttached
	halfWay
	whenRecorded // before it has released the lock
	whenFinished // before it has acknowledged the job
	moments
)

var errKilled = errors.New("the worker was killed")

// keepWorking starts a worker, and another one when it was killed.
func keepWorking(ctx context.Context, options *redis.Options, q *queue, data *imported) error {
	for {
		if err := runWorker(ctx, options, q, data); !errors.Is(err, errKilled) {
			return err
		}
	}
}

// runWorker does the jobs of the queue, with a connection and a Client of its own, as another process would.
func runWorker(ctx context.Context, options *redis.Options, q *queue, data *imported) error {
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithWatchdogTimeout(lease),
		relock.WithLogger(slog.New(slog.DiscardHandler))) // it would log the locks of a worker that was killed
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		d, ok := q.take(ctx)
		if !ok {
			return client.Shutdown(ctx)
		}
		w := &worker{data, d.killAt, rdb}
		err := finishImport(ctx, client, 2*lease, d.job, w.isDone, w.load)
		if err == nil {
			err = w.reach(whenFinished)
		}
		if err == nil {
			q.acknowledge()
			continue
		}
		q.again(d.job)
		if errors.Is(err, errKilled) {
			return err
		}
	}
}

// A worker has one job.
type worker struct {
	data   *imported
	killAt int
	rdb    *redis.Client
}

// reach kills the worker if this is the moment for it. Without its connections it neither renews its lock nor releases
// it.
func (w *worker) reach(moment int) error {
	if w.killAt != moment {
		return nil
	}
	w.data.noteKilled(moment)
	return errors.Join(errKilled, w.rdb.Close())
}

// isDone asks the record. It is called when the worker has the lock, or has been told ErrNotHeld.
func (w *worker) isDone(_ context.Context, id string) (bool, error) {
	if err := w.reach(whenAttached); err != nil {
		return false, err
	}
	return w.data.isDone(id), nil
}

// load imports the data of a customer, and records that.
func (w *worker) load(ctx context.Context, id string) error {
	customer, _, _ := strings.Cut(id, " ")
	defer w.data.leave(customer)
	w.data.enter(customer)
	select {
	case <-time.After(work):
	case <-ctx.Done(): // the lock is lost
		return context.Cause(ctx)
	}
	if err := w.reach(halfWay); err != nil {
		return err
	}
	w.data.record(id)
	return w.reach(whenRecorded)
}

// imported stands for the database of the customers, and of the imports that are done. As they are in one database, an
// import and its record are one transaction.
type imported struct {
	mu       sync.Mutex // guards the fields below
	under    map[string]bool
	done     map[string]int
	overlaps int
	killed   [moments]int // how many workers were killed at each moment
}

func (i *imported) enter(customer string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.under[customer] {
		i.overlaps++
	}
	i.under[customer] = true
}

func (i *imported) leave(customer string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.under[customer] = false
}

func (i *imported) record(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.done[id]++
}

func (i *imported) noteKilled(moment int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.killed[moment]++
}

func (i *imported) isDone(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.done[id] > 0
}

// ---- The queue ------------------------------------------------------------

// A delivery is a job that the queue delivers, and when its worker is killed.
type delivery struct {
	job    importJob
	killAt int
}

// A queue passes jobs from the web servers to the workers. It stands for one that is a service of its own.
type queue struct {
	mu      sync.Mutex // guards the fields below
	jobs    []delivery
	waiting int // deliveries that were not acknowledged
	closed  bool

	puts, normal, lost, unanswered, twice int
}

var errLost, errUnanswered = errors.New("the queue is down"), errors.New("the queue does not answer")

// put puts a job into the queue. Some jobs are lost, of some the caller does not learn that the queue has them, and
// some are delivered twice.
func (q *queue) put(_ context.Context, job importJob) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.puts++
	switch q.puts % 5 {
	case 0:
		q.lost++
		return errLost
	case 1:
		q.unanswered++
		q.jobs = append(q.jobs, delivery{job, never})
		return errUnanswered
	case 2:
		q.twice++
		q.jobs = append(q.jobs, delivery{job, never}, delivery{job, never})
	default:
		q.normal++
		q.jobs = append(q.jobs, delivery{job, q.normal % moments})
	}
	return nil
}

// take takes a job out of the queue. It returns false after the last one.
func (q *queue) take(ctx context.Context) (delivery, bool) {
	for ctx.Err() == nil {
		if d, ok, ended := q.next(); ok || ended {
			return d, ok
		}
		time.Sleep(5 * time.Millisecond)
	}
	return delivery{}, false
}

func (q *queue) next() (d delivery, ok, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) == 0 {
		return d, false, q.closed && q.waiting == 0
	}
	d, q.jobs = q.jobs[0], q.jobs[1:]
	q.waiting++
	return d, true, false
}

func (q *queue) acknowledge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
}

// again delivers a job that was not acknowledged.
func (q *queue) again(job importJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
	q.jobs = append(q.jobs, delivery{job: job})
}

// hasKilled reports whether the queue has jobs, or had, whose workers are killed at each of the moments.
func (q *queue) hasKilled() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.normal >= moments
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// ---- The check ------------------------------------------------------------

func check(web *web, q *queue, data *imported) error {
	for _, id := range web.accepted {
		if n := data.done[id]; n != 1 {
			return fmt.Errorf("an import was accepted, and done %d times", n)
		}
	}
	for _, n := range data.done {
		if n != 1 {
			return fmt.Errorf("an import was done %d times", n)
		}
	}
	switch {
	case data.overlaps > 0:
		return errors.New("two imports of a customer overlapped")
	case web.detached > 0:
		return errors.New("a lock stayed detached although its job was lost")
	}
	killed := 0
	for moment, n := range data.killed {
		if killed += n; n == 0 && moment != never {
			return fmt.Errorf("no worker was killed at moment %d", moment)
		}
	}
	fmt.Printf("%d imports accepted, each done once; %d requests came while one was under way\n", len(web.accepted),
		web.statuses[http.StatusConflict])
	fmt.Printf("%d jobs were delivered twice, %d were lost, and %d were put although the queue did not answer\n",
		q.twice, q.lost, q.unanswered)
	fmt.Printf("%d workers were killed, at each of %d moments\n", killed, moments-1)
	return nil
}
