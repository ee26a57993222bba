package gocron_test

// The code that docs/cookbook.md has for gocron, as an example that is run.

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	gocronv2 "github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/gocron"
)

// A job runs on one replica: on the one whose scheduler acquires the lock first.
func ExampleNewLocker() {
	server, err := miniredis.Run()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	client, err := relock.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Shutdown(context.Background())

	locker := gocron.NewLocker(client, relock.MinHold(30*time.Second))
	scheduler, err := gocronv2.NewScheduler(gocronv2.WithDistributedLocker(locker))
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	_, err = scheduler.NewJob(
		gocronv2.OneTimeJob(gocronv2.OneTimeJobStartImmediately()),
		gocronv2.NewTask(func() {
			fmt.Println("writing the report")
			close(done)
		}),
		gocronv2.WithName("report"), // the name of the lock
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	scheduler.Start()
	<-done
	if err := scheduler.Shutdown(); err != nil {
		fmt.Println(err)
	}
	// Output: writing the report
}
