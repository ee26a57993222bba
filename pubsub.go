package relock

// Wake-ups: one subscription connection for all waiters of a client.
//
// Rules:
//   - A wake-up is a hint. Waiters ask again by themselves, so a lost one costs
//     time and nothing else; a superfluous one costs a request.
//   - join returns at once; the subscription is in force when ready is closed.
//     Only a release after that is sure to be heard, so ask again then.
//   - Whoever may have missed a message is woken: everybody, after every new
//     subscription on every new connection.
//   - One goroutine writes to a connection and one reads it; callers never do,
//     because go-redis holds a lock while it dials. Delivering never blocks.
//   - go-redis does not notice a peer that has gone silent: we ping, and a
//     connection on which nothing came for three pings, or no confirmation, is
//     given up.
//   - A connection is never repaired but replaced, so that what is subscribed
//     on it is what was asked of it, in that order.

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A subscriber is a connection to subscribe on. *redis.PubSub is one.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error
	ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error)
	Close() error
}

type pubsub struct {
	dial func() subscriber // does not block
	log  *slog.Logger

	linger time.Duration // how long a channel stays subscribed that nobody listens to
	ping   time.Duration
	idle   time.Duration // how long a connection stays open without channels

	closed chan struct{}
	kick   chan struct{} // the writer is to look at wanted and idling
	work   sync.WaitGroup

	mu         sync.Mutex // guards below, and all channels; a leaf: nothing is called with it held
	channels   map[string]*channel
	wanted     []*channel // to be subscribed
	idling     []*channel // without listeners, about the longest first
	pending    []*channel // subscribed on this connection and not confirmed, in order
	emptySince time.Time  // when the last channel went
	running    bool
	stopped    bool
	warned     bool
}

// A channel is one name that is subscribed, or is to be.
type channel struct {
	name      string
	listeners []*listener
	ready     chan struct{} // closed when the subscription was first confirmed, or refused
	settled   bool          // ready is closed
	confirmed bool          // on this connection
	askedAt   time.Time     // on this connection
	idling    bool          // is in the list of that name
	idleSince time.Time
}

// A listener is woken by the messages of its channel.
type listener struct {
	wake    chan struct{}   // one slot: wake-ups that nobody took yet are one wake-up
	ready   <-chan struct{} // closed when messages are sure to be heard, or sure not to be
	channel *channel
	pubsub  *pubsub
}

func newPubSub(dial func() subscriber, log *slog.Logger) *pubsub {
	return &pubsub{
		dial:     dial,
		log:      log,
		linger:   500 * time.Millisecond,
		ping:     time.Second,
		idle:     10 * time.Second,
		closed:   make(chan struct{}),
		kick:     make(chan struct{}, 1),
		channels: make(map[string]*channel),
	}
}

// join begins to listen to the channel called name.
func (p *pubsub) join(name string) *listener {
	return p.joinFor(make(chan struct{}, 1), name)
}

// joinFor is join for a wake that has other sources too.
func (p *pubsub) joinFor(wake chan struct{}, name string) *listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := p.channels[name]
	if ch == nil {
		ch = &channel{name: name, ready: make(chan struct{})}
		p.channels[name] = ch
		p.wanted = append(p.wanted, ch)
		p.startLocked()
	}
	l := &listener{wake: wake, ready: ch.ready, channel: ch, pubsub: p}
	ch.listeners = append(ch.listeners, l)
	return l
}

// leave ends listening. The channel stays subscribed for a moment, for the next one.
func (l *listener) leave() {
	p := l.pubsub
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := l.channel
	if i := slices.Index(ch.listeners, l); i >= 0 {
		ch.listeners = slices.Delete(ch.listeners, i, i+1)
	}
	if len(ch.listeners) > 0 {
		return
	}
	ch.idleSince = time.Now()
	if !ch.idling {
		ch.idling = true
		p.idling = append(p.idling, ch)
		if len(p.idling) == 1 {
			p.kickLocked()
		}
	}
}

// close ends the connection and waits for its goroutines.
func (p *pubsub) close() {
	p.mu.Lock()
	if !p.stopped {
		p.stopped = true
		close(p.closed)
	}
	p.mu.Unlock()
	p.work.Wait()
}

func (p *pubsub) kickLocked() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *pubsub) startLocked() {
	switch {
	case p.stopped:
	case p.running:
		p.kickLocked()
	default:
		p.running = true
		p.work.Go(p.run)
	}
}

// run keeps a connection for as long as somebody needs one.
func (p *pubsub) run() {
	var pause time.Duration
	for {
		conn := p.dial()
		worked, needed := p.serve(conn)
		if !needed {
			return
		}
		if worked {
			pause = 0
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-p.closed:
			return
		}
		pause = min(max(2*pause, 20*time.Millisecond), time.Second)
	}
}

