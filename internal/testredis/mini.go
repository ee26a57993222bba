package testredis

// An in-process Redis server, and clients that are closed when their test ends.
//
// Rules: a miniredis can show that the logic of scripts is right, but it does not have the faults and errors of
// Redis. Those are tested with a Server.

import (
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/mini"
)

// Mini starts a miniredis on a loopback port whose TTLs follow the clock. It is closed when the test ends. Client(t,
// m.Addr()) returns a client for it.
func Mini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := StillMini(t)
	var mu sync.Mutex // keeps the clock from going back
	mini.Tick(t, m, func() {
		mu.Lock()
		defer mu.Unlock()
		m.SetTime(time.Now())
	}, hasNoReplicas)
	return m
}

// StillMini is like Mini, with a clock that only the test moves, with SetTime.
func StillMini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	Enter(t)
	m := mini.Still(t)
	m.Server().SetPreHook(hasNoReplicas)
	return m
}

// hasNoReplicas answers INFO replication, which miniredis does not know, like a Redis server without replicas.
// Otherwise a script could not know whether a message has reached a client of a replica.
func hasNoReplicas(c *server.Peer, command string, args ...string) bool {
	if command != "INFO" || len(args) != 1 || args[0] != "replication" {
		return false
	}
	c.WriteBulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n")
	return true
}

// Client returns a client of the server at addr, with the defaults of go-redis unless opts change them. It is closed
// when the test ends.
func Client(t testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() }) // a test may have closed it already
	return c
}
