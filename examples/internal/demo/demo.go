// Package demo has the code that the examples share: a Redis to run on.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Start returns the options for the Redis at REDIS_URL, or for an embedded one that it starts, and a function that
// stops it.
func Start() (*redis.Options, func(), error) {
	url, stop := os.Getenv("REDIS_URL"), func() {}
	if url == "" {
		m, err := miniredis.Run()
		if err != nil {
			return nil, nil, err
		}
		m.ClockTTL(true) // leases expire with the clock, as in Redis
		url, stop = "redis://"+m.Addr(), m.Close
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		stop()
		return nil, nil, errors.New("REDIS_URL does not have the form redis://user:password@host:port/db")
	}
	return options, stop, nil
}

// Connect returns a connection to the Redis of Start, and a function that closes it.
func Connect(ctx context.Context) (*redis.Client, func(), error) {
	options, stop, err := Start()
	if err != nil {
		return nil, nil, err
	}
	rdb := redis.NewClient(options)
	closeAll := func() { rdb.Close(); stop() }
	if err := rdb.Ping(ctx).Err(); err != nil {
		closeAll()
		return nil, nil, fmt.Errorf("no Redis at %s: %w", options.Addr, err)
	}
	return rdb, closeAll, nil
}
