package main

// Very many locks that are held, and very many that are waited for.
//
// Rules: each turn has clients of its own, and the memory for the measurement is allocated before the memory is
// measured. A figure is taken when only the work that has to continue is left, such as renewals.

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// A memory is the memory of this process.
type memory struct{ goroutines, heap float64 }

func remember() memory {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first collection leaves objects with finalizers, and pools
	runtime.ReadMemStats(&m)
	return memory{float64(runtime.NumGoroutine()), float64(m.HeapAlloc)}
}

// A hoard is many locks of one client.
type hoard struct {
	locks int
	lease time.Duration
}

func (h hoard) names() []string {
	names := make([]string, h.locks)
	for i := range names {
		names[i] = fmt.Sprint("bench:", i)
	}
	return names
}

// acquireAll acquires all names for one owner, by several goroutines, and keeps the releases, or without any insists.
func acquireAll(ctx context.Context, p peer, names []string, releases []func() error) error {
	ctx = relock.ContextWithOwner(ctx) // any goroutine can release them
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(names) {
					return
				}
				release, err := acquire(ctx, p, names[i], releases == nil)
				if err != nil {
					failed.Store(&err)
					return
				}
				if releases != nil {
					releases[i] = release
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// acquire is Acquire. With insist it starts again when Acquire sleeps for too long over a name that is free. The retry
// costs a context, which lives as long as the lock.
func acquire(ctx context.Context, p peer, name string, insist bool) (func() error, error) {
	if !insist {
		return p.Acquire(ctx, name)
	}
	for {
		trying, giveUp := context.WithCancel(ctx)
		timer := time.AfterFunc(patience, giveUp)
		release, err := p.Acquire(trying, name)
		timer.Stop()
		if err == nil || ctx.Err() != nil || trying.Err() == nil {
			return release, err
		}
	}
}

// held is the turn of a library that holds all locks, and renews them.
func (h hoard) held(ctx context.Context, t turn) (sample, error) {
	names := h.names()
	releases := make([]func() error, len(names)) // a user would keep these, too
	watch := newRenewals(names, 2*h.lease/3)
	before := remember()
	p, err := t.kind.open(setting{addr: t.server.addr, lease: h.lease, hooks: []redis.Hook{watch}})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := acquireAll(ctx, p, names, releases); err != nil {
		return nil, err
	}
	after := remember()
	pipelines := watch.pipelines.Load()
	did, err := t.server.during(ctx, max(t.took, h.lease)) // three renewals of each
	if err != nil {
		return nil, err
	}
	keys, err := t.server.keys(ctx)
	if err != nil {
		return nil, err
	}
	n, seconds := float64(h.locks), did.took.Seconds()
	out := sample{
		locksHeld:   n,
		goroutines:  after.goroutines - before.goroutines,
		heapEach:    (after.heap - before.heap) / n,
		commandRate: did.commands / seconds,
		scriptRate:  did.scripts / seconds,
		redisLoad:   did.redis / seconds,
		ourLoad:     did.ours / seconds,
		lostLocks:   n - keys,
	}
	if watch.seen.Load() > 0 {
		gap, late := watch.longest()
		out[longestGap] = gap.Seconds() / (h.lease.Seconds() / 3)
		out[seldom] = float64(late)
		out[pipelineRate] = float64(watch.pipelines.Load()-pipelines) / seconds
	}
	runtime.KeepAlive(releases)
	return out, nil
}

// awaited is the turn of a library that waits for all locks.
func (h hoard) awaited(ctx context.Context, t turn) (sample, error) {
	names := h.names()
	holder, err := t.kind.open(setting{addr: t.server.addr, lease: h.lease})
	if err != nil {
		return nil, err
	}
	defer holder.Close()
	if err := acquireAll(ctx, holder, names, nil); err != nil {
		return nil, err
	}
	linked, _, err := t.server.connections(ctx)
	if err != nil {
		return nil, err
	}
	before := remember()
	waiter, err := t.kind.open(setting{addr: t.server.addr, lease: h.lease})
	if err != nil {
		return nil, err
	}
	defer waiter.Close()
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var ended atomic.Int64
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if _, err := waiter.Acquire(waiting, name); waiting.Err() == nil || err == nil {
				ended.Add(1)
			}
		})
	}
	time.Sleep(time.Second + time.Duration(h.locks)*200*time.Microsecond) // until all sleep
	after := remember()
	did, err := t.server.during(ctx, t.took)
	if err != nil {
		return nil, err
	}
	links, subscribed, err := t.server.connections(ctx)
	if err != nil {
		return nil, err
	}
	gone := float64(ended.Load())
	giveUp()
	all.Wait()
	n, seconds := float64(h.locks), did.took.Seconds()
	return sample{
		locksHeld:   n,
		pubsub:      float64(subscribed),
		connections: float64(links - linked),
		goroutines:  after.goroutines - before.goroutines - n,
		heapEach:    (after.heap - before.heap) / n,
		commandRate: did.commands / seconds,
		scriptRate:  did.scripts / seconds,
		redisLoad:   did.redis / seconds,
		ourLoad:     did.ours / seconds,
		stuckCount:  gone,
	}, nil
}

