// Quickstart shows what a relock lock does, in five steps: it excludes other owners, its holder may acquire it again,
// waiting for it can have a limit, its lease is renewed while the holder works, and its loss is noticed.
//
//	go run ./examples/quickstart
//
// Two goroutines share one lock value here and exclude each other, because the owner of a hold is the goroutine.
// "Another owner" is created by ContextWithOwner; it could as well be another process. The lease is one second instead
// of the default of 30 seconds, to keep the program short. It is renewed every third of that time, which is also how
// long it takes until the holder notices that its key was deleted. Work under a lock should use the context that is
// canceled then.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: every step checks what it shows, and the first one that fails ends the program with exit status 1. Every lock
// has a name of its own. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

// lease is the lease of a lock that is acquired with Lock. It is renewed every third of this time.
const lease = time.Second

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	rdb, stop, err := demo.Connect(ctx)
	if err != nil {
		return err
	}
	defer stop()

	// One Client serves the whole process.
	client, err := relock.New(rdb,
		relock.WithWatchdogTimeout(lease),
		relock.WithLogger(slog.New(slog.DiscardHandler)), // it would log the loss in step 5
	)
	if err != nil {
		return err
	}
	defer client.Close()

	// The names are not used by other programs, in case the Redis is shared.
	prefix := "relock:quickstart:" + rand.Text() + ":"

	fmt.Println("1. Two workers exclude each other")
	if err := exclude(ctx, client.NewLock(prefix+"exclude")); err != nil {
		return fmt.Errorf("step 1: %w", err)
	}
	fmt.Println("2. The holder of a lock may lock it again")
	if err := reenter(ctx, client.NewLock(prefix+"reenter")); err != nil {
		return fmt.Errorf("step 2: %w", err)
	}
	fmt.Println("3. TryLock waits for a limited time")
	if err := giveUp(ctx, client.NewLock(prefix+"give-up")); err != nil {
		return fmt.Errorf("step 3: %w", err)
	}
	fmt.Println("4. The lease is renewed while you work")
	if err := outlive(ctx, client.NewLock(prefix+"outlive")); err != nil {
		return fmt.Errorf("step 4: %w", err)
	}
	fmt.Println("5. A lock that is lost is noticed")
	if err := notice(ctx, client.NewLock(prefix+"notice"), rdb); err != nil {
		return fmt.Errorf("step 5: %w", err)
	}
	fmt.Println("All steps succeeded.")
	return nil
}

// exclude makes two goroutines take turns with the same lock. Each goroutine is an owner, so they may share the value.
func exclude(ctx context.Context, lock *relock.Lock) error {
	var inside atomic.Int32
	visit := func(worker string) error {
		if err := lock.Lock(ctx); err != nil {
			return err
		}
		defer lock.Unlock(ctx)

		if inside.Add(1) != 1 {
			return errors.New("both workers hold the lock")
		}
		fmt.Printf("   %-4s goes in", worker)
		time.Sleep(50 * time.Millisecond)
		fmt.Println(", and out")
		inside.Add(-1)
		return nil
	}

	var workers sync.WaitGroup
	errs := make(chan error, 4)
	for _, worker := range []string{"red", "blue"} {
		workers.Add(1)
		go func() {
			defer workers.Done()
			errs <- visit(worker)
			errs <- visit(worker)
		}()
	}
	workers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}

	locked, err := lock.IsLocked(ctx)
	if err != nil {
		return err
	}
	if locked {
		return errors.New("the lock is still held when both are done")
	}
	return nil
}

// reenter acquires the lock twice, and therefore has to call Unlock twice.
func reenter(ctx context.Context, lock *relock.Lock) error {
	for range 2 {
		if err := lock.Lock(ctx); err != nil {
			return err
		}
	}
	twice, err := lock.HoldCount(ctx)
	if err != nil {
		return err
	}
	for range 2 {
		if err := lock.Unlock(ctx); err != nil {
			return err
		}
	}
	after, err := lock.HoldCount(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("   hold count after two Locks: %d, after two Unlocks: %d\n", twice, after)
	if twice != 2 || after != 0 {
		return errors.New("the hold counts should be 2 and 0")
	}
	return nil
}

// giveUp tries to acquire a lock that another owner holds. The owner is carried by a context; it could as well be
// another goroutine, process or machine.
func giveUp(ctx context.Context, lock *relock.Lock) error {
	other := relock.ContextWithOwner(ctx)
	if err := lock.Lock(other); err != nil {
		return err
	}
	start := time.Now()
	ok, err := lock.TryLock(ctx, 300*time.Millisecond, 0)
	waited := time.Since(start)
	if err != nil {
		return err
	}
	fmt.Printf(
		"   another owner holds it: TryLock returns %t after %v, without an error\n",
		ok,
		waited.Round(10*time.Millisecond),
	)
	if ok || waited < 300*time.Millisecond {
		return errors.New("TryLock should have waited 300ms in vain")
	}
	return lock.Unlock(other)
}

// outlive holds a lock for more than twice its lease.
func outlive(ctx context.Context, lock *relock.Lock) error {
	if err := lock.Lock(ctx); err != nil {
		return err
	}
	before, err := lock.TTL(ctx)
	if err != nil {
		return err
	}
	work := 2*lease + lease/5
	time.Sleep(work)
	after, err := lock.TTL(ctx)
	if err != nil {
		return err
	}
	held, err := lock.IsHeld(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("   TTL %v at first, %v after %v of work; still held: %t\n", before, after, work, held)
	if before <= 0 || before > lease || after <= 0 || after > lease || !held {
		return fmt.Errorf("it should still be held, with a lease of %v at most", lease)
	}
	return lock.Unlock(ctx)
}

// notice deletes the key of a lock while it is held. The next renewal finds it missing, and cancels the guarded
// context: work that uses that context stops in time.
func notice(ctx context.Context, lock *relock.Lock, rdb *redis.Client) error {
	if err := lock.Lock(ctx); err != nil {
		return err
	}
	guarded, err := lock.Guard(ctx)
	if err != nil {
		return err
	}
	if err := rdb.Del(ctx, lock.Name()).Err(); err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-guarded.Done():
	case <-time.After(2 * lease):
		return errors.New("the guarded context should have been canceled")
	}
	cause, late := context.Cause(guarded), time.Since(start).Round(10*time.Millisecond)
	fmt.Printf(
		"   the guarded context is canceled %v after the key was deleted; ErrLockLost: %t\n",
		late,
		errors.Is(cause, relock.ErrLockLost),
	)
	if !errors.Is(cause, relock.ErrLockLost) {
		return fmt.Errorf("the cause should be ErrLockLost: %w", cause)
	}
	err = lock.Unlock(ctx)
	fmt.Printf("   Unlock returns an error, too; ErrLockLost: %t\n", errors.Is(err, relock.ErrLockLost))
	if !errors.Is(err, relock.ErrLockLost) {
		return fmt.Errorf("the error of Unlock should be ErrLockLost, not %v", err)
	}
	return nil
}
