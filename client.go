package relock

// The Client: the state that all locks of one Redis client share.

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/opaque"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/route"
	"github.com/relock-go/relock/internal/send"
)

// A Client creates the locks of one Redis: a single server, a Sentinel deployment or a Cluster. All locks of a Client
// share one connection for subscriptions (in a Cluster: one for each shard) and one goroutine that renews their leases.
// A Client may be used by any number of goroutines at once, and one Client is enough for a process.
type Client struct {
	hidden      opaque.Pointer[clientState]
	nodeTimeout time.Duration
	synced      send.Synced
}

// A clientState is what changes, and what leads to it.
type clientState struct {
	rdb             redis.UniversalClient
	engine          *engine.Engine
	wire            record.Client
	servers         *route.Servers
	votes           voteTable    // of RedLocks
	labeled         sync.Once    // the label is kept in Redis
	labelsForbidden atomic.Bool  // this user may not write or read labels, which was logged
	lookupRefused   atomic.Bool  // this user may not look for the holder of a lock: see describeHolder
	permits         sync.Once    // a semaphore was found to have another number of permits in Redis
	userCalls       atomic.Int64 // calls of the Logger and the Observer that have not returned
}

func (c *Client) in() *clientState { return c.hidden.Get() }

func (c *Client) engine() *engine.Engine { return c.in().engine }

// New returns a Client that uses rdb. It sends no request, and rdb stays open when the Client is closed. The error is
// ErrInvalid for an option that is not valid, for a nil rdb, and for a *redis.Ring or a type that embeds one, because a
// Ring can move a lock to another server while the lock is held.
func New(rdb redis.UniversalClient, opts ...Option) (c *Client, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("relock: new: %w", err)
		}
	}()
	if isNil(rdb) {
		return nil, invalid("the Redis client is nil")
	}
	if send.IsRing(rdb) {
		return nil, invalid(
			"a *redis.Ring moves held locks to other servers: use a Client, a FailoverClient or a ClusterClient",
		)
	}
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	limit := send.ConnectTime
	if t := route.ReadTimeout(rdb); t > 0 {
		limit = min(t, limit)
	}
	if o.synced.Within >= limit {
		return nil, invalid("WithSyncedReplicas(%d, %v): the time must be less than %v, the lesser of ReadTimeout and 5s",
			o.synced.Replicas, o.synced.Within, limit)
	}
	in := &clientState{
		rdb:     rdb,
		votes:   voteTable{pending: make(map[nodeRequest][]chan struct{})},
		servers: route.New(rdb),
	}
	in.wire = record.Client{
		ID: uuid.NewString(), Prefix: o.keyPrefix, FairWait: o.fairWaitTimeout, Verb: in.servers.Verb,
	}
	c = &Client{
		hidden:      opaque.To(in),
		nodeTimeout: o.nodeTimeout,
		synced:      o.synced,
	}
	log := calmLogger(o.logger, &in.userCalls)
	reported := &userEvents{log: log, observer: o.observer}
	reported.calls, reported.tell = &in.userCalls, func(panicked any, stack []byte) {
		log.Error("relock: the Observer has panicked; its further panics are not logged",
			"panic", fmt.Sprint(panicked), "stack", string(stack))
	}
	config := engine.Config{
		ID: in.wire.ID, WatchdogTimeout: o.watchdogTimeout, PollInterval: o.pollInterval, HandoffWindow: o.handoffWindow,
		Label:          o.label,
		ConfirmsGrants: o.synced.Replicas > 0,

		HoldWarning: o.holdWarning, WaitWarning: o.waitWarning, Holder: c.describeHolder,
		OnDifference: c.reportPermits,

		Log: log, Events: reported, Observed: o.observer != nil, UserCalls: in.userCalls.Load,

		Renewer: askRenewals, Free: in.wire.Free,
		Servers: in.servers, Group: in.servers.Group,

		Channel: record.ClientKey(in.wire.ID), Tell: c.tell,
	}
	switch keep := func() { in.labeled.Do(func() { c.engine().Spawn(func() { c.keepLabel(o.label) }) }) }; {
	case o.label != "":
		config.OnAcquire = keep
	case !o.labels:
		config.OnSlow = keep
	}
	in.engine = engine.New(config, in.servers.Sending(o.synced))
	return c, nil
}

// ID returns the UUID of this Client, which Redis stores with every hold of the Client: see [Holder]. Every Client has
// an ID of its own. If you log it at startup, you can tell later which process holds a lock.
func (c *Client) ID() string { return c.engine().ID }

// A Slowest has the age of the oldest hold, and the duration of the longest wait, for each type of lock that is held
// or awaited: see [Client.Slowest].
type Slowest struct {
	Hold, Wait map[LockType]time.Duration
}

