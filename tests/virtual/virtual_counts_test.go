//go:build go1.25

package virtual

// Tests of what callers cost and leave behind, in virtual time: how many requests they send, and how many connections
// and subscriptions they need.
//
// Rules: on a busy machine a request whose answer is late is sent again, which is right, and makes counts useless. In a
// bubble an answer takes as long as its link says, so the counts are exact.

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onVirtualLocks runs test for every lock type, each in a bubble with one server that has loaded all scripts.
func onVirtualLocks(t *testing.T, test func(v *locktest.Virtual, k locktest.FaultLock)) {
	for _, k := range locktest.FaultLocks {
		t.Run(k.Name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				rdb, _ := v.Redis(0)
				for _, script := range locktest.AllScripts() {
					require.NoError(v, rdb.ScriptLoad(ctx, script.Source()).Err())
				}
				test(v, k)
			})
		})
	}
}

// named returns a Client of the only server, with two siblings that know the server by other names. The hooks see what
// each of the three sends.
func named(v *locktest.Virtual, hook redis.Hook, opts ...Option) (*Client, *bubble.Link) {
	v.Helper()
	rdb, link := v.Redis(0)
	all := []*redis.Client{rdb}
	for _, addr := range []string{"127.0.0.2:6379", "127.0.0.3:6379"} {
		o := *rdb.Options()
		o.Addr = addr
		other := redis.NewClient(&o)
		v.Cleanup(func() { assert.NoError(v, other.Close()) })
		all = append(all, other)
	}
	var clients []*Client
	for _, rdb := range all {
		if hook != nil {
			rdb.AddHook(hook)
		}
		clients = append(clients, v.ClientOn(rdb, opts...))
	}
	locktest.Siblings.Store(clients[0], clients[1:])
	v.Cleanup(func() { locktest.Siblings.Delete(clients[0]) })
	return clients[0], link
}

// asStrings returns a command as Redis receives it.
func asStrings(cmd redis.Cmder) (args []string) {
	for _, arg := range cmd.Args() {
		args = append(args, fmt.Sprint(arg))
	}
	return args
}

// countScripts returns how many runs of scripts the server has received since.
func countScripts(v *locktest.Virtual) *atomic.Int64 {
	var n atomic.Int64
	v.Servers[0].Deny(func(cmd string, _ []string) bool {
		if cmd == "EVALSHA" || cmd == "EVAL" {
			n.Add(1)
		}
		return false
	})
	return &n
}

