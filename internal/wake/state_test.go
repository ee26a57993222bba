//go:build go1.25

package wake

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/wake/waketest"
)

// allStates are the states of a channel, with the list in which it is pending.
var allStates = []string{"wanted", "asked", "moved", "confirmed", "refused"}

// oneHome is a router that assigns all channels to the node that it names.
type oneHome string

func (r *oneHome) Node(string) Node { return dialling(string(*r), &waketest.Server{}) }
func (*oneHome) Reload()            {}
func (*oneHome) Refused(error) bool { return false }

// A stateBench has a channel called "x", with or without a listener, and its link. No goroutine keeps a connection of
// the link: the test itself performs everything that happens to the channel.
type stateBench struct {
	home     *oneHome
	hub      *Hub
	link     *link
	listener *Listener
}

// newStateBench returns a bench whose channel is in state s.
func newStateBench(t *testing.T, s string, listened bool) *stateBench {
	home := oneHome("here")
	b := &stateBench{home: &home}
	b.hub = New(b.home, slog.New(slog.DiscardHandler), func(string, error) {})
	b.hub.stop() // so that no goroutine starts
	b.listener = b.hub.Join("x")
	b.link = b.hub.links["here"]
	stateEvents["a new connection"](b)
	for _, step := range map[string][]string{
		"asked":     {"the writer subscribes"},
		"confirmed": {"the writer subscribes", "Redis confirms"},
		"refused":   {"the writer subscribes", "Redis refuses"},
		"moved":     {"the writer subscribes", "Redis redirects"},
	}[s] {
		stateEvents[step](b)
	}
	if !listened {
		b.listener.Leave()
	}
	require.Equal(t, s, b.state(t), "before")
	return b
}

// state returns the state of the channel, and checks that the lists agree with it.
func (b *stateBench) state(t *testing.T) string {
	ch := b.hub.channels["x"]
	at := assertLists(t, b.hub)[ch]
	switch {
	case ch == nil:
		return "forgotten"
	case ch.state == confirmed:
		return "confirmed"
	case ch.state == refused:
		return "refused"
	}
	return at
}

// assertLists asserts that every pending channel is in one list of its link, and that no other channel is in one. It
// returns the lists.
func assertLists(t *testing.T, h *Hub) map[*channel]string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	listed, sum := make(map[*channel]string), 0
	for _, l := range h.links {
		for name, list := range map[string][]*channel{"wanted": l.wanted, "asked": l.asked, "moved": l.moved} {
			for _, ch := range list {
				assert.Empty(t, listed[ch], "%s is in two lists", ch.name)
				listed[ch] = name
				assert.Same(t, l, ch.link, "%s is in a list of another link", ch.name)
			}
		}
		for name, ch := range l.mine {
			assert.Same(t, l, ch.link)
			assert.Same(t, ch, h.channels[name])
		}
		sum += len(l.mine)
	}
	assert.Equal(t, len(h.channels), sum, "channels")
	for ch := range listed {
		assert.Same(t, ch, h.channels[ch.name], "%s is forgotten and in a list", ch.name)
	}
	for name, ch := range h.channels {
		assert.Equal(t, ch.state == pending, listed[ch] != "", "%s is in a list", name)
	}
	return listed
}

func (l *link) connectAgain() {
	l.die(time.Now(), nil)
	l.startOver(func(error) {})
}

// stateEvents are all events that can happen to a channel.
var stateEvents = map[string]func(*stateBench){
	"the writer subscribes": func(b *stateBench) { b.link.takeChanges(time.Now()) },
	"Redis confirms":        func(b *stateBench) { b.link.answer("x", confirmed, nil) },
	"Redis refuses":         func(b *stateBench) { b.link.answer("", refused, waketest.Error("NOPERM")) },
	"Redis redirects":       func(b *stateBench) { b.link.answer("", pending, nil) },
	"the slot leaves":       func(b *stateBench) { b.link.lose("x") },
	"it is still here":      func(b *stateBench) { b.link.route(pending, b.link.takeMoved()) },
	"it is elsewhere": func(b *stateBench) {
		*b.home = "there"
		b.link.route(pending, b.link.takeMoved())
	},
	"the writer looks, and it is elsewhere": func(b *stateBench) {
		*b.home = "there"
		b.link.lookAround()
	},
	"a new connection": func(b *stateBench) { b.link.connectAgain() },
	"a new connection, and it is elsewhere": func(b *stateBench) {
		*b.home = "there"
		b.link.connectAgain()
	},
	"the writer looks, after long": func(b *stateBench) { b.link.sweep(time.Now().Add(b.hub.idleTTL)) },
}

