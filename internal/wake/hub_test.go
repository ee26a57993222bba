//go:build go1.25

package wake

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/wake/waketest"
)

// oneServer is the router for a single server.
type oneServer struct{ server *waketest.Server }

func (r oneServer) Node(string) Node { return dialling("", r.server) }
func (oneServer) Reload()            {}
func (oneServer) Refused(error) bool { return false }

// dialling returns the node called name, which connects to s.
func dialling(name string, s *waketest.Server) Node {
	return Node{name, func() Subscriber { return s.Dial() }}
}

// exiting is the router for a single server with another function that connects to it.
type exiting struct {
	oneServer
	dial func() Subscriber
}

func (e exiting) Node(string) Node { return Node{"", e.dial} }

func newFakePubSub(t *testing.T) (*waketest.Server, *Hub) {
	s := &waketest.Server{}
	p := New(oneServer{s}, slog.New(slog.DiscardHandler), func(string, error) {})
	t.Cleanup(p.Close)
	return s, p
}

func woken(l *Listener) bool {
	synctest.Wait()
	select {
	case <-l.Wake:
		return true
	default:
		return false
	}
}

func ready(l *Listener) bool {
	synctest.Wait()
	select {
	case <-l.Ready:
		return true
	default:
		return false
	}
}

func allReady(t *testing.T, all ...*Listener) {
	t.Helper()
	for _, l := range all {
		require.True(t, ready(l), "%s is not subscribed", l.Name())
	}
}

// subscribed returns a listener whose channel is subscribed.
func subscribed(t *testing.T, p *Hub, channel string) *Listener {
	t.Helper()
	l := p.Join(channel)
	allReady(t, l)
	return l
}

// C2: the listeners of a channel share one subscription, and a message wakes all of them and no others.
func TestPubSubSubscribesOnceAndWakesAllListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		a, b, other := p.Join("x"), p.Join("x"), p.Join("y")
		allReady(t, a, b, other)
		s.Publish("x")
		assert.True(t, woken(a), "a message must wake all listeners of its channel")
		assert.True(t, woken(b), "a message must wake all listeners of its channel")
		assert.False(t, woken(other), "a message must not wake the listeners of another channel")
		assert.Equal(t, 1, s.Count("subscribe x"), "subscriptions")
		a.Leave()
		s.Publish("x")
		assert.False(t, woken(a), "a listener that has left is woken")
		assert.True(t, woken(b), "a listener that stays is not woken")
	})
}

// JoinConfirmed listens to a channel that is subscribed, also if the subscription, which has no listener any more, is
// about to end at that moment. It subscribes to nothing.
func TestJoinConfirmedKeepsTheSubscriptionThatItFinds(t *testing.T) {
	s, p := newFakePubSub(t)
	assert.Nil(t, p.JoinConfirmed("x"))
	p.mu.Lock()
	p.idleTTL = time.Microsecond
	p.mu.Unlock()
	joined := 0
	for round := range 20_000 {
		first := p.Join("x")
		<-first.Ready
		first.Leave()
		for range round % 100 {
			runtime.Gosched()
		}
		l := p.JoinConfirmed("x")
		if l == nil {
			continue
		}
		joined++
		require.True(t, l.Confirmed(), "in round %d", round)
		l.Leave()
	}
	assert.Positive(t, joined)
	assert.LessOrEqual(t, s.Count("subscribe x"), 20_000)
}

// A listener with a filter is not woken by any other message.
func TestPubSubMessagesPassTheFilterOfAListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		mine, other, all := p.Join("x"), p.Join("x"), p.Join("x")
		mine.Only(func(message string) bool { return message != "for another" })
		other.Only(func(message string) bool { return message != "for one" })
		allReady(t, mine, other, all)
		p.receive("x", "for one")
		assert.True(t, woken(mine))
		assert.False(t, woken(other), "the filter is not true")
		assert.True(t, woken(all))
		assert.Equal(t, "for one", mine.Message())
		assert.Empty(t, mine.Message(), "a message that was returned before")
		assert.Empty(t, other.Message())
		p.receive("x", "for another")
		assert.False(t, woken(mine), "the filter is not true")
		assert.True(t, woken(other))
		p.receive("x", "0")
		assert.True(t, woken(mine), "the message is for everybody")
		assert.True(t, woken(other), "the message is for everybody")
	})
}

