//go:build go1.25

package virtual

import (
	"context"
	"fmt"
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
func quick(v *locktest.Virtual, change func(*redis.Options)) (*redis.Client, *Client) {
	rdb, _ := v.Redis(0)
	o := *rdb.Options()
	change(&o)
	all := redis.NewClient(&o)
	v.Cleanup(func() { assert.NoError(v, all.Close()) })
	c, ctx := v.ClientOn(all), ContextWithOwner(ctx)
	for range 30 {
		require.NoError(v, c.NewLock("quick").Lock(ctx))
		require.NoError(v, c.NewLock("quick").Unlock(ctx))
	}
	return all, c
}

// Redis answers, but all connections in the pool are dead, as after a host behind its name has vanished. go-redis hands
// them out one after the other, and each call of a lock comes through nevertheless, soon after it was the first to ask.
func TestCallsComeThroughAPoolOfDeadConnections(t *testing.T) {
	const size = 40
	for name, call := range map[string]func(ctx context.Context, l, held Locker) error{
		"Lock":   func(ctx context.Context, l, _ Locker) error { return l.Lock(ctx) },
		"Unlock": func(ctx context.Context, _, held Locker) error { return held.Unlock(ctx) },
		"TryLock": func(ctx context.Context, l, _ Locker) error {
			ok, err := l.TryLock(ctx, time.Second, 0)
			if err == nil && !ok {
				err = ErrBusy
			}
			return err
		},
		"a renewal": func(ctx context.Context, _, held Locker) error {
			guarded, err := held.Guard(ctx)
			if err == nil {
				time.Sleep(time.Minute)
				err = guarded.Err()
			}
			return err
		},
	} {
		for _, pause := range []time.Duration{time.Second / 2, 2 * time.Second} { // the caller or another goroutine sends
			t.Run(fmt.Sprint(name, pause), func(t *testing.T) {
				locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
					_, dead := v.Redis(0)
					_, alive := v.Redis(0)
					var to atomic.Pointer[bubble.Link]
					to.Store(dead)
					all, c := quick(v, func(o *redis.Options) {
						o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
							return to.Load().Dial(ctx, network, addr)
						}
					})
					ctx, held := ContextWithOwner(ctx), c.NewLock("held")
					require.NoError(v, held.Lock(ctx))
					var warm sync.WaitGroup
					for range size {
						warm.Go(func() { assert.NoError(v, all.Ping(ctx).Err()) })
					}
					warm.Wait()
					require.EqualValues(v, size, all.PoolStats().IdleConns)
					time.Sleep(pause)
					to.Store(alive)
					locktest.Silent(func() {
						start := time.Now()
						assert.NoError(v, call(ctx, c.NewLock("free"), held))
						if name != "a renewal" {
							assert.Less(v, time.Since(start), time.Second/2)
						}
					}, dead)
				})
			})
		}
	}
}

// A Redis client that waits for answers without a limit opens connections that are never answered: no bounded request,
// and no probe, waits for ever.
func TestBoundedRequestsEndWithoutAReadTimeout(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		_, link := v.Redis(0)
		var mute atomic.Bool
		ends := make(chan net.Conn, 1000)
		_, c := quick(v, func(o *redis.Options) {
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
