package engine

// Backends: where the holds of an acquisition are. Those of most locks are records in Redis. The hold of a RedLock is
// at its nodes: a keeper has it there.
//
// Rules: an acquisition asks, waits, and takes back what it has asked for through its backend, and knows nothing else
// of it. A keeper belongs to one hold. It knows no hold but its own, and no mutex of this package is held when it is
// called.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A backend is where the holds of one acquisition are.
type backend interface {
	// admit waits until this caller of the process may make an attempt.
	admit() error
	// ask makes one attempt on all wants. Later tries of it go on for a while after lastReply, if that is not zero.
	ask(lastReply time.Time) (Answer, error)
	// answered notes that the answer to an attempt, which was sent at sent, came in time.
	answered(sent time.Time)
	// await sleeps after the answer res, which says busy, until another attempt may be granted. It returns the grant
	// where the caller was granted the lock meanwhile, and else res.
	await(res Answer) (Answer, error)
	// rollback takes back what the attempts have left. returned is false where a panic, or the end of the goroutine,
	// ended the acquisition.
	rollback(res Answer, err error, returned bool)
	// dismissLocked ends a want that was not granted, or that the caller cannot keep.
	dismissLocked(w target, res Answer)
	// present is wants, of an earlier attempt, with the holds that the caller has now.
	present(wants []target) []target
}

// A VotedLock is a lock whose holds have keepers and no records.
type VotedLock interface {
	Lock
	// NewVote is the keeper of a fresh hold of o. It calls check when its answer to check may have changed, from a
	// goroutine of its own.
	NewVote(o Owner, check func()) Vote
	// CheckLease reports why a hold cannot have this lease.
	CheckLease(lease time.Duration) error
}

// A Vote keeps a hold that has no record of its own in Redis. No request renews such a hold: the watchdog asks
// its keeper every third of the lease, and every check of the hold asks the keeper too.
type Vote interface {
	// Ask makes one attempt. The refusal says why it is busy. ask returns false for gone where the hold that is to be
	// re-entered is over.
	Ask(p *send.Wait, a Attempt) (Answer, Refusal, error)
	// Over reports whether the hold was released, or lost: another attempt needs a new keeper.
	Over() bool
	// Listen listens to the releases of what a refusal has found taken.
	Listen(taken []int) []*wake.Listener
	// Lower releases the levels above level. It does not block; settled waits until it is done, no longer than limit.
	Lower(ctx context.Context, level int) (settled func(limit time.Duration))
	// SetHoldCount releases the levels above left, and reports whether the hold was there.
	SetHoldCount(p *send.Wait, left int) (there bool, err error)
	// Extend lets the hold last for lease from sent on.
	Extend(ctx context.Context, lease time.Duration) (sent time.Time, err error)
	// Check reports why the hold can no longer be valid, or nil. It does not use the clock of the watchdog.
	Check() error
	// Renew reports whether the hold can be valid further, and repairs its parts. It does not block.
	Renew() bool
	// Lost is called when the hold was lost, and releases the rest of it. It does not block.
	Lost()
}

// A Refusal is why an attempt of a keeper is busy, and when to ask again.
type Refusal struct {
	Taken []int         // what other owners have, and announce the release of
	Pause time.Duration // ask no sooner
	Wait  time.Duration // ask no later; negative: when a release is announced
	Cause error         // it could not be granted anyway; nil: other owners are in the way
	Who   string        // who blocks
}
