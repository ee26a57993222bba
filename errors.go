package relock

// The errors that users see.
//
// Rules: the outcome of a request that Redis has not answered is unknown: neither a refusal nor
// a success (internal/send classifies errors). A name is shortened before it
// goes into a text, because a name can hold bytes that do not belong in a log.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

var (
	// ErrNotHeld says that the calling owner does not hold the lock: from
	// Unlock, Guard and Token.
	ErrNotHeld = engine.ErrNotHeld

	// ErrLockLost says that the calling owner held the lock and lost it: the
	// lease lapsed, the record was deleted, or no renewal was confirmed in time
	// to go on trusting it. Another owner may hold the lock by now: stop the work that the lock
	// protected. An owner that lost a lock does not hold it: ErrLockLost also matches
	// ErrNotHeld, so check for ErrLockLost first.
	ErrLockLost error = engine.ErrLockLost

	// ErrMaxHold says that a hold was lost because it has lasted for as long as MaxHold allows. It
	// also matches ErrLockLost.
	ErrMaxHold error = engine.ErrMaxHold

	// ErrClosed says that the Client is closed, or shuts down.
	ErrClosed = send.ErrClosed

	// ErrNotSynced says that fewer replicas than WithSyncedReplicas asks for have
	// confirmed a lock in time. The lock is not held, and was given back.
	ErrNotSynced = send.ErrNotSynced

	// ErrNotALock says that the name holds data in Redis that neither this package
	// nor Redisson has written, or that a key which belongs to the name holds a value of another
	// type. The text names the key and its contents. The key is left unchanged, also
	// by ForceUnlock, and no method waits for it: every method that asks Redis returns this error at once.
	// The keys beside a lock (redisson_lock_queue:{name} and the like) are checked for their
	// type alone. Give locks names that no data have, such as "lock:orders:42".
	ErrNotALock = send.ErrNotALock

	// ErrInvalid says that a name, lease, wait, option or set of locks makes no
	// sense; the text says which and why. Nothing was changed in Redis.
	ErrInvalid = send.ErrInvalid
)

// A QuorumError says that too few of the nodes of a RedLock granted a request,
// and what each node answered.
type QuorumError struct {
	Asked   int // nodes
	Granted int // nodes that granted the request
	Needed  int // nodes: a majority

	// Answers are in the order of the locks that NewRedLock was given; nil for
	// the nodes that granted the request.
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

// Unwrap returns the answers of the nodes that did not grant the request.
func (e *QuorumError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Answers), func(err error) bool { return err == nil })
}

// errTimeUp ends a wait whose time is over. TryLock answers false for it.
var errTimeUp = send.ErrTimeUp

// errReply is the error for an answer that no script of this package gives.
var errReply = send.ErrReply

func invalid(format string, args ...any) error { return send.Invalid(format, args...) }

var errNilContext = invalid("ctx is nil")

func shortName(name string) string { return send.ShortName(name) }

func cutName(name string) string { return send.CutName(name) }

func ctxError(ctx context.Context) error { return send.CtxError(ctx) }

func transient(err error) bool {
	if quorum := (*QuorumError)(nil); errors.As(err, &quorum) {
		return false // its nodes have retried already
	}
	return send.Transient(err)
}
