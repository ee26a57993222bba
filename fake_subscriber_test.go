package relock

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// fakeServer is a Redis of pub/sub only: it confirms subscriptions, answers pings,
// and publishes messages, unless a test says otherwise.
type fakeServer struct {
	mu           sync.Mutex // guards below
	conns        []*fakeConn
	dialled      int
	commands     []string
	refuse       func(channel string) error // the answer to SUBSCRIBE; nil: none of them is refused
	down         bool                       // connections fail
	silent       bool                       // the server answers nothing
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

// An answerError is an error reply of Redis.
type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}

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

// publish returns the number of connections that get the message.
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