// A hook of the Redis client that ends the goroutine of a connection costs that connection, and no channel.
func TestPubSubGoesOnAfterAHookHasEndedItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dials := &waketest.Server{}, 0
		p := New(exiting{oneServer{s}, func() Subscriber {
			if dials++; dials <= 2 {
				runtime.Goexit()
			}
			return s.Dial()
		}}, slog.New(slog.DiscardHandler), func(string, error) {})
		defer p.Close()
		l := p.Join("x")
		time.Sleep(5 * time.Second)
		require.True(t, ready(l), "subscribed")
		assert.Equal(t, 3, dials)
		s.Publish("x")
		assert.True(t, woken(l))
		l.Leave()
	})
}

// A hookedConn is like a *redis.PubSub whose reader a hook ends while it connects anew, with a mutex locked.
type hookedConn struct {
	*waketest.Conn
	locked chan struct{}
}

func (c hookedConn) Receive(ctx context.Context) (any, error) {
	if len(c.Out) > 0 {
		return c.Conn.Receive(ctx)
	}
	time.Sleep(3 * time.Second)
	panic("a hook")
}

func (c hookedConn) Ping(context.Context, ...string) error {
	<-c.locked
	return nil
}

// A hook that ends the reader of a connection, which go-redis does not unlock then, costs no channel either.
func TestPubSubGoesOnAfterAHookHasEndedTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, locked := &waketest.Server{}, make(chan struct{})
		p := New(exiting{oneServer{s}, func() Subscriber {
			if s.Dials() == 0 {
				return hookedConn{s.Dial(), locked}
			}
			return s.Dial()
		}}, slog.New(slog.DiscardHandler), func(string, error) {})
		p.PingEvery(time.Second, time.Second, "")
		l := p.Join("x")
		time.Sleep(5 * time.Second)
		s.Publish("x")
		assert.True(t, woken(l))
		assert.Equal(t, 2, s.Dials())
		p.Close()
		close(locked)
	})
}

// The refusal of an UNSUBSCRIBE does not count as the answer to a SUBSCRIBE that is outstanding.
func TestPubSubRefusedUnsubscribeRefusesNoChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 100 * time.Millisecond
		s := &waketest.Server{
			ConfirmAfter: delay,
			RefuseEnd:    waketest.Error("NOPERM User x has no permissions to run the 'unsubscribe' command"),
		}
		var warned []string
		p := New(oneServer{s}, slog.New(slog.DiscardHandler), func(_ string, err error) { warned = append(warned, err.Error()) })
		defer p.Close()
		a := p.Join("a")
		time.Sleep(2 * delay)
		require.True(t, ready(a))
		a.Leave()
		time.Sleep(2*p.idleTTL - 3*delay/2) // UNSUBSCRIBE was sent
		require.Equal(t, 1, s.Count("unsubscribe a"))
		b := p.Join("b")
		time.Sleep(2 * delay)
		require.True(t, ready(b))
		assert.True(t, b.Confirmed())
		assert.False(t, b.Refused())
		s.Publish("b")
		assert.True(t, woken(b))
		assert.Equal(t, []string{s.RefuseEnd.Error()}, warned)
	})
}

