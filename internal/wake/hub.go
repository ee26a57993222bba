// Package wake subscribes to the Redis channels on which goroutines wait for messages. It uses one connection for all
// channels, or one for each node that serves some of them.
//
// Words: a listener is one goroutine that waits for the messages of a channel. A link is the connection to one node,
// together with the channels that belong to it. The hub is all of that. The user of the package knows which node
// serves which channel, and what the messages mean.
//
// Rules:
//   - A wake-up is a hint. Listeners also ask Redis by themselves, so a lost wake-up costs time and nothing else, and
//     an unnecessary one costs a request.
//   - Join returns at once. The subscription is in force, or was refused, when Ready is closed. Only the message of a
//     release after that is certain to arrive, so the listener must ask Redis once more at that time.
//   - Every listener that may have missed a message is woken: all listeners of a channel, after every new subscription
//     on every new connection.
//   - One goroutine writes to a connection and one reads from it. Callers never do, because go-redis holds a mutex
//     while it dials. The delivery of a message never blocks.
//   - go-redis does not notice a server that has gone silent, so the link pings: more often while it has other channels
//     than the quiet one. It gives up a connection on which no ping, or no subscription, was answered for the time of
//     three.
//   - A connection is never repaired, only replaced. The subscriptions of a connection are therefore exactly those
//     that were requested on it, in the same order.
//   - A channel belongs to one link, and moves to another link when a different server begins to serve it.
//   - What is known of a connection dies with it. The next one begins with all channels of the link, as if they were
//     new, except that their listeners know that messages may have been lost.
package wake

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/waitgroup"
)

// A Subscriber is a connection for subscriptions, such as a *redis.PubSub.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error
	Receive(ctx context.Context) (any, error)
	Close() error
}

// A Node is a server that serves channels.
type Node struct {
	Name string
	Dial func() Subscriber // may take as long as a request; it is called on the goroutine that writes
}

// A Router knows which node serves which channel.
type Router interface {
	// Node returns the node, whose name is "" if it is not known, or if there is only one.
	Node(channel string) Node
	// Reload refreshes the results of Node. It takes at most about as long as the read timeout of the Redis client, and does
	// not panic.
	Reload()
	// Refused is called when a node has refused a channel, and reports whether to reconnect because of that.
	Refused(err error) bool
}

// A Hub holds the subscribed channels and the connections for them.
type Hub struct {
	router  Router
	log     *slog.Logger
	refused func(channel string, err error) // see New

	idleTTL time.Duration // how long a channel without listeners stays subscribed, at least; at most twice that

	life    context.Context // canceled by Close
	stop    context.CancelFunc
	work    sync.WaitGroup
	reloads atomic.Int32 // the number of reloads under way

	mu       sync.Mutex // guards the fields below, all links and all channels; only filters are called with it held
	channels map[string]*channel
	links    map[string]*link // by the name of the node
	reloadAt time.Time        // the next reload does not start before

	ping, rarely time.Duration // see PingEvery
	quiet        string
}

// ErrUnanswered matches the error that refused gets if subscriptions are not answered.
var ErrUnanswered = errors.New("the server answers no subscription")

// New returns a Hub without channels. The Hub calls refused with each channel that Redis does not allow, and with "" if
// Redis does not allow a subscription to end. If connections have answered no subscription for some seconds, because
// they were closed or stayed silent, it calls refused with ErrUnanswered and a channel each time that one of them is
// given up. The calls are made on goroutines that read messages or connect, so refused must not block.
func New(r Router, log *slog.Logger, refused func(channel string, err error)) *Hub {
	h := &Hub{
		router:   r,
		log:      log,
		refused:  refused,
		idleTTL:  500 * time.Millisecond,
		channels: make(map[string]*channel),
		links:    make(map[string]*link),
	}
	h.life, h.stop = context.WithCancel(context.Background())
	return h
}

// PingEvery sets how often a connection is pinged, which is not more than once a second: while goroutines wait, and
// while it has the channel called quiet alone, for whose messages no goroutine waits. If only that channel is not
// answered, refused is not called. PingEvery is called before the first Join.
func (h *Hub) PingEvery(waiting, alone time.Duration, quiet string) {
	h.ping, h.rarely, h.quiet = waiting, alone, quiet
}

