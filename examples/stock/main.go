// Stock shows the classic use of a lock: a shop with 1,000 units, several processes that sell them, and a counter in
// Redis that each of them reads, processes, and writes back.
//
//	go run ./examples/stock
//
// The program starts three copies of itself as HTTP services and sends 1,500 orders to them, twice: without a lock, and
// with a lock of relock around the sale. Without it, two services read the same number, both sell that unit, and the
// counter is decremented by one. With it, 1,000 orders are served and 500 are refused.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// If a service crashes after it has written the counter, and before it has answered, the unit is gone and nobody has
// it. A real shop stores the number of the order with the counter, in one transaction, and finds the order when it is
// sent again.
//
// Rules: a unit is sold when a service has answered 200. The services live as long as their stdin, which the first
// process holds open, so they end with the first process, however it ends. The exit status is 1 unless the run with the
// lock sold exactly the units that were available. Nothing is left in Redis.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

const (
	units    = 1000
	orders   = 1500
	services = 3
	clients  = 30               // number of clients that order at the same time
	think    = time.Millisecond // between reading the counter and writing it
	atMost   = 60 * time.Second // for the whole program
	goodbye  = 2 * time.Second  // for a service to end
)

// A service is started as: stock serve <with|without> <key of the counter>
func main() {
	var err error
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		err = serve(os.Args[2] == "with", os.Args[3])
	} else {
		err = compare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1)
	}
}

// ---- The service -----------------------------------------------------------

// A shop sells the units that the counter at key says are left.
type shop struct {
	rdb  *redis.Client
	key  string
	lock *relock.Lock // nil to sell without a lock
}

// serve sells over HTTP until its stdin ends.
func serve(locked bool, key string) error {
	signal.Ignore(os.Interrupt) // it is handled by the first process, which then ends the services

	rdb, err := connect(context.Background(), os.Getenv("REDIS_URL"))
	if err != nil {
		return err
	}
	defer rdb.Close()
	client, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer client.Close()

	s := &shop{rdb: rdb, key: key}
	if locked {
		s.lock = client.NewLock(lockName(key))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /deduct_stock", s.deductStock)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr()) // tells the first process the address, and that the service is ready

	server := &http.Server{Handler: mux}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	select {
	case err := <-failed:
		return err
	case <-ended:
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye/2)
	defer cancel()
	return server.Shutdown(ctx) // lets current orders finish
}

func (s *shop) deductStock(w http.ResponseWriter, r *http.Request) {
	sold, err := s.sell(r.Context())
	switch {
	case sold: // whatever became of the lock
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		http.Error(w, "sold out", http.StatusConflict)
	}
}

// sell sells one unit, if there is one. All goroutines of a service share one lock value and still exclude each other,
// because each goroutine is an owner.
func (s *shop) sell(ctx context.Context) (sold bool, err error) {
	if s.lock == nil {
		return s.deduct(ctx)
	}
	err = s.lock.Do(ctx, func(ctx context.Context) (err error) { // ctx is canceled if the lock is lost
		sold, err = s.deduct(ctx)
		return err
	})
	return sold, err
}

func (s *shop) deduct(ctx context.Context) (bool, error) {
	left, err := s.rdb.Get(ctx, s.key).Int()
	if err != nil {
		return false, err
	}
	time.Sleep(think)
	if left <= 0 {
		return false, nil
	}
	err = s.rdb.Set(ctx, s.key, left-1, 0).Err()
	return err == nil, err
}

// lockName is the name of the lock on the counter at key.
func lockName(key string) string { return key + ":lock" }

// ---- The comparison --------------------------------------------------------

// compare runs the shop without the lock and with it.
func compare() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()

	url, where := os.Getenv("REDIS_URL"), "the Redis at REDIS_URL"
	if url == "" {
		m, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer m.Close()
		m.ClockTTL(true) // leases expire with the clock, as in Redis
		url, where = "redis://"+m.Addr(), "an embedded miniredis"
	}
	rdb, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer rdb.Close()

	fmt.Printf("%d units in %s; %d orders from %d clients at %d services; %v between read and write\n\n",
		units, where, orders, clients, services, think)
	without, err := run(ctx, rdb, url, "without")
	if err != nil {
		return fmt.Errorf("without the lock: %w", err)
	}
	with, err := run(ctx, rdb, url, "with")
	if err != nil {
		return fmt.Errorf("with the lock: %w", err)
	}

	fmt.Println("              sold  refused  gone from the counter  left  orders/s")
	fmt.Println("without lock", without)
	fmt.Println("with lock   ", with)
	fmt.Println()
	fmt.Printf("Without the lock %d sales never reached the counter, and %d of the units sold did not exist.\n",
		without.sold-without.gone(), max(0, without.sold-units))
	if with.sold != units || with.left != 0 {
		return fmt.Errorf(
			"with the lock %d units should have been sold and 0 be left, not %d and %d",
			units,
			with.sold,
			with.left,
		)
	}
	fmt.Printf("With the lock exactly %d were sold and 0 are left.\n", units)
	return nil
}