// Redis refuses a ping, or a SUBSCRIBE, with an error that passes: it is loading, cannot save to disk, or is blocked by
// a script. No channel counts as refused because of that, and nothing is warned of.
func TestPubSubPassingErrorRefusesNoChannel(t *testing.T) {
	for _, text := range []string{
		"LOADING Redis is loading the dataset in memory",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &waketest.Server{RefusePing: waketest.Error(text)}
			p := New(oneServer{s}, slog.New(slog.DiscardHandler), func(channel string, err error) {
				assert.Fail(t, "a warning", "%s: %v", channel, err)
			})
			defer p.Close()
			p.PingEvery(0, 0, "hints")
			a := p.Join("a")
			require.True(t, ready(a))
			time.Sleep(second / 2)
			s.Set(func() { s.ConfirmAfter = second }) // a ping is refused while the answers are outstanding
			b, quiet := p.Join("b"), p.Join("hints")
			time.Sleep(2 * second)
			for _, l := range []*Listener{a, b, quiet} {
				assert.True(t, l.Confirmed() && !l.Refused(), "%s: %s", l.Name(), text)
			}
			assert.Equal(t, 1, s.Dials(), text)

			// The channels are subscribed on another connection, and a script blocks Redis.
			s.Set(func() {
				s.ConfirmAfter = 0
				s.Refuse = func(string) error { return waketest.Error(text) }
			})
			s.Cut()
			time.Sleep(time.Minute)
			s.Set(func() { s.Refuse, s.RefusePing = nil, nil })
			for n := range 5 { // the answers to others are none to these
				p.Join(fmt.Sprint(n))
				time.Sleep(second)
			}
			for _, l := range []*Listener{a, b, quiet} {
				assert.True(t, l.Confirmed() && !l.Refused(), "%s, after %s", l.Name(), text)
			}
			s.Publish("b")
			assert.True(t, woken(b))
		})
	}
}

// A listener tells what has woken it, once: a message, or a subscription on another connection. The first subscription
// is told by Ready, and a wake-up from another source by nobody.
func TestListenerTellsWhatHasWokenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		shared := make(chan struct{}, 1)
		a, b := p.JoinFor(shared, "x"), p.JoinFor(shared, "y")
		allReady(t, a, b)
		assert.Zero(t, a.Causes(), "the first subscription")
		shared <- struct{}{}
		assert.True(t, woken(a), "by another source")
		assert.Zero(t, a.Causes())
		s.Publish("x")
		assert.True(t, woken(a))
		assert.Equal(t, Causes{Message: true}, a.Causes())
		assert.Zero(t, a.Causes(), "causes that were returned before")
		assert.Zero(t, b.Causes(), "causes of another listener")
		s.Cut()
		time.Sleep(time.Second)
		assert.True(t, woken(b))
		assert.Equal(t, Causes{Resubscribed: true}, a.Causes())
		s.Publish("y")
		synctest.Wait()
		assert.Equal(t, Causes{Message: true, Resubscribed: true}, b.Causes())
		a.Leave()
		b.Leave()
	})
}

// The function set with Hears is called before the listeners run. It finds out whether a grant is for a wait that
// still goes on, and a woken caller may be finished with the lock at once.
func TestPubSubHearsAMessageBeforeItsListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		l := p.Join("x")
		var heard []string
		l.Hears(func(message string) {
			heard = append(heard, message)
			assert.False(t, woken(l), "the listener was woken before")
		})
		require.True(t, ready(l), "not subscribed")
		woken(l) // drains a wake-up that may be there
		p.receive("x", "grant c:1:1 7 5000 0")
		assert.Equal(t, []string{"grant c:1:1 7 5000 0"}, heard)
		assert.True(t, woken(l))
		l.Leave()
		p.receive("x", "grant c:1:2 8 5000 0")
		assert.Len(t, heard, 2, "a message without a listener")
	})
}

// A Listener is ready when Redis has confirmed its subscription, and not before.
func TestPubSubReadyOnlyAfterTheConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		s.ConfirmAfter = time.Second
		l := p.Join("x")
		time.Sleep(999 * time.Millisecond)
		assert.False(t, ready(l), "ready before Redis has confirmed")
		time.Sleep(time.Millisecond)
		assert.True(t, ready(l), "not ready although Redis has confirmed")
	})
}

