// Example shows three replicas of a service with the same jobs, whose gocron schedulers share them: first each run of a
// job is done by the replica that comes first, then all runs are done by a leader. The leader crashes, and another
// replica does the runs from then on.
//
//	cd gocron && go run ./example
//
// It needs only Go: it runs on an embedded miniredis.
//
// Rules: the exit status is 1 if a run was done twice.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	relockgocron "github.com/relock-go/relock/gocron"
)

const lease = time.Second // the lease of a leader: if it crashes, another one is elected after this time

var names = []string{"red", "green", "blue"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run() error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true)

	fmt.Println("With a Locker the replica that comes first does the run:")
	if err := withLockers(server.Addr()); err != nil {
		return err
	}
	fmt.Println("With an Elector the leader does all runs, until it crashes:")
	return withElectors(server.Addr())
}

// withLockers has three replicas do three runs.
func withLockers(addr string) error {
	var b book
	for _, name := range names {
		r, err := newReplica(addr, name)
		if err != nil {
			return err
		}
		defer r.close()
		locker := relockgocron.NewLocker(r.client) // keeps the lock of a short run for half a second
		if err := r.start(&b, gocron.WithDistributedLocker(locker)); err != nil {
			return err
		}
	}
	return b.await(3)
}

// withElectors has three replicas do two runs, crashes the leader, and awaits two more.
func withElectors(addr string) error {
	var b book
	electors := make(map[*replica]*relockgocron.Elector)
	for _, name := range names {
		r, err := newReplica(addr, name)
		if err != nil {
			return err
		}
		elector := relockgocron.NewElector(r.client, "election:jobs")
		electors[r] = elector
		defer func() {
			r.close() // the runs end,
			elector.Close()
		}()
		if err := r.start(&b, gocron.WithDistributedElector(elector)); err != nil {
			return err
		}
	}
	if err := b.await(2); err != nil {
		return err
	}
	for r, elector := range electors {
		if elector.IsLeader(context.Background()) == nil {
			fmt.Printf("  %s crashes\n", r.name)
			if err := r.rdb.Close(); err != nil { // so that it neither resigns nor renews its lease
				return err
			}
		}
	}
	return b.await(4)
}

// A replica is one process of a service.
type replica struct {
	name      string
	rdb       *redis.Client
	client    *relock.Client
	scheduler gocron.Scheduler
}

func newReplica(addr, name string) (*replica, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client, err := relock.New(rdb, relock.WithWatchdogTimeout(lease),
		relock.WithLogger(slog.New(slog.DiscardHandler))) // it would log the crash
	if err != nil {
		return nil, err
	}
	return &replica{name: name, rdb: rdb, client: client}, nil
}

// start starts the scheduler, which writes every run into b. Each replica has one job, which is due in every second.
func (r *replica) start(b *book, option gocron.SchedulerOption) (err error) {
	r.scheduler, err = gocron.NewScheduler(option)
	if err != nil {
		return err
	}
	_, err = r.scheduler.NewJob(
		gocron.CronJob("* * * * * *", true),
		gocron.NewTask(b.write, r.name),
		gocron.WithName("report"),
	)
	if err != nil {
		return err
	}
	r.scheduler.Start()
	return nil
}

func (r *replica) close() {
	if r.scheduler != nil {
		_ = r.scheduler.Shutdown()
	}
	_ = r.client.Close()
	_ = r.rdb.Close() // of a replica that has crashed it is closed already
}

// A book records who did the run of each second.
type book struct {
	mu   sync.Mutex // guards below
	runs int
	by   map[int64][]string
}

func (b *book) write(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by == nil {
		b.by = make(map[int64][]string)
	}
	second := time.Now().Unix()
	b.by[second] = append(b.by[second], name)
	b.runs++
	fmt.Printf("  run %d: %s\n", b.runs, name)
}

// await waits until that many runs are done, and checks that each was done once.
func (b *book) await(runs int) error {
	for end := time.Now().Add(20 * lease); ; time.Sleep(10 * time.Millisecond) {
		b.mu.Lock()
		done := b.runs
		for _, by := range b.by {
			if len(by) > 1 {
				b.mu.Unlock()
				return fmt.Errorf("%s did the same run", strings.Join(by, " and "))
			}
		}
		b.mu.Unlock()
		switch {
		case done >= runs:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d runs are done, and not %d", done, runs)
		}
	}
}
