// Hello is the program of the README: it does something while it holds a lock. Unlike the other examples it needs a
// Redis, at localhost:6379.
//
//	go run ./examples/hello
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	client, err := relock.New(rdb) // one for the whole process
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // of the wait and the work
	defer cancel()
	lock := client.NewLock("lock:orders:42")
	err = lock.Do(ctx, func(ctx context.Context) error {
		// Only one goroutine across all processes is here.
		// ctx is canceled if the lock is lost.
		fmt.Println("charging order 42")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