// A subscription outlives its last listener for a while, so that a busy lock subscribes only once, and then ends.
func TestPubSubKeepsASubscriptionForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		for range 100 { // a busy lock
			l := subscribed(t, p, "x")
			l.Leave()
			time.Sleep(p.idleTTL / 2)
		}
		assert.Equal(t, 1, s.Count("subscribe x"), "subscriptions of a busy lock")
		time.Sleep(p.idleTTL)
		synctest.Wait()
		assert.Equal(t, 1, s.Count("unsubscribe x"), "UNSUBSCRIBEs after the last listener has left")
		assert.Empty(t, p.channels, "channels are remembered")
		l := p.Join("x")
		assert.True(t, ready(l), "a later listener is not subscribed anew")
		assert.Equal(t, 2, s.Count("subscribe x"), "a later listener is not subscribed anew")
	})
}

// C3: a connection without channels is closed, and a later listener gets a new one.
func TestPubSubClosesAnIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		p.Join("x").Leave()
		time.Sleep(idleTime + 2*p.idleTTL)
		synctest.Wait()
		select {
		case <-s.Conns[0].Closed:
		default:
			assert.Fail(t, "the connection is still open")
		}
		l := p.Join("x")
		s.Publish("x")
		assert.True(t, ready(l), "a later listener gets no connection")
		assert.Equal(t, 2, s.Dials(), "connections")
	})
}

// L2: a reconnect wakes every listener, because each of them may have missed a message.
func TestPubSubWakesEverybodyAfterAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		a, b := p.Join("x"), p.Join("y")
		allReady(t, a, b)
		require.False(t, woken(a), "woken without a reason")
		require.False(t, woken(b), "woken without a reason")
		s.Cut()
		time.Sleep(100 * time.Millisecond)
		assert.True(t, woken(a), "not woken after the connection was replaced")
		assert.True(t, woken(b), "not woken after the connection was replaced")
		s.Publish("x")
		assert.True(t, woken(a), "the new connection passes no message on")
	})
}

// During an outage the pauses between the attempts to connect grow, and listeners are woken after it.
func TestPubSubComesBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := subscribed(t, p, "x")
		s.Set(func() { s.Down = true })
		s.Cut()
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, s.Dials(), 100, "connections that were tried in a minute")
		s.Set(func() { s.Down = false })
		time.Sleep(2 * time.Second)
		assert.True(t, woken(l), "not woken after the outage")
	})
}

// A connection is pinged as often as somebody who waits needs it, and rarely if it has the quiet channel alone. In both
// cases the peer has two seconds for its answer.
func TestPingsAreAsRareAsTheyMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		p.PingEvery(3*time.Second, 10*time.Second, "mine")
		mine := subscribed(t, p, "mine")
		minute := func() (pings int64) {
			s.Pings.Store(0)
			time.Sleep(time.Minute)
			return s.Pings.Load()
		}
		assert.InDelta(t, 6, minute(), 1)
		l := subscribed(t, p, "x")
		assert.InDelta(t, 20, minute(), 1)
		l.Leave()
		assert.InDelta(t, 6, minute(), 1)
		s.Set(func() { s.Silent = true })
		time.Sleep(13 * time.Second)
		s.Set(func() { s.Silent = false })
		time.Sleep(5 * time.Second)
		assert.True(t, woken(mine), "a connection on which nothing comes is still trusted")
	})
}

// A slowConn takes long to connect, and answers no ping.
type slowConn struct {
	*waketest.Conn
	takes time.Duration
}

func (c *slowConn) Subscribe(ctx context.Context, channels ...string) error {
	time.Sleep(c.takes)
	return c.Conn.Subscribe(ctx, channels...)
}

func (*slowConn) Ping(context.Context, ...string) error { return nil }

