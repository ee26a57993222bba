package relock

// Wake-ups: one subscription connection for all waiters of a client; on a Cluster
// one for each shard with a lock that a goroutine waits for.
//
// Rules:
//   - A wake-up is a hint. Waiters ask again by themselves, so a lost wake-up costs
//     time and nothing else; a superfluous one costs a request.
//   - join returns at once; the subscription is in force when ready is closed.
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

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/waitgroup"
)

// A subscriber is a connection to subscribe on. *redis.PubSub is one.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	Ping(ctx context.Context, payload ...string) error
	ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error)
	Close() error
}

// A node is a server that announces on channels.
type node struct {
	name string
	dial func() subscriber // does not block
}

// servers is what a Client knows of its servers: which one announces on which channel, and what it knows of its subscribers.
type servers interface {
	router
	// counts says whether the server that runs a script knows how many subscribers its messages reach.
	counts() bool
}

// A router knows which node announces on which channel.
type router interface {
	node(channel string) node
	// moves says whether the results of node change with time.
	moves() bool
	// reload renews the results of node. It takes about as long as the read timeout of the Redis client at most.
	reload()
	// refused hears how a node has refused a channel, and says whether to connect anew because of that.
	refused(err error) bool
}

// oneServer is the router for one server, or for a server that dialling finds.
type oneServer func() subscriber

func (dial oneServer) node(string) node   { return node{dial: dial} }
func (dial oneServer) moves() bool        { return false }
func (dial oneServer) counts() bool       { return true }
func (dial oneServer) reload()            {}
func (dial oneServer) refused(error) bool { return false }

// warnOfRefusal logs that Redis does not allow a channel on which releases are announced.
func (e *engine) warnOfRefusal(channel string, err error) {
	e.reporter.later(func() {
		e.log.Warn("relock: Redis refuses the subscription on which releases are announced: "+
			"waiters ask again at the max wake delay instead; allow the channels redisson_* to this user",
			"channel", cutName(channel), "error", err)
	})
}

