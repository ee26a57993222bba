package relock

// The options, their defaults, and their limits.
//
// Rules: options are set at construction and never change; a bad one is
// ErrInvalid with its name and value in the text.

import (
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

// minWatchdogTimeout is the shortest watchdog timeout. A third of a shorter lease leaves
// too little time to try a renewal twice.
const minWatchdogTimeout = 100 * time.Millisecond

const longestLabel = 256 // bytes

type options struct {
	watchdogTimeout time.Duration
	fairWaitTimeout time.Duration
	pollInterval    time.Duration
	nodeTimeout     time.Duration
	handoffWindow   time.Duration
	synced          send.Synced
	syncs           bool // WithSyncedReplicas was given
	keyPrefix       string
	label           string
	logger          *slog.Logger
	observer        Observer
	observes        bool // WithObserver was given
}

// An Option configures a Client.
type Option func(*options)

// WithWatchdogTimeout sets the lease of locks that are acquired without an explicit one. The lease is renewed every
// third of d until the lock is released or its process dies. After a crash other owners wait for at most d. The default
// is 30s, and the minimum 100ms.
func WithWatchdogTimeout(d time.Duration) Option {
	return func(o *options) { o.watchdogTimeout = d }
}

// WithFairWaitTimeout sets how long Java services respect a position in the queue of a [FairLock]: how long the first
// waiter may take to acquire the lock before they remove it. Use the same value in all services. Clients of this
// package do not use it among themselves. The default is 5m, and the minimum 1s.
func WithFairWaitTimeout(d time.Duration) Option {
	return func(o *options) { o.fairWaitTimeout = d }
}

// WithPollInterval sets how long a waiter waits for a notification before it asks Redis again. It bounds the delay that
// a lost notification causes. A process asks about all the locks for which it waits in one request, and less often if
// there are thousands of them. The default is 1s; d must be positive.
func WithPollInterval(d time.Duration) Option {
	return func(o *options) { o.pollInterval = d }
}

// WithRedLockNodeTimeout sets how long a [RedLock] waits for the answer of each server whose lock was made by this
// Client. A RedLock asks all servers at the same time, so that a dead server delays it by d. The default is 200ms; d
// must be positive.
func WithRedLockNodeTimeout(d time.Duration) Option {
	return func(o *options) { o.nodeTimeout = d }
}

// WithHandoffWindow sets how long a process may pass a lock on among its own goroutines, without a request to Redis,
// while other processes are waiting for it. After that the lock is released, and passes to the next process in the wait
// queue; readers and Java services that are waiting get the first chance. If round trips to Redis take long, the window
// lasts for 16 of them, up to 100ms, so that requests do not take longer than the work.
//
// Only locks whose lease is renewed automatically are passed on within a process, and no fair locks, semaphores and
// RedLocks. A fenced lock needs one request for each hold. Readers do not pass a lock on but share it: during the
// window, further readers of the process acquire it without a request while one of them holds it. A lock that was
// force-released, or that Redis has lost, may still be passed on within the process for up to one window, and Unlock
// does not report it.
//
// The default is 10ms; 0 turns it off.
func WithHandoffWindow(d time.Duration) Option {
	return func(o *options) { o.handoffWindow = d }
}

// WithSyncedReplicas makes an acquire succeed only if n replicas have confirmed it within d, using WAIT. Otherwise the
// lock is released again, and the error is ErrNotSynced. A renewal that the replicas do not confirm does not count
// either, and is retried. A failover to one of these replicas loses no lock; a failover to another replica still can.
//
// Every acquire takes one round trip and the time of the replication longer, and uses a connection of the Redis client
// meanwhile. On a Redis that rejects WAIT every acquire fails with ErrNotSynced. The node timeout of a RedLock has to
// be longer than d. n is at least 1, and d at least 1ms and less than 5s and the read timeout of the Redis client. It
// is off by default.
func WithSyncedReplicas(n int, d time.Duration) Option {
	return func(o *options) { o.synced, o.syncs = send.Synced{Replicas: n, Within: d}, true }
}

// WithKeyPrefix puts prefix before the name of every lock of this Client: the lock "orders" has the key prefix +
// "orders", and the other keys and channels of the lock are derived from that key. Use it if Java services have a
// NameMapper that does the same, or to separate the locks of several systems on one Redis.
//
// Name, errors, events and logs contain the name without the prefix, except that ErrNotALock names the key. Inspect
// takes the name without the prefix, and relockctl takes keys. The locks of a MultiLock or RedLock have the prefixes of
// the Clients that made them. In a Cluster the hash tag is looked for in the whole key. The default is no prefix.
func WithKeyPrefix(prefix string) Option {
	return func(o *options) { o.keyPrefix = prefix }
}

// WithLabel sets a display name for this process, for example the name of its pod. [Client.Inspect] and relockctl show
// the label and the host of each holder and waiter, and errors that name a goroutine of this process contain it.
//
// The label is stored with the host, the process ID and the time of Redis in the hash relock_client:{ID}. It is written
// in the background by the first Lock, renewed every 30s, deleted by Close, and expires 90s after a crash. No lock
// waits for it. If the ACL permissions do not allow it (HSET, PEXPIRE and DEL on relock_client:*), there is no label,
// and one line is logged at debug level. The label has at most 256 bytes and no control characters. By default there is
// none.
func WithLabel(label string) Option {
	return func(o *options) { o.label = label }
}

// WithLogger sets the logger for the few events that no call can return: a warning for each lock that was lost, with
// its name and the cause, except for locks that this Client force-released; a warning if Redis does not allow
// subscriptions; and a warning if Redis does not allow the keys of the wait queues. A panic of the Observer is logged
// as an error. At debug level Close logs which locks are still held. Nothing else is logged.
//
// A slow Logger delays neither renewals nor the contexts of Guard, and a panic of its handler is recovered. The default
// is slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(o *options) { o.logger = l }
}

