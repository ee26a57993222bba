package route

// What go-redis tells of a Redis client: its options, its pools, and where it leads.

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// ReadTimeout returns how long rdb waits for an answer. It is not positive if rdb waits without a limit, or if the limit
// is not known.
func ReadTimeout(rdb redis.UniversalClient) time.Duration {
	switch one, cluster := send.OptionsOf(rdb); {
	case one != nil:
		return one.ReadTimeout
	case cluster != nil:
		return cluster.ReadTimeout
	}
	return 0
}

// Sending returns how requests are sent to the servers.
func (s *Servers) Sending(synced send.Synced) send.Config {
	c := send.Config{
		Transport: send.NewRedis(s.rdb, synced),
		Confirm:   synced.Within,
		Idle:      func(key string) int { return int(s.pool(key).IdleConns) },
		Probe:     s.probe,
	}
	if s.cluster != nil {
		c.Home = s.home
	}
	// The Process of a type that embeds one of these may do more, which a pipeline does not call, and may send a request
	// again by itself.
	size := 0 // of the pool of one server
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		size = rdb.Options().PoolSize
	case *redis.ClusterClient:
		size = rdb.Options().PoolSize
	}
	if size > 0 {
		c.Batch = synced.Replicas == 0
		c.Exhausted = func(key string) bool {
			pool := s.pool(key)
			return pool.IdleConns == 0 && int(pool.TotalConns) >= size
		}
	}
	if timed := send.NewTimed(s.rdb); timed != nil && synced.Replicas == 0 {
		c.Bounded = timed
	}
	return c
}

// probe has all idle connections to the server of a key used at the same time, and waits for the answers, if their time can
// be limited. A Cluster that reads from replicas would ask one of them. Pipelines may have a pool of their own.
func (s *Servers) probe(key string, within time.Duration) {
	timed := send.NewTimed(s.server(key))
	if timed == nil {
		return
	}
	var all sync.WaitGroup
	use := func(idle uint32, piped bool) {
		for range idle {
			waitgroup.Go(&all, func() {
				_ = send.CatchPanic(func() error { return timed.Probe(key, within, piped) })
			})
		}
	}
	pool := s.pool(key)
	use(pool.IdleConns, false)
	if piped := pool.PipelineStats; piped != nil {
		use(piped.IdleConns, true)
	}
	all.Wait()
}

// pool returns the state of the pool that requests for a key need; zero: it is not known.
func (s *Servers) pool(key string) *redis.PoolStats {
	if server := s.server(key); server != nil {
		return server.PoolStats()
	}
	return new(redis.PoolStats)
}

// server returns the Redis client of the server that has a key, or nil if go-redis does not know it.
func (s *Servers) server(key string) redis.UniversalClient {
	if s.cluster == nil {
		return s.rdb
	}
	if master := s.master(key); master != nil {
		return master
	}
	return nil
}

// Address returns the address of the servers, or "" if go-redis does not know it, because they are behind Sentinels, or
// a Dialer of the user may lead to any server. It is the same in every process that has configured the same addresses.
func (s *Servers) Address() string {
	switch one, cluster := send.OptionsOf(s.rdb); {
	case one != nil && one.Addr != "FailoverClient" && codeOf(one.Dialer) == defaultDialer():
		return fmt.Sprintf("%s/%d", one.Addr, one.DB)
	case cluster != nil && cluster.Dialer == nil:
		return strings.Join(slices.Sorted(slices.Values(cluster.Addrs)), ",")
	}
	return ""
}

// defaultDialer returns the code of the Dialer of a Redis client to which the user has not given one.
var defaultDialer = sync.OnceValue(func() uintptr {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	defer func() { _ = rdb.Close() }() // it has no connections
	return codeOf(rdb.Options().Dialer)
})

// codeOf returns the address of the code of a function.
func codeOf(f any) uintptr { return reflect.ValueOf(f).Pointer() }
