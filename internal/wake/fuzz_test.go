//go:build go1.25

package wake

// Fuzzing of everything that can arrive over a connection. The seeds run with the other tests. To search further:
//
//	go test -run '^$' -fuzz '^FuzzPubSub$' -fuzztime 1m ./internal/wake

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/wake/waketest"
)

// A tape is the input of a fuzzer, which is read byte by byte. After its end it yields zeros.
type tape []byte

func (p *tape) next() byte {
	if len(*p) == 0 {
		return 0
	}
	b := (*p)[0]
	*p = (*p)[1:]
	return b
}

func (p *tape) pick(n int) int { return int(p.next()) % n }

func (p *tape) text() string {
	n := min(p.pick(64), len(*p))
	s := string((*p)[:n])
	*p = (*p)[n:]
	return s
}

// Whatever arrives over subscription connections, no listener blocks, and a listener receives its messages once the
// servers work again.
func FuzzPubSub(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 4, 2, 0, 7})
	f.Add([]byte{0, 1, 5, 0, 0, 5, 1, 0, 6, 3, 2, 1, 0, 3, 9, 0, 2, 0})
	f.Add([]byte{0, 0, 7, 5, 0, 2, 0, 1, 5, 0, 3, 5, 1, 4, 5, 0, 5, 5, 0, 6, 5, 0, 7})
	f.Add([]byte{8, 1, 0, 0, 0, 1, 0, 2, 6, 0, 1, 6, 1, 2, 3, 200, 4, 0, 0, 3, 8, 2})
	f.Add([]byte{9, 0, 0, 3, 3, 255, 3, 255, 9, 1, 0, 0, 3, 255, 2, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) { playPubSub(t, data) })
	})
}

func playPubSub(t *testing.T, data []byte) {
	c, p := newFakeCluster(t, 2)
	names := []string{"a", "b", "c", ""}
	for i, name := range names {
		c.place(name, i%2)
	}
	say := func(server int, message any) {
		c.servers[server].Set(func() {
			for _, conn := range c.servers[server].Conns {
				select {
				case <-conn.Closed:
				case conn.Out <- message:
				}
			}
		})
	}
	var listening []*Listener
	for in := tape(data); len(in) > 0; {
		name, server := "", 0
		switch op := in.pick(10); op {
		case 0:
			listening = append(listening, p.Join(names[in.pick(len(names))]))
		case 1:
			if n := len(listening); n > 0 {
				i := in.pick(n)
				listening[i].Leave() // a listener may leave more than once
				listening[i], listening = listening[n-1], listening[:n-1]
			}
		case 2:
			c.move(names[in.pick(len(names))], in.pick(3)-1)
		case 3:
			time.Sleep(time.Duration(in.next()) * 20 * time.Millisecond)
		case 4:
			c.servers[in.pick(2)].Cut()
		case 5: // errors without a request
			server = in.pick(2)
			say(server, waketest.Error([]string{
				"NOPERM No permissions to access a channel", "MOVED 1 127.0.0.1:1", "CLUSTERDOWN The cluster is down",
				"NOPERM User x has no permissions to run the 'ping' command", "ERR unknown command 'SSUBSCRIBE'", "", "ERR \r\n",
				in.text(),
			}[in.pick(8)]))
		case 6: // confirmations without a request
			name = names[in.pick(len(names))]
			say(in.pick(2), &redis.Subscription{
				Kind: []string{"subscribe", "ssubscribe", "unsubscribe", "sunsubscribe", "psubscribe", "",
					in.text()}[in.pick(7)],
				Channel: []string{name, name, in.text()}[in.pick(3)], Count: int(int8(in.next())),
			})
		case 7:
			say(in.pick(2), []any{
				&redis.Message{Channel: in.text(), Payload: in.text()}, &redis.Message{}, &redis.Pong{Payload: in.text()},
				nil, "text", int64(1), []any{"message"}, (*int)(nil),
			}[in.pick(8)])
		case 8:
			s := c.servers[in.pick(2)]
			s.Set(func() { s.Down = !s.Down })
		case 9:
			s := c.servers[in.pick(2)]
			s.Set(func() { s.Silent = !s.Silent })
		}
		if in.pick(2) == 0 {
			synctest.Wait()
		}
	}
	for i, s := range c.servers {
		s.Set(func() { s.Down, s.Silent = false, false })
		for j, name := range names {
			if j%2 == i {
				c.place(name, i)
			}
		}
	}
	time.Sleep(time.Minute)
	for _, l := range listening {
		require.True(t, ready(l), "the listener of %q does not become ready", l.Name())
		l.Leave() // the channel may have been refused, and is not requested again while it has a listener
	}
	time.Sleep(2 * p.idleTTL)
	listening = nil
	for _, name := range names {
		listening = append(listening, p.Join(name))
	}
	time.Sleep(10 * time.Second)
	for _, l := range listening {
		require.True(t, ready(l), "a later listener of %q does not become ready", l.Name())
		woken(l)
		c.publish(l.Name())
		require.True(t, woken(l), "a later listener of %q is not woken", l.Name())
		l.Leave()
	}
	time.Sleep(p.idleTTL + time.Minute)
	synctest.Wait()
	assert.Empty(t, p.channels, "channels are left")
	assert.Empty(t, p.links, "links are left")
}
