package relock

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// full is how many cases a test tries, or for how long: plain, or long with
// RELOCK_LONG=1 in the environment, as "make race" and "make valkey" set it.
func full[T int | uint64 | time.Duration](plain, long T) T {
	if os.Getenv("RELOCK_LONG") != "" {
		return long
	}
	return plain
}

// lockedBuffer is a buffer that a logger may write to while a test reads.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// waitsAtGate says whether an owner waits for l in the queue of this process.
func (b *bench) waitsAtGate(l known) bool {
	h := l.inside()
	n := h.client.engine.use(h.name)
	defer n.done()
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.findQueueLocked(h.lock.id())
	return g != nil && g.First() != nil
}

// asks says whether an owner of this process contends for l.
func (b *bench) asks(l known) bool {
	h := l.inside()
	n := h.client.engine.use(h.name)
	defer n.done()
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.findQueueLocked(h.lock.id())
	return g != nil && g.Taken()
}

func newRand(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

// eachName calls f for every name that is in use, with its mutex.
func (e *engine) eachName(f func(n *name)) {
	e.table.mu.Lock()
	all := slices.Collect(maps.Values(e.table.names))
	e.table.mu.Unlock()
	for _, n := range all {
		n.mu.Lock()
		f(n)
		n.mu.Unlock()
	}
}

// holds and gates are how many there are.
func (e *engine) holds() (holds int) {
	e.eachName(func(n *name) { holds += n.holds.len() })
	return holds
}

func (e *engine) waitQueues() (queues int) {
	e.eachName(func(n *name) { queues += len(n.queues) })
	return queues
}

// names is how many names are in use.
func (e *engine) names() int {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return len(e.table.names)
}

// leases is how many leases the watchdog has.
func (e *engine) leases() int {
	e.watchdog.mu.Lock()
	defer e.watchdog.mu.Unlock()
	return len(e.watchdog.leases)
}

// holdOf is the hold of o on the lock called name; f is called with the mutex of the name.
func (e *engine) holdOf(id lockID, o owner, f func(h *hold)) {
	n := e.use(id.name)
	defer n.done()
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.holds.get(holdKey{id, o}))
}

const forever = -1

// atWork is how many callers and goroutines are busy.
func (e *engine) atWork() int64 { return e.workers.working.Load() - e.workers.idle.Load() }

// send sends a call of a lock by itself.
func (c *Client) send(what call) (reply, error) {
	answer := c.engine.sender.Do(&send.Wait{Ctx: context.Background()}, send.Request{Call: what}, time.Time{})
	return answer.Reply()
}

// sendAttempt makes one attempt on a lock.
func sendAttempt(l *fairLock, a attempt) (grant, error) {
	r, err := l.client.send(l.acquire(a))
	if err != nil {
		return grant{}, err
	}
	return l.granted(a, r)
}
