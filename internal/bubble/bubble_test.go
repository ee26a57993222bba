//go:build go1.25

package bubble

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A site is a Redis server, a link to it, and a client.
type site struct {
	*testing.T
	redis *Redis
	link  *Link
	rdb   *redis.Client
}

// within plays f in a bubble, with a round trip of 2 ms.
func within(t *testing.T, f func(s site)) {
	synctest.Test(t, func(t *testing.T) {
		r := Start()
		s := site{t, r, r.Link("p", 1), nil}
		s.link.Set(func(c *Conditions) { c.Latency = time.Millisecond })
		s.rdb = s.client(s.link)
		f(s)
		require.NoError(t, s.rdb.Close())
		r.Close()
		time.Sleep(2 * time.Second) // go-redis keeps trying to reach its server for another second
	})
}

func (s site) client(l *Link) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: Addr(0), Dialer: l.Dial, DialerRetries: 1, MaxRetries: -1, ReadTimeout: time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

var ctx = context.Background()

// Redis counts the receivers of a message. These are the clients whose connection is open, and those whose machine
// has vanished silently.
func TestWhoHearsAMessage(t *testing.T) {
	within(t, func(s site) {
		listen := func(name string) (*Link, func()) {
			l := s.redis.Link(name, 1)
			rdb := s.client(l)
			sub := rdb.Subscribe(ctx, "channel")
			_, err := sub.Receive(ctx)
			require.NoError(s, err)
			return l, func() {
				_ = sub.Close()
				_ = rdb.Close()
			}
		}
		killed, end := listen("killed")
		defer end()
		vanished, end := listen("vanished")
		defer end()
		_, end = listen("alive")
		defer end()
		heard := func() int { return int(s.rdb.Publish(ctx, "channel", "m").Val()) }
		assert.Equal(s, 3, heard())
		killed.Vanish(false)
		assert.Equal(s, 2, heard())
		vanished.Vanish(true)
		assert.Equal(s, 2, heard())
		time.Sleep(KeepAlive)
		assert.Equal(s, 1, heard())
	})
}

// do runs a command, and returns its answer as a text.
func (s site) do(command string) string {
	s.Helper()
	var args []any
	for _, arg := range strings.Fields(command) {
		args = append(args, arg)
	}
	answer, err := s.rdb.Do(ctx, args...).Result()
	require.NoError(s, err, command)
	return fmt.Sprint(answer)
}

// Restored data does not contain keys that have expired in the meantime.
func TestRedisIsSetBack(t *testing.T) {
	within(t, func(s site) {
		for _, command := range []string{"set text old", "hset hash f 1", "pexpire hash 60000", "rpush list a b",
			"zadd zset 1.5 m", "psetex short 1000 gone"} {
			s.do(command)
		}
		then := s.redis.Save()
		for _, command := range []string{"set text new", "set late x", "hset hash f 2", "lset list 0 c", "zrem zset m"} {
			s.do(command)
		}
		s.redis.Stop()
		assert.Error(s, s.rdb.Ping(ctx).Err())
		time.Sleep(10 * time.Second)
		s.redis.Restore(then)
		s.redis.Return()
		require.Eventually(s, func() bool { return s.rdb.Ping(ctx).Err() == nil }, 5*time.Second, 100*time.Millisecond)
		for command, want := range map[string]string{
			"get text": "old", "hgetall hash": "map[f:1]", "lrange list 0 -1": "[a b]", "zscore zset m": "1.5",
			"exists short late": "0",
		} {
			assert.Equal(s, want, s.do(command), command)
		}
		assert.InDelta(s, 50*time.Second, s.rdb.PTTL(ctx, "hash").Val(), float64(time.Second))
	})
}
