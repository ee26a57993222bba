package wake

// The state of a channel: what it waits for, or what it has reached, on the connection of its link.
//
//	             its node       the writer         Redis
//	             is known       subscribes         allows it
//	 unrouted ────────► wanted ────────► subscribing ────────► confirmed
//	     ▲                                 │     │                 │
//	     │                                 │     └──► refused      │
//	     └─────────────────────────────────┴───────────────────────┘
//	         the node no longer serves the channel
//
// Rules:
//   - A new channel is wanted. Each new connection begins with all channels of the link unrouted.
//   - A channel that is unrouted, wanted or subscribing is in the queue of that state at its link, and in no other
//     queue. The only exceptions are unrouted channels while the router is asked about them.
//   - Whether a channel has listeners is not part of its state: the last one may leave in any state.

import (
	"slices"
	"time"
)

// A state describes what is known about the subscription of a channel.
type state int

const (
	unrouted    state = iota + 1 // its node must be found out
	wanted                       // it will be subscribed
	subscribing                  // the answer to SUBSCRIBE is outstanding
	confirmed                    // its messages arrive
	refused                      // Redis does not allow it
)

// queues holds the unrouted, wanted and subscribing channels of a link, each in the order in which they became so.
type queues [confirmed][]*channel

// isPending reports whether the channel is not confirmed or refused yet.
func (ch *channel) isPending() bool { return ch.state < confirmed }

// isConfirmed reports whether the channel is subscribed on the current connection.
func (ch *channel) isConfirmed() bool { return ch.state == confirmed }

// enqueueLocked makes ch, which must not be in a queue, unrouted, wanted or subscribing.
func (l *link) enqueueLocked(ch *channel, s state) {
	ch.state = s
	l.queues[s] = append(l.queues[s], ch)
}

// dequeueLocked removes the channel at index i from the queue of s.
func (l *link) dequeueLocked(s state, i int) *channel {
	ch := l.queues[s][i]
	if i == 0 { // the usual case, because answers arrive in order
		l.queues[s] = l.queues[s][1:]
	} else {
		l.queues[s] = slices.Delete(l.queues[s], i, i+1)
	}
	return ch
}

// answeredLocked makes ch, which must not be in a queue, confirmed or refused. first reports whether this is the
// first answer from Redis.
func (ch *channel) answeredLocked(s state) (first bool) {
	first = ch.answer == 0
	ch.state, ch.answer = s, s
	ch.link.unanswered = time.Time{}
	if first {
		close(ch.ready)
	}
	return first
}
