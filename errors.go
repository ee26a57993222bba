package relock

// The errors that users see, and how the errors of a request are read.
//
// Rules: what Redis has not answered is unknown, never a refusal and never a
// success; redis.Nil does not leave this package; a name is shortened before it
// goes into a text, because names can hold what does not belong in a log.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotHeld says that the calling owner does not hold the lock: from
	// Unlock, Guard and Token.
	ErrNotHeld = errors.New("not held by the caller")

	// ErrLockLost says that the calling owner held the lock and lost it: the
	// lease lapsed, the record was deleted, or no renewal was confirmed in time
	// to go on trusting it. Somebody else may hold the lock by now; stop what it
	// protected. Who lost a lock does not hold it: ErrLockLost also matches
	// ErrNotHeld, so ask for ErrLockLost first.
	ErrLockLost error = lockLost{}

	// ErrClosed says that the Client is closed.
	ErrClosed = errors.New("the client is closed")

	// ErrNotSynced says that fewer replicas than WithSyncedReplicas asks for have
	// confirmed a lock in time. It is not held, and was given back.
	ErrNotSynced = errors.New("not confirmed by enough replicas")

	// ErrNotALock says that Redis has something under the name that neither this package
	// nor Redisson has put there, or a value of another type under a key that
	// belongs to the name. The text
	// names the key and what it holds. The key is left as it is, also by ForceUnlock,
	// and never waited for: every method that asks Redis returns this error at once.
	// The keys beside a lock (redisson_lock_queue:{name} and the like) are checked for their
	// type alone. Give locks names that no data have, such as "lock:orders:42".
	ErrNotALock = errors.New("not a lock")

	// ErrInvalid says that a name, lease, wait, option or set of locks makes no
	// sense; the text says which and why. Nothing was sent to Redis.
	ErrInvalid = errors.New("invalid")
)

type lockLost struct{}

func (lockLost) Error() string        { return "the lock was lost" }
func (lockLost) Is(target error) bool { return target == ErrNotHeld }

// lossError is ErrLockLost with what has happened.
func lossError(cause error) error {
	return fmt.Errorf("%w: %w", ErrLockLost, cause)
}

// errTimeUp ends a wait whose time is over. TryLock answers false for it.
var errTimeUp = errors.New("the time is up")

// errNoAnswer is a TryLock whose time is up without Redis having said anything.
var errNoAnswer = errors.New("no answer from Redis in the time given; what was asked is undone, and lapses with its lease if Redis runs it even later")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// shortName is name as it appears in texts: quoted, and cut when it is long.
func shortName(name string) string {
	short := cut(name)
	if short == name {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q… (%d bytes)", short, len(name))
}

// cutName is name as an attribute of a log record, whose handler quotes it.
func cutName(name string) string {
	short := cut(name)
	if short == name {
		return name
	}
	return fmt.Sprintf("%s… (%d bytes)", short, len(name))
}

// cut is as much of a name as a text can do with.
func cut(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	end := most
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end]
}

// ctxError is how an ended ctx is reported: its error, and its cause if it has one.
func ctxError(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// transient says whether the same request may succeed soon: the connection
// failed, or a server that is starting, failing over or busy refused it.
func transient(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, errReply) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrNotSynced) ||
		errors.Is(err, ErrNotALock) || ofHook(err) {
		return false
	}
	if quorum := (*QuorumError)(nil); errors.As(err, &quorum) {
		return false // its nodes have been patient already
	}
	if !answered(err) {
		return true
	}
	for _, prefix := range []string{
		"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY",
		"MOVED", "ASK", "max number of clients",
		// What a script says whose slot is half way to another server, or whose Cluster goes down meanwhile. Redis has
		// no code for them, and newer servers other words.
		"Script attempted to access a non local key", "Script attempted to access a slot not served",
		"Unable to execute command",     // "... because undeclared keys were accessed during rehashing of the slot"
		"Script attempted to execute a", // "... (write) command while the cluster is down"
	} {
		if refusedWith(err, prefix) {
			return true
		}
	}
	return false
}

// mayHaveRun says whether Redis may have run, or may still run, the request that failed with err.
func mayHaveRun(err error) bool {
	if errors.Is(err, ErrNotSynced) {
		return true // it has, but for the replicas
	}
	if answered(err) || errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, ErrInvalid) {
		return false
	}
	var op *net.OpError
	return !errors.As(err, &op) || op.Op != "dial"
}

// answered says whether err is Redis's own answer.
func answered(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrNotSynced)
}

// refusedWith says whether Redis answered with an error that begins with prefix.
// An embedded server may put its own words before what a script threw.
func refusedWith(err error, prefix string) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return redis.HasErrorPrefix(err, prefix) ||
		answered(err) && (strings.Contains(text, ": "+prefix+" ") || strings.Contains(text, ": ERR "+prefix+" "))
}