// The time that a connection takes to open is not counted as that of an answer: to a ping, or to a subscription.
func TestPubSubUsesAConnectionThatTakesLongToOpen(t *testing.T) {
	for _, takes := range []time.Duration{2950 * time.Millisecond, 3500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := &waketest.Server{ConfirmAfter: 100 * time.Millisecond}
			dial := func() Subscriber { return &slowConn{s.Dial(), takes} }
			p := New(exiting{oneServer{s}, dial}, slog.New(slog.DiscardHandler), func(string, error) {})
			defer p.Close()
			l := p.Join("x")
			time.Sleep(takes + time.Second/2)
			assert.True(t, l.Confirmed(), takes)
		})
	}
}

// A Dialer of the user may have no time limit, and ignore that of its context: of a host that has vanished the system tells
// after two minutes. The connection is not waited for.
func TestPubSubGivesUpAConnectionThatDoesNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &waketest.Server{}
		dial := func() Subscriber {
			if s.Dials() == 0 {
				return &slowConn{s.Dial(), 2 * time.Minute}
			}
			return s.Dial()
		}
		p := New(exiting{oneServer{s}, dial}, slog.New(slog.DiscardHandler), func(string, error) {})
		defer time.Sleep(2 * time.Minute) // until the connection opens after all
		defer p.Close()
		l := p.Join("x")
		time.Sleep(6 * time.Second)
		assert.True(t, l.Confirmed())
	})
}

// A connection on which nothing arrives is replaced. go-redis would wait forever.
func TestPubSubNoticesASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := subscribed(t, p, "x")
		s.Set(func() { s.Silent = true })
		time.Sleep(time.Minute)
		s.Set(func() { s.Silent = false })
		time.Sleep(5 * time.Second)
		assert.True(t, woken(l), "a connection on which nothing comes is still trusted")
		s.Publish("x")
		assert.True(t, woken(l), "no message comes through after the peer is back")
	})
}

// Pings keep a connection without messages alive, and wake no listener.
func TestPubSubKeepsAQuietConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.Join("x")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, s.Dials(), "connections in a quiet hour")
		assert.False(t, woken(l), "woken in a quiet hour")
	})
}

// A channel that Redis refuses becomes ready, so that its waiters poll. The refusal is told, and affects no other
// channel.
func TestPubSubRefusedChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noPermission := waketest.Error("NOPERM No permissions to access a channel")
		s := &waketest.Server{Refuse: func(ch string) error {
			if strings.HasPrefix(ch, "bad") {
				return noPermission
			}
			return nil
		}}
		var warnings []string // synctest.Wait orders the writes of the reader before the reads of the test
		p := New(oneServer{s}, slog.New(slog.DiscardHandler), func(channel string, err error) {
			assert.Equal(t, noPermission, err)
			warnings = append(warnings, channel)
		})
		defer p.Close()
		good1, bad1, bad2, good2 := p.Join("good1"), p.Join("bad1"), p.Join("bad2"), p.Join("good2")
		for _, l := range []*Listener{good1, bad1, bad2, good2} {
			require.True(t, ready(l), "%s keeps its waiters waiting", l.Name())
		}
		s.Publish("good2")
		assert.True(t, woken(good2), "a refused channel disturbs another one")
		assert.ElementsMatch(t, []string{"bad1", "bad2"}, warnings)
		for _, l := range []*Listener{good1, bad1, bad2, good2} {
			l.Leave()
		}
		time.Sleep(2 * p.idleTTL)
		synctest.Wait()
		assert.Empty(t, p.channels, "channels are remembered")
	})
}

// The confirmation of a channel whose listeners have left is not taken for the confirmation of a later channel of the
// same name.
func TestPubSubLateConfirmationIsNotMistaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		s.ConfirmAfter = 5 * p.idleTTL
		l := p.Join("x")
		synctest.Wait()
		l.Leave()
		time.Sleep(4 * p.idleTTL)
		l = p.Join("x")
		time.Sleep(p.idleTTL)
		assert.True(t, ready(l), "not ready although Redis has confirmed")
		assert.Equal(t, 1, s.Count("subscribe x"), "commands: %v", s.Commands)
		assert.Zero(t, s.Count("unsubscribe x"), "commands: %v", s.Commands)
		s.Publish("x")
		assert.True(t, woken(l), "not subscribed")
	})
}

