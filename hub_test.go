//go:build go1.25

package relock

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newFakePubSub(t *testing.T) (*fakeServer, *hub) {
	s := &fakeServer{}
	p := newHub(oneServer(s.dial), slog.New(slog.DiscardHandler), func(string, error) {})
	t.Cleanup(p.close)
	return s, p
}

func woken(l *listener) bool {
	synctest.Wait()
	select {
	case <-l.wake:
		return true
	default:
		return false
	}
}

func ready(l *listener) bool {
	synctest.Wait()
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// C2: the listeners of a channel share a subscription, and a message wakes all of them and no others.
func TestPubSubSubscribesOnceAndWakesAllListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		a, b, other := p.join("x"), p.join("x"), p.join("y")
		require.True(t, ready(a), "not subscribed")
		require.True(t, ready(b), "not subscribed")
		require.True(t, ready(other), "not subscribed")
		s.publish("x")
		assert.True(t, woken(a), "a message must wake all listeners of its channel")
		assert.True(t, woken(b), "a message must wake all listeners of its channel")
		assert.False(t, woken(other), "a message must not wake the listeners of another channel")
		assert.Equal(t, 1, s.count("subscribe x"), "subscriptions")
		a.leave()
		s.publish("x")
		assert.False(t, woken(a), "a listener that has left is woken")
		assert.True(t, woken(b), "a listener that stays is not woken")
	})
}

// A listener with a filter hears nothing else.
func TestPubSubMessagesPassTheFilterOfAListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		mine, other, all := p.join("x"), p.join("x"), p.join("x")
		mine.only(func(message string) bool { return message != "for another" })
		other.only(func(message string) bool { return message != "for one" })
		for _, l := range []*listener{mine, other, all} {
			require.True(t, ready(l), "not subscribed")
		}
		p.receive("x", "for one")
		assert.True(t, woken(mine))
		assert.False(t, woken(other), "the filter is not true")
		assert.True(t, woken(all))
		assert.Equal(t, "for one", mine.message())
		assert.Empty(t, mine.message(), "a message that was returned before")
		assert.Empty(t, other.message())
		p.receive("x", "for another")
		assert.False(t, woken(mine), "the filter is not true")
		assert.True(t, woken(other))
		p.receive("x", "0")
		assert.True(t, woken(mine), "the message is for everybody")
		assert.True(t, woken(other), "the message is for everybody")
	})
}

// Whether a grant is for a wait that goes on is found out before its listener runs: the caller may be done with the lock at once.
func TestPubSubHearsAMessageBeforeItsListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		l := p.join("x")
		var heard []string
		l.hears(func(message string) {
			heard = append(heard, message)
			assert.False(t, woken(l), "the listener was woken before")
		})
		require.True(t, ready(l), "not subscribed")
		woken(l) // by the confirmation
		p.receive("x", "grant c:1:01 7 5000 0")
		assert.Equal(t, []string{"grant c:1:01 7 5000 0"}, heard)
		assert.True(t, woken(l))
		l.leave()
		p.receive("x", "grant c:1:02 8 5000 0")
		assert.Len(t, heard, 2, "a message without a listener")
	})
}

// A listener is ready when Redis has confirmed its subscription, and not before.
func TestPubSubReadyOnlyAfterTheConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		s.confirmAfter = time.Second
		l := p.join("x")
		time.Sleep(999 * time.Millisecond)
		assert.False(t, ready(l), "ready before Redis has confirmed")
		time.Sleep(time.Millisecond)
		assert.True(t, ready(l), "not ready although Redis has confirmed")
	})
}

// A subscription outlives its last listener for a while, so that a busy lock subscribes once, and ends then.
func TestPubSubKeepsASubscriptionForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		for range 100 { // a busy lock
			l := p.join("x")
			require.True(t, ready(l), "not ready")
			l.leave()
			time.Sleep(p.idleTTL / 2)
		}
		assert.Equal(t, 1, s.count("subscribe x"), "subscriptions of a busy lock")
		time.Sleep(p.idleTTL)
		synctest.Wait()
		assert.Equal(t, 1, s.count("unsubscribe x"), "UNSUBSCRIBEs after the last listener has left")
		assert.Empty(t, p.channels, "channels are remembered")
		l := p.join("x")
		assert.True(t, ready(l), "a later listener is not subscribed anew")
		assert.Equal(t, 2, s.count("subscribe x"), "a later listener is not subscribed anew")
	})
}

// C3: a connection without channels is closed, and a later listener gets a new one.
func TestPubSubClosesAnIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		p.join("x").leave()
		time.Sleep(p.idle + 2*p.idleTTL)
		synctest.Wait()
		select {
		case <-s.conns[0].closed:
		default:
			assert.Fail(t, "the connection is still open")
		}
		l := p.join("x")
		s.publish("x")
		assert.True(t, ready(l), "a later listener gets no connection")
		assert.Equal(t, 2, s.dials(), "connections")
	})
}

// L2: a reconnect wakes every listener, which may have missed a message.
func TestPubSubWakesEverybodyAfterAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		a, b := p.join("x"), p.join("y")
		require.True(t, ready(a), "not ready")
		require.True(t, ready(b), "not ready")
		require.False(t, woken(a), "woken without a reason")
		require.False(t, woken(b), "woken without a reason")
		s.cut()
		time.Sleep(100 * time.Millisecond)
		assert.True(t, woken(a), "not woken after the connection was replaced")
		assert.True(t, woken(b), "not woken after the connection was replaced")
		s.publish("x")
		assert.True(t, woken(a), "the new connection passes no message on")
	})
}

