package relock

// The options, their defaults, and their limits.
//
// Rules: options are set at construction and never change; a bad one is
// ErrInvalid with its name and value in the text.

import (
	"log/slog"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

type options struct {
	watchdogTimeout time.Duration
	fairWaitTimeout time.Duration
	maxWakeDelay    time.Duration
	nodeTimeout     time.Duration
	handoverSlice   time.Duration
	synced          send.Synced
	syncs           bool // WithSyncedReplicas was given
	keyPrefix       string
	label           string
	logger          *slog.Logger
	observer        Observer
	observes        bool // WithObserver was given
}

// An Option changes how a Client works.
type Option func(*options)

// WithWatchdogTimeout sets the lease of holds that ask for none. The watchdog
// renews it every third of d, as long as the process lives and the hold lasts;
// after a crash other owners wait at most d. Defaults to 30s; at least 100ms.
func WithWatchdogTimeout(d time.Duration) Option {
	return func(o *options) { o.watchdogTimeout = d }
}

// WithFairWaitTimeout sets how long Java clients respect a place in the queue of a fair
// lock: how long a waiter at the head may take to get the lock before they give
// its place away. Use the same value everywhere. Clients of this package do not use
// it among themselves. Defaults to 5m; at least 1s.
func WithFairWaitTimeout(d time.Duration) Option {
	return func(o *options) { o.fairWaitTimeout = d }
}

// WithMaxWakeDelay sets how long a waiter sleeps at most before it asks Redis
// again: the price of a lost wake-up. Where it waits in a line, its process looks as
// often whether the lock is free, with one request for many locks. With thousands of
// locks it looks less often. Defaults to 1s; more than 0.
func WithMaxWakeDelay(d time.Duration) Option {
	return func(o *options) { o.maxWakeDelay = d }
}

// WithPollInterval is the name that WithMaxWakeDelay has from v0.1.0 on.
func WithPollInterval(d time.Duration) Option { return WithMaxWakeDelay(d) }

// WithNodeTimeout sets how long a RedLock waits for the answer of each node whose lock
// this Client made. A RedLock asks all nodes at the same time, so this is the price of
// a dead node. Defaults to 200ms; more than 0.
func WithNodeTimeout(d time.Duration) Option {
	return func(o *options) { o.nodeTimeout = d }
}

// WithRedLockNodeTimeout is the name that WithNodeTimeout has from v0.1.0 on.
func WithRedLockNodeTimeout(d time.Duration) Option { return WithNodeTimeout(d) }

// WithHandoverSlice sets how long a process may hand a lock over among its own
// goroutines, without asking Redis in between, while other processes wait for it too. Then
// the lock is released: the lock passes to the next process in line. Where
// readers or Java services wait for it, these have the first chance. Where round trips to
// Redis take long, a slice lasts 16 of them, up to 100ms, so that the requests do not take
// longer than the work. Only holds that the watchdog renews are handed over, of locks other
// than fair locks, semaphores and RedLocks; a fenced lock needs one request for each hold. Readers
// do not hand a lock over but share its record: for a slice, further readers of the process
// come in without a request while one of them reads. For up to one slice, a lock that was
// forced open, or that Redis has forgotten, may still be handed over in the process, and
// Unlock does not say so. Defaults to 10ms; 0: never.
func WithHandoverSlice(d time.Duration) Option {
	return func(o *options) { o.handoverSlice = d }
}

// WithHandoffWindow is the name that WithHandoverSlice has from v0.1.0 on.
func WithHandoffWindow(d time.Duration) Option { return WithHandoverSlice(d) }

// WithSyncedReplicas makes an acquire count only when n replicas have confirmed it
// within d (WAIT); else the lock is given back, and the error is ErrNotSynced. A renewal
// that the replicas do not confirm does not count either, and is tried again. So a
// failover to one of these replicas loses no lock; a failover to another replica still
// can. Every acquire takes a round trip and the time of the replication longer, and keeps
// a connection of the Redis client meanwhile. On a Redis that refuses WAIT every
// acquire fails with ErrNotSynced. The node timeout of a RedLock has to be longer than d. At
// least 1 replica; d is at least 1ms, and less than the read timeout of the Redis client
// and 5s. Off by default.
func WithSyncedReplicas(n int, d time.Duration) Option {
	return func(o *options) { o.synced, o.syncs = send.Synced{Replicas: n, Within: d}, true }
}

// WithKeyPrefix puts prefix before the name of every lock of this Client: the lock "orders" has the key prefix + "orders", and the
// keys and channels beside it follow from that one. Use it where Java services set a NameMapper that does
// the same, or to keep the locks of several systems on one Redis apart. Name, errors, events and logs have the
// name as it was given; ErrNotALock names the key. Inspect takes the name as it was given, too. The locks of a MultiLock or RedLock have the
// prefixes of the Clients that made them. On a Cluster the rules for braces are about the whole key. relockctl takes keys. Defaults to none.
func WithKeyPrefix(prefix string) Option {
	return func(o *options) { o.keyPrefix = prefix }
}

// WithLabel says what people call this process: the name of its pod, or of its service. Inspect and relockctl show the label and the
// host of each holder and waiter, and errors that name a goroutine of this process have it. Redis keeps it, with the host, the process id and
// the time by the clock of Redis, in a hash relock_client:{ID}: written in the background at the first Lock, renewed every 30s, deleted by Close, and gone
// 90s after a crash. No lock waits for it. A user of Redis without the rights (hset, pexpire, del on relock_client:*) has no label, and
// one line in the log at debug level says so. At most 256 bytes without control characters. Defaults to none, which
// costs nothing.
func WithLabel(label string) Option {
	return func(o *options) { o.label = label }
}

// WithLogger sets the logger for the few events that no call may return. It gets one warning
// for each lock that was lost, with its name and the cause, except for locks that this Client
// forced open. It gets one if Redis does not allow wake-ups, and one if Redis does not allow
// the keys of the line of plain locks. A panic of the Observer is logged as an error. At debug level Close logs which locks are still held. In a healthy run
// nothing else is logged. A slow Logger delays no renewal and no guard; a
// panic in its handler is recovered. Defaults to slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(o *options) { o.logger = l }
}

