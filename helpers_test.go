package relock

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"time"
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
