package testredis

// A TCP proxy between go-redis and a Redis server that loses, stalls, drops, delays and holds requests and replies by
// rules.
//
// Rules: the proxy acts on whole frames and keeps their order in each direction of a connection. The end of a
// connection has its position in that order, as it does on a network: when a client closes the connection, data that
// it has sent still arrives. No error here fails the test, because broken connections are what the tests need.

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/waitgroup"
)

// A Proxy forwards the connections that it accepts to one Redis server.
type Proxy struct {
	t        testing.TB
	upstream string
	listener net.Listener
	latency  atomic.Int64

	ctx    context.Context // canceled with the proxy
	cancel context.CancelFunc
	done   sync.WaitGroup // every goroutine of the proxy

	mu      sync.Mutex // guards rules, clients and passing
	rules   []*Rule
	clients map[net.Conn]bool
	passing chan struct{} // closed while frames may pass
}

// NewProxy starts a proxy for the server at upstream. It is closed when the test ends.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("the proxy does not listen: %v", err)
	}
	p := &Proxy{
		t:        t,
		upstream: upstream,
		listener: listener,
		clients:  map[net.Conn]bool{},
		passing:  make(chan struct{}),
	}
	close(p.passing)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	waitgroup.Go(&p.done, p.accept)
	t.Cleanup(func() {
		p.cancel()
		_ = listener.Close()
		p.done.Wait()
	})
	return p
}

// Addr returns the address on which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Client returns a client that connects through the proxy. It is closed when the test ends.
func (p *Proxy) Client(opts ...func(*redis.Options)) *redis.Client {
	p.t.Helper()
	return Client(p.t, p.Addr(), opts...)
}

// On adds a rule: the fault is applied to the next request that matches. If several rules match, the first one that
// was added is used.
func (p *Proxy) On(match Match, fault Fault) *Rule {
	r := &Rule{
		match:    match,
		fault:    fault,
		left:     1,
		fired:    make(chan struct{}),
		released: make(chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// BlackHole makes the proxy forward nothing at all, neither data nor the end of a connection, while it still accepts
// connections and keeps existing ones. When it is switched off again, everything is delivered, as with TCP.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.passing:
		if on {
			p.passing = make(chan struct{})
		}
	default:
		if !on {
			close(p.passing)
		}
	}
}

// CutAll closes all connections of clients. Requests that the proxy has received by then, and those that it holds,
// still arrive at the server.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.clients {
		_ = c.Close() // an error means that the connection is closed already
	}
}

// Latency makes every frame take d longer, in each direction. Frames follow each other on the way, as on a long
// cable.
func (p *Proxy) Latency(d time.Duration) { p.latency.Store(int64(d)) }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // it was closed
		}
		p.mu.Lock()
		p.clients[client] = true
		p.mu.Unlock()
		waitgroup.Go(&p.done, func() { p.serve(client) })
	}
}

// ruleFor returns the rule whose fault is applied to a request, or nil.
func (p *Proxy) ruleFor(cmd []string) *Rule {
	p.mu.Lock()
	rules := slices.Clone(p.rules)
	p.mu.Unlock()
	for _, r := range rules { // without the mutex, because match belongs to the test
		if r.match(cmd) && r.take() {
			return r
		}
	}
	return nil
}

// pass waits until there is no black hole. It returns false if the proxy was closed.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	passing := p.passing
	p.mu.Unlock()
	select {
	case <-passing:
		return p.ctx.Err() == nil
	case <-p.ctx.Done():
		return false
	}
}

// A Fault describes what happens to a request or to its reply.
type Fault struct {
	kind  faultKind
	delay time.Duration
}

type faultKind int

const (
	noFault faultKind = iota
	loseReply
	stallReply
	dropRequest
	delayRequest
	delayReply
	holdRequest
)

var (
	// LoseReply lets the server run the request. When the server has answered, it closes the connection of the client
	// instead of forwarding the reply.
	LoseReply = Fault{kind: loseReply}

	// StallReply lets the server run the request. When the server has answered, it withholds the reply and everything
	// after it: the connection stays open and silent.
	StallReply = Fault{kind: stallReply}

	// DropRequest drops the request and those after it, and closes the connection of the client when the requests
	// before it are answered.
	DropRequest = Fault{kind: dropRequest}

	// HoldRequest holds the request, and those after it, until the test calls Release. The request then runs, even if
	// the client has gone in the meantime.
	HoldRequest = Fault{kind: holdRequest}
)

// DelayRequest forwards the request, and those after it, after d.
func DelayRequest(d time.Duration) Fault { return Fault{kind: delayRequest, delay: d} }

// DelayReply forwards the reply to the request, and those after it, after d.
func DelayReply(d time.Duration) Fault { return Fault{kind: delayReply, delay: d} }

// A Rule applies a fault to requests that match.
type Rule struct {
	match    Match
	fault    Fault
	fired    chan struct{} // closed when the fault first took effect
	released chan struct{} // closed by Release

	mu    sync.Mutex // guards left, count and the closing of the channels
	left  int        // how many more requests it applies to; negative: any number
	count int
}

// Always, as the argument of Times, makes a rule fire until it is released.
const Always = -1

// Times sets how many more times the rule fires. Without it, the rule fires once.
func (r *Rule) Times(n int) *Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = n
	return r
}

// Count returns how many times the fault has taken effect. A fault of a reply takes effect when the reply arrives, so
// the request has run.
func (r *Rule) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Fired returns a channel that is closed when the fault has taken effect for the first time.
func (r *Rule) Fired() <-chan struct{} { return r.fired }

// Release ends the rule, and lets requests that it holds continue.
func (r *Rule) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = 0
	select {
	case <-r.released:
	default:
		close(r.released)
	}
}

// kind returns the kind of the fault. r may be nil.
func (r *Rule) kind() faultKind {
	if r == nil {
		return noFault
	}
	return r.fault.kind
}

// take counts one request against the limit of the rule. It returns false if the limit was reached before.
func (r *Rule) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return false
	}
	if r.left > 0 {
		r.left--
	}
	return true
}

// fire records that the fault has taken effect.
func (r *Rule) fire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count++; r.count == 1 {
		close(r.fired)
	}
}

// A Match reports whether a rule applies to a request, by its name and arguments.
type Match func(cmd []string) bool

// Command matches the requests of that name, such as "get", in upper or lower case.
func Command(name string) Match {
	return func(cmd []string) bool { return len(cmd) > 0 && strings.EqualFold(cmd[0], name) }
}

// Script matches the calls of the script with that SHA-1 digest, by EVALSHA or EVAL. An EVALSHA that is answered with
// NOSCRIPT matches as well, so load the script first.
func Script(sha string) Match {
	return func(cmd []string) bool {
		switch {
		case len(cmd) < 2:
			return false
		case strings.EqualFold(cmd[0], "evalsha"):
			return strings.EqualFold(cmd[1], sha)
		case strings.EqualFold(cmd[0], "eval"):
			digest := sha1.Sum([]byte(cmd[1]))
			return strings.EqualFold(hex.EncodeToString(digest[:]), sha)
		}
		return false
	}
}
