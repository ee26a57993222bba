// Robfig shows a job of robfig/cron in three replicas of a service: each replica starts the job at every tick, and one
// of them runs it. It is the recipe "A cron job on several replicas" of docs/cookbook.md as a complete program.
//
//	cd examples/robfig && go run .
//
// The replica that acquires the lock runs the job, and the others skip the tick. The job takes less time than the
// clocks of the replicas differ, so MinHold keeps the lock until the last replica has passed the tick. A tick whose
// replica crashes half way is not done by another one: examples/cron shows what to do about that.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis. It is a
// module of its own, so that relock does not require robfig/cron.
//
// Rules: the exit status is 1 if a tick is done twice, or if too few ticks are done. Nothing is left in Redis for
// longer than a second.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	schedule = "* * * * * *" // every second
	ticks    = 5
	inexact  = 200 * time.Millisecond // the most by which the clocks of the replicas differ
	minHold  = 750 * time.Millisecond
	patience = 30 * time.Second
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "robfig:", err)
		os.Exit(1)
	}
}

func run() error {
	options, stop, err := demo.Start()
	if err != nil {
		return err
	}
	defer stop()

	b := &book{done: make(chan struct{}), by: make(map[int64][]string)}
	prefix := "relock:robfig:" + rand.Text() + ":"
	fmt.Println("three replicas, a job every second")
	names := []string{"red", "green", "blue"}
	ended := make(chan error, len(names))
	for _, name := range names {
		go func() { ended <- replica(name, options, prefix, b) }()
	}
	for range names {
		if err := <-ended; err != nil {
			return err
		}
	}
	return b.check()
}

// replica is one process: a connection, a Client and a scheduler, which runs until all ticks are done.
func replica(name string, options *redis.Options, prefix string, b *book) error {
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithKeyPrefix(prefix))
	if err != nil {
		return err
	}
	defer client.Close()
	work := func(context.Context) error {
		b.write(name)
		return nil
	}

	scheduler := cron.New(cron.WithSeconds(), cron.WithChain(late))
	if _, err := scheduler.AddFunc(schedule, onOneReplica(client, "report", minHold, work)); err != nil {
		return err
	}
	scheduler.Start()
	defer func() { <-scheduler.Stop().Done() }() // waits until a job that is running has ended

	select {
	case <-b.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("replica %s: not all ticks were done in %v", name, patience)
	}
}

// onOneReplica returns a function that runs the job, unless another replica runs it or has just run it.
func onOneReplica(
	client *relock.Client,
	name string,
	minHold time.Duration, // longer than the clocks differ, and shorter than the interval
	job func(context.Context) error,
) func() {
	lock := client.NewLock("cron:"+name, relock.MinHold(minHold))
	return func() {
		hold, ok, err := lock.TryAcquire(context.Background(), 0, 0)
		if err != nil {
			log.Printf("job %s is skipped: %v", name, err) // Redis cannot be reached
			return
		}
		if !ok {
			return // another replica runs the job, or has just run it
		}
		defer hold.Release(context.Background())
		if err := job(hold.Context()); err != nil { // canceled if the lock is lost
			log.Printf("job %s: %v", name, err)
		}
	}
}

// late delays a job, as a clock does that is a little late.
func late(job cron.Job) cron.Job {
	return cron.FuncJob(func() {
		time.Sleep(mathrand.N(inexact))
		job.Run()
	})
}

// A book records who did the job at which tick.
type book struct {
	done chan struct{} // closed when all ticks are done

	mu   sync.Mutex // guards below
	runs int
	by   map[int64][]string
}

func (b *book) write(name string) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by[now.Unix()] = append(b.by[now.Unix()], name)
	b.runs++
	if b.runs > ticks {
		return // a tick that came before the schedulers were stopped
	}
	after := now.Sub(now.Truncate(time.Second)).Round(10 * time.Millisecond)
	fmt.Printf("tick %d  %-5s does it, %3dms after the tick\n", b.runs, name, after.Milliseconds())
	if b.runs == ticks {
		close(b.done)
	}
}

func (b *book) check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, by := range b.by {
		if len(by) > 1 {
			return fmt.Errorf("%s did the same tick", strings.Join(by, " and "))
		}
	}
	fmt.Printf("%d ticks, and none was done twice\n", ticks)
	return nil
}
