package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// fakeServer is the Redis of pub/sub: it confirms subscriptions, answers pings,
// and hands out messages, unless it is told not to.
type fakeServer struct {
	mu           sync.Mutex // guards below
	conns        []*fakeConn
	dialled      int
	commands     []string
	refuse       func(channel string) error // what SUBSCRIBE is answered with
	down         bool                       // connections fail
	silent       bool                       // nothing is answered
	confirmAfter time.Duration
}

type fakeConn struct {
	server *fakeServer
	out    chan any // messages and errors, in order
	closed chan struct{}
	once   sync.Once
	subs   map[string]bool // guarded by server.mu
}

var errDown = errors.New("connection refused")

func (s *fakeServer) dial() subscriber {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialled++
	c := &fakeConn{server: s, out: make(chan any, 1<<16), closed: make(chan struct{}), subs: make(map[string]bool)}
	s.conns = append(s.conns, c)
	return c
}

func (c *fakeConn) Subscribe(_ context.Context, channels ...string) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	for _, ch := range channels {
		s.commands = append(s.commands, "subscribe "+ch)
		if s.silent {
			continue
		}
		if s.refuse != nil {
			if err := s.refuse(ch); err != nil {
				c.out <- err
				continue
			}
		}
		confirm := func() {
			c.subs[ch] = true
			c.out <- &redis.Subscription{Kind: "subscribe", Channel: ch}
		}
		if s.confirmAfter == 0 {
			confirm()
			continue
		}
		time.AfterFunc(s.confirmAfter, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			confirm()
		})
	}
	return nil
}

func (c *fakeConn) Unsubscribe(_ context.Context, channels ...string) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(channels) == 0 {
		panic("unsubscribes everything")
	}
	for _, ch := range channels {
		s.commands = append(s.commands, "unsubscribe "+ch)
		delete(c.subs, ch)
		confirm := func() { c.out <- &redis.Subscription{Kind: "sunsubscribe", Channel: ch} }
		if s.confirmAfter == 0 { // a timer that is due at once, in a bubble, may crash Go 1.26 under the race detector
			confirm()
			continue
		}
		time.AfterFunc(s.confirmAfter, confirm)
	}
	return nil
}

func (c *fakeConn) Ping(context.Context, ...string) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.server.down {
		return errDown
	}
	if !c.server.silent {
		c.out <- &redis.Pong{}
	}
	return nil
}

func (c *fakeConn) ReceiveTimeout(_ context.Context, timeout time.Duration) (any, error) {
	select {
	case m := <-c.out:
		if err, ok := m.(error); ok {
			return nil, err
		}
		return m, nil
	case <-time.After(timeout):
		return nil, &net.OpError{Op: "read", Err: errors.New("i/o timeout")}
	case <-c.closed:
		return nil, redis.ErrClosed
	}
}

func (c *fakeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// publish returns how many connections were told.
func (s *fakeServer) publish(channel string) (heard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent || s.down {
		return 0
	}
	for _, c := range s.conns {
		if c.subs[channel] {
			heard++
			select {
			case <-c.closed:
			case c.out <- &redis.Message{Channel: channel, Payload: "0"}:
			}
		}
	}
	return heard
}

// cut breaks all connections.
func (s *fakeServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.subs = make(map[string]bool)
		c.out <- errors.New("EOF")
	}
}

func (s *fakeServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeServer) dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialled
}

func (s *fakeServer) count(command string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.commands {
		if c == command {
			n++
		}
	}
	return n
}

func newFakePubSub(t *testing.T) (*fakeServer, *pubsub) {
	s := &fakeServer{}
	p := newPubSub(oneServer(s.dial), slog.New(slog.DiscardHandler))
	t.Cleanup(p.close)
	return s, p
}

func woken(l *listener) bool {
	synctest.Wait()
	select {
	case <-l.wake:
		return true
	default:
		return false
	}
}

