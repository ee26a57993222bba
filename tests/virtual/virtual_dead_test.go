//go:build go1.25

package virtual

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// quick returns a Client with these options, which knows that Redis is quick, and its Redis client.
func quick(v *locktest.Virtual, client func(*redis.Options) redis.UniversalClient, opts ...Option) (redis.UniversalClient, *Client) {
	rdb, _ := v.Redis(0)
	o := *rdb.Options()
	all := client(&o)
	v.Cleanup(func() { assert.NoError(v, all.Close()) })
	all.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if cmd.Name() == "wait" { // a counter confirms in place of replicas
			cmd.Args()[0] = "incrby"
		}
	}))
	c, ctx := v.ClientOn(all, opts...), ContextWithOwner(ctx)
	for range 30 {
		require.NoError(v, c.NewLock("quick").Lock(ctx))
		require.NoError(v, c.NewLock("quick").Unlock(ctx))
	}
	return all, c
}

// warm opens n connections, or as many for pipelines.
func warm(v *locktest.Virtual, rdb redis.UniversalClient, n int, pipelines bool) {
	ping := func() error { return rdb.Ping(ctx).Err() }
	if pipelines {
		ping = func() error {
			_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error { return p.Ping(ctx).Err() })
			return err
		}
	}
	var work sync.WaitGroup
	for range n {
		work.Go(func() { assert.NoError(v, ping()) })
	}
	work.Wait()
}

// Redis answers, but all connections in the pool are dead, as after a host behind its name has vanished. go-redis hands
// them out one after the other, and each call of a lock comes through nevertheless, soon after it was the first to ask.
func TestCallsComeThroughAPoolOfDeadConnections(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, l, held Locker) error{
		"Lock":   func(ctx context.Context, l, _ Locker) error { return l.Lock(ctx) },
		"Unlock": func(ctx context.Context, _, held Locker) error { return held.Unlock(ctx) },
		"TryLock": func(ctx context.Context, l, _ Locker) error {
			ok, err := l.TryLock(ctx, 2*time.Second, 0)
			if err == nil && !ok {
				err = ErrBusy
			}
			return err
		},
		"a renewal": func(ctx context.Context, _, held Locker) error {
			guarded, err := held.Guard(ctx)
			if err == nil {
				time.Sleep(time.Minute)
				err = context.Cause(guarded)
			}
			return err
		},
	} {
		for pool, is := range map[string]struct {
			conns       int
			pipelines   bool          // they are those for pipelines
			lease, slow time.Duration // slow: how long the last answer took; 0: as long as the others
			pause       time.Duration // since then
			within      time.Duration // a call comes through
			replicas    bool          // a Cluster reads from them
			opts        []Option
		}{
			"the caller sends":         {40, false, 30 * time.Second, 0, time.Second / 2, time.Second / 2, false, nil},
			"another goroutine sends":  {40, false, 30 * time.Second, 0, 2 * time.Second, time.Second / 2, false, nil},
			"a slow answer":            {40, false, 30 * time.Second, 300 * time.Millisecond, 0, 2 * time.Second, false, nil},
			"a short lease":            {2, false, 2 * time.Second, 0, 0, time.Second / 2, false, nil},
			"those for pipelines":      {40, true, 30 * time.Second, 0, 0, time.Second, false, nil},
			"those, and a short lease": {2, true, 2 * time.Second, 0, 0, time.Second, false, nil},
			"reads from replicas":      {40, false, 30 * time.Second, 0, 0, 2 * time.Second, true, nil},
			"replicas confirm":         {40, false, 30 * time.Second, 0, 0, 2 * time.Second, false, []Option{WithSyncedReplicas(1, time.Second/10)}},
		} {
			t.Run(name+", "+pool, func(t *testing.T) {
				locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
					_, dead := v.Redis(0)
					_, alive := v.Redis(0)
					var to atomic.Pointer[bubble.Link]
					to.Store(dead)
					all, c := quick(v, func(o *redis.Options) redis.UniversalClient {
						if is.pipelines {
							o.PipelineReadBufferSize, o.PipelinePoolSize = o.ReadBufferSize, o.PoolSize
						}
						o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
							return to.Load().Dial(ctx, network, addr)
						}
						if is.replicas {
							return redis.NewClusterClient(&redis.ClusterOptions{
								Dialer: o.Dialer, PoolSize: o.PoolSize, MaintNotificationsConfig: o.MaintNotificationsConfig, ReadOnly: true,
								ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
									return []redis.ClusterSlot{{End: 1<<14 - 1, Nodes: []redis.ClusterNode{{Addr: o.Addr}}}}, nil
								},
							})
						}
						return redis.NewClient(o)
					}, append(is.opts, WithWatchdogTimeout(is.lease))...)
					ctx, held := ContextWithOwner(ctx), c.NewLock("held")
					require.NoError(v, held.Lock(ctx))
					warm(v, all, is.conns, is.pipelines)
					if is.slow > 0 {
						go locktest.Silent(func() { time.Sleep(is.slow) }, dead)
						_, err := c.Inspect(ctx, "free")
						require.NoError(v, err)
					}
					if stats := all.PoolStats(); is.pipelines {
						require.EqualValues(v, is.conns, stats.PipelineStats.IdleConns)
					} else {
						require.EqualValues(v, is.conns, stats.IdleConns)
					}
					time.Sleep(is.pause)
					to.Store(alive)
					locktest.Silent(func() {
						start := time.Now()
						assert.NoError(v, call(ctx, c.NewLock("free"), held))
						if name != "a renewal" {
							assert.Less(v, time.Since(start), is.within)
						}
					}, dead)
				})
			})
		}
	}
}