// during returns the work that is done while this process measures nothing.
func (s *server) during(ctx context.Context, d time.Duration) (work, error) {
	before, err := s.work(ctx)
	if err != nil {
		return work{}, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return work{}, ctx.Err()
	}
	after, err := s.work(ctx)
	if err != nil {
		return work{}, err
	}
	did := after.since(before)
	did.took = after.at.Sub(before.at)
	return did, nil
}

// renewals is a hook of go-redis that records when each lock was confirmed. A gap starts when one request was sent, and
// ends when the next one was answered.
type renewals struct {
	index     map[string]int
	sent      []atomic.Int64 // of the last confirmed request, since epoch
	gap       []atomic.Int64 // the longest
	late      time.Duration  // a gap beyond it
	epoch     time.Time
	pipelines atomic.Int64
	seen      atomic.Int64
}

func newRenewals(names []string, late time.Duration) *renewals {
	r := &renewals{
		index: make(map[string]int, len(names)),
		sent:  make([]atomic.Int64, len(names)),
		gap:   make([]atomic.Int64, len(names)),
		late:  late,
		epoch: time.Now(),
	}
	for i, name := range names {
		r.index[name] = i
	}
	return r
}

func (r *renewals) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *renewals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		sent := time.Since(r.epoch)
		err := next(ctx, cmd)
		r.note(cmd, sent)
		return err
	}
}

func (r *renewals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		sent := time.Since(r.epoch)
		err := next(ctx, cmds)
		ours := int64(0)
		for _, cmd := range cmds {
			if r.note(cmd, sent) {
				ours = 1
			}
		}
		r.pipelines.Add(ours) // except those of go-redis when it connects
		return err
	}
}

func (r *renewals) note(cmd redis.Cmder, sent time.Duration) bool {
	args := cmd.Args()
	if len(args) < 4 || cmd.Name() != "evalsha" && cmd.Name() != "eval" { // the first ones load the script
		return false
	}
	name, _ := args[3].(string)
	i, ok := r.index[name]
	if ok && cmd.Err() == nil {
		r.seen.Add(1)
		if before := r.sent[i].Swap(int64(sent)); before > 0 {
			r.widen(i, int64(time.Since(r.epoch))-before)
		}
	}
	return ok
}

func (r *renewals) widen(i int, gap int64) {
	if gap > r.gap[i].Load() {
		r.gap[i].Store(gap)
	}
}

// longest returns the longest gap so far, and how many locks had one that was late.
func (r *renewals) longest() (gap time.Duration, late int) {
	now := int64(time.Since(r.epoch))
	for i := range r.sent {
		r.widen(i, now-r.sent[i].Load())
		g := time.Duration(r.gap[i].Load())
		gap = max(gap, g)
		if g > r.late {
			late++
		}
	}
	return gap, late
}