type pubsub struct {
	router router
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

// A link is the connection to one node, and the channels that are subscribed there, or are to be.
type link struct {
	*pubsub
	node node // its name never changes

	kick       chan struct{} // makes the writer look at the lists
	size       int           // how many channels belong to it
	wanted     []*channel    // to be subscribed
	idling     []*channel    // without listeners, roughly in the order in which the last listener left
	pending    []*channel    // subscribed on this connection and not confirmed, in order
	unrouted   []*channel    // channels that the node does not have any more
	routeAt    time.Time     // when to look for the nodes of unrouted
	unwanted   []string      // to be unsubscribed: they belong to other nodes
	lastMoved  time.Time     // when the link began a connection, or the node last lost a channel
	pingedAt   time.Time     // when the first ping was sent since which nothing came on this connection; zero: there is none
	stale      bool          // the connection is to be replaced
	renewedAt  time.Time     // when it last became stale
	renewPause time.Duration // after renewedAt: so long it does not become stale again
	emptySince time.Time     // when the last channel left
}

// A channel is one pub/sub channel that is subscribed, or is to be.
type channel struct {
	name      string
	link      *link
	listeners []*listener
	ready     chan struct{} // closed when the subscription was first confirmed, or refused
	settled   bool          // ready is closed
	confirmed bool          // on this connection
	refused   bool          // the last time it was asked for
	asked     bool          // is in the list wanted, pending or unrouted: an answer is to come
	askedAt   time.Time     // on this connection
	idling    bool          // is in the list idling
	idleSince time.Time

	hear func(message string) // is called with every message, or nil
}

// A listener is woken by the messages of its channel.
type listener struct {
	wake    chan struct{}   // one slot: wake-ups that were not received yet count as one
	ready   <-chan struct{} // closed when messages are sure to come, or sure not to come
	channel *channel
	pubsub  *pubsub
	filter  func(message string) bool // for which messages the listener is woken; nil: for all; guarded by the mutex of pubsub
	last    string                    // message that was received; guarded by the mutex of pubsub
}

// newPubSub makes a pubsub without channels. warn is called once at most, with the first channel that Redis does not
// allow, by a goroutine that reads messages, so it must not block.
func newPubSub(r router, log *slog.Logger, warn func(channel string, err error)) *pubsub {
	return &pubsub{
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

// join begins to listen to the channel called name.
func (p *pubsub) join(name string) *listener {
	return p.joinFor(make(chan struct{}, 1), name)
}

// joinFor is join for a wake channel that has other sources too.
func (p *pubsub) joinFor(wake chan struct{}, name string) *listener {
	if l := p.tryJoin(wake, name, nil); l != nil {
		return l
	}
	home := p.router.node(name)
	return p.tryJoin(wake, name, &home)
}

// tryJoin is joinFor for a channel that has a link, or gets the link of home. Without both it returns nil.
func (p *pubsub) tryJoin(wake chan struct{}, name string, home *node) *listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := p.channels[name]
	if ch == nil {
		if home == nil {
			return nil
		}
		ch = &channel{name: name, ready: make(chan struct{})}
		p.channels[name] = ch
		p.placeLocked(ch, *home)
	}
	l := &listener{wake: wake, ready: ch.ready, channel: ch, pubsub: p}
	ch.listeners = append(ch.listeners, l)
	return l
}

const (
	mostReloads = 4                      // under way: one that asks an unreachable server must not hold up the next
	reloadPause = 100 * time.Millisecond // between two reloads
)

// reload makes the router find out anew which node announces on which channel: its
// knowledge may be outdated. It does not block.
func (p *pubsub) reload() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.reloads.Load() >= mostReloads {
		return
	}
	p.reloads.Add(1)
	begin := time.Now()
	if begin.Before(p.reloadAt) {
		begin = p.reloadAt
	}
	p.reloadAt = begin.Add(reloadPause)
	waitgroup.Go(&p.work, func() {
		defer p.reloads.Add(-1)
		defer p.caught()
		select {
		case <-time.After(time.Until(begin)):
			p.router.reload()
		case <-p.closed:
		}
	})
}

// caught logs a panic of a hook of the Redis client, on a goroutine of this package.
// It is deferred.
func (p *pubsub) caught() {
	if why := recover(); why != nil {
		p.log.Error("relock: a hook of the Redis client panicked", "panic", why, "stack", string(debug.Stack()))
	}
}

// placeLocked gives a channel to the link of its node.
func (p *pubsub) placeLocked(ch *channel, home node) {
	l := p.links[home.name]
	if l == nil {
		l = &link{pubsub: p, node: home, kick: make(chan struct{}, 1)}
		p.links[home.name] = l
		if !p.stopped {
			waitgroup.Go(&p.work, l.run)
		}
	}
	ch.link = l
	ch.asked = true
	l.size++
	l.wanted = append(l.wanted, ch)
	l.kickLocked()
}

// leave ends listening. The channel stays subscribed for a moment, for the next listener.
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
		ch.link.idling = append(ch.link.idling, ch)
		if len(ch.link.idling) == 1 {
			ch.link.kickLocked()
		}
	}
}

// refused says whether Redis does not allow the channel: no message will come.
func (l *listener) refused() bool {
	l.pubsub.mu.Lock()
	defer l.pubsub.mu.Unlock()
	return l.channel.refused
}

const (
	leastRenewPause = time.Second
	mostRenewPause  = time.Minute
)

// renew has the connection of l replaced: the server that announces on the channel does not know the subscription. The
// connection ends at another server, which was the master before. If the next one is no better, there is something
// between the Client and Redis that keeps subscriptions for itself; so each connection lasts longer than the one before.
func (l *listener) renew() {
	p := l.pubsub
	p.mu.Lock()
	defer p.mu.Unlock()
	link, now := l.channel.link, time.Now()
	switch since := now.Sub(link.renewedAt); {
	case !l.channel.confirmed, since < link.renewPause:
		return
	case since > 10*mostRenewPause:
		link.renewPause = 0
	}
	link.stale, link.renewedAt = true, now
	link.renewPause = min(max(2*link.renewPause, leastRenewPause), mostRenewPause)
	link.kickLocked()
}