// serve writes to one connection until it fails or nobody has needed it for a
// while; then it closes it and waits for its reader. worked says whether
// anything was heard on it, needed whether there has to be another one.
func (p *pubsub) serve(conn subscriber) (worked, needed bool) {
	p.startOver()
	var reader sync.WaitGroup
	var heard atomic.Bool
	failed := make(chan struct{})
	defer func() {
		_ = conn.Close()
		reader.Wait()
		worked = heard.Load()
	}()

	ping := time.NewTicker(p.ping)
	defer ping.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
	for reading := false; ; {
		subscribe, unsubscribe, next := p.changes(time.Now())
		if next == 0 {
			return false, false
		}
		for _, name := range subscribe {
			// One command each, so that a refusal tells which channel it is for.
			if conn.Subscribe(context.Background(), name) != nil {
				return false, true
			}
		}
		if len(unsubscribe) > 0 && conn.Unsubscribe(context.Background(), unsubscribe...) != nil {
			return false, true
		}
		if !reading && len(subscribe) > 0 {
			reading = true
			reader.Go(func() {
				defer close(failed)
				p.read(conn, &heard)
			})
		}
		look.Reset(next)
		select {
		case <-p.kick:
		case <-look.C:
		case <-ping.C:
			if reading && conn.Ping(context.Background()) != nil {
				return false, true
			}
		case <-failed:
			return false, true
		case <-p.closed:
			return false, false
		}
	}
}

// startOver marks every channel as not yet subscribed: the connection is a new one.
func (p *pubsub) startOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending, p.wanted = nil, nil
	for _, ch := range p.channels {
		ch.confirmed = false
		p.wanted = append(p.wanted, ch)
	}
}

// changes lists what is to be subscribed and unsubscribed now, and when to look
// again: 0 when nobody has needed the connection for a while, and whoever joins
// from now on starts another one.
func (p *pubsub) changes(now time.Time) (subscribe, unsubscribe []string, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ch := range p.wanted {
		ch.askedAt = now
		subscribe = append(subscribe, ch.name)
	}
	p.pending = append(p.pending, p.wanted...)
	p.wanted = nil

	next = p.idle
	for range p.idling {
		ch := p.idling[0]
		left := ch.idleSince.Add(p.linger).Sub(now)
		// A confirmation that is still to come must not be taken for that of a
		// later channel of the same name: such a channel stays.
		again := len(ch.listeners) == 0 && !ch.settled && left <= 0
		if left > 0 && len(ch.listeners) == 0 {
			next = left
			break
		}
		p.idling[0] = nil
		p.idling = p.idling[1:]
		switch {
		case again:
			ch.idleSince = now
			p.idling = append(p.idling, ch)
		case len(ch.listeners) > 0:
			ch.idling = false
		default:
			delete(p.channels, ch.name)
			if ch.confirmed {
				unsubscribe = append(unsubscribe, ch.name)
			}
		}
	}

	if len(p.channels) > 0 {
		p.emptySince = time.Time{}
		return subscribe, unsubscribe, next
	}
	if p.emptySince.IsZero() {
		p.emptySince = now
	}
	next = p.emptySince.Add(p.idle).Sub(now)
	if next <= 0 {
		p.running, p.emptySince = false, time.Time{}
		return nil, nil, 0
	}
	return subscribe, unsubscribe, next
}

// read hands out what comes over one connection, until it fails.
func (p *pubsub) read(conn subscriber, heard *atomic.Bool) {
	for {
		message, err := conn.ReceiveTimeout(context.Background(), 3*p.ping)
		switch {
		case p.unconfirmed(time.Now()):
			return
		case err == nil:
			heard.Store(true)
		case answered(err):
			if !strings.Contains(err.Error(), "'ping'") { // a user who may not ping hears the refusal instead of a pong
				p.refused(err)
			}
			continue
		default:
			return
		}
		switch m := message.(type) {
		case *redis.Message:
			p.wakeUp(m.Channel)
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				p.confirmed(m.Channel)
			}
		}
	}
}

// unconfirmed says whether a subscription has not been answered although the peer lives.
func (p *pubsub) unconfirmed(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0 && now.Sub(p.pending[0].askedAt) > 3*p.ping
}

// wakeUp wakes everybody who listens to the channel called name.
func (p *pubsub) wakeUp(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ch := p.channels[name]; ch != nil {
		ch.wakeLocked()
	}
}

// confirmed notes that the channel called name is subscribed from now on.
// Messages of before may be lost, so it also wakes.
func (p *pubsub) confirmed(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.pending, func(ch *channel) bool { return ch.name == name })
	if i < 0 {
		return
	}
	ch := p.pending[i]
	if i == 0 { // as a rule: they are confirmed in order
		p.pending = p.pending[1:]
	} else {
		p.pending = slices.Delete(p.pending, i, i+1)
	}
	ch.confirmed = true
	if ch.settled {
		ch.wakeLocked()
	}
	ch.settleLocked()
}

// refused notes that Redis does not allow the channel whose turn it is to be
// answered. Its waiters go on without wake-ups.
func (p *pubsub) refused(err error) {
	p.mu.Lock()
	var name string
	if len(p.pending) > 0 {
		ch := p.pending[0]
		p.pending = p.pending[1:]
		name = ch.name
		ch.settleLocked()
	}
	first := !p.warned
	p.warned = true
	p.mu.Unlock()
	if first {
		p.log.Warn("relock: Redis refuses the subscription on which releases are announced: "+
			"waiters ask again at the max wake delay instead; allow the channels redisson_* to this user",
			"channel", shortName(name), "error", err)
	}
}

func (ch *channel) wakeLocked() {
	for _, l := range ch.listeners {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

func (ch *channel) settleLocked() {
	if !ch.settled {
		ch.settled = true
		close(ch.ready)
	}
}