// WithObserver sets the Observer of the locks of the Client. It receives how long
// callers wait, on which path they acquire, how long locks are held, and which locks are lost.
// Package github.com/relock-go/relock/otel has an Observer for metrics and traces. Defaults to
// none, which costs nothing.
func WithObserver(o Observer) Option {
	return func(all *options) { all.observer, all.observes = o, true }
}

func newOptions(opts []Option) (options, error) {
	o := options{
		watchdogTimeout: 30 * time.Second,
		fairWaitTimeout: 5 * time.Minute,
		maxWakeDelay:    time.Second,
		nodeTimeout:     200 * time.Millisecond,
		handoverSlice:   10 * time.Millisecond,
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
		return o, invalid("WithWatchdogTimeout(%v): at least %v", o.watchdogTimeout, minWatchdogTimeout)
	case o.fairWaitTimeout < time.Second:
		return o, invalid("WithFairWaitTimeout(%v): at least 1s", o.fairWaitTimeout)
	case o.maxWakeDelay <= 0:
		return o, invalid("WithMaxWakeDelay(%v): more than 0", o.maxWakeDelay)
	case o.nodeTimeout <= 0:
		return o, invalid("WithNodeTimeout(%v): more than 0", o.nodeTimeout)
	case o.handoverSlice < 0:
		return o, invalid("WithHandoverSlice(%v): not negative", o.handoverSlice)
	case o.syncs && (o.synced.Replicas < 1 || o.synced.Within < time.Millisecond):
		return o, invalid("WithSyncedReplicas(%d, %v): at least 1 replica, and 1ms", o.synced.Replicas, o.synced.Within)
	case o.logger == nil:
		return o, invalid("WithLogger(nil): a logger, or leave the option out")
	case o.observes && o.observer == nil:
		return o, invalid("WithObserver(nil): an observer, or leave the option out")
	}
	return o, nil
}

