// Package waketest has a server that knows only pub/sub, for tests of package wake and of its users.
package waketest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Server is a Redis server that knows only pub/sub. It confirms subscriptions, answers pings, and publishes
// messages, unless a test makes it behave otherwise.
type Server struct {
	mu           sync.Mutex // guards below
	Conns        []*Conn
	dialled      int
	Pings        atomic.Int64
	Commands     []string
	Refuse       func(channel string) error // returns the answer to SUBSCRIBE; nil: no channel is refused
	RefuseEnd    error                      // the answer to UNSUBSCRIBE; nil: it is allowed
	RefusePing   error                      // the answer to PING; nil: it is allowed
	Down         bool                       // connections fail
	Silent       bool                       // the server answers nothing
	ConfirmAfter time.Duration
}

// A Conn is a connection to a Server.
type Conn struct {
	server *Server
	Out    chan any // messages and errors, in order
	Closed chan struct{}
	once   sync.Once
	Subs   map[string]bool // guarded by server.mu
}

// ErrDown is the error of connections to a Server that is down.
var ErrDown = errors.New("connection refused")

// An Error is an error reply of Redis.
type Error string

func (e Error) Error() string { return string(e) }
func (Error) RedisError()     {}

// Dial returns a new connection, also to a Server that is down.
func (s *Server) Dial() *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialled++
	c := &Conn{server: s, Out: make(chan any, 1<<16), Closed: make(chan struct{}), Subs: make(map[string]bool)}
	s.Conns = append(s.Conns, c)
	return c
}

func (c *Conn) Subscribe(_ context.Context, channels ...string) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Down {
		return ErrDown
	}
	for _, ch := range channels {
		s.Commands = append(s.Commands, "subscribe "+ch)
		if s.Silent {
			continue
		}
		if s.Refuse != nil {
			if err := s.Refuse(ch); err != nil {
				c.Out <- err
				continue
			}
		}
		confirm := func() {
			c.Subs[ch] = true
			c.Out <- &redis.Subscription{Kind: "subscribe", Channel: ch}
		}
		if s.ConfirmAfter == 0 {
			confirm()
			continue
		}
		time.AfterFunc(s.ConfirmAfter, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			confirm()
		})
	}
	return nil
}

func (c *Conn) Unsubscribe(_ context.Context, channels ...string) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(channels) == 0 {
		panic("unsubscribes everything")
	}
	for _, ch := range channels {
		s.Commands = append(s.Commands, "unsubscribe "+ch)
		confirm := func() { c.Out <- &redis.Subscription{Kind: "sunsubscribe", Channel: ch} }
		if err := s.RefuseEnd; err != nil {
			confirm = func() { c.Out <- err }
		} else {
			delete(c.Subs, ch)
		}
		if s.ConfirmAfter == 0 { // a timer that is due at once, in a bubble, may crash Go 1.26 under the race detector
			confirm()
			continue
		}
		time.AfterFunc(s.ConfirmAfter, confirm)
	}
	return nil
}

func (c *Conn) Ping(context.Context, ...string) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.server.Down {
		return ErrDown
	}
	c.server.Pings.Add(1)
	switch {
	case c.server.Silent:
	case c.server.RefusePing != nil:
		c.Out <- c.server.RefusePing
	default:
		c.Out <- &redis.Pong{}
	}
	return nil
}

func (c *Conn) Receive(context.Context) (any, error) {
	select {
	case m := <-c.Out:
		if err, ok := m.(error); ok {
			return nil, err
		}
		return m, nil
	case <-c.Closed:
		return nil, redis.ErrClosed
	}
}

func (c *Conn) Close() error {
	c.once.Do(func() { close(c.Closed) })
	return nil
}

// Publish sends a message, and returns the number of connections that receive it.
func (s *Server) Publish(channel string) (heard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Silent || s.Down {
		return 0
	}
	for _, c := range s.Conns {
		if c.Subs[channel] {
			heard++
			select {
			case <-c.Closed:
			case c.Out <- &redis.Message{Channel: channel, Payload: "0"}:
			}
		}
	}
	return heard
}

// Cut breaks all connections.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.Conns {
		c.Subs = make(map[string]bool)
		c.Out <- errors.New("EOF")
	}
}

// Set calls f, which may change the fields of the Server.
func (s *Server) Set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Dials returns the number of connections that were made.
func (s *Server) Dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialled
}

// Count returns how often a command such as "subscribe x" was received.
func (s *Server) Count(command string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.Commands {
		if c == command {
			n++
		}
	}
	return n
}