// A tally has the results of the orders of one run.
type tally struct {
	sold, refused, left int
	took                time.Duration
}

// gone returns by how much the counter was decremented.
func (t tally) gone() int { return units - t.left }

func (t tally) String() string {
	return fmt.Sprintf("%5d  %7d  %21d  %4d  %8.0f", t.sold, t.refused, t.gone(), t.left, orders/t.took.Seconds())
}

// run fills the shop, starts the services, sends all orders, and counts.
func run(ctx context.Context, rdb *redis.Client, url, lock string) (t tally, err error) {
	// The key is not used by other programs, in case the Redis is shared.
	key := "relock:stock:" + rand.Text()
	if err := rdb.Set(ctx, key, units, 0).Err(); err != nil {
		return t, err
	}
	defer func() {
		err = errors.Join(err, rdb.Del(context.WithoutCancel(ctx), key, lockName(key)).Err())
	}()

	urls, end, err := startServices(ctx, url, lock, key)
	defer end() // before the counter is deleted
	if err != nil {
		return t, err
	}
	if t, err = order(ctx, urls); err != nil {
		return t, err
	}
	t.left, err = rdb.Get(ctx, key).Int()
	return t, err
}

// startServices starts the services. It returns their URLs, and a function that ends them, which has to be called even
// if there is an error.
func startServices(ctx context.Context, url, lock, key string) (urls []string, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var started []*exec.Cmd
	end = func() {
		cancel()
		for _, service := range started {
			service.Wait() // its orders have already reported errors
		}
	}

	program, err := os.Executable()
	if err != nil {
		return nil, end, err
	}
	for range services {
		service := exec.CommandContext(ctx, program, "serve", lock, key)
		service.Env = append(os.Environ(), "REDIS_URL="+url)
		service.Stderr = os.Stderr
		stdin, err := service.StdinPipe()
		if err != nil {
			return nil, end, err
		}
		stdout, err := service.StdoutPipe()
		if err != nil {
			return nil, end, err
		}
		service.Cancel = stdin.Close // ask it to end, and kill it after a while
		service.WaitDelay = goodbye
		if err := service.Start(); err != nil {
			return nil, end, err
		}
		started = append(started, service)
		address, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			return nil, end, fmt.Errorf("a service did not start: %w", err)
		}
		urls = append(urls, "http://"+strings.TrimSpace(address)+"/deduct_stock")
	}
	return urls, end, nil
}

// order sends all orders from several clients, to each of the urls in turn.
func order(ctx context.Context, urls []string) (t tally, err error) {
	ctx, cancel := context.WithCancelCause(ctx) // the first failure ends all clients
	defer cancel(nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()

	var next, sold, refused atomic.Int64
	start := time.Now()
	var all sync.WaitGroup
	for range clients {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := next.Add(1); n <= orders; n = next.Add(1) {
				status, err := post(ctx, client, urls[int(n)%len(urls)])
				switch {
				case err != nil:
					cancel(err)
					return
				case status == http.StatusOK:
					sold.Add(1)
				default:
					refused.Add(1)
				}
			}
		}()
	}
	all.Wait()
	t = tally{sold: int(sold.Load()), refused: int(refused.Load()), took: time.Since(start)}
	return t, context.Cause(ctx)
}

// post sends one order. The status is 200 (sold) or 409 (sold out); all else is an error.
func post(ctx context.Context, client *http.Client, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusConflict {
		return 0, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return response.StatusCode, nil
}

// connect returns a connection to the Redis at url.
func connect(ctx context.Context, url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("REDIS_URL does not have the form redis://user:password@host:port/db")
	}
	rdb := redis.NewClient(options)
	if err := rdb.Ping(ctx).Err(); err != nil {
		rdb.Close()
		return nil, fmt.Errorf("no Redis at %s: %w", options.Addr, err)
	}
	return rdb, nil
}