// During an outage connections are tried with pauses, and listeners are woken after it.
func TestPubSubComesBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.join("x")
		require.True(t, ready(l), "not ready")
		s.set(func() { s.down = true })
		s.cut()
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, s.dials(), 100, "connections that were tried in a minute")
		s.set(func() { s.down = false })
		time.Sleep(2 * time.Second)
		assert.True(t, woken(l), "not woken after the outage")
	})
}

// A connection on which nothing comes is replaced; go-redis would wait for ever.
func TestPubSubNoticesASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.join("x")
		require.True(t, ready(l), "not ready")
		s.set(func() { s.silent = true })
		time.Sleep(time.Minute)
		s.set(func() { s.silent = false })
		time.Sleep(5 * time.Second)
		assert.True(t, woken(l), "a connection on which nothing comes is still trusted")
		s.publish("x")
		assert.True(t, woken(l), "no message comes through after the peer is back")
	})
}

// Pings keep a connection without messages, and wake no listener.
func TestPubSubKeepsAQuietConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		l := p.join("x")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, s.dials(), "connections in a quiet hour")
		assert.False(t, woken(l), "woken in a quiet hour")
	})
}

// A channel that Redis refuses is ready, so that its waiters poll, is logged once, and disturbs no other channel.
func TestPubSubRefusedChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noPermission := answerError("NOPERM No permissions to access a channel")
		s := &fakeServer{refuse: func(ch string) error {
			if strings.HasPrefix(ch, "bad") {
				return noPermission
			}
			return nil
		}}
		var warnings []string // synctest.Wait orders what the reader writes before what the test reads
		p := newHub(oneServer(s.dial), slog.New(slog.DiscardHandler), func(channel string, err error) {
			assert.Equal(t, noPermission, err)
			warnings = append(warnings, channel)
		})
		defer p.close()
		good1, bad1, bad2, good2 := p.join("good1"), p.join("bad1"), p.join("bad2"), p.join("good2")
		for _, l := range []*listener{good1, bad1, bad2, good2} {
			require.True(t, ready(l), "%s keeps its waiters waiting", l.channel.name)
		}
		s.publish("good2")
		assert.True(t, woken(good2), "a refused channel disturbs another one")
		assert.Equal(t, []string{"bad1"}, warnings, "warnings")
		for _, l := range []*listener{good1, bad1, bad2, good2} {
			l.leave()
		}
		time.Sleep(2 * p.idleTTL)
		synctest.Wait()
		assert.Empty(t, p.channels, "channels are remembered")
	})
}

// The confirmation of a channel that was left meanwhile is not taken for the confirmation of a
// later channel of the same name.
func TestPubSubLateConfirmationIsNotMistaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		s.confirmAfter = 5 * p.idleTTL
		p.join("x").leave()
		time.Sleep(4 * p.idleTTL)
		l := p.join("x")
		time.Sleep(p.idleTTL)
		assert.True(t, ready(l), "not ready although Redis has confirmed")
		assert.Equal(t, 1, s.count("subscribe x"), "commands: %v", s.commands)
		assert.Zero(t, s.count("unsubscribe x"), "commands: %v", s.commands)
		s.publish("x")
		assert.True(t, woken(l), "not subscribed")
	})
}

// Close ends all goroutines, and a later join or Close is harmless.
func TestPubSubCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newFakePubSub(t)
		p.join("x")
		p.close()
		p.join("y")
		p.close()
	})
}

// C3: nothing is left of many channels that were joined and left at once.
func TestPubSubForgetsManyChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newFakePubSub(t)
		const many = 10_000
		ls := make([]*listener, many)
		for i := range ls {
			ls[i] = p.join(fmt.Sprint("ch", i))
		}
		for _, l := range ls {
			require.True(t, ready(l), "not ready")
		}
		assert.Equal(t, 1, s.dials(), "connections")
		for _, l := range ls {
			l.leave()
		}
		time.Sleep(2 * p.idleTTL)
		synctest.Wait()
		l := p.links[""]
		assert.Zero(t, len(p.channels)+l.size+len(l.idling)+len(l.pending)+len(l.wanted), "something is left")
		assert.Empty(t, s.conns[0].subs, "channels are still subscribed")
	})
}

// After random joins, leaves and cuts a ready listener gets every message of its channel, and no other.
func TestPubSubReadyListenersHearEveryMessage(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) { readyListenersHearEveryMessage(t, seed) })
	}
}

func readyListenersHearEveryMessage(t *testing.T, seed int) {
	s, p := newFakePubSub(t)
	rng := newRand(seed)
	names := []string{"a", "b", "c"}
	var listening []*listener
	for step := range 500 {
		switch rng.IntN(6) {
		case 0, 1:
			listening = append(listening, p.join(names[rng.IntN(len(names))]))
		case 2:
			if len(listening) > 0 {
				i := rng.IntN(len(listening))
				listening[i].leave()
				listening = slices.Delete(listening, i, i+1)
			}
		case 3:
			time.Sleep(time.Duration(rng.IntN(int(2 * p.idleTTL))))
		case 4:
			if rng.IntN(5) == 0 {
				s.cut()
				time.Sleep(5 * time.Second) // longer than the longest pause between connections
			}
		case 5:
			name := names[rng.IntN(len(names))]
			for _, l := range listening {
				woken(l)
			}
			s.publish(name)
			for _, l := range listening {
				require.True(t, ready(l), "seed %d step %d: %s is not ready", seed, step, l.channel.name)
				require.Equal(t, l.channel.name == name, woken(l), "seed %d step %d: a listener of %s, woken by a message on %s", seed, step, l.channel.name, name)
			}
		}
	}
}
