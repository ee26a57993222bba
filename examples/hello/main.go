// Hello is the program of the README: it acquires a lock, on the Redis at REDIS_ADDR or on an embedded one.
//
//	go run ./examples/hello
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
)

func main() {
	addr := os.Getenv("REDIS_ADDR") // host:port
	if addr == "" {
		m, err := miniredis.Run() // an embedded Redis, to try it
		if err != nil {
			log.Fatal(err)
		}
		defer m.Close()
		addr = m.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client, err := relock.New(rdb) // one for the whole process
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	if err := charge(context.Background(), client.NewLock("lock:orders:42")); err != nil {
		log.Fatal(err)
	}
}

// charge runs in one goroutine of all processes at a time.
func charge(ctx context.Context, lock *relock.Lock) error {
	if err := lock.Lock(ctx); err != nil { // waits until ctx is done
		return err
	}
	defer lock.Unlock(ctx) // also when ctx is done

	fmt.Println("charging order 42")
	return nil
}
