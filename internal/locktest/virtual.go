//go:build go1.25

package locktest

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Virtual belongs to one test in a bubble.
type Virtual struct {
	*testing.T
	Servers []*bubble.Redis
	links   int
}

// InVirtualTime runs f in a bubble with this number of servers.
func InVirtualTime(t *testing.T, servers int, f func(v *Virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &Virtual{T: t}
		for range servers {
			v.Servers = append(v.Servers, bubble.Start())
		}
		t.Cleanup(func() {
			for _, s := range v.Servers {
				s.Close()
			}
			time.Sleep(2 * time.Second) // go-redis keeps trying to reach its server for another second
		})
		f(v)
	})
}

// Client returns a Client of a server, with a round trip of a millisecond, and its link to the server.
func (v *Virtual) Client(server int, opts ...relock.Option) (*relock.Client, *bubble.Link) {
	v.Helper()
	rdb, link := v.Redis(server)
	return v.ClientOn(rdb, opts...), link
}

func (v *Virtual) ClientOn(rdb redis.UniversalClient, opts ...relock.Option) *relock.Client {
	v.Helper()
	c, err := relock.New(rdb, append([]relock.Option{relock.WithLogger(slog.New(slog.DiscardHandler)), relock.WithLabel("")}, opts...)...)
	require.NoError(v, err)
	v.Cleanup(func() { assert.NoError(v, c.Close()) })
	return c
}

// Redis returns a go-redis client of a server, and its link to the server.
func (v *Virtual) Redis(server int) (*redis.Client, *bubble.Link) {
	v.links++
	link := v.Servers[server].Link(fmt.Sprint("link ", v.links), uint64(v.links))
	link.Set(func(c *bubble.Conditions) { c.Latency = 500 * time.Microsecond })
	rdb := redis.NewClient(&redis.Options{
		Addr: bubble.Addr(server), Dialer: link.Dial, DialerRetries: 1, // between retries it sleeps with a mutex held
		PoolSize:                 bubble.PoolSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	v.Cleanup(func() { assert.NoError(v, rdb.Close()) })
	return rdb, link
}

// Silent makes links hold up all traffic while f runs.
func Silent(f func(), links ...*bubble.Link) {
	hold := func(held bool) {
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{held, held} })
		}
	}
	hold(true)
	defer hold(false)
	f()
}

// Refusing makes links refuse all connections while f runs.
func Refusing(f func(), links ...*bubble.Link) {
	refuse := func(on bool) {
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Refused = on })
			link.Cut()
		}
	}
	refuse(true)
	defer refuse(false)
	f()
}
