package relock

// The options, their defaults, and their limits.
//
// Rules: options are set at construction and never change. A bad option is ErrInvalid, with the name and the value of
// the option in the text.

import (
	"cmp"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// minWatchdogTimeout is the shortest watchdog timeout. A third of a shorter lease would leave too little time to try a
// renewal twice.
const minWatchdogTimeout = 100 * time.Millisecond

// leastWarning is the shortest time of a warning. All locks are looked at every half of it.
const leastWarning = 100 * time.Millisecond

const longestLabel = 256 // bytes

type options struct {
	watchdogTimeout time.Duration
	fairWaitTimeout time.Duration
	pollInterval    time.Duration
	nodeTimeout     time.Duration
	handoffWindow   time.Duration
	synced          send.Synced
	keyPrefix       string
	label           string
	labels          bool // WithLabel was passed
	holdWarning     time.Duration
	waitWarning     time.Duration
	logger          *slog.Logger
	observer        Observer
	checked
}

// An Option configures a [Client]: see [New].
type Option func(*options)

// WithWatchdogTimeout sets the lease of locks that are acquired without an explicit one. The lease is renewed every
// third of d until the lock is released or the process exits. After a crash the lock stays held for at most d. The
// default is 30s, and the minimum is 100ms.
func WithWatchdogTimeout(d time.Duration) Option {
	return func(o *options) {
		o.watchdogTimeout = d
		o.need(d >= minWatchdogTimeout, "WithWatchdogTimeout(%v): must be at least %v", d, minWatchdogTimeout)
	}
}

// WithFairWaitTimeout sets the time after which Java services remove the first waiter from the queue of a [FairLock] if
// it has not acquired the lock. Use the same value in all services. Clients of this package do not apply it to each
// other: they notice a crashed waiter within seconds. The default is 5m, and the minimum is 1s.
func WithFairWaitTimeout(d time.Duration) Option {
	return func(o *options) {
		o.fairWaitTimeout = d
		o.need(d >= time.Second, "WithFairWaitTimeout(%v): must be at least 1s", d)
	}
}

// WithPollInterval sets how long a waiter waits for a notification before it asks Redis again. It bounds the delay that
// a lost notification causes. A process asks about all the locks that it waits for in one request, and asks less often
// if there are thousands of them. The default is 1s; d must be positive.
func WithPollInterval(d time.Duration) Option {
	return func(o *options) {
		o.pollInterval = d
		o.need(d > 0, "WithPollInterval(%v): must be positive", d)
	}
}

// WithRedLockNodeTimeout sets how long a [RedLock] waits for the answer of each server whose lock was created by this
// Client. A RedLock asks all servers at the same time, so a server that does not answer delays it by d. The default is
// 200ms; d must be positive.
func WithRedLockNodeTimeout(d time.Duration) Option {
	return func(o *options) {
		o.nodeTimeout = d
		o.need(d > 0, "WithRedLockNodeTimeout(%v): must be positive", d)
	}
}

// WithHandoffWindow sets for how long after it has acquired a lock from Redis a process may hand it off among its own
// goroutines, without a request, whether other processes are waiting for it or not. When the window is over, the lock is
// released to the next process in the wait queue. If readers or Java services are waiting, they get the first chance. If round trips to Redis are slow, the
// window is extended to 16 round trips, up to 100ms, so that processes do not spend most of the time passing the lock
// between them.
//
// Only locks whose lease is renewed automatically are handed off within a process. Fair locks, semaphores, RedLocks and
// locks with [MaxHold] are not. For a fenced lock, one request obtains the tokens of up to 256 holds. Readers share a lock
// instead: during the window, further readers of the process acquire it without a request while one of them holds it. A
// lock that was released by force, or that Redis has lost, may still be handed off within the process for up to one
// window, and Unlock does not report the loss. If such a lock is fenced, these holds have lower tokens than a new
// holder in another process, although they may begin later.
//
// The default is 10ms, and d must not be negative. With 0 every Unlock releases the lock in Redis.
func WithHandoffWindow(d time.Duration) Option {
	return func(o *options) {
		o.handoffWindow = d
		o.need(d >= 0, "WithHandoffWindow(%v): must not be negative", d)
	}
}

// WithSyncedReplicas makes Lock succeed only if n replicas have confirmed the new hold within d, with the command WAIT.
// Otherwise Lock releases the lock again and returns ErrNotSynced. A renewal that the replicas do not confirm counts as
// failed, and is retried; [Hold.Extend] returns ErrNotSynced then. A failover to one of the replicas that confirmed
// loses no lock; a failover to another replica still can.
//
// Acquiring a lock takes longer, by one round trip and the time of the replication, and occupies a connection of the
// Redis client for that time. On a Redis that rejects WAIT every Lock fails with ErrNotSynced. If the lock belongs to a
// RedLock, the time of [WithRedLockNodeTimeout] must be longer than d. n is at least 1; d is at least 1ms, and
// less than both 5s and the read timeout of the Redis client. By default no replica has to confirm.
func WithSyncedReplicas(n int, d time.Duration) Option {
	return func(o *options) {
		o.synced = send.Synced{Replicas: n, Within: d}
		o.need(n >= 1 && d >= time.Millisecond,
			"WithSyncedReplicas(%d, %v): needs at least 1 replica and a time of at least 1ms", n, d)
	}
}

// WithKeyPrefix puts prefix before the name of every lock of this Client: the lock "orders" has the key prefix +
// "orders", and the other keys and the channels of the lock are derived from that key. Use it if Java services have a
// NameMapper that does the same, or to separate the locks of several systems on one Redis.
//
// The method Name, errors, events and logs contain the name without the prefix; only ErrNotALock names the key.
// [Client.Inspect] takes the name without the prefix, and relockctl takes the key. The locks of a MultiLock or RedLock
// have the prefixes of the Clients that created them. In a Cluster the hash tag of the key may be in the prefix or in
// the name. The default is no prefix.
func WithKeyPrefix(prefix string) Option {
	return func(o *options) { o.keyPrefix = prefix }
}

// WithLabel sets a display name for this process, for example the name of its pod. [Client.Inspect] and relockctl show
// the label and the host of each holder and waiter, and an error of Lock that names a holder in this process contains
// the label.
//
// The label is stored in the hash relock_client:{ID}, with the host name and the process ID. The first Lock starts
// writing it in the background. The hash is renewed every 30s, deleted by Close, and expires 90s after a crash. No lock
// waits for it. If the ACL permissions do not allow it (HSET, PEXPIRE and DEL on
// relock_client:*), the process has no label, it does not ask again, and one line is logged at debug level. The label
// has at most 256 bytes and no control characters.
//
// The default is the host name and the process ID, such as orders-7:4242. Unlike a label that was passed, it is not in
// errors, and it is written only when a call waits for Redis for the first time, or a hold is older than a second: a
// process whose locks are free and short writes nothing. WithLabel("") stores no label.
func WithLabel(label string) Option {
	return func(o *options) {
		o.label, o.labels = label, true
		o.need(isLabel(label), "WithLabel(%q): must be at most %d bytes of text without control characters", label, longestLabel)
	}
}

// WithHoldWarning logs a warning for each lock that is held for longer than d, while it is held: the name, the type,
// the owner, how long the lock has been held, and the stack of the call that acquired it. The warning comes within a
// second, and is repeated when the lock has been held for two, four, eight times d, and so on. So a missing Unlock, or a
// goroutine that hangs, is found while it does harm. The terms of an [Election]
// are left out. A RedLock is reported by its Client, and its locks by theirs.
//
// At most 10 warnings of this kind and of [WithWaitWarning] are logged in a second, those of the oldest holds first,
// and one of the 10 has the number of those that were left out. With this option each call that acquires a lock records
// its stack, as at most 32 program counters. One goroutine looks at all locks of the Client once a second, while one is
// held. d is at least 100ms. The default is 0: there are no warnings, and no stacks are recorded.
func WithHoldWarning(d time.Duration) Option {
	return func(o *options) {
		o.holdWarning = d
		o.need(d == 0 || d >= leastWarning, "WithHoldWarning(%v): must be at least %v, or 0 for no warnings", d, leastWarning)
	}
}

// WithWaitWarning logs a warning for each lock for which callers of this process have waited for longer than d, while
// they wait: one line for each name, with the number of callers, how long the first of them has waited, and the current
// holder. It is repeated when as much time has passed as the longest wait has lasted then. The candidates of an
// [Election] are left out.
//
// The holder is an owner of this process, or else Redis is asked for it, as [Client.Inspect] does, on a goroutine of
// the Client; no caller waits for that. It is "unknown" if Redis does not permit the request, or if the lookups for all
// slow locks together have taken 2s, and for a RedLock that no owner of this process holds. The number of warnings is
// limited as for [WithHoldWarning]. d is at least 100ms, or 0 for no warnings. The default is one minute. A goroutine
// looks for long waits once a second, while callers wait.
func WithWaitWarning(d time.Duration) Option {
	return func(o *options) {
		o.waitWarning = d
		o.need(d == 0 || d >= leastWarning, "WithWaitWarning(%v): must be at least %v, or 0 for no warnings", d, leastWarning)
	}
}

// WithLogger sets the logger for the few events that no call can return. A warning is logged for each lock that was
// lost, with its name and the cause, except for locks that were released by force through this Client, and for no more
// than ten a second. A warning is logged if Redis does not allow subscriptions, and if a semaphore has another number
// of permits than was passed to NewSemaphore. [WithHoldWarning] and [WithWaitWarning] add warnings of slow locks. A
// panic of the Observer, or of a hook of the Redis client, is logged as an error. At debug level Close logs which
// locks are still held, and refused labels are logged once.
//
// A slow Logger delays neither renewals nor the contexts of Guard, and a panic of its handler is recovered. The default
// is [slog.Default]; l must not be nil.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) {
		o.logger = l
		o.need(l != nil, "WithLogger(nil): pass a logger, or omit the option")
	}
}