// isStale says whether the connection is to be replaced.
func (l *link) isStale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stale
}

// close ends the connections and waits for their goroutines.
func (p *pubsub) close() {
	p.mu.Lock()
	if !p.stopped {
		p.stopped = true
		close(p.closed)
	}
	p.mu.Unlock()
	p.work.Wait()
}

func (l *link) kickLocked() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// run keeps a connection for as long as the link has channels, and a while longer.
func (l *link) run() {
	var pause time.Duration
	for {
		worked, needed := l.session()
		if !needed {
			return
		}
		if worked {
			pause = 0
		}
		l.reload()
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-l.closed:
			return
		}
		pause = min(max(2*pause, 20*time.Millisecond), time.Second)
	}
}

// session opens one connection and serves it: see serve.
func (l *link) session() (worked, needed bool) {
	needed = true // if a hook panics
	defer l.caught()
	return l.serve(l.startOver())
}

// serve writes to one connection until it fails, or has had no channels for a
// while; then serve closes the connection and waits for its reader. worked says whether
// anything was received on the connection, needed whether the link needs another one.
func (l *link) serve(conn subscriber) (worked, needed bool) {
	var reader sync.WaitGroup
	var heard atomic.Bool
	failed := make(chan struct{})
	defer func() {
		_ = conn.Close()
		reader.Wait()
		worked = heard.Load()
	}()

	ping := time.NewTicker(l.ping)
	defer ping.Stop()
	look := time.NewTimer(time.Hour) // reset before it is looked at
	defer look.Stop()
	for reading := false; ; {
		l.rerouteNow(time.Now())
		subscribe, unsubscribe, next := l.changes(time.Now())
		if next == 0 {
			return false, false
		}
		if write(conn, subscribe, unsubscribe) != nil {
			return false, true
		}
		if !reading && len(subscribe) > 0 {
			reading = true
			waitgroup.Go(&reader, func() {
				defer close(failed)
				defer l.caught()
				l.read(conn, &heard)
			})
		}
		look.Reset(next)
		select {
		case <-l.kick:
			if l.isStale() {
				return false, true
			}
		case <-look.C:
		case <-ping.C:
			if reading && l.pings(conn) != nil {
				return false, true
			}
			l.lookAround()
		case <-failed:
			return false, true
		case <-l.closed:
			return false, false
		}
	}
}

// pings sends a ping. Its answer proves that the connection is alive.
func (l *link) pings(conn subscriber) error {
	l.mu.Lock()
	if l.pingedAt.IsZero() {
		l.pingedAt = time.Now()
	}
	l.mu.Unlock()
	return conn.Ping(context.Background())
}

// cameThrough notes that something came on the connection.
func (l *link) cameThrough() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pingedAt = time.Time{}
}

// isSilent says whether l may have missed a message: its channel is not subscribed, or a ping of its connection has had
// no answer for so long.
func (l *listener) isSilent(silence time.Duration) bool {
	l.pubsub.mu.Lock()
	defer l.pubsub.mu.Unlock()
	pinged := l.channel.link.pingedAt
	return !l.channel.confirmed || !pinged.IsZero() && time.Since(pinged) > silence
}

// write sends what has changed.
func write(conn subscriber, subscribe, unsubscribe []string) error {
	for _, name := range subscribe {
		// One command each, so that a refusal tells which channel it is for.
		if err := conn.Subscribe(context.Background(), name); err != nil {
			return err
		}
	}
	if len(unsubscribe) == 0 {
		return nil
	}
	return conn.Unsubscribe(context.Background(), unsubscribe...)
}

