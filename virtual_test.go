//go:build go1.25

package relock

// Helpers for tests of Clients in virtual time: several servers in memory, in a bubble of testing/synctest.

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/bubble"
)

// A virtual belongs to one test in a bubble.
type virtual struct {
	*testing.T
	servers []*bubble.Redis
	links   int
}

// inVirtualTime runs f in a bubble with this number of servers.
func inVirtualTime(t *testing.T, servers int, f func(v *virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &virtual{T: t}
		for range servers {
			v.servers = append(v.servers, bubble.Start())
		}
		t.Cleanup(func() {
			for _, s := range v.servers {
				s.Close()
			}
			time.Sleep(2 * time.Second) // go-redis keeps trying to reach its server for another second
		})
		f(v)
	})
}

// client returns a Client of a server, with a round trip of a millisecond, and its link to the server.
func (v *virtual) client(server int, opts ...Option) (*Client, *bubble.Link) {
	v.Helper()
	rdb, link := v.redis(server)
	return v.clientOn(rdb, opts...), link
}

func (v *virtual) clientOn(rdb redis.UniversalClient, opts ...Option) *Client {
	v.Helper()
	c, err := New(rdb, append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(v, err)
	v.Cleanup(func() { assert.NoError(v, c.Close()) })
	return c
}

// redis returns a go-redis client of a server, and its link to the server.
func (v *virtual) redis(server int) (*redis.Client, *bubble.Link) {
	v.links++
	link := v.servers[server].Link(fmt.Sprint("link ", v.links), uint64(v.links))
	link.Set(func(c *bubble.Conditions) { c.Latency = 500 * time.Microsecond })
	rdb := redis.NewClient(&redis.Options{
		Addr: bubble.Addr(server), Dialer: link.Dial, DialerRetries: 1, // between retries it sleeps with a mutex held
		PoolSize:                 bubble.PoolSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	v.Cleanup(func() { assert.NoError(v, rdb.Close()) })
	return rdb, link
}

// silent makes a link hold up all traffic while f runs.
func silent(link *bubble.Link, f func()) {
	hold := func(held bool) {
		link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{held, held} })
	}
	hold(true)
	defer hold(false)
	f()
}
