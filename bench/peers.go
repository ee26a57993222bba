package main

// The libraries that are measured, behind one interface except for Redisson (redisson.go), each configured for waiting
// as its own documentation recommends.
//
// Rules: a peer is one client of its library with connections of its own, as a process would have it. All have the same
// lease. Work that a library leaves to its user (repeating, renewing) is not added, with one exception: a library that
// gives up waiting by default is told to wait again.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/relock-go/relock"
)

// A peer acquires locks. The release belongs to the goroutine that acquired, unless ctx has an owner from
// relock.ContextWithOwner.
type peer interface {
	Acquire(ctx context.Context, name string) (release func() error, err error)
	Close()
}

// A kind is a library with its settings.
type kind struct {
	name    string
	says    string                      // how it is configured
	library bool                        // a library with which relock is compared
	open    func(setting) (peer, error) // nil if a Java program does the work
}

// A setting is the configuration that all peers get.
type setting struct {
	addr  string // the address; for a Cluster several, with commas between them
	lease time.Duration
	hooks []redis.Hook // for peers that use go-redis

	timeout time.Duration // the read timeout; 0 for the one that docs/configuration.md recommends
}

// tuned is the poll interval of a library that was tuned for short critical sections: about the round trip of a network
// between zones of one region.
const tuned = 2 * time.Millisecond

var kinds = []kind{
	{"relock", "defaults", false, openRelock(plain)},
	{"relock TryLock", "TryLock with a wait of 300 ms, defaults", false, openTries},
	{noneLeaves, "the same load, in which no call is canceled", false, openRelock(plain)},
	{"relock fair", "NewFairLock, defaults", false, openRelock(fair)},
	{"relock fenced", "NewLock with Fenced(), defaults", false, openRelock(fenced)},
	{"relock write", "NewRWLock(name).Write(), defaults", false, openRelock(write)},
	{"relock read", "NewRWLock(name).Read(), defaults", false, openRelock(read)},
	{"relock RWLock", "NewRWLock, its Write() and Read(), defaults", false, openRelock(write)},
	{"relock semaphore", "NewSemaphore(name, 1), defaults", false, openRelock(oneOf(1))},
	{"relock 8 permits", "NewSemaphore(name, 8), defaults", false, openRelock(oneOf(8))},
	{
		"bare EVALSHA",
		"the requests of relock's Lock and Unlock, sent by the same go-redis client; excludes no owner",
		false,
		openBare(plain),
	},
	{"bare AutoPipeline", "the same, through the AutoPipeline of go-redis", false, openAutoPipeline},
	{"bare read", "the same for the requests of a read lock", false, openBare(read)},
	{
		"bare grant",
		"one script that deletes a record, writes that of the next waiter, and notifies it; not a lock: a waiter that " +
			"crashed blocks it",
		false,
		openGrant,
	},
	{
		"bare wake",
		"a writer's script deletes a record and publishes one message; each reader then sends one script; not a lock",
		false,
		openBroadcast(true),
	},
	{
		"bare broadcast",
		"the same, but the readers send nothing after the message: the limit of a release that grants to all; not a lock",
		false,
		openBroadcast(false),
	},
	{"sync.Mutex", "one mutex for each name, in this process", false, openMutex},
	{"rueidislock", "KeyMajority 1, NoLoopTracking, as its README says for one server", true, openRueidis},
	{
		"redislock",
		"LinearBackoff(100ms), as its README; by default it does not wait",
		true,
		openRedislock(100 * time.Millisecond),
	},
	{"redislock 2ms", "LinearBackoff(2ms)", true, openRedislock(tuned)},
	{"redsync", "defaults: 50-250ms between tries, 32 tries", true, openRedsync()},
	{"redsync 2ms", "1-3ms between tries", true, openRedsync(redsync.WithRetryDelayFunc(func(int) time.Duration {
		return tuned/2 + rand.N(tuned)
	}))},
	{
		"redisson",
		"4.7.0 in a JVM of its own, a RedissonClient for each process; defaults, but all share the threads and idle " +
			"connections of one",
		true,
		nil,
	},
}

func kindOf(name string) kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no peer " + name)
}