// Slowest returns how old the oldest hold of this Client is, and how long the call that has waited for the longest time
// has waited, for each type of lock. It looks at all locks that the Client uses at the moment, sends no request, and is
// meant to be called from time to time, for gauges. A type that no owner holds, or that no caller waits for, is not in
// the map. The terms of an [Election] and its candidates are left out. Both maps are empty after Close.
func (c *Client) Slowest() Slowest {
	var holds, waits map[string]time.Duration
	if c != nil {
		holds, waits = c.engine().Slowest()
	}
	return Slowest{byType(holds), byType(waits)}
}

func byType(all map[string]time.Duration) map[LockType]time.Duration {
	typed := make(map[LockType]time.Duration)
	for kind, d := range all {
		typed[LockType(kind)] = d
	}
	return typed
}

// ForceUnlock releases the lock that i describes, if the holders that i shows still hold it, and reports whether it has
// released it. It is a tool for operators, who have looked at a lock with [Client.Inspect] and decided to release it: a
// hold that was acquired from Redis since then is not released. Of a read/write lock and a semaphore, other holders
// keep what they have. Otherwise it is like [Lock.ForceUnlock]: the holders are not asked, and may still be working.
//
// Redis does not see every new hold. The lock is also released if the process of a holder has handed it off to another
// of its goroutines since then, or if a Java thread has released it and acquired it again. Readers that share the entry
// of a holder lose the lock with it. If i has no holders, ForceUnlock sends no request. The request is sent once
// for each half of a read/write lock, and is not retried if its answer is lost.
func (c *Client) ForceUnlock(ctx context.Context, i Inspection) (freed bool, err error) {
	seen := make(map[LockType][]string)
	for _, h := range i.Holders {
		kind := i.Type
		if kind == TypeReadWrite {
			kind = TypeRead
		}
		if h.Write {
			kind = TypeWrite
		}
		seen[kind] = append(seen[kind], h.record())
	}
	for _, kind := range slices.Sorted(maps.Keys(seen)) { // no other owner can acquire the lock while there is a writer
		was, e := cmp.Or(c.newLock(kind, i.Name, 1), &c.NewLock(i.Name).handle).forceSeen(ctx, seen[kind]...)
		if freed, err = freed || was, e; err != nil {
			break
		}
	}
	return freed, err
}

// record returns the field of h as the engine has it. The ID of a Java permit has 16 bytes, which Field has in
// hexadecimal.
func (h Holder) record() string {
	if raw, err := hex.DecodeString(h.Field); h.Client == "" && err == nil {
		return string(raw)
	}
	field := *cmp.Or(h.id, &h.Field)
	if h.Permits > 1 {
		return fmt.Sprintf("%s+%d", field, h.Permits)
	}
	return strings.TrimSuffix(field, record.WriteSuffix)
}

// isNil reports whether v is nil, or a nil pointer.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}

// Close closes the Client. Waiting callers return ErrClosed, the contexts of Guard are canceled with the cause
// ErrClosed, and leases are no longer renewed. Locks that are held are not released, because their holders may still be
// working: they expire with their leases, and Unlock still releases them at once. Close does not close the Redis
// client. To let holders finish first, call [Client.Shutdown].
//
// Close waits for the goroutines of the Client. If Redis refuses connections, Close tries for up to 5s to roll back
// requests. It waits for up to 1s until the Logger and the Observer have received all earlier events. If Redis does not
// answer, or one of these does not return, Close returns an error after 7s; the remaining requests end with the timeouts
// of the Redis client. At debug level it logs the locks that are held, and their owners. Further calls of Close do
// nothing and return nil.
func (c *Client) Close() error {
	if c == nil {
		return nil
	}
	return c.engine().Close()
}

// Shutdown closes the Client as Close does, but first waits until all locks that are held have been released or lost,
// or ctx is done. Meanwhile the leases of these locks are renewed, so that no other process acquires them before their
// holders have finished. As soon as Shutdown is called, Lock and TryLock return ErrClosed. This includes calls that are
// waiting, and calls of owners that already hold the lock. The contexts of Guard are canceled with the cause ErrClosed,
// which tells the holders to finish. Token, and the methods that only ask Redis, work until the end.
//
// The error is nil if every lock was released. If ctx is done first, the error matches the error of ctx and describes
// the remaining locks: their number, the names of the first ones, and who holds them. They expire with their leases. A
// RedLock counts as one lock, in addition to each of its locks. If Close has been called, or is called meanwhile,
// Shutdown does not wait any longer, and the error matches ErrClosed if locks are still held. The error also matches
// the error of Close, if there is one. Several calls of Shutdown may wait at the same time. A nil ctx is ErrInvalid.
func (c *Client) Shutdown(ctx context.Context) error {
	switch {
	case c == nil:
		return nil
	case ctx == nil:
		return fmt.Errorf("relock: shutdown: %w", errNilContext)
	}
	return c.engine().Shutdown(ctx)
}