// startOver opens a connection on which every channel of the link that is needed
// is to be subscribed, but for those that belong elsewhere by now.
func (l *link) startOver() subscriber {
	l.mu.Lock()
	l.pending, l.wanted, l.unrouted = nil, nil, nil
	for _, ch := range l.channels {
		switch {
		case ch.link != l:
		case len(ch.listeners) == 0 && time.Since(ch.idleSince) >= l.idleTTL:
			l.forgetLocked(ch)
		default:
			ch.confirmed, ch.asked = false, true
			l.unrouted = append(l.unrouted, ch)
		}
	}
	l.routeAt, l.lastMoved, l.unwanted, l.stale = time.Time{}, time.Now(), nil, false
	l.pingedAt = time.Time{}
	l.mu.Unlock()
	l.rerouteNow(time.Now())
	return l.dial()
}

func (l *link) dial() subscriber {
	l.mu.Lock()
	dial := l.node.dial
	l.mu.Unlock()
	return dial()
}

// rerouteNow finds out to which nodes the unrouted channels belong now.
func (l *link) rerouteNow(now time.Time) {
	moving := l.takeUnrouted(now)
	homes := make([]node, len(moving))
	for i, ch := range moving {
		homes[i] = l.router.node(ch.name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ch := range moving {
		switch {
		case homes[i].name == l.node.name:
			l.node = homes[i] // its dial function may have changed
			l.wanted = append(l.wanted, ch)
		case len(ch.listeners) == 0:
			l.forgetLocked(ch)
		default:
			l.dropLocked(ch)
			l.placeLocked(ch, homes[i])
		}
	}
}

// takeUnrouted takes the unrouted channels out of their list, if it is time to look for their nodes.
func (l *link) takeUnrouted(now time.Time) []*channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.routeAt) {
		return nil
	}
	moving := l.unrouted
	l.unrouted = nil
	return moving
}

// rerouteWindow is how long after a move, or a new connection, a link keeps asking which nodes have its channels.
const rerouteWindow = 10 * time.Second

