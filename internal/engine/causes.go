package engine

// The causes for which a hold ends, or was not acquired. Package relock exports those that users match.

import (
	"errors"
	"fmt"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// These errors are matched by users.
var (
	ErrNotHeld        = errors.New("not held by the caller")
	ErrLockLost error = lockLost{}
	ErrMaxHold  error = maxHold{}

	ErrDetached = errors.New("the hold was detached")
)

type lockLost struct{}

func (lockLost) Error() string        { return "the lock was lost" }
func (lockLost) Is(target error) bool { return target == ErrNotHeld }

type maxHold struct{}

func (maxHold) Error() string        { return "it was held for as long as MaxHold allows" }
func (maxHold) Is(target error) bool { return target == ErrLockLost || target == ErrNotHeld }

// LossError returns an ErrLockLost that also wraps its cause.
func LossError(cause error) error {
	return fmt.Errorf("%w: %w", ErrLockLost, cause)
}

// These are the causes for which a hold ends, besides ErrMaxHold and the causes with which Lose is called.
var (
	// errGone is the cause if the record of the hold does not exist any more.
	errGone = lease.ErrGone

	// errForced is the cause if the lock was released by force, and this Client knows: see whyGone.
	errForced = fmt.Errorf("%w: it was released by force", errGone)

	// ErrExpired is the cause if the lease has expired without a renewal.
	ErrExpired = lease.ErrExpired

	// ErrUnrenewed is wrapped together with ErrExpired if the watchdog should have renewed the lease. The hold was lost
	// then.
	ErrUnrenewed = errors.New("it could not be renewed")
)

// ErrRenewed is returned by Extend for a hold without an explicit lease.
var ErrRenewed = send.Invalid("the hold has no explicit lease: it is renewed automatically")

// ErrNoAnswer is returned by a TryLock if its time is up before Redis has answered at all.
var ErrNoAnswer = errors.New("timed out waiting for Redis; if the lock was granted, it is released again, " +
	"or expires with its lease")
