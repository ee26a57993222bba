package wake

// States: what a channel waits for, or has got, on the connection of its link.
//
//	             its node       the writer         Redis
//	             is known       subscribes         allows it
//	 unrouted ────────► wanted ────────► subscribing ────────► confirmed
//	     ▲                                 │     │                 │
//	     │                                 │     └──► refused      │
//	     └─────────────────────────────────┴───────────────────────┘
//	         the node does not announce on it any more
//
// Rules:
//   - A channel begins as wanted, and each new connection begins with all channels of the link unrouted.
//   - A channel that is unrouted, wanted or subscribing is in the queue of that state at its link, and in no other. Only
//     while the router is asked about unrouted channels, these are in no queue.
//   - Whether a channel has listeners is not part of its state: the last one may leave in any state.

import "slices"

// A state is what is known of the subscription of a channel.
type state int

const (
	unrouted    state = iota + 1 // its node is to be found out
	wanted                       // it is to be subscribed
	subscribing                  // the answer to SUBSCRIBE is to come
	confirmed                    // its messages come
	refused                      // Redis does not allow it
)

// queues are the channels of a link that are unrouted, wanted or subscribing, in the order in which they became so.
type queues [confirmed][]*channel

// isPending reports whether an answer of Redis is to come.
func (ch *channel) isPending() bool { return ch.state < confirmed }

// isConfirmed reports whether the channel is subscribed on this connection.
func (ch *channel) isConfirmed() bool { return ch.state == confirmed }

// enqueueLocked has ch, which is in no queue, become unrouted, wanted or subscribing.
func (l *link) enqueueLocked(ch *channel, s state) {
	ch.state = s
	l.queues[s] = append(l.queues[s], ch)
}

// dequeueLocked takes the channel at index i out of the queue of s.
func (l *link) dequeueLocked(s state, i int) *channel {
	ch := l.queues[s][i]
	if i == 0 { // as a rule: answers come in order
		l.queues[s] = l.queues[s][1:]
	} else {
		l.queues[s] = slices.Delete(l.queues[s], i, i+1)
	}
	return ch
}

// answeredLocked has ch, which is in no queue, become confirmed or refused. first reports whether Redis has not
// answered before.
func (ch *channel) answeredLocked(s state) (first bool) {
	first = ch.answer == 0
	ch.state, ch.answer = s, s
	if first {
		close(ch.ready)
	}
	return first
}
