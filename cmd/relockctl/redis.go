package main

// The connection, and how locks are found.
//
// Rules: whether it is a Cluster is asked, not told; keys are listed with SCAN, of a
// Cluster on every master; what a scan shows twice is one lock, and what is gone
// when it is looked at, or is no lock, is none.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// patience is how long a Redis may take to answer at first.
const patience = 5 * time.Second

// A connection is one to a Redis, or to a Cluster.
type connection struct {
	rdb  redis.UniversalClient // a *redis.Client or a *redis.ClusterClient
	addr string
}

// connect connects to the Redis at url, or at localhost:6379 if that is "".
func connect(ctx context.Context, url string) (*connection, error) {
	o := &redis.Options{Addr: "localhost:6379"}
	if url != "" {
		var err error
		if o, err = redis.ParseURL(url); err != nil {
			// Its text may have the password in it.
			return nil, badUsage("the address of the Redis is not like redis://user:password@host:port/db")
		}
	}
	o.DialerRetries = 1
	one := redis.NewClient(o)
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := one.Ping(asking).Err(); err != nil {
		one.Close()
		return nil, fmt.Errorf("no Redis at %s: %w", o.Addr, err)
	}
	info := one.Info(asking, "server", "cluster").Val() // who may not ask has no Cluster
	switch {
	case strings.Contains(info, "_mode:sentinel"): // of redis, or of Valkey's server
		one.Close()
		return nil, fmt.Errorf("at %s there is a Sentinel, which has no locks: give the address of its master", o.Addr)
	case strings.Contains(info, "cluster_enabled:1"):
		one.Close()
		return &connection{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, DialerRetries: 1,
		}), o.Addr}, nil
	}
	return &connection{one, o.Addr}, nil
}

// hashes are the names of all hashes that match the pattern: what locks are.
func (c *connection) hashes(ctx context.Context, pattern string) ([]string, error) {
	var mu sync.Mutex // guards names
	var names []string
	scan := func(ctx context.Context, one *redis.Client) error {
		keys := one.ScanType(ctx, 0, pattern, 1000, "hash").Iterator()
		for keys.Next(ctx) {
			mu.Lock()
			names = append(names, keys.Val())
			mu.Unlock()
		}
		return keys.Err()
	}
	var err error
	switch rdb := c.rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, rdb)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// held are the locks that match the pattern, by name.
func (p *program) held(ctx context.Context, pattern string) ([]relock.Inspection, error) {
	names, err := p.redis.hashes(ctx, pattern)
	if err != nil {
		return nil, fmt.Errorf("scan %s: %w", p.redis.addr, err)
	}
	found := make([]relock.Inspection, len(names))
	errs := make([]error, len(names))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(8, len(names)) {
		workers.Go(func() {
			for i := range next {
				found[i], errs[i] = p.client.Inspect(ctx, names[i])
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	workers.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, relock.ErrNotALock) && !errors.Is(err, relock.ErrInvalid) {
			return nil, err
		}
	}
	return slices.DeleteFunc(found, func(i relock.Inspection) bool { return !isLock(i) }), nil
}

// isLock says whether what was found looks like a lock that is held: any hash that counts
// something would do, but for what the fields are called.
func isLock(i relock.Inspection) bool {
	return slices.ContainsFunc(i.Holders, func(h relock.Holder) bool { return h.Client != "" })
}
