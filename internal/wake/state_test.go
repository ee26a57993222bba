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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/wake/waketest"
)

const forgotten state = 0

func (s state) String() string {
	return []string{"forgotten", "unrouted", "wanted", "subscribing", "confirmed", "refused"}[s]
}

var allStates = []state{unrouted, wanted, subscribing, confirmed, refused}

// oneHome is a router that assigns all channels to the node that it names.
type oneHome string

func (r *oneHome) Node(string) Node { return dialling(string(*r), &waketest.Server{}) }
func (*oneHome) Moves() bool        { return true }
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
func newStateBench(t *testing.T, s state, listened bool) *stateBench {
	home := oneHome("here")
	b := &stateBench{home: &home}
	b.hub = New(b.home, slog.New(slog.DiscardHandler), func(string, error) {})
	b.hub.stopped = true // so that no goroutine starts
	b.listener = b.hub.Join("x")
	b.link = b.hub.links["here"]
	for _, step := range map[state][]string{
		wanted:      {},
		subscribing: {"the writer subscribes"},
		confirmed:   {"the writer subscribes", "Redis confirms"},
		refused:     {"the writer subscribes", "Redis refuses"},
		unrouted:    {"the writer subscribes", "Redis redirects"},
	}[s] {
		stateEvents[step](b)
	}
	if !listened {
		b.listener.Leave()
	}
	require.Equal(t, s, b.state(t), "before")
	return b
}

// state returns the state of the channel, and checks that the queues agree with it.
func (b *stateBench) state(t *testing.T) state {
	assertQueues(t, b.hub)
	if ch := b.hub.channels["x"]; ch != nil {
		return ch.state
	}
	return forgotten
}

// assertQueues asserts that every channel is in the queue of its state at its link, if there is one, and in no other
// queue.
func assertQueues(t *testing.T, h *Hub) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	queued, sizes := make(map[*channel]int), make(map[*link]int)
	for _, l := range h.links {
		for s, queue := range l.queues {
			for _, ch := range queue {
				queued[ch]++
				assert.Equal(t, state(s), ch.state, "%s is in the queue of another state", ch.name)
				assert.Same(t, l, ch.link, "%s is in the queue of another link", ch.name)
				assert.Same(t, ch, h.channels[ch.name], "%s is forgotten and in a queue", ch.name)
			}
		}
	}
	for name, ch := range h.channels {
		sizes[ch.link]++
		want := 0
		if ch.isPending() {
			want = 1
		}
		assert.Equal(t, want, queued[ch], "how often %s, which is %v, is in a queue", name, ch.state)
	}
	for name, l := range h.links {
		assert.Equal(t, sizes[l], l.size, "channels of %q", name)
	}
}

// stateEvents are all events that can happen to a channel.
var stateEvents = map[string]func(*stateBench){
	"the writer subscribes": func(b *stateBench) { b.link.changes(time.Now()) },
	"Redis confirms":        func(b *stateBench) { b.link.noteConfirmed("x") },
	"Redis refuses":         func(b *stateBench) { b.link.noteRefused(waketest.Error("NOPERM")) },
	"Redis redirects":       func(b *stateBench) { b.link.noteMoved("") },
	"the slot leaves":       func(b *stateBench) { b.link.noteMoved("x") },
	"it is still here":      func(b *stateBench) { b.link.rerouteNow(time.Now().Add(b.hub.reroute)) },
	"it is elsewhere": func(b *stateBench) {
		*b.home = "there"
		b.link.rerouteNow(time.Now().Add(b.hub.reroute))
	},
	"the writer sees it elsewhere": func(b *stateBench) {
		*b.home = "there"
		b.link.lookAround()
	},
	"a new connection": func(b *stateBench) { b.link.startOver() },
	"a new connection, and it is elsewhere": func(b *stateBench) {
		*b.home = "there"
		b.link.startOver()
	},
	"a new connection, after long": func(b *stateBench) {
		time.Sleep(b.hub.idleTTL)
		b.link.startOver()
	},
	"the writer looks, after long": func(b *stateBench) { b.link.changes(time.Now().Add(b.hub.idleTTL)) },
}