// WithObserver sets the Observer of the locks of the Client, which receives how long callers wait, how they acquire a
// lock, how long locks are held, and which locks are lost. The package github.com/relock-go/relock/otel has an Observer
// for metrics and traces. The default is none, which costs nothing.
func WithObserver(o Observer) Option {
	return func(all *options) { all.observer, all.observes = o, true }
}

func newOptions(opts []Option) (options, error) {
	o := options{
		watchdogTimeout: 30 * time.Second,
		fairWaitTimeout: 5 * time.Minute,
		pollInterval:    time.Second,
		nodeTimeout:     200 * time.Millisecond,
		handoffWindow:   10 * time.Millisecond,
		logger:          slog.Default(),
	}
	for i, opt := range opts {
		if opt == nil {
			return o, invalid("option %d is nil", i+1)
		}
		opt(&o)
	}
	if err := checkLabel(o.label); err != nil {
		return o, err
	}
	switch {
	case o.watchdogTimeout < minWatchdogTimeout:
		return o, invalid("WithWatchdogTimeout(%v): must be at least %v", o.watchdogTimeout, minWatchdogTimeout)
	case o.fairWaitTimeout < time.Second:
		return o, invalid("WithFairWaitTimeout(%v): must be at least 1s", o.fairWaitTimeout)
	case o.pollInterval <= 0:
		return o, invalid("WithPollInterval(%v): must be positive", o.pollInterval)
	case o.nodeTimeout <= 0:
		return o, invalid("WithRedLockNodeTimeout(%v): must be positive", o.nodeTimeout)
	case o.handoffWindow < 0:
		return o, invalid("WithHandoffWindow(%v): must not be negative", o.handoffWindow)
	case o.syncs && (o.synced.Replicas < 1 || o.synced.Within < time.Millisecond):
		return o, invalid("WithSyncedReplicas(%d, %v): must be at least 1 replica and 1ms", o.synced.Replicas, o.synced.Within)
	case o.logger == nil:
		return o, invalid("WithLogger(nil): pass a logger, or omit the option")
	case o.observes && o.observer == nil:
		return o, invalid("WithObserver(nil): pass an observer, or omit the option")
	}
	return o, nil
}

type lockOptions struct {
	engine.Limits
	fenced   bool
	maxHolds bool // MaxHold was given
	keeps    bool // MinHold was given
}

// A LockOption configures one lock.
type LockOption func(*lockOptions)

// Fenced gives every hold a fencing token, which is greater than all tokens of this lock before it. Send the token to
// the resource that the lock protects, so that it can reject a writer whose lock has expired: see [Lock.Token]. The
// counter of the tokens has the key redisson_lock_token:{name}, and stays in Redis.
func Fenced() LockOption {
	return func(o *lockOptions) { o.fenced = true }
}

// MaxHold limits how long a lock is held: its lease is not renewed beyond d after it was acquired, and acquiring it
// again does not extend it. Then the lock is lost: the context of Guard is canceled, Unlock and another Lock of the
// owner return ErrMaxHold, which matches ErrLockLost, and others can acquire the lock. So a goroutine that hangs, or
// forgets to release the lock, blocks others for a limited time. The lock is valid for less than d, by 1% of the last
// lease and 2ms.
//
// A hold that was passed on within the process has d for itself. A lease longer than d returns ErrInvalid instead of
// being shortened silently. Within a MultiLock the option applies to its lock, and the MultiLock is lost with it.
// NewRedLock rejects locks with this option. d is at least 1ms.
func MaxHold(d time.Duration) LockOption {
	return func(o *lockOptions) { o.Max, o.maxHolds = d, true }
}

// MinHold keeps the lock in Redis for at least d after it was acquired, even if it is released earlier: a job that
// several machines start at about the same time runs once, although their clocks differ. An Unlock before that time
// sets the remaining lease of the key instead of deleting it, in the same one request. The caller no longer holds the
// lock then: the context of Guard is canceled, and its next Lock waits like any other. A waiter acquires the lock at
// most one poll interval after d, and a Java waiter when the lease has expired that it found in Redis.
//
// If Redis does not confirm the request, it is retried in the background, and the key expires with its lease at the
// latest. A hold that ends without Unlock is not extended: after a crash others wait for the watchdog timeout, or until
// the explicit lease has expired. ForceUnlock releases the lock at once, and so does a MultiLock that cannot acquire
// the other locks. NewRedLock rejects locks with this option. d is at least 1ms, is rounded up to whole milliseconds,
// and is no longer than MaxHold.
func MinHold(d time.Duration) LockOption {
	return func(o *lockOptions) { o.MinHold, o.keeps = d, true }
}

func newLockOptions(opts []LockOption) lockOptions {
	var o lockOptions
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// check reports why no hold can have these limits.
func (o *lockOptions) check() error {
	switch {
	case o.maxHolds && o.Max < time.Millisecond:
		return send.Invalid("MaxHold(%v): must be at least 1ms", o.Max)
	case o.keeps && o.MinHold < time.Millisecond:
		return send.Invalid("MinHold(%v): must be at least 1ms", o.MinHold)
	case o.keeps && o.maxHolds && o.MinHold > o.Max:
		return send.Invalid("MinHold(%v) is longer than MaxHold(%v)", o.MinHold, o.Max)
	}
	return nil
}

// checkLabel reports why s is no label.
func checkLabel(s string) error {
	if len(s) > longestLabel || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalid("WithLabel(%q): must be at most %d bytes of text without control characters", s, longestLabel)
	}
	return nil
}
