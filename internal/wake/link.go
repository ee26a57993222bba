package wake

// A link has one connection to one node at a time, and replaces it when it fails.
//
// Rules:
//   - Only the goroutine of the link writes to the connection, and only one other goroutine reads from it.
//   - Nothing is sent, and the router is not called, with the mutex of the hub held.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A link is the connection to one node, with the channels that are subscribed there, or that will be.
type link struct {
	*Hub
	node Node // its name never changes

	kick      chan struct{} // makes the writer check the queues
	size      int           // the number of channels that belong to it
	idling    []*channel    // channels without listeners, roughly in the order in which the last listener left
	queues    queues
	routeAt   time.Time // when to find the nodes of the unrouted channels
	unwanted  []string  // names to unsubscribe, because the channels belong to other nodes
	lastMoved time.Time // when the current connection began, or the node last lost a channel
	// pingedAt is when the first ping was sent after which nothing arrived on this connection; zero: there is none.
	pingedAt   time.Time
	lastPing   time.Time     // when a ping was last sent
	stale      bool          // the connection must be replaced
	renewedAt  time.Time     // when it last became stale
	renewPause time.Duration // how long after renewedAt it does not become stale again
	emptySince time.Time     // when the last channel left
	// unanswered is when the first subscription was sent that got no answer on its connection, since Redis has last
	// answered one; zero: there is none.
	unanswered time.Time
}

// isStale reports whether the connection must be replaced.
func (l *link) isStale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stale
}

func (l *link) kickLocked() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// run keeps a connection open while the link has channels, and for a while after that.
func (l *link) run() {
	pprof.SetGoroutineLabels(context.Background()) // those of the caller that was the first one to wait
	ended := false
	defer func() {
		if !ended { // a hook of the Redis client has ended the goroutine
			waitgroup.Go(&l.work, func() {
				if l.waits(mostPause) {
					l.run()
				}
			})
		}
	}()
	var pause time.Duration
	for {
		worked, needed, why := l.session()
		if ended = !needed; ended {
			return
		}
		l.noteUnanswered(time.Now(), why)
		if worked {
			pause = 0
		}
		l.Reload()
		if ended = !l.waits(pause/2 + rand.N(pause/2+1)); ended {
			return
		}
		pause = min(max(2*pause, 20*time.Millisecond), mostPause)
	}
}

// mostPause is the longest pause between two connections.
const mostPause = time.Second

// waits waits for d. It returns false if the hub is closed.
func (l *link) waits(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-l.closed:
		return false
	}
}

// session opens one connection and serves it. See serve for the results.
func (l *link) session() (worked, needed bool, why error) {
	needed = true // if a hook panics
	defer l.caught()
	return l.serve(l.startOver())
}

// serve writes to one connection until it fails, or has had no channels for a while. It then closes the connection
// and waits for its reader. worked reports whether anything was received on the connection, and needed whether the
// link needs another one. why is the error with which the reader has ended, or nil if there was no reader.
func (l *link) serve(conn Subscriber) (worked, needed bool, why error) {
	var reader sync.WaitGroup
	var heard atomic.Bool
	var ended error // written by the reader
	failed := make(chan struct{})
	defer func() {
		_ = conn.Close()
		reader.Wait()
		worked, why = heard.Load(), ended
	}()

	tick := time.NewTicker(l.second)
	defer tick.Stop()
	look := time.NewTimer(time.Hour) // reset before it is used
	defer look.Stop()
	for reading := false; ; {
		l.rerouteNow(time.Now())
		subscribe, unsubscribe, next := l.changes(time.Now())
		if next == 0 {
			return false, false, nil
		}
		if err := write(conn, subscribe, unsubscribe); err != nil {
			if errors.Is(err, redis.ErrClosed) {
				l.wakeAll()
			}
			return false, true, nil
		}
		if !reading && len(subscribe) > 0 {
			reading = true
			l.noteConnected(time.Now())
			waitgroup.Go(&reader, func() {
				defer close(failed)
				defer l.caught()
				ended = l.read(conn, &heard)
			})
		}
		look.Reset(next)
		select {
		case <-l.kick:
			if l.isStale() {
				return false, true, nil
			}
		case <-look.C:
		case <-tick.C:
			if reading && !l.isAlive(conn) {
				return false, true, nil
			}
			l.lookAround()
		case <-failed:
			return false, true, nil
		case <-l.closed:
			return false, false, nil
		}
	}
}

// noteConnected records that the first subscriptions were sent at now. go-redis had to connect for them.
func (l *link) noteConnected(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.queues[subscribing] {
		ch.askedAt = now
	}
}

// isAlive reports whether Redis answers on this connection, as far as this is known. It pings if it is time to.
func (l *link) isAlive(conn Subscriber) bool {
	now := time.Now() // the value of the tick may be long past, because a router or a connection took that long
	return !l.unanswers(now) && (!l.pings(now) || conn.Ping(context.Background()) == nil)
}

