package wake

// A link has one connection to one node at a time, and replaces it when it fails.
//
// Rules:
//   - Only one goroutine at a time writes to the connection, for the goroutine of the link, and only one other goroutine
//     reads from it.
//   - Nothing is sent, and the router is not called, with the mutex of the hub held.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A link is the connection to one node, with the channels that are subscribed there, or that will be.
type link struct {
	*Hub
	node Node // its name never changes

	kick   chan struct{}       // tells the writer that channels are wanted
	mine   map[string]*channel // those that belong to it
	usedAt time.Time           // when it was last seen to have channels, or began
	pause  time.Duration       // before the next connection, about

	renewedAt time.Time // when Renew last replaced the connection
	// unanswered is when the first of the outstanding subscriptions was sent, or the one before it was answered, on this
	// connection or one before it that was not answered; zero: there is none.
	unanswered time.Time
	conn
}

// A conn is what is known of one connection. The next one begins with a new one.
type conn struct {
	end context.CancelCauseFunc // ends it
	// began is when the first subscriptions had been sent, for which go-redis had to connect; zero: not yet. Only the
	// goroutine that writes uses it.
	began    time.Time
	wanted   []*channel    // they will be subscribed
	asked    []*channel    // their answers are outstanding, in this order
	moved    []*channel    // the node no longer serves them
	due      chan struct{} // tells the writer to find out who does
	unwanted []string      // names to unsubscribe
	lostAt   time.Time     // when it was opened, or the node last lost a channel
	// pingedAt is when the first ping was sent after which nothing arrived; zero: there is none.
	pingedAt  time.Time
	lastPing  time.Time // when a ping was last sent
	momentary error     // the last answer that says nothing about a channel; or nil
}

var (
	errSilent = fmt.Errorf("no answer to PING or SUBSCRIBE within %v", 3*second)
	errHook   = errors.New("a hook of the Redis client has ended a goroutine of the connection")
)

const (
	second    = time.Second      // how often a link looks whether to ping, and whether it is answered
	mostPause = time.Second      // between two connections
	idleTime  = 10 * time.Second // how long a connection stays open without channels
)

// run opens one connection, after the pause, and serves it. If the link needs another one, that begins on another
// goroutine, because a hook of the Redis client may end this one.
func (l *link) run() {
	pprof.SetGoroutineLabels(context.Background()) // those of the caller that was the first one to wait
	if pause := l.pause/2 + rand.N(l.pause/2+1); pause > 0 {
		select {
		case <-time.After(pause):
		case <-l.life.Done():
			return
		}
	}
	ctx, end := context.WithCancelCause(l.life)
	needed := true
	defer func() {
		end(nil)
		if needed && l.life.Err() == nil {
			if then := l.die(time.Now(), context.Cause(ctx)); then != nil {
				then()
			}
			l.Reload()
			waitgroup.Go(&l.work, l.run)
		}
	}()
	defer l.caught()
	needed = l.serve(ctx, l.startOver(end))
}

// startOver begins a connection with all channels of the link, unless they belong to another node by now.
func (l *link) startOver(end context.CancelCauseFunc) Subscriber {
	l.mu.Lock()
	l.conn = conn{end: end, due: make(chan struct{}, 1), lostAt: time.Now()}
	all := slices.Collect(maps.Values(l.mine))
	l.mu.Unlock()
	l.route(pending, all)
	l.mu.Lock()
	dial := l.node.Dial
	l.mu.Unlock()
	return dial()
}

// die is called when a connection has ended because of why, and another one is needed. It makes all channels pending. If
// the Redis client is closed, their listeners are to find that out. If Redis has answered no subscription for the time of
// three pings, or connections begin mostPause apart, the listeners continue without wake-ups, as if Redis had refused them:
// it may answer requests over other connections. Of a server that closes the connection, or stays silent, refused is told;
// but not if no connection could be opened, because as a rule Redis answers nothing else then, nor of a connection that has
// ended because of an answer. die returns what is to be called without the mutex.
func (l *link) die(now time.Time, why error) (then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	opened, silent := !l.began.IsZero(), !l.unanswered.IsZero() && now.Sub(l.unanswered) >= 3*second
	if l.pause = min(max(2*l.pause, 20*time.Millisecond), mostPause); opened && now.Sub(l.began) > mostPause {
		l.pause = 0
	}
	for _, ch := range l.mine {
		if ch.state = pending; errors.Is(why, redis.ErrClosed) {
			ch.wakeLocked()
		}
		if silent || l.pause == mostPause {
			if ch.answer == pending {
				close(ch.ready)
			}
			ch.answer = refused
		}
	}
	if !opened || send.Answered(why) {
		l.unanswered = time.Time{}
		return nil
	}
	if i := slices.IndexFunc(l.asked, func(ch *channel) bool { return ch.name != l.quiet }); i >= 0 && silent {
		name := l.asked[i].name
		return func() { l.refused(name, fmt.Errorf("%w: %w", ErrUnanswered, why)) }
	}
	return nil
}

