package engine

// Backends: where the holds of an acquire operation are kept. The hold of most locks is in a record in Redis. The hold
// of a RedLock is a Vote, which has a hold at each of the nodes.
//
// Rules: an acquire operation makes attempts, waits and rolls back through its backend, and knows nothing else about
// it. A Vote belongs to one hold, and knows no other hold. No mutex of this package is held when it is called.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A backend is where the holds of one acquire operation are kept.
type backend interface {
	// admit waits until the caller may make an attempt: the other callers of the process have let it pass.
	admit() error
	// ask makes one attempt on all targets. If lastReply is not zero, Redis has answered the caller at that time
	// before, and the attempt is repeated for longer if it gets no answer.
	ask(lastReply time.Time) (Answer, error)
	// answered notes that the answer to an attempt came in time, after took.
	answered(took time.Duration)
	// await waits after res, whose status is Busy, until another attempt may be granted. If the lock was granted to the
	// caller by a message meanwhile, it returns that grant, and otherwise res.
	await(res Answer) (Answer, error)
	// rollback undoes what the attempts may have left. res and err are the results of the operation. returned is false
	// if a panic, or the end of the goroutine, has ended the operation.
	rollback(res Answer, err error, returned bool)
	// dismissLocked ends a target that was not granted, or that the caller cannot keep.
	dismissLocked(t target, res Answer)
	// present returns targets, which are those of an earlier attempt, with the holds that the caller has now. If mayHold is
	// set, it notes that a late answer may have granted them.
	present(targets []target, mayHold bool) []target
}

// An Answer is the result of an attempt on all locks of an acquire operation.
type Answer struct {
	contract.Outcome
	Sent   time.Time // when the request was sent: the leases that it granted are valid from then on
	at     int       // which of several targets the Outcome is about: the first that is not held, else the last
	tokens []int64   // the fencing tokens of several targets
	stays  bool      // not Held: an earlier try was granted a target in front of at, which is still held with its field

	provisional time.Duration // the lease of a grant that is shorter than the lease asked for; 0: it is not shorter
	longest     time.Duration // the longest lease that a request with the field of the place in the line has asked for
	limits      *limitEnds    // of a hold that was attached; nil: those of its lock count from now on
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

// A Vote keeps a hold that has no record of its own in Redis. The watchdog renews such a hold without a request of its
// own, by calling Renew at every third of the lease. Everything that checks the hold also calls Check.
type Vote interface {
	// Ask makes one attempt. If the answer is Busy, the Refusal describes why; so it does with an error, if the wait of
	// w has ended in the middle of a round. The answer is Gone if the hold that was to be re-entered has ended.
	Ask(w *send.Wait, a contract.Attempt) (Answer, Refusal, error)
	// Over reports whether the hold was released or lost, so that another attempt needs a new Vote.
	Over() bool
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
