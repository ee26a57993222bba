//go:build go1.25

package bubble

import (
	"context"
	"fmt"
	"net"
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

// Leases expire by the wall clock, as those of a real Redis server do.
func TestLeasesFollowAClockThatMoves(t *testing.T) {
	within(t, func(s site) {
		require.NoError(s, s.rdb.Set(ctx, "k", "v", time.Minute).Err())
		before := s.rdb.Time(ctx).Val()
		s.redis.MoveClock(-time.Hour)
		assert.InDelta(s, -time.Hour, s.rdb.Time(ctx).Val().Sub(before), float64(time.Second))
		assert.InDelta(s, time.Hour+time.Minute, s.rdb.PTTL(ctx, "k").Val(), float64(time.Second))
		s.redis.MoveClock(time.Hour + 30*time.Second)
		assert.InDelta(s, 30*time.Second, s.rdb.PTTL(ctx, "k").Val(), float64(time.Second))
		time.Sleep(10 * time.Second)
		assert.InDelta(s, 20*time.Second, s.rdb.PTTL(ctx, "k").Val(), float64(time.Second), "the clock goes on")
		s.redis.MoveClock(time.Minute)
		assert.Zero(s, s.rdb.Exists(ctx, "k").Val())
	})
}

// Data that was sent arrives when traffic is no longer held up, even if its client has gone.
func TestRequestsRunLate(t *testing.T) {
	within(t, func(s site) {
		require.NoError(s, s.rdb.Ping(ctx).Err())
		s.link.Set(func(c *Conditions) { c.Held[ToRedis] = true })
		assert.ErrorContains(s, s.rdb.Incr(ctx, "n").Err(), "i/o timeout")
		assert.ErrorContains(s, s.rdb.Incr(ctx, "n").Err(), "refused", "a new connection")
		s.link.Set(func(c *Conditions) { c.Held[ToRedis] = false })
		time.Sleep(time.Second)
		assert.Equal(s, "1", s.rdb.Get(ctx, "n").Val())
	})
}

func TestAnswersAreLost(t *testing.T) {
	within(t, func(s site) {
		s.link.Set(func(c *Conditions) { c.Lost = 1 })
		assert.Error(s, s.rdb.Eval(ctx, "return redis.call('incr', KEYS[1])", []string{"n"}).Err())
		s.link.Set(func(c *Conditions) { c.Lost, c.Stalled = 0, 1 })
		assert.ErrorContains(s, s.rdb.Eval(ctx, "return redis.call('incr', KEYS[1])", []string{"n"}).Err(), "i/o timeout")
		assert.Equal(s, "2", s.rdb.Get(ctx, "n").Val())
	})
}

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

// A script may write as much memory allows until it has written something, and anything after that.
func TestRefusals(t *testing.T) {
	within(t, func(s site) {
		run := func(script string) error { return s.rdb.Eval(ctx, script, []string{"k"}).Err() }
		const write, publish = "return redis.pcall('set', KEYS[1], 1)", "return redis.pcall('publish', KEYS[1], 1)"
		publishing := func(cmd string, _ []string) bool { return cmd == "PUBLISH" }
		s.redis.Fill(true)
		assert.ErrorContains(s, run(write), "OOM")
		assert.NoError(s, run("redis.call('del', KEYS[1]) "+write))
		s.redis.Fill(false)
		s.redis.Deny(publishing)
		assert.ErrorContains(s, run(publish), "NOPERM")
		s.redis.Deny(nil)
		assert.NoError(s, run(publish))
		s.link.Deny(publishing)
		assert.ErrorContains(s, run(publish), "NOPERM")
		other := s.client(s.redis.Link("q", 1))
		assert.NoError(s, other.Publish(ctx, "k", 1).Err(), "the user of another link")
		assert.NoError(s, other.Close())
	})
}

// A handshake takes no time and does not fail, even if traffic is held up, or if the connection is cut as soon as it
// exists, because go-redis holds a mutex during that time.
func TestHandshakeIsNotHeldUp(t *testing.T) {
	for what, fault := range map[string]func(*Link){
		"held":     func(l *Link) { l.Set(func(c *Conditions) { c.Held = [2]bool{true, true} }) },
		"cut":      (*Link).Cut,
		"vanished": func(l *Link) { l.Vanish(false) },
		"silent":   func(l *Link) { l.Vanish(true) },
	} {
		t.Run(what, func(t *testing.T) {
			within(t, func(s site) {
				faulty, dials := s.client(s.link), 0
				faulty.Options().Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := s.link.Dial(ctx, network, addr)
					if dials++; dials == 1 {
						fault(s.link)
					}
					return c, err
				}
				start := time.Now()
				sub := faulty.Subscribe(ctx, "channel")
				assert.Zero(s, time.Since(start))
				if what == "held" {
					s.link.Set(func(c *Conditions) { c.Held = [2]bool{} })
					message, err := sub.Receive(ctx)
					require.NoError(s, err)
					assert.IsType(s, &redis.Subscription{}, message)
				} else {
					assert.Equal(s, 2, dials, "what follows the handshake fails")
				}
				require.NoError(s, sub.Close())
				require.NoError(s, faulty.Close())
			})
		})
	}
}
