package locks

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tests of MultiLocks whose locks have one name, and servers that go-redis does not know in one of the processes.

// A gate holds up the first script of a Redis client.
type gate struct {
	once sync.Once
	open chan struct{}
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }
func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			g.once.Do(func() { <-g.open })
		}
		return next(ctx, cmd)
	}
}
func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The address of the server of c is known in one process only. In the other one c is tied with b, also if a, which is not
// tied with b, comes between them.
func TestMultiLockGivesBackATiedLock(t *testing.T) {
	for name, between := range map[string]bool{"with a lock between": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			var addrs []string
			for range 3 {
				addrs = append(addrs, testredis.Start(t).Addr())
			}
			slices.Sort(addrs)
			client := func(o *redis.Options, hooks ...redis.Hook) *Client {
				rdb := redis.NewClient(o)
				for _, h := range hooks {
					rdb.AddHook(h)
				}
				c, err := New(rdb)
				require.NoError(t, err)
				t.Cleanup(func() { _ = c.Close(); _ = rdb.Close() })
				return c
			}
			g := &gate{open: make(chan struct{})}
			a1, b1 := client(&redis.Options{Addr: addrs[0]}), client(&redis.Options{Addr: addrs[1]}, g)
			c1 := client(&redis.Options{Addr: addrs[2], Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, addr)
			}})
			b2, c2 := client(&redis.Options{Addr: addrs[1]}), client(&redis.Options{Addr: addrs[2]})
			parts := []Locker{b1.NewLock("l"), c1.NewLock("l")}
			if between {
				parts = append(parts, a1.NewLock("l"))
			}
			one, two := b1.NewMultiLock(parts...), b2.NewMultiLock(b2.NewLock("l"), c2.NewLock("l"))
			limited, cancel := context.WithTimeout(ctx, 8*time.Second)
			defer cancel()
			run := func(l *MultiLock) chan error {
				got := make(chan error, 1)
				go func() {
					owner := ContextWithOwner(limited)
					err := l.Lock(owner)
					if err == nil {
						err = l.Unlock(owner)
					}
					got <- err
				}()
				return got
			}
			locked := func(l Locker) func() bool {
				return func() bool { held, err := l.IsLocked(ctx); return held && err == nil }
			}
			first := run(one)
			require.Eventually(t, locked(c2.NewLock("l")), 5*time.Second, time.Millisecond)
			second := run(two)
			require.Eventually(t, locked(b2.NewLock("l")), 5*time.Second, time.Millisecond)
			require.Eventually(t, func() bool { return locktest.Look(c2.NewLock("l")).Front },
				5*time.Second, time.Millisecond)
			close(g.open)
			assert.NoError(t, <-first)
			assert.NoError(t, <-second)
		})
	}
}
