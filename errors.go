package relock

// The errors that users see.
//
// Rules: the outcome of a request that Redis has not answered is unknown: neither a refusal nor a success
// (internal/send classifies errors). A name is shortened before it goes into a text, because it can hold bytes that do
// not belong in a log.

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

var (
	// ErrNotHeld is returned by Unlock, Guard, Token, Release and Extend if the caller does not hold the lock. The text
	// names the owner in this process that holds it, if there is one. Nothing is changed in Redis.
	ErrNotHeld = engine.ErrNotHeld

	// ErrLockLost is returned if the caller held the lock and has lost it: its lease has expired, its key was deleted,
	// or no renewal was confirmed in time. Another owner may hold the lock by now, so stop the work that it protected.
	// An owner that has lost a lock does not hold it: ErrLockLost also matches ErrNotHeld, so check for ErrLockLost
	// first.
	ErrLockLost error = engine.ErrLockLost

	// ErrBusy is matched by the error of a call that waits for a lock (Lock, LockLease, TryLock, Do, TryDo, Acquire,
	// TryAcquire, AcquireN, Campaign and Lead) if its context was done while other owners had the lock: the newest fact
	// in this process is that they hold it, or are ahead in the wait queue. The error also matches that of the context.
	// The calls with a wait return false without an error by the same rule if that wait has passed.
	//
	// Otherwise Redis may be the reason, and ErrBusy is not matched. That is so in five cases:
	//
	//   - The last request for the lock has failed, or has been without an answer for more than 200ms. It is the request
	//     of this caller, or of the caller of this process that is ahead of it.
	//   - No caller of this process that waits for the lock has had an answer yet.
	//   - The lease of the last known holder has expired more than 200ms ago, and Redis was not asked since.
	//   - Too few servers of a RedLock have answered in time.
	//   - AcquireN wants more permits than SetPermits has left.
	//
	// An error that matches ErrClosed never matches ErrBusy. So an HTTP handler answers 409 to ErrBusy, and 503 to other
	// errors of a lock.
	//
	// The error of a Do also matches ErrBusy if its lock was acquired, and its function has waited for another lock in
	// vain: [Lock.TryDo] reports whether the function was called.
	ErrBusy = engine.ErrBusy

	// ErrMaxHold is returned if a lock was lost because it was held for as long as MaxHold allows. It also matches
	// ErrLockLost.
	ErrMaxHold error = engine.ErrMaxHold

	// ErrDetached is the cause of the contexts of a hold that was detached: see [Hold.Detach].
	ErrDetached = engine.ErrDetached

	// ErrClosed is returned if the Client is closed or shutting down. It is also the cause of the contexts that Close
	// and Shutdown cancel.
	ErrClosed = send.ErrClosed

	// ErrNotSynced is returned if fewer replicas than WithSyncedReplicas asks for have confirmed a lock in time. The
	// lock is not held: it was released again. After [Hold.Extend], the hold has the lease that it had.
	ErrNotSynced = send.ErrNotSynced

	// ErrNotALock is returned if a key of the lock holds data that neither this package nor Redisson has written. The
	// text names the key and describes what it holds. The key is left unchanged, even by ForceUnlock, and no method
	// waits for it to change. Of the additional keys of a lock (redisson_lock_queue:{name} and others) only the type is
	// checked. Give locks names that no other data has, such as "lock:orders:42".
	ErrNotALock = send.ErrNotALock

	// ErrInvalid is returned for a name, an option or an argument that is not valid, and for a call that the lock does
	// not allow, such as the Token of a lock without Fenced. The text states what is not valid, and why. Nothing is
	// changed in Redis.
	ErrInvalid = send.ErrInvalid
)

// A QuorumError is returned if too few servers of a RedLock have granted a request. It contains the error of each
// server.
type QuorumError struct {
	Asked   int // number of servers that were asked
	Granted int // number of servers that granted the request
	Needed  int // number of servers that make a majority

	// Answers has an element for each lock that was passed to NewRedLock, in that order: the error of its server, or
	// nil if the server granted the request.
	Answers []error
}

// Error returns the number of servers that granted the request, the number that was needed, and the error of each other
// server.
func (e *QuorumError) Error() string {
	var why strings.Builder
	for i, err := range e.Answers {
		if err != nil {
			fmt.Fprintf(&why, "; server %d: %v", i+1, err)
		}
	}
	return fmt.Sprintf("granted by %d of %d servers, %d needed%s", e.Granted, e.Asked, e.Needed, why.String())
}

// Unwrap returns the errors of the servers that did not grant the request, for [errors.Is] and [errors.As].
func (e *QuorumError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Answers), func(err error) bool { return err == nil })
}

// errTimeUp ends a wait whose time is over. TryLock returns false for it.
var errTimeUp = send.ErrTimeUp

func invalid(format string, args ...any) error { return send.Invalid(format, args...) }

var errNilContext = invalid("ctx is nil")

var (
	shortName = send.ShortName
	cutName   = send.CutName
	ctxError  = send.CtxError
)

func transient(err error) bool {
	if quorum := (*QuorumError)(nil); errors.As(err, &quorum) {
		return false // its nodes have retried already
	}
	return send.Transient(err)
}
