package relock

// The errors that users see.
//
// Rules: what Redis has not answered is unknown, never a refusal and never a
// success (internal/send decides which). A name is shortened before it
// goes into a text, because a name can hold bytes that do not belong in a log.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/send"
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
	ErrClosed = send.ErrClosed

	// ErrNotSynced says that fewer replicas than WithSyncedReplicas asks for have
	// confirmed a lock in time. The lock is not held, and was given back.
	ErrNotSynced = send.ErrNotSynced

	// ErrNotALock says that Redis has something under the name that neither this package
	// nor Redisson has put there, or a value of another type under a key that
	// belongs to the name. The text names the key and what the key holds. The key is left as it
	// is, also by ForceUnlock, and never waited for: every method that asks Redis returns this error at once.
	// The keys beside a lock (redisson_lock_queue:{name} and the like) are checked for their
	// type alone. Give locks names that no data have, such as "lock:orders:42".
	ErrNotALock = send.ErrNotALock

	// ErrInvalid says that a name, lease, wait, option or set of locks makes no
	// sense; the text says which and why. Nothing was sent to Redis.
	ErrInvalid = send.ErrInvalid
)

// A QuorumError says that too few of the nodes of a RedLock did what they were
// asked, and what each of them answered.
type QuorumError struct {
	Asked   int // nodes
	Granted int // of them did it
	Needed  int // a majority

	// Answers are in the order of the locks that NewRedLock was given; nil for
	// those that did it.
	Answers []error
}

func (e *QuorumError) Error() string {
	var why strings.Builder
	for i, err := range e.Answers {
		if err != nil {
			fmt.Fprintf(&why, "; node %d: %v", i+1, err)
		}
	}
	return fmt.Sprintf("%d of %d nodes, %d needed%s", e.Granted, e.Asked, e.Needed, why.String())
}

// Unwrap returns what the nodes answered that did not do it.
func (e *QuorumError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Answers), func(err error) bool { return err == nil })
}

type lockLost struct{}

func (lockLost) Error() string        { return "the lock was lost" }
func (lockLost) Is(target error) bool { return target == ErrNotHeld }

// lossError is ErrLockLost with what has happened.
func lossError(cause error) error {
	return fmt.Errorf("%w: %w", ErrLockLost, cause)
}

// errTimeUp ends a wait whose time is over. TryLock answers false for it.
var errTimeUp = send.ErrTimeUp

// errReply is the error of an answer that no script of ours gives.
var errReply = send.ErrReply

// errNoAnswer is a TryLock whose time is up without Redis having said anything.
var errNoAnswer = errors.New("no answer from Redis in the time given; what was asked is undone, and lapses with its lease if Redis runs it even later")

func invalid(format string, args ...any) error { return send.Invalid(format, args...) }

func shortName(name string) string { return send.ShortName(name) }

func cutName(name string) string { return send.CutName(name) }

func ctxError(ctx context.Context) error { return send.CtxError(ctx) }

func mayHaveRun(err error) bool { return send.MayHaveRun(err) }

func answered(err error) bool { return send.Answered(err) }

func transient(err error) bool {
	if quorum := (*QuorumError)(nil); errors.As(err, &quorum) {
		return false // its nodes have been patient already
	}
	return send.Transient(err)
}