// client returns a Redis client with the defaults of go-redis.
func (s setting) client() redis.UniversalClient {
	c := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:       strings.Split(s.addr, ","),
		ReadTimeout: s.timeout,
	})
	for _, h := range s.hooks {
		c.AddHook(h)
	}
	return c
}

func plain(c *relock.Client, name string) relock.Locker { return c.NewLock(name) }
func fair(c *relock.Client, name string) relock.Locker  { return c.NewFairLock(name) }
func read(c *relock.Client, name string) relock.Locker  { return c.NewRWLock(name).Read() }

// oneOf returns a function that creates semaphores with n permits.
func oneOf(n int) func(*relock.Client, string) relock.Locker {
	return func(c *relock.Client, name string) relock.Locker { return c.NewSemaphore(name, n) }
}

type relockPeer struct {
	rdb    redis.UniversalClient
	client *relock.Client
	lock   func(*relock.Client, string) relock.Locker
}

func openRelock(lock func(*relock.Client, string) relock.Locker) func(setting) (peer, error) {
	return func(s setting) (peer, error) {
		rdb := s.client()
		c, err := relock.New(rdb, relock.WithWatchdogTimeout(s.lease), relock.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return nil, err
		}
		return &relockPeer{rdb, c, lock}, nil
	}
}

func (p *relockPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	l := p.lock(p.client, name)
	if err := l.Lock(ctx); err != nil {
		return nil, err
	}
	return func() error { return l.Unlock(ctx) }, nil
}

// A triesPeer acquires with TryLock.
type triesPeer struct{ *relockPeer }

func openTries(s setting) (peer, error) {
	p, err := openRelock(plain)(s)
	if err != nil {
		return nil, err
	}
	return triesPeer{p.(*relockPeer)}, nil
}

func (p triesPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	l := p.lock(p.client, name)
	switch ok, err := l.TryLock(ctx, 300*time.Millisecond, 0); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errors.New("TryLock found the lock busy, which nobody else uses")
	}
	return func() error { return l.Unlock(ctx) }, nil
}

// Share acquires the read half of a lock whose Acquire is that of a writer.
func (p *relockPeer) Share(ctx context.Context, name string) (func() error, error) {
	return (&relockPeer{p.rdb, p.client, read}).Acquire(ctx, name)
}

func (p *relockPeer) Close() {
	_ = p.client.Close() // the error does not matter now
	_ = p.rdb.Close()
}

// A barePeer sends what relock sends, without relock.
type barePeer struct {
	rdb    redis.UniversalClient
	send   func(ctx context.Context, args []any) error // sends a request by itself, or in a pipeline
	record *recorder
	relock peer

	mu    sync.Mutex // guards below
	pairs map[string][2][]any
}

// openBare makes relock acquire each name once, and records the requests.
func openBare(lock func(*relock.Client, string) relock.Locker) func(setting) (peer, error) {
	return func(s setting) (peer, error) {
		record := &recorder{}
		p, err := openRelock(lock)(setting{s.addr, s.lease, []redis.Hook{record}, s.timeout})
		if err != nil {
			return nil, err
		}
		rdb := s.client()
		send := func(ctx context.Context, args []any) error { return rdb.Do(ctx, args...).Err() }
		return &barePeer{rdb: rdb, send: send, record: record, relock: p, pairs: map[string][2][]any{}}, nil
	}
}