// Row 48: a thousand goroutines wait for one lock, in four processes. The cost of a release in Redis depends on the
// number of processes, not of waiters. Waiters of a fair lock poll once a second.
func TestFaultReleaseCostsTheSameForManyWaiters(t *testing.T) {
	const processes, releases = 4, 5
	waiters := locktest.Full(300, 1000)
	onVirtualLocks(t, func(v *locktest.Virtual, k locktest.FaultLock) {
		if k.Shared {
			return // they share the lock
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		direct, _ := named(v, nil)
		held := k.One(direct, "l")
		require.NoError(v, held.Lock(ctx))
		in := make(chan error, waiters)
		goOn := make(chan struct{})
		var all sync.WaitGroup
		var clients []*Client
		var locks []Locker
		var late atomic.Int64 // releases of the second part of a MultiLock that are late: the first part is free before it
		delay := locktest.CommandHook(func(cmd redis.Cmder) {
			args := asStrings(cmd)
			if k.Gives(args) && strings.HasSuffix(args[3], "}2") && late.Add(-1) >= 0 {
				time.Sleep(20 * time.Millisecond)
			}
		})
		for range processes {
			c, _ := named(v, delay, WithPollInterval(time.Hour))
			l := k.One(c, "l")
			clients, locks = append(clients, c), append(locks, l)
			for range waiters / processes {
				all.Go(func() {
					owner := ContextWithOwner(ctx)
					if err := l.Lock(owner); err != nil {
						return // at the end
					}
					in <- nil
					<-goOn
					if err := l.Unlock(owner); err != nil {
						in <- err
					}
				})
			}
		}
		time.Sleep(5 * time.Second) // all wait
		synctest.Wait()
		if l := locktest.LockOf(held); l != nil && l.Traits().Admission == contract.Counting {
			queued, atWork := 0, int64(0)
			for i, l := range locks {
				queued += locktest.Look(l).Waiters
				atWork += locktest.EngineOf(clients[i]).Probe().Stats().AtWork
			}
			assert.Equal(v, waiters-processes, queued, "one of each process asks")
			assert.Equal(v, int64(waiters), atWork, "only the calls are at work")
		}
		late.Store(releases)
		start, asked := time.Now(), countScripts(v)
		require.NoError(v, held.Unlock(ctx))
		for range releases {
			require.NoError(v, <-in, "the next one comes in")
			goOn <- struct{}{}
		}
		require.NoError(v, <-in, "the last one comes in")
		most := (releases + 1) * (k.Asks + k.Parts) * (processes + 4)
		if k.Name == "fair" {
			most = 10*(releases+1) + int(float64(waiters)*(2+time.Since(start).Seconds()))
		}
		assert.LessOrEqual(v, asked.Load(), int64(most), "requests for %d releases", releases+1)
		v.Logf("%d requests for %d releases, at most %d are in order", asked.Load(), releases+1, most)
		cancel()
		close(goOn)
		all.Wait()
	})
}

// A service whose callers have a time limit leaves nothing that lasts.
func TestCallersThatLeaveLeaveNothingThatLasts(t *testing.T) {
	onVirtualLocks(t, func(v *locktest.Virtual, k locktest.FaultLock) {
		if !k.Lined() {
			return
		}
		c, link := named(v, nil)
		l := k.One(c, "l")
		link.Set(func(c *bubble.Conditions) { c.Latency = 10 * time.Millisecond })
		left := 0
		for range 30 {
			ctx, cancel := context.WithCancel(ContextWithOwner(ctx))
			got := make(chan error, 1)
			go func() { got <- l.Lock(ctx) }()
			time.Sleep(15 * time.Millisecond) // the request has run, and its answer is on its way
			cancel()
			if err := <-got; err == nil {
				require.NoError(v, l.Unlock(ctx))
			} else {
				require.ErrorIs(v, err, context.Canceled)
				left++
			}
		}
		assert.GreaterOrEqual(v, left, 1, "callers that have left")
		time.Sleep(2 * time.Minute) // tombstones expire
		assert.Empty(v, lines(v), "the lines of the lock")
	})
}

// lines returns the keys of all lines.
func lines(v *locktest.Virtual) (lines []string) {
	v.Servers[0].Look(func(m *miniredis.Miniredis) {
		lines = slices.DeleteFunc(m.Keys(), func(key string) bool { return !strings.HasPrefix(key, "relock_line:") })
	})
	return lines
}

// C1 and C6: if answers take longer than a quarter of a second and ctx limits the wait for them, a critical section
// costs two requests, and no connection is closed.
func TestContextTimeoutEnabledFarFromRedis(t *testing.T) {
	for _, timeout := range []time.Duration{900 * time.Millisecond, 5 * time.Second} {
		locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
			near, link := v.Redis(0)
			o := *near.Options()
			o.ReadTimeout, o.ContextTimeoutEnabled = timeout, true
			rdb := redis.NewClient(&o)
			v.Cleanup(func() { assert.NoError(v, rdb.Close()) })
			l := v.ClientOn(rdb).NewLock("l")
			require.NoError(v, l.Lock(ctx)) // there is a connection, and the scripts are loaded
			require.NoError(v, l.Unlock(ctx))
			link.Set(func(c *bubble.Conditions) { c.Latency = 150 * time.Millisecond })
			dials, runs := rdb.PoolStats().Misses, countScripts(v)
			require.NoError(v, l.Lock(ctx))
			require.NoError(v, l.Unlock(ctx))
			assert.Equal(v, int64(2), runs.Load(), "requests with a read timeout of %v", timeout)
			assert.Equal(v, dials, rdb.PoolStats().Misses, "new connections with a read timeout of %v", timeout)
		})
	}
}

// Locks that are held for less than a second cost two requests each and no subscription, for however long the Client
// works.
func TestShortHoldsCostNoSubscription(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		rdb, _ := v.Redis(0)
		l := v.ClientOn(rdb).NewLock("l")
		require.NoError(v, l.Lock(ctx)) // the scripts are loaded from here on
		require.NoError(v, l.Unlock(ctx))
		var sent atomic.Int64
		rdb.AddHook(locktest.CommandHook(func(redis.Cmder) { sent.Add(1) }))
		pairs := int64(0)
		for began := time.Now(); time.Since(began) < locktest.Full(3*time.Second, 10*time.Second); pairs++ {
			require.NoError(v, l.Lock(ctx))
			switch {
			case pairs%50 == 0:
				time.Sleep(100 * time.Millisecond)
			case pairs%2 == 0:
				time.Sleep(2 * time.Millisecond)
			}
			require.NoError(v, l.Unlock(ctx))
		}
		assert.Equal(v, 2*pairs, sent.Load(), "commands")
		v.Servers[0].Look(func(m *miniredis.Miniredis) {
			assert.Empty(v, m.PubSubChannels(record.ClientKey("*")), "channels")
		})
	})
}

// goroutines returns the stacks of all goroutines, and their labels.
func goroutines(v *locktest.Virtual) string {
	var text strings.Builder
	assert.NoError(v, pprof.Lookup("goroutine").WriteTo(&text, 1))
	return text.String()
}

// A Client that was used once, and is never closed, has no goroutine. While it holds and waits, none of its goroutines
// has the profiler labels of the caller.
func TestForgottenClientHasNoGoroutines(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		one, _ := v.Client(0)
		other, _ := v.Client(0)
		ctx, l := ContextWithOwner(ctx), one.NewLock("l")
		pprof.Do(ctx, pprof.Labels("caller", "first"), func(ctx context.Context) {
			assert.NoError(v, l.Lock(ctx))
			ok, err := other.NewLock("l").TryLock(ctx, time.Second, 0)
			assert.True(v, !ok && err == nil)
		})
		assert.Contains(v, goroutines(v), "wake.(*link)")
		assert.NotContains(v, goroutines(v), `"first"`)
		assert.NoError(v, l.Unlock(ctx))
		time.Sleep(time.Minute)
		assert.NotRegexp(v, `internal/(engine|lease|send|wake|workers)\.`, goroutines(v))
	})
}
