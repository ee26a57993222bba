// Package wake has the channels of Redis on which goroutines wait for messages: one connection for all of them, or one
// for each node that announces on some of them.
//
// Words: a listener is one goroutine that waits for the messages of a channel, a link the connection to one node and
// the channels that belong to it, the hub all of that. Who uses the package knows which node announces on which
// channel, and what the messages mean.
//
// Rules:
//   - A wake-up is a hint. Listeners ask again by themselves, so a lost wake-up costs
//     time and nothing else; a superfluous one costs a request.
//   - Join returns at once; the subscription is in force when Ready is closed.
//     Only the message of a later release is sure to come, so ask again then.
//   - Every listener that may have missed a message is woken: all listeners of a channel, after
//     every new subscription on every new connection.
//   - One goroutine writes to a connection and one reads from it; callers never do,
//     because go-redis holds a lock while it dials. Delivering never blocks.
//   - go-redis does not notice a peer that has gone silent: the link pings. It gives a
//     connection up on which nothing came, or no confirmation, for three pings.
//   - A connection is never repaired but replaced. So the subscriptions of a connection are
//     those that were asked for on it, in that order.
//   - A channel belongs to one link, and moves to another link when the server
//     that announces on it has changed.
package wake

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/waitgroup"
)

// A Subscriber is a connection to subscribe on. *redis.PubSub is one.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error
	ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error)
	Close() error
}

// A Node is a server that announces on channels.
type Node struct {
	Name string
	Dial func() Subscriber // does not block
}

// A Router knows which node announces on which channel.
type Router interface {
	Node(channel string) Node
	// Moves reports whether the results of Node change with time.
	Moves() bool
	// Reload renews the results of Node. It takes about as long as the read timeout of the Redis client at most.
	Reload()
	// Refused hears how a node has refused a channel, and reports whether to connect anew because of that.
	Refused(err error) bool
}

// A Hub has the channels that are subscribed, and the connections for them.
type Hub struct {
	router Router
	log    *slog.Logger
	warn   func(channel string, err error) // is told of the first channel that Redis does not allow

	idleTTL time.Duration // how long a channel without listeners stays subscribed
	ping    time.Duration
	idle    time.Duration // how long a connection stays open without channels
	reroute time.Duration // how long after its refusal a channel moves to another node; shorter than idleTTL

	closed  chan struct{}
	work    sync.WaitGroup
	reloads atomic.Int32 // under way

	mu       sync.Mutex // guards below, all links and all channels; a leaf: nothing but filters is called with it held
	channels map[string]*channel
	links    map[string]*link // by name of the node
	reloadAt time.Time        // the next reload begins no sooner
	stopped  bool
	warned   bool
}

// New makes a Hub without channels. The Hub calls warn once at most, with the first channel that Redis does not
// allow, on a goroutine that reads messages, so warn must not block.
func New(r Router, log *slog.Logger, warn func(channel string, err error)) *Hub {
	return &Hub{
		router:   r,
		log:      log,
		warn:     warn,
		idleTTL:  500 * time.Millisecond,
		ping:     time.Second,
		idle:     10 * time.Second,
		reroute:  100 * time.Millisecond,
		closed:   make(chan struct{}),
		channels: make(map[string]*channel),
		links:    make(map[string]*link),
	}
}

// Join begins to listen to the channel called name.
func (h *Hub) Join(name string) *Listener {
	return h.JoinFor(make(chan struct{}, 1), name)
}

// JoinFor is Join for a wake channel that has other sources too.
func (h *Hub) JoinFor(wake chan struct{}, name string) *Listener {
	if l := h.tryJoin(wake, name, nil); l != nil {
		return l
	}
	home := h.router.Node(name)
	return h.tryJoin(wake, name, &home)
}

// tryJoin is JoinFor for a channel that has a link, or gets the link of home. Without both it returns nil.
func (h *Hub) tryJoin(wake chan struct{}, name string, home *Node) *Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	if ch == nil {
		if home == nil {
			return nil
		}
		ch = &channel{name: name, ready: make(chan struct{})}
		h.channels[name] = ch
		h.placeLocked(ch, *home)
	}
	l := &Listener{Wake: wake, Ready: ch.ready, channel: ch, hub: h}
	ch.listeners = append(ch.listeners, l)
	return l
}

const (
	mostReloads = 4                      // under way: one that asks an unreachable server must not hold up the next
	reloadPause = 100 * time.Millisecond // between two reloads
)

// Reload makes the router find out anew which node announces on which channel: its
// knowledge may be outdated. It does not block.
func (h *Hub) Reload() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped || h.reloads.Load() >= mostReloads {
		return
	}
	h.reloads.Add(1)
	begin := time.Now()
	if begin.Before(h.reloadAt) {
		begin = h.reloadAt
	}
	h.reloadAt = begin.Add(reloadPause)
	waitgroup.Go(&h.work, func() {
		defer h.reloads.Add(-1)
		defer h.caught()
		select {
		case <-time.After(time.Until(begin)):
			h.router.Reload()
		case <-h.closed:
		}
	})
}

// caught logs a panic of a hook of the Redis client, on a goroutine of this package.
// It is deferred.
func (h *Hub) caught() {
	if why := recover(); why != nil {
		h.log.Error("relock: a hook of the Redis client panicked", "panic", why, "stack", string(debug.Stack()))
	}
}

// placeLocked gives a channel to the link of its node.
func (h *Hub) placeLocked(ch *channel, home Node) {
	l := h.links[home.Name]
	if l == nil {
		l = &link{Hub: h, node: home, kick: make(chan struct{}, 1)}
		h.links[home.Name] = l
		if !h.stopped {
			waitgroup.Go(&h.work, l.run)
		}
	}
	ch.link = l
	l.size++
	l.enqueueLocked(ch, wanted)
	l.kickLocked()
}

// HearsForNobody reports whether the channel called name is subscribed and has no listeners.
func (h *Hub) HearsForNobody(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	return ch != nil && ch.isConfirmed() && len(ch.listeners) == 0
}

// IsConfirmed reports whether the channel called name is subscribed.
func (h *Hub) IsConfirmed(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	return ch != nil && ch.isConfirmed()
}

// receive gives a message to all listeners of the channel called name, and wakes them. The function that hears
// all messages is first: once a listener has run, what the message is about may be over.
func (h *Hub) receive(name, message string) {
	if hear := h.hearing(name); hear != nil {
		hear(message)
	}
	h.deliver(name, message)
}

func (h *Hub) hearing(name string) (hear func(string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.channels[name]; ch != nil {
		hear = ch.hear
	}
	return hear
}

func (h *Hub) deliver(name, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	if ch == nil {
		return
	}
	for _, l := range ch.listeners {
		if l.filter == nil || l.filter(message) {
			l.last = message
			l.wakeUp()
		}
	}
}

// Answered reports whether Redis has answered a subscription. Tests wait for that.
func (h *Hub) Answered() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range h.channels {
		if ch.answer != 0 {
			return true
		}
	}
	return false
}

// Listeners is how many listeners have not left. Tests look whether one was forgotten.
func (h *Hub) Listeners() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range h.channels {
		n += len(ch.listeners)
	}
	return n
}

// Mutex is the mutex of h. Tests look whether code of the user runs while it is locked.
func (h *Hub) Mutex() *sync.Mutex { return &h.mu }

// Close ends the connections and waits for their goroutines.
func (h *Hub) Close() {
	h.mu.Lock()
	if !h.stopped {
		h.stopped = true
		close(h.closed)
	}
	h.mu.Unlock()
	h.work.Wait()
}