func (p *barePeer) Acquire(ctx context.Context, name string) (func() error, error) {
	pair, err := p.pair(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := p.send(ctx, pair[0]); err != nil {
		return nil, err
	}
	return func() error { return p.send(context.WithoutCancel(ctx), pair[1]) }, nil
}

func (p *barePeer) pair(ctx context.Context, name string) ([2][]any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pair, ok := p.pairs[name]; ok {
		return pair, nil
	}
	p.record.sent = nil
	release, err := p.relock.Acquire(ctx, name)
	if err != nil {
		return [2][]any{}, err
	}
	if err := release(); err != nil {
		return [2][]any{}, err
	}
	all := p.record.sent // the last attempt of each: the first one may have been without the script
	if len(all) < 2 {
		return [2][]any{}, fmt.Errorf("relock sent %d requests", len(all))
	}
	pair := [2][]any{evalsha(all[0]), evalsha(all[len(all)-1])}
	p.pairs[name] = pair
	return pair, nil
}

// openAutoPipeline returns a barePeer that sends through the AutoPipeline of go-redis.
func openAutoPipeline(s setting) (peer, error) {
	opened, err := openBare(plain)(s)
	if err != nil {
		return nil, err
	}
	p := opened.(*barePeer)
	var auto *redis.AutoPipeliner
	switch rdb := p.rdb.(type) {
	case *redis.Client:
		auto, err = rdb.AutoPipeline()
	case *redis.ClusterClient:
		auto, err = rdb.AutoPipeline()
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	p.send = func(ctx context.Context, args []any) error { // Do would send it by itself
		n := args[2].(int)
		keys := make([]string, n)
		for i := range keys {
			keys[i] = args[3+i].(string)
		}
		return auto.EvalSha(ctx, args[1].(string), keys, args[3+n:]...).Err()
	}
	return p, nil
}

// evalsha reports whether a command runs a script by its digest.
func evalsha(args []any) []any {
	if args[0] == "eval" {
		return append([]any{"evalsha", redis.NewScript(args[1].(string)).Hash()}, args[2:]...)
	}
	return args
}

func (p *barePeer) Close() {
	p.relock.Close()
	_ = p.rdb.Close()
}

// A recorder stores what one goroutine sends.
type recorder struct{ sent [][]any }

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
			r.sent = append(r.sent, cmd.Args())
		}
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// mutexes are the mutexes of all clients.
var mutexes sync.Map

type mutexPeer struct{}

func openMutex(setting) (peer, error) { return mutexPeer{}, nil }

func (mutexPeer) Acquire(_ context.Context, name string) (func() error, error) {
	m, ok := mutexes.Load(name)
	if !ok {
		m, _ = mutexes.LoadOrStore(name, new(sync.Mutex))
	}
	m.(*sync.Mutex).Lock()
	return func() error { m.(*sync.Mutex).Unlock(); return nil }, nil
}

func (mutexPeer) Close() {}

type rueidisPeer struct{ rueidislock.Locker }

func openRueidis(s setting) (peer, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: strings.Split(s.addr, ",")},
		KeyMajority:    1,
		KeyValidity:    s.lease,
		ExtendInterval: s.lease / 3,
		NoLoopTracking: true,
	})
	return rueidisPeer{l}, err
}

func (p rueidisPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	_, release, err := p.WithContext(ctx, name)
	return func() error { release(); return nil }, err
}

type redislockPeer struct {
	rdb          redis.UniversalClient
	locks        *redislock.Client
	lease, retry time.Duration
}

func openRedislock(retry time.Duration) func(setting) (peer, error) {
	return func(s setting) (peer, error) {
		rdb := s.client()
		return &redislockPeer{rdb, redislock.New(rdb), s.lease, retry}, nil
	}
}

func (p *redislockPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	for {
		l, err := p.locks.Obtain(ctx, name, p.lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(p.retry)})
		switch {
		case err == nil:
			return func() error { return l.Release(context.WithoutCancel(ctx)) }, nil
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded): // it waits no longer than a lease
		default:
			return nil, err
		}
	}
}

func (p *redislockPeer) Close() { _ = p.rdb.Close() }

type redsyncPeer struct {
	rdb   redis.UniversalClient
	locks *redsync.Redsync
	opts  []redsync.Option
}

func openRedsync(opts ...redsync.Option) func(setting) (peer, error) {
	return func(s setting) (peer, error) {
		rdb := s.client()
		opts := append([]redsync.Option{redsync.WithExpiry(s.lease)}, opts...)
		return &redsyncPeer{rdb, redsync.New(goredis.NewPool(rdb)), opts}, nil
	}
}

func (p *redsyncPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	m := p.locks.NewMutex(name, p.opts...)
	for {
		err := m.LockContext(ctx)
		var taken *redsync.ErrTaken
		switch {
		case err == nil:
			return func() error { _, err := m.UnlockContext(context.WithoutCancel(ctx)); return err }, nil
		case ctx.Err() == nil && (errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed)): // after 32 attempts
		default:
			return nil, err
		}
	}
}

func (p *redsyncPeer) Close() { _ = p.rdb.Close() }