// lookAround moves channels that belong to another node by now although this node has
// not refused them: a node that is a replica by now would accept them, and announce
// late or not at all.
func (l *link) lookAround() {
	if !l.router.moves() {
		return
	}
	var mine []*channel
	l.mu.Lock()
	for _, ch := range l.channels {
		if ch.link == l && ch.confirmed {
			mine = append(mine, ch)
		}
	}
	trouble := time.Since(l.lastMoved) < rerouteWindow
	l.mu.Unlock()
	if trouble {
		l.reload()
	}
	mine = slices.DeleteFunc(mine, func(ch *channel) bool {
		home := l.router.node(ch.name).name
		return home == "" || home == l.node.name // the node is unknown, or it is this one
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range mine {
		if l.channels[ch.name] == ch && ch.confirmed {
			l.unwanted = append(l.unwanted, ch.name)
			ch.confirmed, ch.asked = false, true
			l.unrouted = append(l.unrouted, ch)
			l.lastMoved = time.Now()
			l.routeAt = l.lastMoved
		}
	}
}

// dropLocked takes a channel, which is in no list but idling, away from the link.
func (l *link) dropLocked(ch *channel) {
	l.size--
	if ch.idling {
		ch.idling = false
		l.idling = slices.DeleteFunc(l.idling, func(other *channel) bool { return other == ch })
	}
}

func (l *link) forgetLocked(ch *channel) {
	l.dropLocked(ch)
	delete(l.channels, ch.name)
}

// changes lists the channels to subscribe and to unsubscribe now, and says when to look
// again. next is 0 when the link has had no channels for a while: then the link ends, and the next
// listener starts another one.
func (l *link) changes(now time.Time) (subscribe, unsubscribe []string, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	unsubscribe, l.unwanted = l.unwanted, nil
	for _, ch := range l.wanted {
		ch.askedAt = now
		subscribe = append(subscribe, ch.name)
	}
	l.pending = append(l.pending, l.wanted...)
	l.wanted = nil

	next = l.idle
	for range l.idling {
		ch := l.idling[0]
		left := ch.idleSince.Add(l.idleTTL).Sub(now)
		// A channel whose answer is still to come stays: the answer must not be taken for the
		// answer to a later channel of the same name.
		again := len(ch.listeners) == 0 && ch.asked && left <= 0
		if left > 0 && len(ch.listeners) == 0 {
			next = left
			break
		}
		l.idling[0] = nil
		l.idling = l.idling[1:]
		switch {
		case again:
			ch.idleSince = now
			l.idling = append(l.idling, ch)
			next = min(next, l.idleTTL)
		case len(ch.listeners) > 0:
			ch.idling = false
		default:
			delete(l.channels, ch.name)
			l.size--
			if ch.confirmed {
				unsubscribe = append(unsubscribe, ch.name)
			}
		}
	}
	if len(l.unrouted) > 0 {
		next = min(next, max(l.routeAt.Sub(now), time.Millisecond))
	}

	if l.size > 0 {
		l.emptySince = time.Time{}
		return subscribe, unsubscribe, next
	}
	if l.emptySince.IsZero() {
		l.emptySince = now
	}
	next = l.emptySince.Add(l.idle).Sub(now)
	if next <= 0 {
		delete(l.links, l.node.name)
		return nil, nil, 0
	}
	return subscribe, unsubscribe, next
}

// read handles the messages of one connection, until it fails.
func (l *link) read(conn subscriber, heard *atomic.Bool) {
	for {
		message, err := conn.ReceiveTimeout(context.Background(), 3*l.ping)
		if err == nil || answered(err) {
			l.cameThrough()
		}
		switch {
		case l.unconfirmed(time.Now()):
			return
		case err == nil:
			heard.Store(true)
		case !answered(err):
			return
		case strings.Contains(err.Error(), "'ping'"): // a user without the right to ping gets this refusal for a pong
			continue
		case l.router.refused(err):
			return
		case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "CLUSTERDOWN"):
			l.moved("")
			continue
		default:
			l.refused(err)
			continue
		}
		switch m := message.(type) {
		case *redis.Message:
			l.receive(m.Channel, m.Payload)
		case *redis.Subscription:
			switch m.Kind {
			case "subscribe", "ssubscribe":
				l.confirmed(m.Channel)
			case "sunsubscribe": // the link asked for it, or the slot has moved to another node
				l.moved(m.Channel)
			}
		}
	}
}

// unconfirmed says whether a subscription has had no answer for three pings.
func (l *link) unconfirmed(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) > 0 && now.Sub(l.pending[0].askedAt) > 3*l.ping
}

// hearsForNobody says whether the channel called name is subscribed and has no listeners.
func (p *pubsub) hearsForNobody(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := p.channels[name]
	return ch != nil && ch.confirmed && len(ch.listeners) == 0
}

// receive gives a message to all listeners of the channel called name, and wakes them. The function that hears all messages is first:
// after a listener has run, a grant belongs to a hold that may be over.
func (p *pubsub) receive(name, message string) {
	if hear := p.hearing(name); hear != nil {
		hear(message)
	}
	p.deliver(name, message)
}

