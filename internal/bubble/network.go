// Package bubble has a Redis server, and a network to it, in the memory of a test process. Both use the clock of a
// testing/synctest bubble, in which minutes pass in milliseconds.
package bubble

// The network: what go-redis takes for TCP connections to a Redis server.
//
// Rules:
//   - A new connection, and the first commands that a client sends on it (HELLO, CLIENT), take no time and do not
//     fail. A link that holds traffic up, or is cut, refuses new connections, but lets the handshake of an existing
//     connection pass. The reason is that go-redis dials, and pauses after a failed handshake, with a mutex held, and
//     that the time of a bubble stands still while a goroutine waits for a mutex.
//   - Everything else on a link takes some time. Otherwise a request that is repeated again and again would take
//     none.
//   - Data that was sent arrives, even after the client has closed the connection.
//   - No buffer is ever full, and miniredis is never called with mu held.

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// Addr returns an address for the Options of go-redis, which is different for each server. It needs no DNS, because a
// bubble has none.
func Addr(server int) string { return "127.0.0.1:" + strconv.Itoa(6379+server) }

// PoolSize is a number of connections that is never exhausted by a go-redis client. A command that waits for a
// connection uses a timer that go-redis keeps for later commands, and a timer of one bubble crashes the process when
// another bubble uses it.
const PoolSize = 1000

// KeepAlive is how long Redis keeps the connections of a machine that has vanished.
const KeepAlive = 5 * time.Minute

// A Direction is one of the two directions of a link.
type Direction int

const (
	ToRedis Direction = iota
	FromRedis
)

// Conditions describe how a network affects the traffic of a link. With the zero value everything arrives at once.
type Conditions struct {
	Latency time.Duration // in each direction
	Jitter  time.Duration // the maximum of the random time that is added to Latency

	Held    [2]bool // by Direction: nothing arrives until this ends
	Refused bool    // new connections are refused
	Deaf    bool    // nothing arrives on connections that subscribe, not even the confirmation
	// Opaque makes new connections behave like those with TLS: go-redis does not see that one was closed before it
	// uses it.
	Opaque bool

	// Lost is the share of the scripts that ran whose answers are lost together with their connection. Stalled is the
	// share of those whose answers never arrive.
	Lost, Stalled float64

	// Delayed is the share of the requests that arrive later than others, by Late.
	Delayed float64
	Late    time.Duration
}

// A Link is the network between one process and one Redis server.
type Link struct {
	Name  string
	redis *Redis

	mu    sync.Mutex // guards below, and the state of conns
	rng   *rand.Rand
	is    Conditions
	gone  bool // the process has vanished
	deny  func(cmd string, args []string) bool
	conns map[*conn]struct{}
	order []*conn // the keys of conns, in the order in which an event reaches them
}

// Dial is the Dialer of a go-redis client.
func (l *Link) Dial(context.Context, string, string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone || l.is.Refused || l.is.Held[ToRedis] || l.is.Held[FromRedis] || !l.redis.accepts() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	c := &conn{link: l, young: true}
	c.wake = sync.NewCond(&l.mu)
	c.peer = server.NewPeer(bufio.NewWriter(replies{c}))
	l.conns[c] = struct{}{}
	l.order = append(l.order, c)
	if l.is.Opaque {
		return c, nil
	}
	return tcp{c}, nil
}

// Set changes the conditions of the link. Traffic that is no longer held up arrives.
func (l *Link) Set(change func(*Conditions)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.is)
	for _, c := range l.order {
		c.pump()
	}
}

// Deny makes Redis refuse the commands from this link for which deny returns true, as if the user lacked a
// permission. If deny is nil, no command is refused.
func (l *Link) Deny(deny func(cmd string, args []string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deny = deny
}

func (l *Link) denies(cmd string, args []string) bool {
	l.mu.Lock()
	deny := l.deny
	l.mu.Unlock()
	return deny != nil && deny(cmd, args)
}

// Cut closes all connections of the link.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range append([]*conn(nil), l.order...) {
		c.cut()
	}
}

// Vanish closes all connections, and refuses new ones, as if the process was killed. If silently is set, the whole
// machine has vanished, and Redis keeps its connections for some minutes.
func (l *Link) Vanish(silently bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for _, c := range append([]*conn(nil), l.order...) {
		if silently && !c.young {
			c.out[ToRedis].queue = nil
			c.closed = true
			c.wake.Broadcast()
			time.AfterFunc(KeepAlive, func() { l.redis.enqueue(request{conn: c, end: true}) })
			c.forget()
			continue
		}
		c.cut()
	}
}

// lost decides at random whether the answer of a script is lost, and how.
func (l *Link) lost() (lost, stalled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.Lost > 0 && l.rng.Float64() < l.is.Lost {
		return true, false
	}
	return false, l.is.Stalled > 0 && l.rng.Float64() < l.is.Stalled
}

// A conn is a connection, as its client sees it.
type conn struct {
	link *Link
	peer *server.Peer // the same connection, as miniredis sees it

	// Guarded by link.mu.
	wake     *sync.Cond // signaled when the client may have something to read
	young    bool       // nothing was sent except the handshake
	doomed   bool       // was cut while it was young: it is closed when more is sent
	out      [2]flow
	unparsed []byte // data that has arrived at Redis
	readable []byte // data that has arrived at the client
	eof      bool   // seen by the client
	closed   bool   // by the client
	mute     bool   // the answers from Redis are dropped
	deadline time.Time
	timer    *time.Timer
}

