package engine

// Requests and answers: what a caller asks for, and the result of one of its attempts.

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// A Request describes how one caller wants to acquire a lock.
type Request struct {
	Wait  time.Duration // how long to wait for other owners; 0: make one attempt; negative: until ctx is done
	Lease time.Duration // 0: the watchdog timeout, and the watchdog renews the lease

	// AnswerBy limits how long a caller with a Wait of 0 waits for an answer, if it is sooner than Services.Patience
	// (zero: it is not). Even if it has passed already, there is one attempt, which has send.MinWait for an answer.
	AnswerBy time.Time

	// Report is for a caller that wants more than this lock: what the call has to tell is kept there, for the caller to tell
	// when it has all, or gives up. Until then an explicit lease that the owner has already stays as it is. An error names
	// the lock. If Report is nil, the call tells the outcome itself.
	Report *Report
}

// A Report is the outcome of a call that acquires a lock, as the Observer and the warnings about long holds are to know it.
// It is told once.
type Report struct {
	tell, drop func()

	// Kept is set if the owner had the lock already, with an explicit lease, which stays as it is until Extend is called. An
	// agent releases all that it has, whatever its lease, so its lease need not be kept.
	Kept bool

	// GiveBack releases the lock as Engine.Release does, but reports no event unless the hold ends, and was told by another
	// call. A hold that has ended since needs no release, and a later one of the owner is not touched. GiveBack is nil if the
	// call has not acquired the lock, and when it was told.
	GiveBack func(ctx context.Context) error

	// Extend gives the lock the lease of the call, or the watchdog timeout, as far as MaxHold allows. It returns ErrRenewed
	// if the watchdog renews it.
	Extend func(ctx context.Context) error

	// Renew makes the watchdog renew the lock from now on, in case it has Kept an explicit lease. It is nil if the call has
	// a lease.
	Renew func()
}

// Tell tells the outcome. It is called on the goroutine of the caller.
func (r *Report) Tell() { r.end(r.tell) }

// Drop is for a lock that the caller does not keep: only a wait that was told ends.
func (r *Report) Drop() { r.end(r.drop) }

func (r *Report) end(do func()) {
	r.tell, r.drop, r.GiveBack = nil, nil, nil
	if do != nil {
		do()
	}
}

// An Answer is the result of an attempt.
type Answer struct {
	contract.Outcome
	Sent time.Time // when the request was sent: the lease that it granted is valid from then on

	provisional time.Duration // the lease of a grant that is shorter than the lease asked for; 0: it is not shorter
	limits      *limitEnds    // nil: those of the lock, from when the request was sent
}

// mayHold reports whether the lock may be held after the answer res, or err, which is late. A try without a connection
// was not sent: where connections are rare, it must not begin the next attempt.
func (res *Answer) mayHold(err error) bool {
	if err != nil {
		return !errors.Is(err, send.ErrNoConnection)
	}
	return res.Status != contract.Busy
}

// errRestart makes the call begin another acquire operation, with a new field. There are three reasons. Another caller
// of the owner has released the hold that was to be re-entered. Or a hand-off came too late. Or the lock is busy, and the
// caller has asked beside the local queue, which it has to enter now.
var errRestart = errors.New("the acquire operation starts again")
