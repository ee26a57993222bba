package relock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// An embedded Redis, for the examples.
func newRedis() (rdb *redis.Client, done func()) {
	m, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { rdb.Close(); m.Close() }
}

func charge(ctx context.Context) error { return ctx.Err() }

func Example() {
	rdb, done := newRedis()
	defer done()
	pay := func(ctx context.Context) error {
		client, err := relock.New(rdb) // once for the whole process
		if err != nil {
			return err
		}
		defer client.Close()

		lock := client.NewLock("orders:42")
		return lock.Do(ctx, func(ctx context.Context) error {
			// Nobody else is here, in any process, as long as ctx is alive:
			// it ends at once should the lock be lost.
			return charge(ctx)
		})
	}
	fmt.Println(pay(context.Background()))
	// Output: <nil>
}

func ExampleLock_TryLock() {
	rdb, done := newRedis()
	defer done()
	client, _ := relock.New(rdb)
	defer client.Close()
	ctx := context.Background()

	lock := client.NewLock("report")
	if ok, err := lock.TryLock(ctx, time.Second, 0); err != nil || !ok {
		fmt.Println("somebody else writes the report", err)
		return
	}
	defer lock.Unlock(ctx)

	busy, err := client.NewLock("report").TryLock(relock.WithOwner(ctx), 10*time.Millisecond, 0)
	fmt.Println("another owner:", busy, err)
	// Output: another owner: false <nil>
}

func ExampleFenced() {
	rdb, done := newRedis()
	defer done()
	client, _ := relock.New(rdb)
	defer client.Close()
	ctx := context.Background()

	lock := client.NewLock("ledger", relock.Fenced())
	var tokens []int64
	for range 2 {
		if err := lock.Lock(ctx); err != nil {
			return
		}
		token, _ := lock.Token(ctx)
		tokens = append(tokens, token) // send it along with every write
		lock.Unlock(ctx)
	}
	fmt.Println("the second is greater:", tokens[1] > tokens[0])
	// Output: the second is greater: true
}

func ExampleLock_Guard() {
	rdb, done := newRedis()
	defer done()
	client, _ := relock.New(rdb)
	defer client.Close()
	ctx := context.Background()

	lock := client.NewLock("leader")
	if err := lock.LockLease(ctx, 50*time.Millisecond); err != nil {
		return
	}
	guarded, err := lock.Guard(ctx)
	if err != nil {
		return
	}
	<-guarded.Done() // the lease runs out
	fmt.Println(errors.Is(context.Cause(guarded), relock.ErrLockLost))
	// Output: true
}
