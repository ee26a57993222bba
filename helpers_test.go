package relock

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
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
		n.locked(func() { f(n) })
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

// textsInUse are the names that are in use.
func (e *engine) textsInUse() (texts []string) {
	e.eachName(func(n *name) { texts = append(texts, n.text) })
	return texts
}

// locked calls f with the mutex of the name.
func (n *name) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
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

// aboutASecond is how long a connection that hangs may delay a call (L7), on a machine that is busy.
const aboutASecond = 3500 * time.Millisecond

// patientClient goes through the proxy with the defaults of go-redis: it waits for an answer for five seconds.
func (b *faultBench) patientClient(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(b.proxy.Client(), opts...)
}

// processHook is a hook of a Redis client around single commands and pipelines.
type processHook func(send func() error) error

func (processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

func (h processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
}

// freeSoon makes sure that nothing but token counters is left in Redis, long before any lease ends.
func (b *bench) freeSoon() {
	b.Helper()
	fb := &faultBench{bench: b}
	testredis.Await(b, "nothing is left of the lock", soon, func() bool { return len(fb.records()) == 0 })
}

// scriptRuns is how many scripts the server has run.
func (b *bench) scriptRuns() int {
	b.Helper()
	stats, err := b.rdb.Info(context.Background(), "commandstats").Result()
	b.must(err)
	var runs int
	for _, line := range strings.Split(stats, "\r\n") {
		var n int
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n); err == nil {
			runs = n
		}
	}
	return runs
}
