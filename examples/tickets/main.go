// Tickets shows a fair lock: customers queue for one clerk, through three services,
// and are served in the order in which they came, whichever service they came to.
//
//	go run ./examples/tickets
//
// First with a FairLock, then with a plain Lock. A plain Lock serves the waiters of
// one process in their order too, but when it is free the processes race for it:
// the order over all of them is left to chance. A FairLock keeps its queue in
// Redis. That costs a request a second for every waiter, with which it shows that it
// is still there, so take it where the order matters and not otherwise.
//
// One customer gives up waiting: the end of its ctx takes it out of the queue, and
// those behind it move up.
//
// It needs nothing but Go: without REDIS_URL (redis://user:password@host:port/db)
// it runs on an embedded miniredis.
//
// Rules: the fair queue is served in the order of arrival, or the exit status is
// 1; nothing is left in Redis.
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
	leaves    = 5                      // the customer who gives up
	between   = 100 * time.Millisecond // two arrivals
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

	fmt.Printf("%d customers come to %d services, in turn; number %d does not wait to the end\n\n", customers, services, leaves)
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

// sell lets the customers queue before the clerk is there, and returns the order in
// which they were served. window is the lock as the service of customer i has it.
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
	if err := door.Unlock(clerk); err != nil { // the clerk is there
		return nil, err
	}
	queue.Wait()
	close(failed)
	for err := range failed {
		return nil, err
	}
	return served, nil
}