// serve writes to one connection until it ends, or has had no channels for a while: needed is then false. It closes the
// connection and waits for its reader.
func (l *link) serve(ctx context.Context, conn Subscriber) (needed bool) {
	var reader sync.WaitGroup
	defer func() {
		// If a hook has ended the reader while go-redis connected, go-redis has no connection, and never unlocks its mutex.
		if l.end(nil); context.Cause(ctx) != errHook {
			go func() { _ = conn.Close() }() // another cause may have come first
		}
		reader.Wait()
	}()
	tick, sweep := time.NewTicker(second), time.NewTicker(l.idleTTL)
	defer tick.Stop()
	defer sweep.Stop()
	for ctx.Err() == nil {
		subscribe, unsubscribe := l.takeChanges(time.Now())
		l.use(ctx, func(ctx context.Context) error { return write(ctx, conn, subscribe, unsubscribe) })
		if len(subscribe) > 0 && l.began.IsZero() && ctx.Err() == nil {
			l.began = time.Now()
			waitgroup.Go(&reader, func() {
				defer l.end(errHook)
				defer l.caught()
				l.end(l.read(conn))
			})
		}
		select {
		case <-l.kick:
		case <-l.due:
			l.route(pending, l.takeMoved())
		case <-sweep.C:
			if !l.sweep(time.Now()) {
				return false
			}
		case <-tick.C:
			if l.pings(time.Now()) { // the value of the tick may be long past, because a router or a connection took that long
				l.use(ctx, func(ctx context.Context) error { return conn.Ping(ctx) })
			}
			l.lookAround()
		case <-ctx.Done():
		}
	}
	return true
}

// use has another goroutine call f, which uses the connection, and ends the connection if f fails or takes too long: to
// connect, go-redis gives a Dialer of the user no time limit for pub/sub. It does not wait once the connection has ended: if
// a hook has ended the reader while go-redis connected, f does not return.
func (l *link) use(ctx context.Context, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, send.ConnectTime)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		why := errHook // unless the goroutine continues
		defer func() { done <- why }()
		defer l.caught()
		why = f(ctx)
	}()
	select {
	case err := <-done:
		if err != nil {
			l.end(err)
		}
	case <-ctx.Done():
		l.end(ctx.Err())
	}
}

// pings reports whether it is time for a ping. The answer proves that the connection is alive. It ends the connection if
// Redis does not answer: a ping, or the subscriptions.
func (l *link) pings(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	every := l.ping
	if l.mine[l.quiet] != nil && len(l.mine) == 1 {
		every = l.rarely
	}
	switch {
	case !l.pingedAt.IsZero() && now.Sub(l.pingedAt) > 5*second/2,
		len(l.asked) > 0 && min(now.Sub(l.began), now.Sub(l.unanswered)) > 3*second:
		l.end(cmp.Or(l.momentary, errSilent))
		return false
	case l.began.IsZero(), now.Sub(l.lastPing) < every-second/2: // it looks once a second, more or less
		return false
	}
	if l.lastPing = now; l.pingedAt.IsZero() {
		l.pingedAt = now
	}
	return true
}

// cameThrough records that something arrived on the connection. err is that, if it is an error that says nothing about
// a channel, or nil.
func (l *link) cameThrough(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pingedAt = time.Time{}
	l.momentary = cmp.Or(err, l.momentary)
}

// write sends the changes of the subscriptions.
func write(ctx context.Context, conn Subscriber, subscribe []*channel, unsubscribe []string) error {
	if len(unsubscribe) > 0 { // first, because a channel may be in both: it has moved to another link, and back
		if err := conn.Unsubscribe(ctx, unsubscribe...); err != nil {
			return err
		}
	}
	for _, ch := range subscribe {
		// One command for each channel, so that a refusal can be attributed to its channel.
		if err := conn.Subscribe(ctx, ch.name); err != nil {
			return err
		}
	}
	return nil
}

// gone is a context that has ended. With it go-redis does not connect anew by itself when the connection of Receive
// fails, unless a Dialer of the user ignores it.
var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// read handles the messages of one connection until it fails, and returns why.
func (l *link) read(conn Subscriber) error {
	for {
		message, err := conn.Receive(gone)
		if err == nil || send.Answered(err) {
			l.cameThrough(nil)
		}
		var then func() // to be called without the mutex
		switch {
		case err == nil:
			then = l.handle(message)
		case !send.Answered(err):
			return err
		case ofPing(err):
		case ofUnsubscribe(err):
			l.refused("", err)
		case l.router.Refused(err):
			return err
		case hasMoved(err):
			then = l.answer("", pending, nil)
		case isMomentary(err):
			l.cameThrough(err)
		default:
			then = l.answer("", refused, err)
		}
		if then != nil {
			then()
		}
	}
}

// handle handles one message of a connection, which is no error. It returns what is to be called then.
func (l *link) handle(message any) (then func()) {
	switch m := message.(type) {
	case *redis.Message:
		l.receive(m.Channel, m.Payload)
	case *redis.Subscription:
		switch m.Kind {
		case "subscribe", "ssubscribe":
			return l.answer(m.Channel, confirmed, nil)
		case "sunsubscribe": // the link asked for it, or the slot has moved to another node
			return l.lose(m.Channel)
		}
	}
	return nil
}

// Refuses reports whether err is the answer of Redis to a SUBSCRIBE.
func Refuses(err error) bool {
	return send.Answered(err) && !ofPing(err) && !ofUnsubscribe(err) && (hasMoved(err) || !isMomentary(err))
}

// The ping of a user without the permission to ping is answered with such a refusal.
func ofPing(err error) bool { return strings.Contains(err.Error(), "'ping'") }

// So is the end of a subscription. It is not the answer to a SUBSCRIBE, of which one may be outstanding.
func ofUnsubscribe(err error) bool { return strings.Contains(err.Error(), "unsubscribe'") }

func hasMoved(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "CLUSTERDOWN")
}

// isMomentary reports whether err, an answer of Redis, says nothing about a channel: Redis is loading, cannot save to
// disk, is blocked by a script, or requires a password. As a rule it is the answer to a ping. If it is the answer to a
// SUBSCRIBE, that gets no other one, and the next connection asks again.
func isMomentary(err error) bool { return send.MayPass(err) && !send.Forbidden(err) }
