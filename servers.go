package relock

// What a Client knows about its Redis client, and about the servers behind it.
//
// Rules: these are two things. A Redis client that routes by slot sends each key to the server of its slot; it is a
// *redis.ClusterClient, or embeds one. Servers in Cluster mode have sharded channels, on which the other clients of
// these servers, and Redisson, publish and listen. The client of redis.NewFailoverClusterClient routes by slot, and its
// servers are not in Cluster mode. So the servers determine the channels, and are asked where they can be of either
// mode. What a Redis client can do is asked through its methods, because it may be of a type of the user that embeds a
// type of go-redis.

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A routing is how a Redis client finds the server of a key.
type routing int

const (
	toOne          routing = iota // it has one server at a time, which is not in Cluster mode
	bySlot                        // each slot has its server
	unknownRouting                // its type is unknown
)

// routerOf returns the router for rdb, and what is known about its servers.
func routerOf(rdb redis.UniversalClient) (engine.Servers, *serverMode, routing) {
	one, many := send.OptionsOf(rdb)
	if cluster := send.ClusterOf(rdb); cluster != nil {
		s := &shards{rdb: rdb, cluster: cluster}
		s.ask = func(ctx context.Context) (bool, error) { return send.InClusterMode(ctx, rdb) }
		if many != nil && many.ClusterSlots == nil {
			s.known.Store(modeCluster) // go-redis asks the servers for their slots
		}
		return s, &s.serverMode, bySlot
	}
	if one != nil {
		mode := new(serverMode)
		mode.known.Store(modeSingle)
		return oneServer(func() wake.Subscriber { return rdb.Subscribe(context.Background()) }), mode, toOne
	}
	s := &unknown{rdb: rdb}
	s.ask = s.askWithSlots
	return s, &s.serverMode, unknownRouting
}

// keepsToSlots reports whether one script must not use keys of several slots, or whether that is not known.
func (c *Client) keepsToSlots() bool {
	return c.routing == bySlot || c.in().mode.known.Load() != modeSingle
}

// group returns the slot of a lock if one script cannot ask about locks of several slots.
func (c *Client) group(name string) string {
	if c.keepsToSlots() {
		return slotPart(name)
	}
	return ""
}

// slotOf returns the number of the slot of a key: the CRC16 of XMODEM.
func slotOf(key string) int {
	var crc uint16
	for _, b := range []byte(slotPart(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}

// A serverMode is what is known about the mode of the servers. They are asked beside the first request of the Client,
// which does not take longer because of that, and again after a while if they do not answer. Whoever needs the answer
// waits for it, but not for long: until it is known, the servers count as not in Cluster mode.
type serverMode struct {
	ask   func(ctx context.Context) (inCluster bool, err error)
	spawn func(func()) // runs a function on another goroutine

	known    atomic.Int32 // a mode
	noShards atomic.Bool  // it was found out that the servers have no sharded channels

	mu       sync.Mutex // guards below
	question *question  // the last one, or nil
}

const (
	modeUnknown int32 = iota
	modeSingle        // no Cluster
	modeCluster
)

// A question is a request for the mode.
type question struct {
	begun    time.Time
	answered chan struct{} // closed when the request has ended
}

const (
	questionTime  = 250 * time.Millisecond // how long others wait for its answer: see learn
	questionPause = time.Second            // between two of them, at least
)

// begin asks for the mode if it is not known. It returns the question whose answer to wait for, or nil.
func (m *serverMode) begin() *question {
	if m.known.Load() != modeUnknown {
		return nil
	}
	m.mu.Lock()
	q, now := m.question, time.Now()
	again := q == nil || q.hasEnded() && now.Sub(q.begun) >= questionPause
	if again {
		q = &question{begun: now, answered: make(chan struct{})}
		m.question = q
	}
	m.mu.Unlock()
	if again {
		m.spawn(func() { m.answer(q) })
	}
	return q
}

// answer asks for the mode, for q.
func (m *serverMode) answer(q *question) {
	defer close(q.answered) // also when a hook ends the goroutine
	ctx, cancel := context.WithTimeout(context.Background(), send.ResendTime)
	defer cancel()
	inCluster, err := m.ask(ctx)
	switch {
	case err != nil: // the caller's own request fails in the same way
	case inCluster:
		m.known.Store(modeCluster)
	default:
		m.known.Store(modeSingle)
	}
}

func (q *question) hasEnded() bool {
	select {
	case <-q.answered:
		return true
	default:
		return false
	}
}

// wait waits until the question was answered, until it is this old, or until ctx is done. A nil question needs no answer.
func (q *question) wait(ctx context.Context, most time.Duration) {
	if q == nil || q.hasEnded() {
		return
	}
	left := time.NewTimer(time.Until(q.begun.Add(most)))
	defer left.Stop()
	select {
	case <-q.answered:
	case <-left.C:
	case <-ctx.Done():
	}
}

// find waits until the mode is known, but not for long, and until ctx is done.
func (m *serverMode) find(ctx context.Context) {
	if ctx.Err() == nil {
		m.begin().wait(ctx, questionTime)
	}
}

// learn is like find, and waits for as long as the servers may take to answer. It is for what would reach nobody if a
// Cluster counted as none: forced releases and the like, which may be the first request of the Client, and messages to
// other Clients.
func (m *serverMode) learn(ctx context.Context) {
	if ctx.Err() == nil {
		m.begin().wait(ctx, send.ResendTime)
	}
}

// inCluster reports whether the servers are known to be in Cluster mode.
func (m *serverMode) inCluster() bool { return m.known.Load() == modeCluster }

// sharded reports whether the servers announce on sharded channels, as far as that is known.
func (m *serverMode) sharded() bool { return m.inCluster() && !m.noShards.Load() }

// askingWith returns t, which also asks for the mode of the servers if that is not known.
func (m *serverMode) askingWith(t send.Transport) send.Transport {
	if m.known.Load() != modeUnknown {
		return t
	}
	return askingTransport{t, m}
}

// boundedBy returns b, which bounds no call before the mode of the servers is known: only other calls ask for it.
func (m *serverMode) boundedBy(b send.Bounder) send.Bounder {
	if m.known.Load() != modeUnknown {
		return b
	}
	return askingBounder{b, m}
}

type askingBounder struct {
	send.Bounder
	mode *serverMode
}

func (b askingBounder) Bound() time.Duration {
	if b.mode.known.Load() == modeUnknown {
		return 0
	}
	return b.Bounder.Bound()
}

// An askingTransport asks for the mode of the servers beside the first request.
type askingTransport struct {
	send.Transport
	mode *serverMode
}

func (t askingTransport) Run(ctx context.Context, c send.Call, taking bool) (any, error) {
	t.mode.begin()
	return t.Transport.Run(ctx, c, taking)
}

func (t askingTransport) RunAll(ctx context.Context, calls []send.Call, taking bool) []send.Outcome {
	t.mode.begin()
	return t.Transport.RunAll(ctx, calls, taking)
}
