// Redlock shows a lock over five independent Redis servers, of which two may be down. Workers increment a counter under
// the lock while servers are stopped. With three servers down no worker acquires the lock, and when one of them is back
// the workers continue.
//
//	go run ./examples/redlock
//
// Each worker has a Client for every server, as a process would, and one RedLock over the five locks. All servers are
// asked at the same time, and the lock is held when three have granted it. This has a visible price: it costs requests
// to five servers, and workers that start at the same moment may each be granted the lock by some of them, release it,
// and start again after a random pause.
//
// With servers down the lock may become slower: they announce no release, and a waiter asks again after a pause.
// go-redis finds a server that is back within about a second. If too few servers answer, TryLock returns a QuorumError
// with the answer of each. If another owner holds the lock, TryLock returns false instead. The two servers that are up
// may refuse, too: the workers continue to ask them, and each of the two can be held by a worker that does not get the
// third one.
//
// The server that comes back has kept its data. A server that has lost its data would have to stay offline for the
// lease of the lock first, because it might grant a lock that it has forgotten.
//
// It needs only Go: the five servers are embedded miniredis.
//
// Rules: the exit status is 1 if two workers hold the lock at the same time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

const (
	nodes   = 5
	workers = 3
	name    = "redlock-demo"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "redlock:", err)
		os.Exit(1)
	}
}

func run() error {
	redis.SetLogger(quiet{}) // it would log every server that is down
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var servers []*miniredis.Miniredis
	var addrs []string
	for range nodes {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		servers = append(servers, server)
		addrs = append(addrs, server.Addr())
	}
	fmt.Printf("five servers, %d workers that count under one lock\n", workers)

	var shared account
	working, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	failed := make(chan error, workers)
	for range workers {
		lock, closeAll, err := newLock(addrs)
		if err != nil {
			stop()
			return err
		}
		all.Add(1)
		go func() {
			defer all.Done()
			defer closeAll()
			for working.Err() == nil {
				if err := lock.Do(working, shared.count); err != nil && working.Err() == nil {
					failed <- err
					return
				}
			}
		}()
	}
	defer all.Wait()
	defer stop()

	shared.watch("all five up")
	servers[1].Close()
	shared.watch("server 2 down")
	servers[3].Close()
	shared.watch("servers 2 and 4 down")

	// With a third server down, two answers are not a majority.
	servers[4].Close()
	time.Sleep(300 * time.Millisecond) // a worker that held the lock has finished
	lock, closeAll, err := newLock(addrs)
	if err != nil {
		return err
	}
	defer closeAll()
	_, err = lock.TryLock(ctx, 0, 0)
	var quorum *relock.QuorumError
	if !errors.As(err, &quorum) {
		return fmt.Errorf("three of five servers are down, and TryLock says %v", err)
	}
	fmt.Printf(
		"%-24s TryLock: %d of %d granted, %d needed\n",
		"servers 2, 4 and 5 down",
		quorum.Granted,
		quorum.Asked,
		quorum.Needed,
	)
	for i, answer := range quorum.Answers {
		if answer == nil {
			fmt.Printf("    server %d: granted, and released\n", i+1)
		} else {
			fmt.Printf("    server %d: %v\n", i+1, answer)
		}
	}

	if err := servers[4].Restart(); err != nil {
		return err
	}
	shared.watch("server 5 is back")

	stop()
	all.Wait()
	close(failed)
	for err := range failed {
		return err
	}
	if n := shared.collisions.Load(); n > 0 {
		return fmt.Errorf("%d times two workers counted at the same time", n)
	}
	fmt.Println("no two workers ever counted at the same time")
	return nil
}

// newLock returns the lock of one process, which has a Client for every server.
func newLock(addrs []string) (lock *relock.RedLock, closeAll func(), err error) {
	var clients []*relock.Client
	var locks []relock.Locker
	var closers []func() error
	closeAll = func() {
		for _, c := range closers {
			_ = c()
		}
	}
	for _, addr := range addrs {
		rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
		client, err := relock.New(rdb)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		closers = append(closers, client.Close, rdb.Close)
		clients = append(clients, client)
		locks = append(locks, client.NewLock(name))
	}
	return clients[0].NewRedLock(locks...), closeAll, nil
}

// An account is a counter that one worker at a time increments.
type account struct {
	inside, counted, collisions atomic.Int64
}

func (a *account) count(ctx context.Context) error {
	if a.inside.Add(1) > 1 {
		a.collisions.Add(1)
	}
	defer a.inside.Add(-1)
	a.counted.Add(1)
	time.Sleep(2 * time.Millisecond)
	return nil
}

// watch prints how many critical sections the workers complete in a while.
func (a *account) watch(what string) {
	before, start := a.counted.Load(), time.Now()
	time.Sleep(1500 * time.Millisecond)
	n := a.counted.Load() - before
	fmt.Printf("%-24s %4.0f critical sections per second\n", what, float64(n)/time.Since(start).Seconds())
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