func ready(l *listener) bool {
	synctest.Wait()
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

func TestPubSubSubscribesOnceAndWakesAllWhoListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		a, b, other := p.join("x"), p.join("x"), p.join("y")
		if !ready(a) || !ready(b) || !ready(other) {
			t.Fatal("not subscribed")
		}
		s.publish("x")
		if !woken(a) || !woken(b) || woken(other) {
			t.Error("a message must wake the listeners of its channel, and nobody else")
		}
		if n := s.count("subscribe x"); n != 1 {
			t.Errorf("subscribed %d times", n)
		}
		a.leave()
		s.publish("x")
		if woken(a) || !woken(b) {
			t.Error("who has left is not woken, who stays is")
		}
	})
}

func TestPubSubReadyOnlyAfterTheConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		s.confirmAfter = time.Second
		l := p.join("x")
		time.Sleep(999 * time.Millisecond)
		if ready(l) {
			t.Error("ready before Redis has confirmed")
		}
		time.Sleep(time.Millisecond)
		if !ready(l) {
			t.Error("not ready although Redis has confirmed")
		}
	})
}

func TestPubSubLingersAndThenUnsubscribes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		for range 100 { // a hot lock
			l := p.join("x")
			if !ready(l) {
				t.Fatal("not ready")
			}
			l.leave()
			time.Sleep(p.linger / 2)
		}
		if n := s.count("subscribe x"); n != 1 {
			t.Errorf("a hot lock subscribed %d times", n)
		}
		time.Sleep(p.linger)
		synctest.Wait()
		if n := s.count("unsubscribe x"); n != 1 {
			t.Errorf("unsubscribed %d times after the last one had left", n)
		}
		if n := len(p.channels); n != 0 {
			t.Errorf("%d channels are remembered", n)
		}
		l := p.join("x")
		if !ready(l) || s.count("subscribe x") != 2 {
			t.Error("a later listener is not subscribed anew")
		}
	})
}

func TestPubSubClosesAConnectionThatNobodyNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		p.join("x").leave()
		time.Sleep(p.idle + 2*p.linger)
		synctest.Wait()
		select {
		case <-s.conns[0].closed:
		default:
			t.Error("the connection is still open")
		}
		l := p.join("x")
		s.publish("x")
		if !ready(l) {
			t.Error("a later listener gets no connection")
		}
		if s.dials() != 2 {
			t.Errorf("%d connections", s.dials())
		}
	})
}

// L2: whoever may have missed a message is woken.
func TestPubSubWakesEverybodyAfterAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		a, b := p.join("x"), p.join("y")
		if !ready(a) || !ready(b) || woken(a) || woken(b) {
			t.Fatal("not ready, or woken without a reason")
		}
		s.cut()
		time.Sleep(100 * time.Millisecond)
		if !woken(a) || !woken(b) {
			t.Error("not woken after the connection was replaced")
		}
		s.publish("x")
		if !woken(a) {
			t.Error("the new connection hands out nothing")
		}
	})
}

func TestPubSubComesBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.join("x")
		if !ready(l) {
			t.Fatal("not ready")
		}
		s.set(func() { s.down = true })
		s.cut()
		time.Sleep(time.Minute)
		if s.dials() > 100 {
			t.Errorf("%d connections were tried in a minute", s.dials())
		}
		s.set(func() { s.down = false })
		time.Sleep(2 * time.Second)
		if !woken(l) {
			t.Error("not woken after the outage")
		}
	})
}

// go-redis would wait for ever.
func TestPubSubNoticesASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.join("x")
		if !ready(l) {
			t.Fatal("not ready")
		}
		s.set(func() { s.silent = true })
		time.Sleep(time.Minute)
		s.set(func() { s.silent = false })
		time.Sleep(5 * time.Second)
		if !woken(l) {
			t.Error("a connection on which nothing comes is still trusted")
		}
		s.publish("x")
		if !woken(l) {
			t.Error("no message comes through after the peer is back")
		}
	})
}

func TestPubSubKeepsAQuietConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.join("x")
		time.Sleep(time.Hour)
		if s.dials() != 1 || woken(l) {
			t.Errorf("%d connections in a quiet hour", s.dials())
		}
	})
}

type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}

func TestPubSubRefusedChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged lockedBuffer
		s := &fakeServer{refuse: func(ch string) error {
			if strings.HasPrefix(ch, "bad") {
				return answerError("NOPERM No permissions to access a channel")
			}
			return nil
		}}
		p := newPubSub(oneServer(s.dial), slog.New(slog.NewTextHandler(&logged, nil)))
		defer p.close()
		good1, bad1, bad2, good2 := p.join("good1"), p.join("bad1"), p.join("bad2"), p.join("good2")
		for _, l := range []*listener{good1, bad1, bad2, good2} {
			if !ready(l) {
				t.Fatalf("%s keeps its waiters waiting", l.channel.name)
			}
		}
		s.publish("good2")
		if !woken(good2) {
			t.Error("a refused channel disturbs another one")
		}
		if n := strings.Count(logged.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings: %s", n, logged.String())
		}
		for _, l := range []*listener{good1, bad1, bad2, good2} {
			l.leave()
		}
		time.Sleep(2 * p.linger)
		synctest.Wait()
		if n := len(p.channels); n != 0 {
			t.Errorf("%d channels are remembered", n)
		}
	})
}

// A channel that is left before its confirmation came must not have that taken
// for the confirmation of a later channel of the same name.
func TestPubSubLateConfirmationIsNotMistaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		s.confirmAfter = 5 * p.linger
		p.join("x").leave()
		time.Sleep(4 * p.linger)
		l := p.join("x")
		time.Sleep(p.linger)
		if !ready(l) {
			t.Error("not ready although Redis has confirmed")
		}
		if s.count("subscribe x") != 1 || s.count("unsubscribe x") != 0 {
			t.Errorf("commands: %v", s.commands)
		}
		s.publish("x")
		if !woken(l) {
			t.Error("not subscribed")
		}
	})
}

func TestPubSubCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		p.join("x")
		p.close()
		p.join("y") // and is harmless afterwards
		p.close()
	})
}

func TestPubSubManyChannelsJoinedAndLeftAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		const many = 10_000
		ls := make([]*listener, many)
		for i := range ls {
			ls[i] = p.join(fmt.Sprint("ch", i))
		}
		for _, l := range ls {
			if !ready(l) {
				t.Fatal("not ready")
			}
		}
		if s.dials() != 1 {
			t.Errorf("%d connections", s.dials())
		}
		for _, l := range ls {
			l.leave()
		}
		time.Sleep(2 * p.linger)
		synctest.Wait()
		l := p.links[""]
		if len(p.channels)+l.size+len(l.idling)+len(l.pending)+len(l.wanted) != 0 {
			t.Error("something is left")
		}
		if n := len(s.conns[0].subs); n != 0 {
			t.Errorf("%d are still subscribed", n)
		}
	})
}

// Random joins, leaves and cuts: whoever is ready hears every message of its channel.
func TestPubSubRandomly(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) { pubSubRandomly(t, seed) })
	}
}

func pubSubRandomly(t *testing.T, seed int) {
	s, p := newFakePubSub(t)
	rng := newRand(seed)
	names := []string{"a", "b", "c"}
	var listening []*listener
	for step := range 500 {
		switch rng.IntN(6) {
		case 0, 1:
			listening = append(listening, p.join(names[rng.IntN(len(names))]))
		case 2:
			if len(listening) > 0 {
				i := rng.IntN(len(listening))
				listening[i].leave()
				listening = slices.Delete(listening, i, i+1)
			}
		case 3:
			time.Sleep(time.Duration(rng.IntN(int(2 * p.linger))))
		case 4:
			if rng.IntN(5) == 0 {
				s.cut()
				time.Sleep(5 * time.Second) // longer than the longest pause between connections
			}
		case 5:
			name := names[rng.IntN(len(names))]
			for _, l := range listening {
				woken(l)
			}
			s.publish(name)
			for _, l := range listening {
				if !ready(l) {
					t.Fatalf("seed %d step %d: %s is not ready", seed, step, l.channel.name)
				}
				if got := woken(l); got != (l.channel.name == name) {
					t.Fatalf("seed %d step %d: listener of %s woken %v by a message on %s", seed, step, l.channel.name, got, name)
				}
			}
		}
	}
}