func (p *pubsub) hearing(name string) (hear func(string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ch := p.channels[name]; ch != nil {
		hear = ch.hear
	}
	return hear
}

func (p *pubsub) deliver(name, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := p.channels[name]
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

// fieldOf is the field that a message names, or "".
func fieldOf(message string) string {
	_, rest, _ := strings.Cut(message, " ")
	field, _, _ := strings.Cut(rest, " ")
	return field
}

// isFor returns the filter of a listener that waits with field. It lets no messages through that name another field.
func isFor(field string) func(message string) bool {
	return func(message string) bool {
		named := fieldOf(message)
		return field == "" || named == "" || named == field
	}
}

// only has l receive no messages but those for which filter is true. The mutex of the pubsub is held while filter is
// called, so filter looks at the message and at nothing else.
func (l *listener) only(filter func(message string) bool) {
	l.pubsub.mu.Lock()
	defer l.pubsub.mu.Unlock()
	l.filter = filter
}

// message is the last message that l has received, and not returned before; or "".
func (l *listener) message() string {
	l.pubsub.mu.Lock()
	defer l.pubsub.mu.Unlock()
	m := l.last
	l.last = ""
	return m
}

// confirmed says whether the subscription of l is in force.
func (l *listener) confirmed() bool {
	l.pubsub.mu.Lock()
	defer l.pubsub.mu.Unlock()
	return l.channel.confirmed
}

// isConfirmed says whether the channel called name is subscribed.
func (p *pubsub) isConfirmed(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := p.channels[name]
	return ch != nil && ch.confirmed
}

// answered says whether Redis has answered a subscription. Tests wait for that.
func (p *pubsub) answered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ch := range p.channels {
		if ch.settled {
			return true
		}
	}
	return false
}

// mutex is the mutex of p. Tests look whether code of the user runs while it is locked.
func (p *pubsub) mutex() *sync.Mutex { return &p.mu }

// name is the name of the channel that l listens to.
func (l *listener) name() string { return l.channel.name }

// hears has every message of the channel of l given to hear before a listener, as long as the channel is subscribed. hear must not
// block.
func (l *listener) hears(hear func(message string)) {
	l.pubsub.mu.Lock()
	defer l.pubsub.mu.Unlock()
	l.channel.hear = hear
}

// confirmed notes that the channel called name is subscribed from now on.
// Earlier messages may be lost, so confirmed also wakes the listeners.
func (l *link) confirmed(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.pending, func(ch *channel) bool { return ch.name == name })
	if i < 0 {
		return
	}
	ch := l.pending[i]
	if i == 0 { // as a rule: they are confirmed in order
		l.pending = l.pending[1:]
	} else {
		l.pending = slices.Delete(l.pending, i, i+1)
	}
	ch.confirmed, ch.refused, ch.asked = true, false, false
	if ch.settled {
		ch.wakeLocked()
	}
	ch.settleLocked()
}

// moved notes that the node does not announce on a channel any more: on the confirmed channel
// called name; or, if name is "", on the first channel whose answer is to come.
func (l *link) moved(name string) {
	if l.evict(name) {
		l.reload()
	}
}

func (l *link) evict(name string) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := l.channels[name]
	switch {
	case name == "" && len(l.pending) > 0:
		ch = l.pending[0]
		l.pending = l.pending[1:]
	case ch == nil || ch.link != l || !ch.confirmed:
		return false
	}
	ch.confirmed = false
	if len(ch.listeners) == 0 {
		l.forgetLocked(ch)
		return false
	}
	ch.asked = true
	l.unrouted = append(l.unrouted, ch)
	if len(l.unrouted) > 1 {
		return false
	}
	l.lastMoved = time.Now()
	l.routeAt = l.lastMoved.Add(l.reroute)
	l.kickLocked()
	return true
}

// refused notes that Redis does not allow the first channel whose answer is to
// come. Its waiters go on without wake-ups.
func (l *link) refused(err error) {
	l.mu.Lock()
	var name string
	if len(l.pending) > 0 {
		ch := l.pending[0]
		l.pending = l.pending[1:]
		name = ch.name
		ch.refused, ch.asked = true, false
		ch.settleLocked()
	}
	first := !l.warned
	l.warned = true
	l.mu.Unlock()
	if first {
		l.warn(name, err)
	}
}

func (ch *channel) wakeLocked() {
	for _, l := range ch.listeners {
		l.wakeUp()
	}
}

func (l *listener) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (ch *channel) settleLocked() {
	if !ch.settled {
		ch.settled = true
		close(ch.ready)
	}
}
