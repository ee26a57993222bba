package send

// Our hook in the Redis clients of users, for the calls of a Prompt (prompt.go) and the requests of a Finite
// (finite.go).
//
// Rules:
//   - A *redis.Client has one such hook, also if it is a node of a Cluster, however many Clients use it. It has a seat,
//     which is found by its options. A seat does not lead to the client.
//   - Each node that a ClusterClient makes after New gets the hook before go-redis uses it. A node that it has made
//     before gets the hook beside a call that goes there.
//   - A client that was dropped unclosed is collected. go-redis has goroutines that hold the hooks of a client with
//     client-side caching, whose clones lead back to the client. So our hook refers to its client by a weak pointer,
//     and to no clone if there is such a cache. Then the caller has to have the clone, and on a Cluster no call is
//     bounded.

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/redis/go-redis/v9"
)

const maxHooks = 8 // times that our hook is added to one Redis client

// A hook is our hook.
type hook struct {
	seat   *seat
	number uint32 // of the hooks that were added to the same client, from 1
	rdb    weak.Pointer[redis.Client]
	clone  *redis.Client // for bounded calls; nil: there can be none, or the caller has to have it

	made, madeForAll atomic.Bool // the functions that may use the clone were made: for commands, and for pipelines
}

func newHook(rdb *redis.Client, s *seat, number uint32) *hook {
	h := &hook{seat: s, number: number, rdb: weak.Make(rdb)}
	if o := rdb.Options(); setsDeadlines(rdb) && o.ClientSideCache == nil && o.ClientSideCacheConfig == nil {
		h.clone = boundedClone(rdb)
	}
	return h
}

// isLast reports whether h was added last.
func (h *hook) isLast() bool { return h.seat.last.Load() == h.number }

// renew adds our hook once more, unless another one than h was added meanwhile.
func (h *hook) renew() {
	if rdb := h.rdb.Value(); rdb != nil {
		h.seat.renew(rdb, h.number)
	}
}

// DialHook implements redis.Hook.
func (*hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements redis.Hook. Of the two functions that go-redis makes when the hook is added, the first
// one is for pipelines, and the second one for transactions.
func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	first := h.madeForAll.CompareAndSwap(false, true)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if f := finiteOf(ctx, h, first); f != nil {
			return f.processAll(ctx, cmds)
		}
		return next(ctx, cmds)
	}
}

// ProcessHook implements redis.Hook. It is first called when the hook is added. It must not add a hook, because
// go-redis holds a mutex.
func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	first := h.made.CompareAndSwap(false, true)
	return func(ctx context.Context, cmd redis.Cmder) error {
		run := next
		if f := finiteOf(ctx, h, first); f != nil {
			run = f.process
		}
		pass := passageOf(ctx, cmd)
		if pass == nil || pass.at == h.seat && pass.last != h.number { // another hook of ours follows
			return run(ctx, cmd)
		}
		way := throughFirst
		switch {
		case pass.cloneIn(h) == nil:
			way = elsewhere
		case !first:
			way = throughLater
		case cmd != redis.Cmder(pass):
			way = replaced
		}
		pass.seen.Store(h)
		pass.way.Store(way)
		switch {
		case !pass.bounded():
			return run(ctx, cmd)
		case way == throughFirst:
			return pass.run(ctx, h)
		}
		return pass.refuse(cmd)
	}
}

// A seat is the place of our hook in a *redis.Client.
type seat struct {
	last   atomic.Uint32 // the number of the hook that was added last; 0: the first one is being added
	adding atomic.Bool
	proven atomic.Bool // a call has come through the last hook and was answered: see Prompt
}

// seats has the *seat in each *redis.Client to which our hook was added, by a weak pointer to its options, which are a
// part of the client.
var seats sync.Map

// seatIn returns the seat in rdb, or nil.
func seatIn(rdb *redis.Client) *seat {
	s, _ := seats.Load(weak.Make(rdb.Options()))
	one, _ := s.(*seat)
	return one
}

// seatOf returns the seat in rdb. The first time it adds our hook.
func seatOf(rdb *redis.Client) *seat {
	if s := seatIn(rdb); s != nil {
		return s
	}
	options := rdb.Options()
	key := weak.Make(options)
	one, found := seats.LoadOrStore(key, new(seat))
	s := one.(*seat)
	if !found {
		runtime.AddCleanup(options, func(key weak.Pointer[redis.Options]) { seats.Delete(key) }, key)
		s.renew(rdb, 0)
	}
	return s
}

// renew adds our hook to rdb, unless another one than that with the number last was added meanwhile.
func (s *seat) renew(rdb *redis.Client, last uint32) {
	if !s.adding.CompareAndSwap(false, true) {
		return
	}
	defer s.adding.Store(false)
	if s.last.Load() != last || last == maxHooks {
		return
	}
	h := newHook(rdb, s, last+1)
	_ = CatchPanic(func() error { rdb.AddHook(h); return nil }) // the hooks of the user are asked for their functions
	s.last.Store(h.number)
	s.proven.Store(false)
}

// nodes has the seats in the nodes of a ClusterClient.
type nodes struct {
	byAddr sync.Map // the address of the node -> *seat
}

// clusters has the *nodes of each ClusterClient, by a weak pointer to it.
var clusters sync.Map

// nodesOf returns the nodes of cluster. The first time it has our hook added to all nodes that go-redis will make.
func nodesOf(cluster *redis.ClusterClient) *nodes {
	key := weak.Make(cluster)
	if n, ok := clusters.Load(key); ok {
		return n.(*nodes)
	}
	one, found := clusters.LoadOrStore(key, new(nodes))
	n := one.(*nodes)
	if !found {
		runtime.AddCleanup(cluster, func(key weak.Pointer[redis.ClusterClient]) { clusters.Delete(key) }, key)
		cluster.OnNewNode(n.add)
	}
	return n
}

// add adds our hook to a node.
func (n *nodes) add(node *redis.Client) {
	s, options := seatOf(node), node.Options()
	addr := options.Addr
	if before, _ := n.byAddr.Swap(addr, s); before != any(s) {
		runtime.AddCleanup(options, func(s *seat) { n.byAddr.CompareAndDelete(addr, s) }, s)
	}
}

// misled reports whether go-redis goes on after err, the outcome of a bounded command, in a way that has no bound.
// Redis has not run the command.
func (n *nodes) misled(err error) bool {
	if err == nil {
		return false
	}
	if addr, moved := redis.IsMovedError(err); moved {
		s, _ := n.byAddr.Load(addr)
		there, _ := s.(*seat)
		return there == nil || !there.proven.Load()
	}
	_, ask := redis.IsAskError(err)
	return ask || redis.IsReadOnlyError(err) || errors.Is(err, redis.ErrClosed)
}
