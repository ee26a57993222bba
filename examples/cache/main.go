// Cache shows a read/write lock: many workers read a price list that is stored in Redis in two parts, and from time to
// time one of them writes a new list. Readers work at the same time and never see half a list; the writer works alone.
//
//	go run ./examples/cache
//
// Readers arrive without a pause here. With a lock that admits them whenever others read, the writer would never get
// its turn, because there is always a reader. A reader of relock waits behind a waiting writer, so the writer waits
// only for the readers that were reading when it arrived. The program prints how long that was.
//
// Each hold of a reader has a lease. A reader that crashes delays the writer until that lease has expired. A reader
// that wants to write must release the read lock first: two readers that both wait for the other one to leave would
// wait forever, so the lock returns an error. The other direction works: acquire the read lock inside the write lock,
// release the write lock, and continue to read the new version.
//
// A writer that crashes between the two parts leaves half a list, which no lock undoes: when its lease has expired,
// readers see it. So each part has its version, with which a reader notices that, and the next writer writes both.
//
// Then all workers ask for an entry that is not in the cache. With a plain Lock one of them computes it, and the others
// wait and read it: the function cached is the recipe "Refill a cache" of docs/cookbook.md.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the two parts carry the same version number; otherwise a reader has seen half a list, and the exit status is
// 1. It is also 1 if the entry is computed more than once. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	readers = 20
	lists   = 5                     // new price lists
	think   = 20 * time.Millisecond // the time between writing the two parts
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rdb, stop, err := demo.Connect(ctx)
	if err != nil {
		return err
	}
	defer stop()
	client, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer client.Close()

	prefix := "relock:cache:" + rand.Text()
	shop := &shop{rdb: rdb, lock: client.NewRWLock(prefix), parts: []string{prefix + ":fruit", prefix + ":bread"}}
	defer rdb.Del(context.WithoutCancel(ctx), shop.parts...)
	if err := shop.refresh(ctx); err != nil {
		return err
	}

	start := time.Now()
	reading, done := context.WithCancel(ctx)
	defer done()
	var workers sync.WaitGroup
	failed := make(chan error, readers)
	for range readers {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for reading.Err() == nil {
				if err := shop.read(reading); err != nil && reading.Err() == nil {
					failed <- err
					return
				}
			}
		}()
	}
	for range lists {
		asked := time.Now()
		if err := shop.refresh(ctx); err != nil {
			return err
		}
		fmt.Printf("a new list after %v, while %d workers read\n", time.Since(asked).Round(time.Millisecond), readers)
	}
	done()
	workers.Wait()
	close(failed)
	for err := range failed {
		return err
	}
	fmt.Printf("%d reads in %v, up to %d at the same time, and none saw half a list\n",
		shop.reads.Load(), time.Since(start).Round(time.Millisecond), shop.most.Load())
	return refill(ctx, rdb, client.NewLock(prefix+":refill"), prefix+":entry")
}

type shop struct {
	rdb                 *redis.Client
	lock                *relock.RWLock
	parts               []string
	reads, inside, most atomic.Int64
}

// read reads both parts. Any number of workers may do so at the same time.
func (s *shop) read(ctx context.Context) error {
	return s.lock.Read().Do(ctx, func(ctx context.Context) error {
		defer s.inside.Add(-1)
		if n := s.inside.Add(1); n > s.most.Load() {
			s.most.Store(n)
		}
		fruit, err := s.rdb.Get(ctx, s.parts[0]).Int()
		if err != nil {
			return err
		}
		time.Sleep(think)
		bread, err := s.rdb.Get(ctx, s.parts[1]).Int()
		if err != nil {
			return err
		}
		if fruit != bread {
			return fmt.Errorf("half a list: the fruit is of version %d and the bread of %d", fruit, bread)
		}
		s.reads.Add(1)
		return nil
	})
}

// refresh writes both parts, one after the other. There is no reader meanwhile. Both get a new version, whatever a
// writer has left that crashed between them.
func (s *shop) refresh(ctx context.Context) error {
	return s.lock.Write().Do(ctx, func(ctx context.Context) error {
		version, err := s.rdb.Get(ctx, s.parts[0]).Int() // this part is written first, so it has the latest version
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		for _, part := range s.parts {
			if err := s.rdb.Set(ctx, part, version+1, 0).Err(); err != nil {
				return err
			}
			time.Sleep(think)
		}
		return nil
	})
}

// refill has all workers ask for an entry that is not in the cache, and checks that one of them computes it.
func refill(ctx context.Context, rdb *redis.Client, lock *relock.Lock, key string) error {
	defer rdb.Del(context.WithoutCancel(ctx), key)
	get := func() (string, bool) {
		v, err := rdb.Get(ctx, key).Result()
		return v, err == nil // a cache that cannot be read counts as empty
	}
	var fills atomic.Int64
	fill := func(ctx context.Context) (string, error) {
		fills.Add(1)
		time.Sleep(think)
		return "cherries", rdb.Set(ctx, key, "cherries", time.Minute).Err()
	}
	failed := make(chan error, readers)
	for range readers {
		go func() {
			v, err := cached(ctx, lock, get, fill)
			if err == nil && v != "cherries" {
				err = fmt.Errorf("the entry is %q", v)
			}
			failed <- err
		}()
	}
	for range readers {
		if err := <-failed; err != nil {
			return err
		}
	}
	if n := fills.Load(); n != 1 {
		return fmt.Errorf("the entry was computed %d times", n)
	}
	fmt.Printf("%d workers asked for an entry that was not in the cache, and it was computed once\n", readers)
	return nil
}

// cached returns the entry that get finds in the cache. If there is none, one caller computes it with fill, and the
// others wait for it.
func cached(
	ctx context.Context,
	lock *relock.Lock,
	get func() (string, bool),
	fill func(context.Context) (string, error),
) (string, error) {
	if v, ok := get(); ok {
		return v, nil
	}
	var v string
	err := lock.Do(ctx, func(ctx context.Context) (err error) {
		var ok bool
		if v, ok = get(); ok { // another process has filled it meanwhile
			return nil
		}
		v, err = fill(ctx)
		return err
	})
	return v, err
}
