// Background shows what a caller saves that does not wait for the release of its lock, and what that costs. It is the
// recipe "Release in the background" of docs/cookbook.md as a complete program. Redis is 20ms away.
//
//	go run ./examples/background
//
// A call that waits takes two round trips and the work, and one that releases in the background takes one round trip
// and the work. It costs a goroutine for each call, and this:
//
//   - A call for the same order that comes while the release is on its way waits for it, so nearly nothing is saved.
//   - The caller does not learn that the lock was lost before the work had finished. Here the lock is deleted while an
//     order is charged: the call that waits returns ErrLockLost, and the other one returns nil.
//   - If the process ended at once, the lock would stay until its lease has expired. Shutdown waits for the releases.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 if the calls that do not wait are not faster, if a loss is reported otherwise than
// described, or if a lock is left after Shutdown. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	orders = 20
	trip   = 20 * time.Millisecond // a round trip to Redis
	work   = 10 * time.Millisecond // a charge
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "background:", err)
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
	near := redis.NewClient(options) // for what is not measured
	defer near.Close()
	distant := *options
	distant.Dialer = dialDistant
	rdb := redis.NewClient(&distant)
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithLogger(slog.New(slog.DiscardHandler))) // it would log the losses
	if err != nil {
		return err
	}
	defer client.Close()

	s := &shop{client: client, near: near, prefix: "relock:background:" + rand.Text() + ":"}
	if err := s.compare(ctx); err != nil {
		return err
	}
	if err := s.lose(ctx); err != nil {
		return err
	}
	return s.shutdown(ctx)
}

// charge is the work.
func charge(ctx context.Context) error {
	select {
	case <-time.After(work):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// chargeAndWait waits until the lock is released.
func chargeAndWait(ctx context.Context, lock *relock.Lock) error { return lock.Do(ctx, charge) }

// chargeQuickly does not wait until the lock is released.
func chargeQuickly(ctx context.Context, lock *relock.Lock) error {
	hold, err := lock.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { go hold.Release(ctx) }()
	return charge(hold.Context()) // canceled if the lock is lost, and not with ctx
}

// A shop charges orders, each under a lock of its own.
type shop struct {
	client *relock.Client
	near   *redis.Client
	prefix string   // of the names of the locks
	names  []string // of all locks that were used
}

// next returns the lock of a new order.
func (s *shop) next() *relock.Lock {
	name := fmt.Sprintf("%s%d", s.prefix, len(s.names))
	s.names = append(s.names, name)
	return s.client.NewLock(name)
}

// compare measures both ways, for orders that differ and for one order that is charged again.
func (s *shop) compare(ctx context.Context) error {
	fmt.Printf("%d orders, one after the other; a charge takes %v, and a round trip to Redis %v\n", orders, work, trip)
	var mean [2]time.Duration
	for i, charge := range []func(context.Context, *relock.Lock) error{chargeAndWait, chargeQuickly} {
		if err := charge(ctx, s.next()); err != nil { // the first call also opens connections
			return err
		}
		start := time.Now()
		for range orders {
			if err := charge(ctx, s.next()); err != nil {
				return err
			}
		}
		mean[i] = time.Since(start) / orders
	}
	same := s.next()
	var again time.Duration
	for range orders {
		start := time.Now()
		if err := chargeQuickly(ctx, same); err != nil {
			return err
		}
		again += time.Since(start) / orders
		time.Sleep(trip / 4) // so that the release is on its way
	}
	fmt.Printf("a call that waits for the release       %v\n", mean[0].Round(time.Millisecond))
	fmt.Printf("a call that releases in the background  %v\n", mean[1].Round(time.Millisecond))
	fmt.Printf("the same, for one order again and again %v\n", again.Round(time.Millisecond))
	if mean[1] >= mean[0] {
		return errors.New("a release in the background saved nothing")
	}
	return nil
}

// lose deletes the lock of an order while it is charged, once for each way.
func (s *shop) lose(ctx context.Context) error {
	err := s.loseDuring(ctx, chargeAndWait)
	fmt.Printf("the lock is deleted: the call that waits reports a loss: %v\n", errors.Is(err, relock.ErrLockLost))
	if !errors.Is(err, relock.ErrLockLost) {
		return fmt.Errorf("the loss was not reported: %v", err)
	}
	err = s.loseDuring(ctx, chargeQuickly)
	fmt.Printf("the lock is deleted: the call that releases in the background returns %v\n", err)
	return err
}

// loseDuring charges an order, and deletes its lock while that is held. On a machine that is very busy an order may be
// charged before its lock can be deleted; then another one is charged.
func (s *shop) loseDuring(ctx context.Context, charge func(context.Context, *relock.Lock) error) error {
	for range 10 {
		lock := s.next()
		charged := make(chan error, 1)
		go func() { charged <- charge(ctx, lock) }()
		deleted, err := s.deleteUntil(ctx, lock.Name(), charged)
		if deleted || err != nil {
			return err
		}
	}
	return errors.New("each order was charged before its lock could be deleted")
}

// deleteUntil deletes the lock as soon as it is held, unless the order was charged before. The error is that of the
// charge if the lock was deleted.
func (s *shop) deleteUntil(ctx context.Context, name string, charged <-chan error) (deleted bool, err error) {
	for {
		n, err := s.near.Del(ctx, name).Result()
		if err != nil {
			return false, errors.Join(err, <-charged)
		}
		if n == 1 {
			return true, <-charged
		}
		select {
		case err := <-charged:
			return false, err
		case <-time.After(time.Millisecond):
		}
	}
}

// shutdown releases the last lock in the background, ends the Client at once, and looks for locks that are left.
func (s *shop) shutdown(ctx context.Context) error {
	if err := chargeQuickly(ctx, s.next()); err != nil {
		return err
	}
	if err := s.client.Shutdown(ctx); err != nil {
		return err
	}
	left, err := s.near.Exists(ctx, s.names...).Result()
	if err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d locks are left after Shutdown", left)
	}
	fmt.Println("Shutdown has waited for the releases: no lock is left")
	return nil
}

// dialDistant connects to a Redis that is a round trip away.
func dialDistant(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return distant{conn}, nil
}

// distant is a connection that delays what is written to it by a round trip.
type distant struct{ net.Conn }

func (d distant) Write(b []byte) (int, error) {
	time.Sleep(trip)
	return d.Conn.Write(b)
}