// A server that is far away, or slow for a moment, keeps the connections that are idle meanwhile.
func TestSlowAnswersCloseNoIdleConnection(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		rdb, link := v.Redis(0)
		link.Set(func(c *bubble.Conditions) { c.Latency = 150 * time.Millisecond })
		var probes atomic.Int64
		rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
			if cmd.Name() == "exists" {
				probes.Add(1)
			}
		}))
		ctx, c := ContextWithOwner(ctx), v.ClientOn(rdb)
		l := c.NewLock("l")
		require.NoError(v, l.Lock(ctx))
		const conns = 5
		warm(v, rdb, conns, false)
		time.Sleep(15 * time.Second) // the scripts are loaded from here on
		probes.Store(0)
		time.Sleep(time.Minute)
		assert.Zero(v, probes.Load(), "renewals are answered")
		link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{true, true} })
		time.AfterFunc(1500*time.Millisecond, func() { link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{} }) })
		require.NoError(v, l.Unlock(ctx))
		time.Sleep(time.Minute)
		assert.Positive(v, probes.Load(), "Unlock was silent for a second")
		assert.GreaterOrEqual(v, rdb.PoolStats().TotalConns, uint32(conns))
	})
}

// A Redis client that waits for answers without a limit opens connections that are never answered: no bounded request,
// and no probe, waits for ever.
func TestBoundedRequestsEndWithoutAReadTimeout(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		_, link := v.Redis(0)
		var mute atomic.Bool
		ends := make(chan net.Conn, 1000)
		_, c := quick(v, func(o *redis.Options) redis.UniversalClient {
			o.ReadTimeout = -1
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if !mute.Load() {
					return link.Dial(ctx, network, addr)
				}
				one, other := net.Pipe()
				ends <- other
				go func() { _, _ = io.Copy(io.Discard, other) }()
				return one, nil
			}
			return redis.NewClient(o)
		})
		ctx := ContextWithOwner(ctx)
		time.Sleep(2 * time.Second)
		mute.Store(true)
		link.Cut()
		for range 3 {
			ok, err := c.NewLock("l").TryLock(ctx, 3*time.Second, 0)
			assert.True(v, !ok && err != nil)
		}
		time.Sleep(time.Minute)
		assert.NotRegexp(v, "RunBounded|Probe", goroutines(v))
		mute.Store(false)
		for range len(ends) {
			_ = (<-ends).Close()
		}
	})
}