// Close ends all goroutines. A later call of Join or Close is harmless.
func TestPubSubCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		p.Join("x")
		p.Close()
		p.Join("y")
		p.Close()
	})
}

// C3: nothing is left of many channels that were joined and left immediately.
func TestPubSubForgetsManyChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		const many = 10_000
		ls := make([]*Listener, many)
		for i := range ls {
			ls[i] = p.Join(fmt.Sprint("ch", i))
		}
		for _, l := range ls {
			require.True(t, ready(l), "not ready")
		}
		assert.Equal(t, 1, s.Dials(), "connections")
		for _, l := range ls {
			l.Leave()
		}
		time.Sleep(2 * p.idleTTL)
		synctest.Wait()
		l := p.links[""]
		assert.Zero(
			t,
			len(p.channels)+len(l.mine)+len(l.wanted)+len(l.asked)+len(l.moved),
			"something is left",
		)
		assert.Empty(t, s.Conns[0].Subs, "channels are still subscribed")
	})
}

// A server that closes connections, or does not answer, is told of when that has lasted for some seconds. It is not told
// of if Redis cannot be reached at all, starts anew, or has answered a subscription in between.
func TestUnansweredSubscriptionsAreTold(t *testing.T) {
	closes := func(string) error { return io.EOF }
	for name, test := range map[string]struct {
		does func(s *waketest.Server, p *Hub)
		told bool
	}{
		"it closes connections": {func(s *waketest.Server, p *Hub) {
			s.Refuse = closes
			p.Join("x")
			time.Sleep(time.Minute)
		}, true},
		"it is silent": {func(s *waketest.Server, p *Hub) {
			s.Silent = true
			p.Join("x")
			time.Sleep(time.Minute)
		}, true},
		"it closes connections while callers wait for moments": {func(s *waketest.Server, p *Hub) {
			s.Refuse = closes
			for range 20 {
				l := p.Join("x")
				time.Sleep(300 * time.Millisecond)
				l.Leave()
				time.Sleep(5 * time.Second)
			}
		}, true},
		"it answers nothing after it was well": {func(s *waketest.Server, p *Hub) {
			p.Join("x")
			time.Sleep(time.Minute)
			s.Set(func() { s.Silent = true })
			time.Sleep(time.Minute)
		}, true},
		"only the quiet channel is asked for": {func(s *waketest.Server, p *Hub) {
			s.Silent = true
			p.PingEvery(0, 0, "x")
			p.Join("x")
			time.Sleep(time.Minute)
		}, false},
		"it cannot be reached": {func(s *waketest.Server, p *Hub) {
			s.Down = true
			p.Join("x")
			time.Sleep(time.Minute)
		}, false},
		"it starts anew": {func(s *waketest.Server, p *Hub) {
			for range 10 {
				p.Join("x")
				time.Sleep(2 * time.Second)
				s.Set(func() { s.Refuse = closes })
				s.Cut()
				time.Sleep(time.Second)
				s.Set(func() { s.Down = true })
				time.Sleep(10 * time.Second)
				s.Set(func() { s.Down = false })
				time.Sleep(time.Second)
				s.Set(func() { s.Refuse = nil })
			}
		}, false},
		"connections break at times": {func(s *waketest.Server, p *Hub) {
			p.Join("x")
			for range 10 {
				time.Sleep(5 * time.Second)
				s.Set(func() { s.Refuse = closes })
				s.Cut()
				time.Sleep(100 * time.Millisecond)
				s.Set(func() { s.Refuse = nil })
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told []error
				s := &waketest.Server{}
				p := New(oneServer{s}, slog.New(slog.DiscardHandler), func(channel string, err error) {
					assert.Equal(t, "x", channel)
					told = append(told, err)
				})
				test.does(s, p)
				p.Close()
				assert.Equal(t, test.told, len(told) > 0)
				for _, err := range told {
					assert.ErrorIs(t, err, ErrUnanswered)
				}
			})
		})
	}
}