// Join starts listening to the channel called name.
func (h *Hub) Join(name string) *Listener {
	return h.JoinFor(make(chan struct{}, 1), name)
}

// JoinFor is like Join, for a channel wake that receives wake-ups from other sources, too.
func (h *Hub) JoinFor(wake chan struct{}, name string) *Listener {
	if l := h.tryJoin(wake, name, nil); l != nil {
		return l
	}
	home := h.router.Node(name)
	return h.tryJoin(wake, name, &home)
}

// tryJoin is JoinFor for a channel that has a link, or gets that of home. It returns nil if there is neither.
func (h *Hub) tryJoin(wake chan struct{}, name string, home *Node) *Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	if ch == nil {
		if home == nil {
			return nil
		}
		ch = &channel{name: name, ready: make(chan struct{})}
		h.placeLocked(ch, *home)
	}
	return h.joinLocked(wake, ch)
}

// JoinConfirmed is like Join if the channel called name is subscribed, and otherwise returns nil.
func (h *Hub) JoinConfirmed(name string) *Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.channels[name]; ch.isConfirmed() {
		return h.joinLocked(make(chan struct{}, 1), ch)
	}
	return nil
}

func (h *Hub) joinLocked(wake chan struct{}, ch *channel) *Listener {
	l := &Listener{Wake: wake, Ready: ch.ready, channel: ch, hub: h}
	ch.listeners = append(ch.listeners, l)
	return l
}

const (
	mostReloads = 4                      // at once: one that asks an unreachable server must not delay the next
	reloadPause = 100 * time.Millisecond // between two reloads
)

// Reload makes the router find out again which node serves which channel, because its knowledge may be outdated. It
// does not block.
func (h *Hub) Reload() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil || h.reloads.Load() >= mostReloads {
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
		select {
		case <-time.After(time.Until(begin)):
			h.router.Reload()
		case <-h.life.Done():
		}
	})
}

// caught, which is deferred, logs the panic of a hook of the Redis client on a goroutine of this package.
func (h *Hub) caught() {
	if why := recover(); why != nil {
		h.log.Error("relock: a hook of the Redis client panicked", "panic", why, "stack", string(debug.Stack()))
	}
}

// placeLocked assigns a channel to the link of its node, which subscribes it.
func (h *Hub) placeLocked(ch *channel, home Node) {
	l := h.links[home.Name]
	if l == nil {
		l = &link{Hub: h, kick: make(chan struct{}, 1), mine: make(map[string]*channel), usedAt: time.Now()}
		h.links[home.Name] = l
		if h.life.Err() == nil {
			waitgroup.Go(&h.work, l.run)
		}
	}
	l.node = home // its dial function may have changed
	ch.link, ch.state = l, pending
	h.channels[ch.name], l.mine[ch.name] = ch, ch
	l.wanted = append(l.wanted, ch)
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// HearsForNobody reports whether the channel called name is subscribed although it has no listeners.
func (h *Hub) HearsForNobody(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[name]
	return ch.isConfirmed() && len(ch.listeners) == 0
}

// receive passes a message to all listeners of the channel called name, and wakes them. The function that was set
// with Listener.Hears is called first, because a woken listener may act on the message at once, and finish.
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
			l.last, l.causes.Message = message, true
			l.wakeUp()
		}
	}
}

// Listeners returns the number of listeners that have not left, except those of the quiet channel. Tests use it to find
// listeners that were forgotten.
func (h *Hub) Listeners() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range h.channels {
		if ch.name != h.quiet {
			n += len(ch.listeners)
		}
	}
	return n
}

// Mutex returns the mutex of h, for tests which check that the user's code never runs while it is held.
func (h *Hub) Mutex() *sync.Mutex { return &h.mu }

// Close closes the connections and waits for their goroutines.
func (h *Hub) Close() {
	h.mu.Lock()
	h.stop()
	h.mu.Unlock()
	h.work.Wait()
}
