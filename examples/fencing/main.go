// Fencing shows how storage that is not an SQL database refuses the writes of a lock holder that was paused for longer
// than its lease: data in Redis, an HTTP API, and an object with conditional writes.
//
//	go run ./examples/fencing
//
// The lock and the data in Redis are on an embedded miniredis, or at REDIS_URL. The API and the store of objects are
// HTTP servers of this program.
//
// Rules: two holders sell from a stock, and the first one is paused between its look and its write. The exit status is
// 1 unless that write is refused, and the stock is right. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	lease = 200 * time.Millisecond
	pause = 3 * lease
)

// errStale is returned for a token that is lower than one that the storage has admitted.
var errStale = errors.New("a later holder of the lock was admitted")

// A storage has the stock. A holder looks before it writes, and the look admits its token.
type storage interface {
	look(ctx context.Context, token int64) (stock int, err error)
	write(ctx context.Context, token int64, stock int) error
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	rdb, closeRedis, err := demo.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()
	api, store := httptest.NewServer(&stockAPI{stock: 10}), httptest.NewServer(&objectStore{body: `{"stock":10}`})
	defer api.Close()
	defer store.Close()
	key := "relock:fencing:stock:" + rand.Text()
	defer rdb.Del(context.WithoutCancel(ctx), key)
	if err := rdb.HSet(ctx, key, "stock", 10).Err(); err != nil {
		return err
	}
	for _, s := range []struct {
		name    string
		storage func() storage // of one holder
	}{
		{"data in Redis", func() storage { return redisStock{rdb, key} }},
		{"an HTTP API", func() storage { return apiStock{api.URL} }},
		{"an object", func() storage { return &objectStock{url: store.URL} }},
	} {
		if err := race(ctx, rdb, s.storage(), s.storage()); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("%-13s  the late write is refused, and the stock is right\n", s.name)
	}
	return nil
}

// race has two holders sell one unit each. The first one is paused for longer than its lease.
func race(ctx context.Context, rdb *redis.Client, first, second storage) error {
	client, err := relock.New(rdb, relock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer client.Close()
	lock := client.NewLock("relock:fencing:"+rand.Text(), relock.Fenced())
	// The counter of tokens is normally kept forever. This program deletes its own.
	defer rdb.Del(context.WithoutCancel(ctx), "redisson_lock_token:{"+lock.Name()+"}")

	if err := lock.LockLease(ctx, lease); err != nil { // not renewed, like that of a paused process
		return err
	}
	token, err := lock.Token(ctx)
	if err != nil {
		return err
	}
	stock, err := first.look(ctx, token)
	if err != nil {
		return err
	}
	time.Sleep(pause)

	sold := make(chan error, 1)
	go func() { // another owner
		sold <- lock.Do(ctx, func(ctx context.Context) error {
			token, err := lock.Token(ctx)
			if err != nil {
				return err
			}
			stock, err := second.look(ctx, token)
			if err != nil {
				return err
			}
			return second.write(ctx, token, stock-1)
		})
	}()
	if err := <-sold; err != nil {
		return err
	}
	if err := first.write(ctx, token, stock-1); !errors.Is(err, errStale) {
		return fmt.Errorf("the late write should be refused: %v", err)
	}
	if _, err := first.look(ctx, token); !errors.Is(err, errStale) {
		return fmt.Errorf("a late look should be refused: %v", err)
	}
	if stock, err = second.look(ctx, token+1<<40); err != nil || stock != 9 {
		return fmt.Errorf("after one sale the stock should be 9, not %d: %v", stock, err)
	}
	return nil
}
