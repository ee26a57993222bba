package engine

// Why a hold ends, or was not acquired. The root declares those errors of these that users match.

import (
	"errors"
	"fmt"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// Errors that users match.
var (
	ErrNotHeld        = errors.New("not held by the caller")
	ErrLockLost error = lockLost{}
	ErrMaxHold  error = maxHold{}
)

type lockLost struct{}

func (lockLost) Error() string        { return "the lock was lost" }
func (lockLost) Is(target error) bool { return target == ErrNotHeld }

type maxHold struct{}

func (maxHold) Error() string        { return "it was held for as long as MaxHold allows" }
func (maxHold) Is(target error) bool { return target == ErrLockLost || target == ErrNotHeld }

// LossError is ErrLockLost with its cause.
func LossError(cause error) error {
	return fmt.Errorf("%w: %w", ErrLockLost, cause)
}

// Causes of the end of a hold, beside ErrMaxHold and what the keeper of a hold says.
var (
	// errGone is the cause of a lease whose record is no longer there.
	errGone = lease.ErrGone

	// errForced is the cause of a lease whose lock was forced open by this client.
	errForced = fmt.Errorf("%w: the lock was forced open", errGone)

	// ErrExpired is the cause of a lease that ran out without having been renewed.
	ErrExpired = lease.ErrExpired

	// ErrUnrenewed goes with ErrExpired where the watchdog had to renew the lease: such an end is a loss.
	ErrUnrenewed = errors.New("it could not be renewed")
)

// ErrRenewed is the error of Extend for a hold without an explicit lease.
var ErrRenewed = send.Invalid("the hold has no explicit lease: the watchdog renews it")

// ErrNoAnswer is the error of a TryLock whose time is up before any answer of Redis.
var ErrNoAnswer = errors.New("no answer from Redis in the time given; what was asked is undone, and lapses with its lease if Redis runs it even later")
