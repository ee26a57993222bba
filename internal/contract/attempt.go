package contract

// Attempts and what follows them: what the calls of a lock type say to Redis.

import "time"

// An Attempt is what one request to Redis asks for one lock: to acquire it, or to set a higher hold count for an owner
// that has the lock already. RollBack gets the same Attempt.
type Attempt struct {
	Field       string        // of the hold in the record
	Lease       time.Duration // the least lease: a longer one that the record has already is not shortened
	HoldCount   int           // after the attempt; 1: acquire a lock that is free; more: re-enter the hold
	Delivery    string        // how it treats the line, for example Push: see line.go; "": the line is not used
	Asked       uint64        // the number of this request, which tells it from the others of the same wait
	GrantLease  time.Duration // how long a grant to a new place lasts at most, if the Client may have been late: see line.go; else 0
	Share       time.Duration // for RollBack: as in Release
	Counterpart string        // the field of the hold that the owner has on the counterpart; "": it has none

	NoWait  bool // no other attempt follows, so this one leaves nothing in Redis if the lock is busy
	Waits   bool // the caller waits even if a semaphore has fewer permits than it wants
	Late    bool // for RollBack: the attempt may still run, and a tombstone is needed; see rollback.go
	Renewed bool // the watchdog renews the lease once the attempt was granted
	// AdoptsRecord is set if a hold of this process has left its record to the caller. The attempt may draw several
	// fencing tokens then.
	AdoptsRecord bool
}

// The deliveries: how an attempt on a lock with a line treats the line. See internal/lua/lock_acquire.lua.
const (
	Barge = "barge" // acquires a free lock ahead of the line: for re-entries, MultiLocks, and callers that do not wait
	Defer = "defer" // lets the line go first, and does not join it, for example because it is not subscribed yet
	Push  = "push"  // joins the line, and receives grants on the channel of its Client
	Poll  = "poll"  // joins the line, and asks often, because it may not subscribe
)

// BlockSize is how many tokens a block has at most. Redis never draws beyond its clock in microseconds, so a block is
// smaller where the last one was drawn less than BlockSize microseconds ago.
const BlockSize = 256

// WaitsInLine reports whether the attempt joins the line.
func (a *Attempt) WaitsInLine() bool { return a.Delivery == Push || a.Delivery == Poll }

// TokensWanted returns how many fencing tokens the attempt asks Redis for, if its lock is fenced.
func (a *Attempt) TokensWanted(fenced bool) int {
	if fenced && a.AdoptsRecord {
		return BlockSize
	}
	return 1
}

// A Release sets the hold count of a hold.
type Release struct {
	Field     string
	HoldCount int  // after the release; 0: the lock is released
	Late      bool // a request that acquires with this field may still run, and a tombstone is needed

	// Share is how long a line may keep the lock to itself before it leaves it to clients that have no place in the
	// line, for example Java services.
	Share time.Duration
}

// A Rename moves a hold from one field to another, and sets its lease.
type Rename struct {
	From, To string
	Lease    time.Duration // exactly this lease
	Until    int64         // when the lease ends at the latest, in ms of the epoch by the clock of Redis; 0: no such time
	Ends     int64         // of an Attach: when the hold is over, as Until, and a second run sets the lease again; else 0
	Late     bool          // a request that acquires with From may still run, and a tombstone is needed
	Splits   bool          // of a reader: other readers of this process share From, which keeps the lock
}

// AsRelease returns the release that sets the hold count back to what it was before the attempt.
func (a *Attempt) AsRelease() Release { return Release{a.Field, a.HoldCount - 1, a.Late, a.Share} }