type lockOptions struct {
	engine.Limits
	fenced   bool
	maxHolds bool // MaxHold was given
	keeps    bool // AtLeast was given
}

// A LockOption changes how one lock works.
type LockOption func(*lockOptions)

// Fenced makes every acquire draw a token that only grows. Send the token to the resource
// that the lock protects, so that the resource can refuse a writer whose hold is over:
// see [Lock.Token]. The counter of the tokens stays in Redis for good, under
// redisson_lock_token:{name}.
func Fenced() LockOption {
	return func(o *lockOptions) { o.fenced = true }
}

// MaxHold makes a hold end no later than d after the lock was acquired: the watchdog renews its lease no further, and no re-entry
// prolongs it. Then the hold is lost: its guard ends, and Unlock and a re-entry return ErrMaxHold, which matches ErrLockLost.
// The record lapses at the same time, and others get the lock. Trust ends earlier than d, by 1% of the last lease and 2ms, as
// that of every lease does. It bounds how long a goroutine that hangs, or has forgotten to unlock, blocks others. A hold that
// is handed over inside the process has d for itself. An explicit lease longer than d is ErrInvalid, and not cut: a caller that
// asks for more than the lock allows would take the shorter lease for the longer one. Readers with MaxHold share no record.
// Within a MultiLock the option holds for its lock, and the MultiLock is lost with it; NewRedLock refuses such locks. d is at
// least 1ms, else the methods return ErrInvalid.
func MaxHold(d time.Duration) LockOption {
	return func(o *lockOptions) { o.Max, o.maxHolds = d, true }
}

// AtLeast makes a record stay in Redis until d is over since the lock was acquired, also where the last Unlock comes
// sooner: so a job that runs on several machines at about the same time runs once, though their clocks differ. That Unlock sets
// the lease of the record to the rest of d instead of deleting it, in the same one request. The hold is over all the same:
// its guard ends, and the next Lock of the owner waits as any other does. A waiter gets the lock no later than the max wake delay
// after d; a Java waiter sleeps until the lease ends that it found in Redis when it last asked. After d, Unlock works as without AtLeast. Where
// Redis does not confirm the request, it is repeated in the background, and the record lapses with its lease at the latest.
// A hold that ends without Unlock is not prolonged: a crashed holder blocks others for the watchdog timeout, and an explicit lease that
// runs out is over. ForceUnlock frees the lock at once, and so does a MultiLock that takes this lock and does not
// get the others. NewRedLock refuses such locks. d is at least 1ms, rounded up to whole milliseconds, and no longer than MaxHold; else
// the methods return ErrInvalid.
func AtLeast(d time.Duration) LockOption {
	return func(o *lockOptions) { o.AtLeast, o.keeps = d, true }
}

// MinHold is the name that AtLeast has from v0.1.0 on.
func MinHold(d time.Duration) LockOption { return AtLeast(d) }

func newLockOptions(opts []LockOption) lockOptions {
	var o lockOptions
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// check says why no hold can have these limits.
func (o *lockOptions) check() error {
	switch {
	case o.maxHolds && o.Max < time.Millisecond:
		return send.Invalid("MaxHold(%v): at least 1ms", o.Max)
	case o.keeps && o.AtLeast < time.Millisecond:
		return send.Invalid("AtLeast(%v): at least 1ms", o.AtLeast)
	case o.keeps && o.maxHolds && o.AtLeast > o.Max:
		return send.Invalid("AtLeast(%v) with MaxHold(%v): no longer than a hold may last", o.AtLeast, o.Max)
	}
	return nil
}