// Each event happens in each state, with a listener and without.
func TestStates(t *testing.T) {
	all := func(to string) map[string]string {
		return map[string]string{"wanted": to, "asked": to, "moved": to, "confirmed": to, "refused": to}
	}
	for event, becomes := range map[string]struct {
		listened map[string]string // a state that is not a key does not change
		idle     map[string]string // nil: the same as with a listener
	}{
		"the writer subscribes": {listened: map[string]string{"wanted": "asked"}},
		"Redis confirms":        {listened: map[string]string{"asked": "confirmed"}},
		"Redis refuses":         {listened: map[string]string{"asked": "refused"}},
		"Redis redirects":       {listened: map[string]string{"asked": "moved"}},
		"the slot leaves":       {listened: map[string]string{"confirmed": "moved"}},
		"it is still here": {
			listened: map[string]string{"moved": "wanted"},
			idle:     map[string]string{"moved": "forgotten"},
		},
		"it is elsewhere": {
			listened: map[string]string{"moved": "wanted"}, // at the other link
			idle:     map[string]string{"moved": "forgotten"},
		},
		"the writer looks, and it is elsewhere": {
			listened: map[string]string{"confirmed": "wanted"}, // at the other link
			idle:     map[string]string{"confirmed": "forgotten"},
		},
		"a new connection": {
			listened: all("wanted"),
			idle:     all("forgotten"),
		},
		"a new connection, and it is elsewhere": {
			listened: all("wanted"), // at the other link
			idle:     all("forgotten"),
		},
		"the writer looks, after long": { // a channel whose answer is outstanding is kept
			idle: map[string]string{"confirmed": "forgotten", "refused": "forgotten"},
		},
	} {
		for _, from := range allStates {
			for _, listened := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %v, listened %v", event, from, listened), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						to := becomes.listened
						if !listened && becomes.idle != nil {
							to = becomes.idle
						}
						want, changes := to[from]
						if !changes {
							want = from
						}
						b := newStateBench(t, from, listened)
						stateEvents[event](b)
						got := b.state(t)
						assert.Equal(t, want, got)
						if got != "forgotten" {
							assert.Equal(
								t,
								strings.HasSuffix(event, "it is elsewhere") && changes,
								b.hub.channels["x"].link != b.link,
								"moved to the other link",
							)
							assert.Equal(t, got == "confirmed", b.listener.Confirmed(), "confirmed")
							answered := from == "confirmed" || from == "refused" || got == "confirmed" || got == "refused"
							assert.Equal(t, answered, ready(b.listener), "the listener is ready")
						}
					})
				})
			}
		}
	}
}

// A listener knows the last answer from Redis, also while a new connection has not answered yet, and is woken when it
// may have missed a message.
func TestStatesRememberTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStateBench(t, "asked", true)
		again := func() {
			stateEvents["a new connection"](b)
			stateEvents["the writer subscribes"](b)
		}
		assert.False(t, ready(b.listener), "without an answer")
		stateEvents["Redis refuses"](b)
		assert.True(t, ready(b.listener), "a refused channel keeps its waiters waiting")
		assert.True(t, b.listener.Refused(), "refused")
		again()
		assert.True(t, b.listener.Refused(), "on a new connection without an answer")
		assert.False(t, woken(b.listener), "woken without a subscription")
		stateEvents["Redis confirms"](b)
		assert.False(t, b.listener.Refused(), "confirmed")
		assert.True(t, woken(b.listener), "a message may have been missed")
		again()
		assert.False(t, b.listener.Refused(), "on a new connection without an answer")
		assert.False(t, b.listener.Confirmed(), "on a new connection without an answer")
		stateEvents["Redis refuses"](b)
		assert.True(t, b.listener.Refused(), "refused")
		assert.False(t, woken(b.listener), "woken without a subscription")
	})
}

// Only subscribed channels are unsubscribed. Otherwise the answer from Redis would be taken for a different one.
func TestStatesThatAreUnsubscribed(t *testing.T) {
	for _, s := range allStates {
		synctest.Test(t, func(t *testing.T) {
			b := newStateBench(t, s, false)
			stateEvents["the writer looks, after long"](b)
			_, unsubscribe := b.link.takeChanges(time.Now())
			assert.Equal(t, s == "confirmed", slices.Equal([]string{"x"}, unsubscribe), "%v without listeners: %v", s, unsubscribe)
			b = newStateBench(t, s, true)
			stateEvents["the writer looks, and it is elsewhere"](b)
			_, unsubscribe = b.link.takeChanges(time.Now())
			assert.Equal(t, s == "confirmed", slices.Equal([]string{"x"}, unsubscribe), "%v on the wrong node: %v", s, unsubscribe)
		})
	}
}

// A channel that has moved to another link and back at once is unsubscribed before it is subscribed.
func TestStatesThatAreElsewhereForAMomentStaySubscribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStateBench(t, "confirmed", true)
		stateEvents["the writer looks, and it is elsewhere"](b)
		*b.home = "here"
		b.hub.links["there"].connectAgain()
		subscribe, unsubscribe := b.link.takeChanges(time.Now())
		s := &waketest.Server{}
		require.NoError(t, write(t.Context(), s.Dial(), subscribe, unsubscribe))
		assert.Equal(t, []string{"unsubscribe x", "subscribe x"}, s.Commands)
		b.link.handle(&redis.Subscription{Kind: "sunsubscribe", Channel: "x"})
		stateEvents["Redis confirms"](b)
		assert.True(t, b.listener.Confirmed())
	})
}

// A listener may have missed a message in each state but one, and if its connection does not answer a ping in time.
func TestStatesInWhichAMessageMayBeMissed(t *testing.T) {
	for _, s := range allStates {
		synctest.Test(t, func(t *testing.T) {
			b := newStateBench(t, s, true)
			assert.Equal(t, s != "confirmed", b.listener.IsSilent(time.Hour), "%v", s)
			b.link.pingedAt = time.Now()
			time.Sleep(time.Second)
			assert.Equal(t, s != "confirmed", b.listener.IsSilent(time.Second), "%v: the ping may still be answered", s)
			assert.True(t, b.listener.IsSilent(time.Second-1), "%v: the ping is not answered", s)
		})
	}
}