// WithObserver sets the [Observer] that receives the events of the locks of this Client: how long callers wait, how
// they acquire a lock, how long locks are held, and which locks are lost. The package github.com/relock-go/relock/otel
// has an Observer for metrics and traces. The default is none, which costs nothing; o must not be nil.
func WithObserver(o Observer) Option {
	return func(all *options) {
		all.observer = o
		all.need(o != nil, "WithObserver(nil): pass an observer, or omit the option")
	}
}

func newOptions(opts []Option) (options, error) {
	o := options{
		watchdogTimeout: 30 * time.Second,
		waitWarning:     time.Minute,
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
	return o, o.bad
}

// checked options remember what is wrong with the first of them that is not valid.
type checked struct{ bad error }

// need notes that an option is not valid, unless valid is set.
func (o *checked) need(valid bool, format string, args ...any) {
	if !valid {
		o.bad = cmp.Or(o.bad, invalid(format, args...))
	}
}

type lockOptions struct {
	traits contract.Traits
	checked
}

// A LockOption configures one lock: see [Client.NewLock].
type LockOption func(*lockOptions)

// Fenced gives every hold a fencing token, which is greater than all earlier tokens of this lock. Send the token to the
// resource that the lock protects, so that it can reject a writer whose lock has expired: see [Lock.Token]. The last
// token is stored in the key redisson_lock_token:{name}, which is never deleted and has no expiry. By default a lock
// has no tokens.
func Fenced() LockOption {
	return func(o *lockOptions) { o.traits.Fenced = true }
}

// ofElection is the option of the lock of an election. Others recognize the leader by the counter in Redis, and a term
// lasts for as long as a process does.
func ofElection(o *lockOptions) {
	o.traits.Fenced, o.traits.DrawsSingly, o.traits.Lasting = true, true, true
}

// MaxHold limits how long a lock is held. Its lease is renewed only until d has passed since the lock was acquired, and
// acquiring the lock again does not extend that time. After d the lock is lost: the context of Guard is canceled,
// Unlock and another Lock of the owner return ErrMaxHold, which matches ErrLockLost, and other owners can acquire the
// lock. So a goroutine that hangs, or that forgets to release the lock, blocks others for a limited time. Because
// clocks may drift, the lock is valid for slightly less than d: 1% of the last lease and 2ms less. A Client remembers the last
// 1,024 holds that have ended so; for the owner of an earlier one it is as if it had unlocked.
//
// Each hold may last for d, so a lock with this option is not handed off within the process: every Unlock releases it in
// Redis. A call with a lease longer than d returns
// ErrInvalid. If the lock belongs to a MultiLock, the MultiLock is lost together with it. The methods of a RedLock
// return ErrInvalid if one of its locks has this option. d is at least 1ms. By default there is no limit.
func MaxHold(d time.Duration) LockOption {
	return func(o *lockOptions) {
		o.traits.Limits.Max = d
		o.need(d >= time.Millisecond, "MaxHold(%v): must be at least 1ms", d)
	}
}

// MinHold keeps the lock in Redis for at least d after it was acquired, even if it is released earlier. So a job that
// several machines start at about the same time runs once, although their clocks differ. An Unlock before that time
// does not delete the key: it sets the remaining lease of the key to the rest of d, in the same request. The caller no
// longer holds the lock then: the context of Guard is canceled, and its next Lock waits like that of any other owner. A
// waiter acquires the lock at most one poll interval after d has passed. A Java waiter acquires it when the lease that
// it last read from Redis has expired.
//
// If Redis does not confirm the request, it is retried in the background, and the key expires with its lease at the latest.
// Close may make the key last for one lease longer if another request was under way, or if the owner had both halves of
// a read/write lock. MinHold has no effect on a hold that ends without Unlock: after a crash other owners wait until the lease has
// expired, even if that is earlier than d. ForceUnlock releases the lock at once, and so does a MultiLock that cannot
// acquire its other locks. The methods of a RedLock return ErrInvalid if one of its locks has this option. d is at
// least 1ms, is rounded up to whole milliseconds, and is not longer than MaxHold. By default Unlock releases the lock
// at once.
func MinHold(d time.Duration) LockOption {
	return func(o *lockOptions) {
		o.traits.Limits.MinHold = d
		o.need(d >= time.Millisecond, "MinHold(%v): must be at least 1ms", d)
	}
}

// newLockOptions returns the options of the lock of a type that users call name.
func newLockOptions(name string, kind LockType, opts []LockOption) (o lockOptions) {
	o.traits.Name, o.traits.Type = name, string(kind)
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	l := o.traits.Limits
	o.need(l.Max == 0 || l.MinHold <= l.Max, "MinHold(%v) is longer than MaxHold(%v)", l.MinHold, l.Max)
	return o
}

// isLabel reports whether s can be a label.
func isLabel(s string) bool {
	return len(s) <= longestLabel && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