// A tcp is a connection that go-redis checks before it uses it again.
type tcp struct{ *conn }

func (c tcp) SyscallConn() (syscall.RawConn, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.eof || c.closed || c.doomed {
		return nil, io.EOF
	}
	return quiet{}, nil
}

// quiet is a connection on which nothing has arrived.
type quiet struct{}

func (quiet) Control(func(uintptr)) error    { return nil }
func (quiet) Read(func(uintptr) bool) error  { return nil }
func (quiet) Write(func(uintptr) bool) error { return nil }

// A flow is the data that is under way in one direction.
type flow struct {
	queue []chunk
	last  time.Time // when the last chunk arrives
}

type chunk struct {
	at   time.Time
	data []byte // none: the connection is closed
}

// send sends data in one direction. link.mu is held.
func (c *conn) send(to Direction, data []byte) {
	f, is := &c.out[to], &c.link.is
	at := time.Now()
	if !c.young {
		at = at.Add(is.Latency)
		if is.Jitter > 0 {
			at = at.Add(time.Duration(c.link.rng.Int64N(int64(is.Jitter))))
		}
		if to == ToRedis && is.Delayed > 0 && c.link.rng.Float64() < is.Delayed {
			at = at.Add(is.Late)
		}
	}
	if at.Before(f.last) {
		at = f.last
	}
	f.last = at
	f.queue = append(f.queue, chunk{at, data})
	if wait := time.Until(at); wait > 0 {
		time.AfterFunc(wait, func() {
			c.link.mu.Lock()
			defer c.link.mu.Unlock()
			c.pump()
		})
		return
	}
	c.pump()
}

// pump delivers the data that has arrived. link.mu is held.
func (c *conn) pump() {
	now := time.Now()
	for to := range c.out {
		f := &c.out[to]
		for len(f.queue) > 0 && (c.young || !c.link.is.Held[to]) && !f.queue[0].at.After(now) {
			data := f.queue[0].data
			f.queue = f.queue[1:]
			if Direction(to) == ToRedis {
				c.arrive(data)
				continue
			}
			c.readable = append(c.readable, data...)
			c.eof = c.eof || data == nil
			c.wake.Broadcast()
		}
	}
}

// arrive handles data that has arrived at Redis. link.mu is held.
func (c *conn) arrive(data []byte) {
	if data == nil {
		c.link.redis.enqueue(request{conn: c, end: true})
		c.forget()
		return
	}
	c.unparsed = append(c.unparsed, data...)
	for {
		args, n := parse(c.unparsed)
		if n == 0 {
			return
		}
		c.unparsed = c.unparsed[n:]
		c.mute = c.mute || c.link.is.Deaf && args[0] == "subscribe"
		c.link.redis.enqueue(request{conn: c, args: args})
	}
}

// cut closes the connection at both ends. link.mu is held.
func (c *conn) cut() {
	if c.young {
		c.doomed = true
		return
	}
	c.out[ToRedis].queue, c.out[FromRedis].queue = nil, nil
	c.eof, c.mute = true, true
	c.wake.Broadcast()
	c.link.redis.enqueue(request{conn: c, end: true})
	c.forget()
}

func (c *conn) forget() {
	delete(c.link.conns, c)
	for i, other := range c.link.order {
		if other == c {
			c.link.order = append(c.link.order[:i:i], c.link.order[i+1:]...)
			return
		}
	}
}

// replies is the writer to which miniredis writes.
type replies struct{ c *conn }

func (r replies) Write(p []byte) (int, error) {
	l := r.c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.c.mute {
		r.c.send(FromRedis, append([]byte(nil), p...))
	}
	return len(p), nil
}

func (c *conn) Read(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case len(c.readable) > 0:
			n := copy(p, c.readable)
			c.readable = c.readable[n:]
			return n, nil
		case c.eof:
			return 0, io.EOF
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}
		c.wake.Wait()
	}
}

func (c *conn) Write(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.eof:
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	case c.young && c.handshake(p):
		return len(p), nil
	}
	if c.young = false; c.doomed {
		c.cut()
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	c.send(ToRedis, append([]byte(nil), p...))
	return len(p), nil
}

// handshake answers p at once if it is part of a handshake. link.mu is held, except while the answers are made.
func (c *conn) handshake(p []byte) bool {
	var commands [][]string
	for rest := p; len(rest) > 0; {
		args, n := parse(rest)
		if n == 0 || !handshakes[args[0]] {
			return false
		}
		commands = append(commands, args)
		rest = rest[n:]
	}
	c.link.mu.Unlock()
	defer c.link.mu.Lock()
	for _, args := range commands {
		c.link.redis.dispatch(c.peer, args)
	}
	return true
}

var handshakes = map[string]bool{"hello": true, "client": true, "auth": true, "select": true}

func (c *conn) Close() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.mute = true, true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.wake.Broadcast()
	if !c.eof {
		c.send(ToRedis, nil)
	}
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.deadline = t
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), c.wake.Broadcast)
	}
	c.wake.Broadcast()
	return nil
}

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
func (c *conn) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (c *conn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6379} }