// Each event happens in each state, with a listener and without.
func TestStates(t *testing.T) {
	all := func(to state) map[state]state {
		return map[state]state{unrouted: to, wanted: to, subscribing: to, confirmed: to, refused: to}
	}
	for event, becomes := range map[string]struct {
		listened map[state]state // a state that is not a key does not change
		idle     map[state]state // nil: the same as with a listener
	}{
		"the writer subscribes": {listened: map[state]state{wanted: subscribing}},
		"Redis confirms":        {listened: map[state]state{subscribing: confirmed}},
		"Redis refuses":         {listened: map[state]state{subscribing: refused}},
		"Redis redirects": {
			listened: map[state]state{subscribing: unrouted},
			idle:     map[state]state{subscribing: forgotten},
		},
		"the slot leaves": {
			listened: map[state]state{confirmed: unrouted},
			idle:     map[state]state{confirmed: forgotten},
		},
		"it is still here": {listened: map[state]state{unrouted: wanted}},
		"it is elsewhere": {
			listened: map[state]state{unrouted: wanted}, // at the other link
			idle:     map[state]state{unrouted: forgotten},
		},
		"the writer sees it elsewhere": {listened: map[state]state{confirmed: unrouted}},
		"a new connection":             {listened: all(wanted)},
		"a new connection, and it is elsewhere": {
			listened: all(wanted), // at the other link
			idle:     all(forgotten),
		},
		"a new connection, after long": {
			listened: all(wanted),
			idle:     all(forgotten),
		},
		"the writer looks, after long": { // a channel whose answer is outstanding is kept
			listened: map[state]state{wanted: subscribing},
			idle:     map[state]state{wanted: subscribing, confirmed: forgotten, refused: forgotten},
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
						if got != forgotten {
							assert.Equal(
								t,
								strings.HasSuffix(event, "it is elsewhere") && changes,
								b.hub.channels["x"].link != b.link,
								"moved to the other link",
							)
							assert.Equal(t, got == confirmed, b.listener.Confirmed(), "confirmed")
							answered := from == confirmed || from == refused || got == confirmed || got == refused
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
		b := newStateBench(t, subscribing, true)
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
			_, unsubscribe, _ := b.link.changes(time.Now().Add(b.hub.idleTTL))
			assert.Equal(t, s == confirmed, slices.Equal([]string{"x"}, unsubscribe), "%v without listeners: %v", s, unsubscribe)
			b = newStateBench(t, s, true)
			stateEvents["the writer sees it elsewhere"](b)
			_, unsubscribe, _ = b.link.changes(time.Now())
			assert.Equal(t, s == confirmed, slices.Equal([]string{"x"}, unsubscribe), "%v on the wrong node: %v", s, unsubscribe)
		})
	}
}

// A channel that seems to be elsewhere for a moment, while the routes are loaded again, stays subscribed: to subscribe and to
// unsubscribe it at the same time would leave it without a subscription that the hub believes to have.
func TestStatesThatAreElsewhereForAMomentStaySubscribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStateBench(t, confirmed, true)
		stateEvents["the writer sees it elsewhere"](b)
		*b.home = "here"
		stateEvents["it is still here"](b)
		subscribe, unsubscribe, _ := b.link.changes(time.Now())
		assert.Equal(t, []string{"x"}, subscribe)
		assert.Empty(t, unsubscribe)
	})
}

// A listener may have missed a message in each state but one, and if its connection does not answer a ping in time.
func TestStatesInWhichAMessageMayBeMissed(t *testing.T) {
	for _, s := range allStates {
		synctest.Test(t, func(t *testing.T) {
			b := newStateBench(t, s, true)
			assert.Equal(t, s != confirmed, b.listener.IsSilent(time.Hour), "%v", s)
			b.link.pingedAt = time.Now()
			time.Sleep(time.Second)
			assert.Equal(t, s != confirmed, b.listener.IsSilent(time.Second), "%v: the ping may still be answered", s)
			assert.True(t, b.listener.IsSilent(time.Second-1), "%v: the ping is not answered", s)
		})
	}
}
