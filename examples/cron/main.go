// Cron shows a job that runs once, although several replicas of a service start it: three replicas, each with a clock
// and connections of its own, start it at every tick; one runs the job and the others find that it is done.
//
//	go run ./examples/cron
//
// The lock alone would not be enough. A replica whose clock is a little late arrives when the first one has finished,
// finds the lock free, and would run the job again. So the last tick that was done is stored in Redis, and is read and
// written under the lock. The second replica waits for the first, sees that the tick is done, and does nothing. If the
// first one crashes half way, a waiting replica acquires the lock when the lease has expired, sees that the tick is not
// done, and runs the job. If Redis is down meanwhile, each of them tries again until it is back.
//
// The tick is stored after the work: if a replica crashes, its job is started again, so the job has to tolerate that.
// If the tick were stored before the work, the job would run at most once. The option MinHold is a simpler way if that
// is enough.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless every tick is done once. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	ticks    = 4
	crashAt  = 2 // the tick at which the first replica crashes
	period   = 2 * time.Second
	work     = 100 * time.Millisecond
	lease    = time.Second           // how long a crashed replica keeps the others waiting
	inexact  = 50 * time.Millisecond // the most by which the clocks of the replicas differ
	patience = period * 3 / 4        // a replica must be back before the next tick
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cron:", err)
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

	job := &job{name: "relock:cron:" + rand.Text(), begun: make(map[int]int), done: make(map[int]int)}
	fmt.Printf("three replicas, a job every %v that takes %v\n", period, work)
	job.start = time.Now()

	var replicas sync.WaitGroup
	failed := make(chan error, 3)
	for _, name := range []string{"red", "green", "blue"} {
		replicas.Add(1)
		go func() {
			defer replicas.Done()
			if err := replica(ctx, name, options, job); err != nil {
				failed <- fmt.Errorf("replica %s: %w", name, err)
			}
		}()
	}
	replicas.Wait()
	close(failed)
	for err := range failed {
		return err
	}
	if err := cleanUp(ctx, options, job.lastKey()); err != nil {
		return err
	}
	return job.check()
}

// replica is one process: a connection, a Client and a clock.
func replica(ctx context.Context, name string, options *redis.Options, job *job) error {
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithWatchdogTimeout(lease))
	if err != nil {
		return err
	}
	defer client.Close()
	lock := client.NewLock(job.name)
	alive, crash := context.WithCancel(ctx)
	defer crash()

	for tick := 1; tick <= ticks; tick++ {
		time.Sleep(time.Until(job.start.Add(time.Duration(tick) * period)))
		time.Sleep(mathrand.N(inexact))

		err := onceForEachTick(alive, rdb, lock, job.lastKey(), tick, patience, func(context.Context) error {
			if job.do(name, tick) {
				crash()
				return rdb.Close() // so the lock cannot be released, nor its lease renewed
			}
			return nil
		})
		if alive.Err() != nil {
			return ctx.Err() // nil after a crash
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// onceForEachTick does the job of this tick, unless another replica has done it. It tries until the wait has passed.
func onceForEachTick(
	ctx context.Context,
	rdb *redis.Client,
	lock *relock.Lock,
	lastKey string, // of the last tick that was done
	tick int,
	wait time.Duration, // longer than the lease and the job, or an outage of Redis, and shorter than the interval
	job func(context.Context) error, // the context is canceled if the lock is lost
) error {
	deadline := time.Now().Add(wait)
	for worked, recorded := false, false; ; {
		ran, err := lock.TryDo(ctx, max(0, time.Until(deadline)), func(ctx context.Context) error {
			last, err := rdb.Get(ctx, lastKey).Int()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			if recorded = last >= tick; recorded {
				return nil // another replica has done it
			}
			if !worked {
				if err := job(ctx); err != nil {
					return err
				}
				worked = true
			}
			err = rdb.Set(ctx, lastKey, tick, 0).Err()
			recorded = err == nil
			return err
		})
		switch {
		case recorded: // whatever became of the lock
			return nil
		case !ran && err == nil: // another replica runs the job for longer than this one waits
			return relock.ErrBusy
		case ctx.Err() != nil, !time.Now().Before(deadline), errors.Is(err, relock.ErrClosed):
			return err
		}
		select { // Redis cannot be asked, the lock was lost, or the job has failed: try again
		case <-time.After(min(wait/20, 10*time.Second)):
		case <-ctx.Done():
		}
	}
}

// A job is the work that one of the replicas has to do at each tick.
type job struct {
	name  string // the name of its lock
	start time.Time

	mu    sync.Mutex // guards below
	begun map[int]int
	done  map[int]int
}

// lastKey is the key of the last tick that was done.
func (j *job) lastKey() string { return j.name + ":last" }

// do is the work. It reports whether the replica is to crash half way.
func (j *job) do(replica string, tick int) (crash bool) {
	late := time.Since(j.start.Add(time.Duration(tick) * period)).Round(10 * time.Millisecond)
	j.mu.Lock()
	j.begun[tick]++
	crash = tick == crashAt && j.begun[tick] == 1
	j.mu.Unlock()

	if crash {
		time.Sleep(work / 2)
		fmt.Printf("tick %d  %-5s begins %3dms after the tick, and crashes half way\n", tick, replica, late.Milliseconds())
		return true
	}
	time.Sleep(work)
	fmt.Printf("tick %d  %-5s begins %3dms after the tick, and does it\n", tick, replica, late.Milliseconds())
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done[tick]++
	return false
}

func (j *job) check() error {
	for tick := 1; tick <= ticks; tick++ {
		if j.done[tick] != 1 {
			return fmt.Errorf("tick %d was done %d times", tick, j.done[tick])
		}
	}
	fmt.Printf("%d ticks, and each was done once\n", ticks)
	return nil
}

func cleanUp(ctx context.Context, options *redis.Options, key string) error {
	rdb := redis.NewClient(options)
	defer rdb.Close()
	return rdb.Del(ctx, key).Err()
}
