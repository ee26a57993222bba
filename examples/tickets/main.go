// Tickets shows a fair lock: customers queue for one clerk, through three services, and are served in the order in
// which they came, whichever service they came to.
//
//	go run ./examples/tickets
//
// The program uses a FairLock first, and then a plain Lock. A plain Lock serves the waiters of one process in order,
// too, for a short time, before the lock passes to the next process: the order across all processes differs from that
// of arrival. A FairLock has an entry for every waiter in its queue in Redis. That costs one request per second for
// each waiter, as a heartbeat, so use it only if the order matters.
//
// One customer gives up waiting: when its context is canceled, it leaves the queue, and the customers behind it move
// up.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless the fair queue is served in the order of arrival. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	services  = 3
	customers = 12
	leaves    = 5                      // the number of the customer that gives up
	between   = 100 * time.Millisecond // the time between two arrivals
	serving   = 20 * time.Millisecond
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "tickets:", err)
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

	// Three services, as if each were a process of its own.
	var clients []*relock.Client
	for range services {
		rdb := redis.NewClient(options)
		defer rdb.Close()
		client, err := relock.New(rdb)
		if err != nil {
			return err
		}
		defer client.Close()
		clients = append(clients, client)
	}

	fmt.Printf(
		"%d customers come to %d services, in turn; number %d does not wait to the end\n\n",
		customers,
		services,
		leaves,
	)
	name := "relock:tickets:" + rand.Text()
	fair, err := sell(ctx, func(i int) relock.Locker { return clients[i%services].NewFairLock(name + ":fair") })
	if err != nil {
		return err
	}
	fmt.Println("served with a FairLock:  ", fair)
	plain, err := sell(ctx, func(i int) relock.Locker { return clients[i%services].NewLock(name + ":plain") })
	if err != nil {
		return err
	}
	fmt.Println("served with a plain Lock:", plain)

	if len(fair) != customers-1 || !slices.IsSorted(fair) {
		return errors.New("the fair queue should be served in the order of arrival, but for who gave up")
	}
	fmt.Println("\nThe FairLock served them in the order in which they came.")
	return nil
}

// sell lets the customers queue before the clerk arrives, and returns the order in which they were served. The function
// window returns the lock of the service of customer i.
func sell(ctx context.Context, window func(i int) relock.Locker) ([]int, error) {
	clerk, door := relock.ContextWithOwner(ctx), window(0)
	if err := door.Lock(clerk); err != nil {
		return nil, err
	}
	var (
		mu     sync.Mutex // guards served
		served []int
		queue  sync.WaitGroup
		failed = make(chan error, customers)
	)
	for i := 1; i <= customers; i++ {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if i == leaves {
			time.AfterFunc(2*between, cancel)
		}
		queue.Add(1)
		go func() {
			defer queue.Done()
			err := window(i).Do(ctx, func(context.Context) error {
				mu.Lock()
				served = append(served, i)
				mu.Unlock()
				time.Sleep(serving)
				return nil
			})
			if err != nil && !(i == leaves && errors.Is(err, context.Canceled)) {
				failed <- fmt.Errorf("customer %d: %w", i, err)
			}
		}()
		time.Sleep(between)
	}
	if err := door.Unlock(clerk); err != nil { // the clerk arrives
		return nil, err
	}
	queue.Wait()
	close(failed)
	for err := range failed {
		return nil, err
	}
	return served, nil
}
