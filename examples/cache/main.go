// Cache shows a price list that many workers read from Redis, and that one of them refreshes when it is stale. It is the
// recipe "Refresh a cache" of docs/cookbook.md as a complete program.
//
//	go run ./examples/cache
//
// An entry is stored for longer than it is fresh. A worker that finds a stale one tries to acquire the lock, without
// waiting: the one that acquires it computes the new entry, and the others return the old one meanwhile. Only if there
// is no entry at all do they wait for the one that computes it.
//
// If the worker that refreshes the entry crashes, the others return the old one until its lease has expired. The entry
// is one key, so no worker sees half of it. A read/write lock would be worse at both: while a crashed writer has it, no
// worker reads, and then all see the half that it has written.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless the entry is computed once each time that it is missing or stale, and unless old
// entries are served meanwhile. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	workers = 20
	rounds  = 4                      // how often the list is computed
	takes   = 200 * time.Millisecond // to compute it
	fresh   = 200 * time.Millisecond // how long it is fresh
	asks    = 20 * time.Millisecond  // how often a worker reads it
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

	key := "relock:cache:" + rand.Text()
	shop := &shop{rdb: rdb, lock: client.NewLock(key + ":lock"), key: key}
	defer rdb.Del(context.WithoutCancel(ctx), key)
	start, failed := time.Now(), make(chan error, workers)
	for range workers {
		go func() { failed <- shop.work(ctx) }()
	}
	for range workers {
		err = errors.Join(err, <-failed)
	}
	fmt.Printf("%d workers read %d times in %v, and %d times the old list while one of them computed a new one\n",
		workers, shop.reads.Load(), time.Since(start).Round(10*time.Millisecond), shop.old.Load())
	switch {
	case err != nil:
		return err
	case shop.early.Load():
		return errors.New("a list was computed although there was a fresh one")
	case shop.old.Load() == 0:
		return errors.New("everybody waited for the new list")
	}
	fmt.Println("each list was computed once")
	return nil
}

// A shop has a price list, of which there is a new one from time to time.
type shop struct {
	rdb  *redis.Client
	lock *relock.Lock
	key  string

	lists, reads, old atomic.Int64 // how often a list was computed, read, and read although it was old
	fills, early      atomic.Bool  // a list is computed now; one was, although there was a fresh one
}

// work reads the list until it is that of the last round.
func (s *shop) work(ctx context.Context) error {
	for {
		fills := s.fills.Load()
		list, err := cached(ctx, s.lock, s.get, s.fill)
		if err != nil {
			return err
		}
		s.reads.Add(1)
		if fills && s.fills.Load() {
			s.old.Add(1)
		}
		if list == nameOf(rounds) {
			return nil
		}
		time.Sleep(asks)
	}
}

func nameOf(list int64) string { return fmt.Sprint("list ", list) }

// get returns the list that is stored. A cache that cannot be read counts as empty.
func (s *shop) get(ctx context.Context) (list string, found, fresh bool) {
	list, until, found := strings.Cut(s.rdb.Get(ctx, s.key).Val(), " until ")
	ends, _ := time.Parse(time.RFC3339Nano, until)
	return list, found, time.Now().Before(ends)
}

// fill computes a list, and stores it for longer than it is fresh. It is one key, which is never half written.
func (s *shop) fill(ctx context.Context) (string, error) {
	if _, _, isFresh := s.get(ctx); isFresh || s.fills.Swap(true) {
		s.early.Store(true)
	}
	defer s.fills.Store(false)
	time.Sleep(takes)
	list := nameOf(s.lists.Add(1))
	until := time.Now().Add(fresh).Format(time.RFC3339Nano)
	return list, s.rdb.Set(ctx, s.key, list+" until "+until, time.Minute).Err()
}

// cached returns the entry that get finds in the cache. If it is stale, one caller refreshes it with fill, and the
// others return the old one. If there is none, they wait for it.
func cached(
	ctx context.Context,
	lock *relock.Lock,
	get func(context.Context) (v string, found, fresh bool), // an entry is stored for longer than it is fresh
	fill func(context.Context) (string, error), // computes an entry, and stores it
) (string, error) {
	v, found, fresh := get(ctx)
	if fresh {
		return v, nil
	}
	wait := 10 * time.Second // for the caller that fills the cache
	if found {
		wait = 0 // another caller may refresh it: the old entry will do
	}
	_, err := lock.TryDo(ctx, wait, func(ctx context.Context) error { // canceled if the lock is lost
		now, _, fresh := get(ctx)
		if !fresh { // no other caller has filled it meanwhile
			var err error
			if now, err = fill(ctx); err != nil {
				return err
			}
		}
		v, found = now, true
		return nil
	})
	switch {
	case found: // the old entry or the new one, whatever became of the lock
		if err != nil {
			log.Printf("refresh: %v", err)
		}
		return v, nil
	case err == nil:
		return "", relock.ErrBusy // another caller fills the cache for longer than this one waits
	}
	return "", err
}
