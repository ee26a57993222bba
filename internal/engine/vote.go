package engine

// Votes: what a RedLock is to the engine.
//
// Rules: a Vote belongs to one hold, and knows no other hold. No mutex of this package is held when it is called.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A Vote keeps a hold that has no record of its own in Redis. The watchdog renews such a hold without a request of its
// own, by calling Renew at every third of the lease. Everything that checks the hold also calls Check.
type Vote interface {
	// Ask makes one attempt. If the answer is Busy, the Refusal describes why; so it does with an error, if the wait of
	// w has ended in the middle of a round. The answer is Gone if the hold that was to be re-entered has ended.
	Ask(w *send.Wait, a contract.Attempt) (Answer, Refusal, error)
	// Over reports whether the hold was released or lost, so that another attempt needs a new Vote.
	Over() bool
	// Owner returns the owner that the hold has at the nodes.
	Owner() Owner
	// Listen listens for the releases at the nodes that a Refusal lists as Taken.
	Listen(taken []int) []*wake.Listener
	// Lower lowers the hold count to count, and releases the hold if count is 0. It does not block. settled waits until
	// that is done, but no longer than limit.
	Lower(ctx context.Context, count int) (settled func(limit time.Duration))
	// SetHoldCount is like Lower, but waits for the answers. It reports whether the hold existed.
	SetHoldCount(w *send.Wait, count int) (there bool, err error)
	// Extend makes the lease of the hold last for lease, counted from sent.
	Extend(ctx context.Context, lease time.Duration) (sent time.Time, err error)
	// Check returns the reason why the hold is not valid any more, or nil. It does not use the clock of the watchdog.
	Check() error
	// Renew reports whether the hold can stay valid, and acquires parts of it again that were lost. It does not block.
	Renew() bool
	// Lost is called when the hold was lost, and releases what is left of it. It does not block.
	Lost()
}

// A VotedLock is a lock whose holds are votes instead of records: a RedLock.
type VotedLock interface {
	contract.Lock
	// NewVote returns the Vote of a new hold of o. The Vote calls check with itself, on a goroutine of its own, when the
	// result of Vote.Check may have changed.
	NewVote(o Owner, check func(Vote)) Vote
	// Unanswered is the error for a caller that gives up because it has no answer.
	Unanswered() error
	// CheckLease returns an error if a hold cannot have this lease.
	CheckLease(lease time.Duration) error
}

// A Refusal describes why an attempt of a Vote was not granted, and when to make another one.
type Refusal struct {
	Taken []int         // the nodes at which other owners hold the lock, and which announce its release
	Pause time.Duration // make no attempt sooner
	Wait  time.Duration // make an attempt at the latest then; negative: wait for a message of a release
	Cause error         // why it could not be granted if other owners are not the reason; or nil
	Who   string        // describes the current holder; "": it is no refusal
}

// isBusy reports whether other owners are the reason.
func (r *Refusal) isBusy() bool { return r.Cause == nil && r.Who != "" }