// unanswers reports whether Redis does not answer on this connection: a ping, or a subscription.
func (l *link) unanswers(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.pingedAt.IsZero() && now.Sub(l.pingedAt) > 5*l.second/2 || l.unconfirmedLocked(now)
}

// pings reports whether it is time for a ping. The answer proves that the connection is alive.
func (l *link) pings(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	every := l.ping
	if quiet := l.channels[l.quiet]; quiet != nil && quiet.link == l && l.size == 1 {
		every = l.rarely
	}
	if now.Sub(l.lastPing) < every-l.second/2 { // it looks once a second, more or less
		return false
	}
	if l.lastPing = now; l.pingedAt.IsZero() {
		l.pingedAt = now
	}
	return true
}

// cameThrough records that something arrived on the connection.
func (l *link) cameThrough() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pingedAt = time.Time{}
}

// write sends the changes of the subscriptions.
func write(conn Subscriber, subscribe, unsubscribe []string) error {
	for _, name := range subscribe {
		// One command for each channel, so that a refusal can be attributed to its channel.
		if err := conn.Subscribe(context.Background(), name); err != nil {
			return err
		}
	}
	if len(unsubscribe) == 0 {
		return nil
	}
	return conn.Unsubscribe(context.Background(), unsubscribe...)
}

// startOver opens a connection and makes all channels of the link unrouted, so that they are subscribed on it unless
// they belong to another node by now. Channels that are no longer needed are forgotten.
func (l *link) startOver() Subscriber {
	l.mu.Lock()
	l.queues = queues{}
	for _, ch := range l.channels {
		switch {
		case ch.link != l:
		case len(ch.listeners) == 0 && time.Since(ch.idleSince) >= l.idleTTL:
			l.forgetLocked(ch)
		default:
			l.enqueueLocked(ch, unrouted)
		}
	}
	l.routeAt, l.lastMoved, l.unwanted, l.stale = time.Time{}, time.Now(), nil, false
	l.pingedAt, l.lastPing = time.Time{}, time.Time{}
	l.mu.Unlock()
	l.rerouteNow(time.Now())
	return l.dial()
}

func (l *link) dial() Subscriber {
	l.mu.Lock()
	dial := l.node.Dial
	l.mu.Unlock()
	return dial()
}

// read handles the messages of one connection until it fails, and returns why.
func (l *link) read(conn Subscriber, heard *atomic.Bool) error {
	var momentary error // the last answer that says nothing about a channel; or nil
	for {
		message, err := conn.Receive(context.Background())
		if err == nil || send.Answered(err) {
			l.cameThrough()
		}
		switch {
		case l.unconfirmed(time.Now()):
			return cmp.Or(momentary, fmt.Errorf("no answer to SUBSCRIBE within %v", 3*l.second))
		case err == nil:
			heard.Store(true)
		case !send.Answered(err):
			return err
		case ofPing(err):
			continue
		case ofUnsubscribe(err):
			l.warnOnce("", err)
			continue
		case l.router.Refused(err):
			return err
		case hasMoved(err):
			l.noteMoved("")
			continue
		case isMomentary(err):
			momentary = err
			continue
		default:
			l.noteRefused(err)
			continue
		}
		l.handle(message)
	}
}

// handle handles one message of a connection, which is no error.
func (l *link) handle(message any) {
	switch m := message.(type) {
	case *redis.Message:
		l.receive(m.Channel, m.Payload)
	case *redis.Subscription:
		switch m.Kind {
		case "subscribe", "ssubscribe":
			l.noteConfirmed(m.Channel)
		case "sunsubscribe": // the link asked for it, or the slot has moved to another node
			l.noteMoved(m.Channel)
		}
	}
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

// noteUnanswered is called when a connection has ended, with the error of its reader. It warns, once for the hub, if
// Redis has answered no subscription for the time of three pings: a server that closes the connection, or stays silent,
// refuses them, too. A connection that could not be opened does not count, because then Redis answers nothing else,
// either. Nor does one that has ended because of an answer.
func (l *link) noteUnanswered(now time.Time, why error) {
	if name := l.silenceToTell(now, why == nil || send.Answered(why)); name != "" {
		l.warn(name, fmt.Errorf("%w: %w", ErrUnanswered, why))
	}
}

// silenceToTell returns the first channel without an answer if the hub has to warn of it, or "". excused is set if the
// connection does not count.
func (l *link) silenceToTell(now time.Time, excused bool) (name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.queues[subscribing], func(ch *channel) bool { return ch.name != l.quiet })
	switch {
	case i < 0:
		return ""
	case excused:
		l.unanswered = time.Time{}
		return ""
	case l.unanswered.IsZero():
		l.unanswered = l.queues[subscribing][i].askedAt
	}
	if l.warnedOfSilence || now.Sub(l.unanswered) < 3*l.second {
		return ""
	}
	l.warnedOfSilence = true
	return l.queues[subscribing][i].name
}
