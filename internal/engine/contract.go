package engine

// The contract between the engine and the lock types: what a lock type implements, and the values that pass between the
// two.
//
// A lock type, for example the fair lock, only describes a lock. It states the constant properties of the lock (Lock),
// builds the calls of its Lua scripts, and reads the reply to an attempt (Commands). Both together are a Record. The
// engine does everything else, in the same way for all lock types: it sends the calls and repeats them, waits, renews
// leases, and keeps track of the holds of this process. Engine.Acquire(ctx, owner, Request, lock) returns when the lock
// is held, or when the caller gives up. It waits until the caller may ask Redis, and then uses the Commands of the lock
// for an attempt:
//
//	Commands.Acquire(Attempt)           builds the call, which the engine sends,
//	Commands.ReadReply(Attempt, Reply)  reads the reply as an Outcome: Held, Busy or Gone.
//
// After Busy the engine waits, and makes another attempt. A RedLock has no record in Redis, and therefore no Commands:
// see VotedLock in backend.go.
//
// Words of this package:
//
//   - A hold is what one owner has of one lock, from when it asks for the lock until it has released it, or knows that
//     it has lost it. Its hold count is the number of its successful Lock calls that have no Unlock yet.
//   - A record is what the key of a lock in Redis has for a hold, and what this process knows about it: see record.go.
//     (The interface Record is something else: it describes a lock whose holds have records.) A field identifies a
//     record, as client:owner:number. An acquire operation uses a new field, unless it re-enters a hold, or takes over
//     the field of a hand-off or of a place in the line. Holds of one process can share a record, or hand it off.
//   - A read/write lock has two halves, the read lock and the write lock, with one name and one key in Redis. Each half
//     is the counterpart of the other one.
//   - The goroutines of a process wait in its local queue for the lock. The processes wait in the line, which is the
//     wait queue of the lock in Redis. A process has at most one place in a line. The script that releases the lock
//     grants it to the first place that can have it. (Every waiter of a fair lock has a place of its own, in Redisson's
//     queue.)
//   - An entry is what a waiter of a fair lock or a write lock leaves in Redis, and renews at every heartbeat, to show
//     that it still waits. It is not a place, although such a waiter can have both.
//   - To contend for a lock is to make attempts to acquire it in Redis.
//   - A tombstone marks a field that has ended, so that a late request with that field acquires nothing. Tombstones are
//     in the line, so Clients that may not use the line have none, and read locks have some only against late renames:
//     see lua/readers.lua.
//
// Rules: nothing in this file sends a request, waits, or reads a clock.

import (
	"cmp"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A Record describes a lock that is stored as a record in Redis: its properties, and the calls that operate on it. It
// sends nothing, waits for nothing, reads no clock, and does not know who holds the lock.
type Record interface {
	Lock
	Commands
}

// A Lock has the constant properties of a lock. A lock type embeds Traits, which implement all methods.
type Lock interface {
	// ID identifies the lock. Two values with the same ID are the same lock.
	ID() LockID
	// Name is the name that the user gave to the lock. The ID also contains the prefix of WithKeyPrefix.
	Name() string
	// Type is the type of the lock in events.
	Type() string
	// Counterpart is the ID of the other half of a read/write lock. It is zero for other locks.
	Counterpart() LockID
	// Admission describes which goroutines of a process may contend for the lock at the same time.
	Admission() Admission
	// Fenced reports whether every hold gets a fencing token.
	Fenced() bool
	// DrawsSingly reports whether each hold of a fenced lock draws its own token in Redis, so that the counter there is
	// the token of the holder: see tokens.go.
	DrawsSingly() bool
	// Limits returns the limits of every hold.
	Limits() Limits
	// BusyText describes, for an error, who blocks the caller. An attempt has found the lock busy. Since its reply the
	// time ago has passed. The lease of the record had ttl left then, and left is what remains of ttl now; if it is
	// negative, the lease is over. A negative ttl means that the reply contained no lease.
	BusyText(ttl, left, ago time.Duration) string
	// Bundled is the number of the pair of scripts with which a bundle, which acquires several locks in one script (see
	// bundle.go), acquires this lock and rolls it back. The scripts get the keys and arguments of the calls of Acquire and
	// RollBack. It is 0 for a lock that is always acquired by itself.
	Bundled() BundledScript
	// MaxHoldCount returns the highest hold count of an owner, and the error for an attempt to exceed it. 0 means that
	// there is no limit.
	MaxHoldCount() (int, error)
	// Lasting reports whether holds are meant to last, and waits to be long, so that neither is slow: see slow.go.
	Lasting() bool
	// Permits is the number of permits that a hold has of a semaphore. It is 1 for all other locks.
	Permits() int
	// Suffix is what the scripts append to the field of a hold when they store it. Most lock types have none.
	Suffix() string
}

// A LockID identifies a lock by its name, and by its half if it is part of a read/write lock. Locks with the same
// LockID share their holds even if they are of different types, for example a plain lock and a fair lock, which have
// the same record in Redis. The engine re-enters a hold with the Commands of the lock through which it was acquired. So
// a lock type that has another record, such as a semaphore, or whose holds are re-entered in a different way, needs a
// Half of its own. Semaphores whose holds have different numbers of permits share one local queue.
type LockID struct {
	Name, Half string
}

// An Admission describes which goroutines of a process may contend for a lock at the same time. Others that want to
// wait do so in the local queue.
type Admission int

const (
	Exclusive     Admission = iota // one goroutine contends for the lock or holds it
	Uncoordinated                  // each goroutine contends by itself: the lock has no local queue
	Shared                         // one goroutine contends, and then shares its record with those that wait
	Counting                       // several goroutines hold it; one at a time contends once it was found busy
)

// Limits restrict how long a hold or its record lasts. 0 means that there is no limit.
type Limits struct {
	Max     time.Duration // MaxHold: how long a hold may last
	MinHold time.Duration // MinHold: how long the record stays in Redis at least
}

// A BundledScript is the number, from 1, of a pair of scripts that a bundle can run: one acquires a lock, and the other
// one rolls that back.
type BundledScript int

// A BundledCall is the part of a bundle that acquires one of its locks, and rolls that back if another one is busy.
type BundledCall struct {
	Script            BundledScript
	Acquire, RollBack send.Call
}

// Commands build the calls that the engine sends for a lock, and read the reply to an attempt.
//
// Every call except Force may run more than once, and may run late: the engine repeats a request that gets no answer,
// and a request can stay on its way after its caller has given up. That must do no harm. So a script sets a hold count
// instead of adding to it, and names the field of its hold, so that it never affects another hold. A repetition may do
// no more than make a lease last longer, or draw one more fencing token, which is harmless: tokens only have to grow. A
// late Acquire may acquire the lock for a caller that has left. The engine rolls that back. Where the lock type has
// tombstones, the rollback leaves one, and an Acquire that runs even later acquires nothing. A Force without an answer
// is not sent again.
//
// Each script replies with three integers, and that of Force with texts behind them. Where a comment below says {1,
// ...}, the other two have no meaning.
type Commands interface {
	// Acquire makes one attempt.
	Acquire(a Attempt) send.Call
	// ReadReply reads the reply to Acquire. An error means that the lock refuses the attempt for good, and that the script
	// has granted nothing: for example, a reader would wait for itself if it waited for the write lock (errUpgrade in
	// rwlock.go). The exception is send.ErrReply, for a reply that the script never returns: it does not tell what the
	// script has done.
	ReadReply(a Attempt, r send.Reply) (Outcome, error)
	// Release sets the hold count of a hold; 0 releases the lock. The reply is {1, heard, passed}, or {-1, heard, passed}
	// if Redis did not have the hold. heard is the number of connections that received the message of the release. passed
	// is 1 if the lock was granted to the next process, 2 if the next process could not be notified because this Client
	// may not publish to it, and otherwise 0.
	Release(r Release) send.Call
	// RollBack undoes attempt a, and also removes the entry and the place in the line that it may have left. The reply is
	// {1, ...} if Redis had the hold.
	RollBack(a Attempt) send.Call
	// Unbury removes the tombstone that Release or RollBack has left for field. The call has no script if the lock type
	// leaves no tombstones.
	Unbury(field string) send.Call
	// Renew sets the lease of a hold. Only if exact is set, it may also shorten the lease. The reply is {1, ...}, or
	// {-1, ...} if Redis does not have the hold.
	Renew(field string, lease time.Duration, exact bool) send.Call
	// Rename moves a hold to another field: see detach.go. The reply is {1, lease, now} if the field r.To has the lock
	// afterwards; the lease is in milliseconds, and now is the time of Redis in milliseconds of the epoch. It is {-1, 0,
	// now} if neither field has the lock, or r.To has ended, and {-2, 0, now} if there is no room for another reader.
	Rename(r Rename) send.Call
	// Inspect asks for the state of the lock. The reply is {holders, hold count of field, rest of the lease}. The first
	// number is above 0 if the lock is held. The rest of the lease is in milliseconds; it is negative if there is no
	// record, or a record without a lease.
	Inspect(field string) send.Call
	// Force releases the lock for any owner, or only those holds whose field is in seen, if there are any. The reply is
	// {1, more, 0} if the lock was held, and otherwise {0, more, 0}, followed by the IDs of the Clients that had holds:
	// see send.ParseForced. more is 1 if permits of a semaphore are still held, because one run releases a limited number
	// of them.
	Force(seen ...string) send.Call
	// Grants is the channel on which this Client is notified that the lock was granted to the field of a: see line.go. It
	// is "" if this lock, or this attempt, is never granted by a message.
	Grants(a Attempt) string
	// Channel is the channel that announces the release for which a waits. It is "" if a release is announced only to
	// waiters with an entry in Redis, and a leaves no entry.
	Channel(a Attempt) string
}

// Traits hold the constant properties of a lock, and implement Lock.
type Traits struct {
	LockID          LockID
	Given           string // the Name; "": the same as Lock.Name
	LockType        string // the Type
	CounterpartHalf string // the Half of the Counterpart; "": there is none
	Admits          Admission
	Tokens          bool // Fenced
	SingleTokens    bool // see DrawsSingly
	Limit           Limits
	Script          BundledScript // Bundled
	MaxCount        int           // the highest hold count; 0: there is no limit
	TooMany         error         // the error beyond MaxCount
	Ending          string        // the Suffix
	Lasts           bool          // Lasting
	Several         int           // Permits, if it is more than 1
}

func (t *Traits) ID() LockID                 { return t.LockID }
func (t *Traits) Name() string               { return cmp.Or(t.Given, t.LockID.Name) }
func (t *Traits) Type() string               { return t.LockType }
func (t *Traits) Admission() Admission       { return t.Admits }
func (t *Traits) Fenced() bool               { return t.Tokens }
func (t *Traits) DrawsSingly() bool          { return t.SingleTokens }
func (t *Traits) Limits() Limits             { return t.Limit }
func (t *Traits) Bundled() BundledScript     { return t.Script }
func (t *Traits) MaxHoldCount() (int, error) { return t.MaxCount, t.TooMany }
func (t *Traits) Suffix() string             { return t.Ending }
func (t *Traits) Lasting() bool              { return t.Lasts }
func (t *Traits) Permits() int               { return max(t.Several, 1) }

func (t *Traits) Counterpart() LockID {
	if t.CounterpartHalf == "" {
		return LockID{}
	}
	return LockID{t.LockID.Name, t.CounterpartHalf}
}

// A Request describes how one caller wants to acquire its locks.
type Request struct {
	Wait  time.Duration // how long to wait for other owners; 0: make one attempt; negative: until ctx is done
	Lease time.Duration // 0: the watchdog timeout, and the watchdog renews the lease

	// LeastLease is the least lease of a new hold in Redis if Lease is shorter. A MultiLock that acquires its locks in
	// several steps sets it: KeepLease extends the lease until all of them are held.
	LeastLease time.Duration

	// AnswerBy limits how long a caller with a Wait of 0 waits for an answer, if it is sooner than Services.Patience
	// (zero: it is not). Even if it has passed already, there is one attempt, which has send.MinWait for an answer.
	AnswerBy time.Time

	Component bool // the locks are part of a MultiLock: an error names the one that it is about
	Again     bool // a MultiLock tries again: too little of the lease was left when it had all of its locks
	Trial     bool // if this request fails before AnswerBy, the caller tries again, so no event reports that it gave up
}

// An Attempt is what one request to Redis asks for one lock: to acquire it, or to set a higher hold count for an owner
// that has the lock already. RollBack gets the same Attempt.
type Attempt struct {
	Field       string        // of the hold in the record
	Lease       time.Duration // the least lease: a longer one that the record has already is not shortened
	HoldCount   int           // after the attempt; 1: acquire a lock that is free; more: re-enter the hold
	Delivery    string        // how it treats the line, for example Push: see line.go; "": the line is not used
	Asked       uint64        // the number of this request, which tells it from the others of the same wait
	Share       time.Duration // for RollBack: as in Release
	Counterpart string        // the field of the hold that the owner has on the counterpart; "": it has none

	NoWait  bool // no other attempt follows, so this one leaves nothing in Redis if the lock is busy
	Waits   bool // the caller waits even if a semaphore has fewer permits than it wants: see stepAside
	Late    bool // for RollBack: the attempt may still run, and a tombstone is needed; see rollback.go
	Renewed bool // the watchdog renews the lease once the attempt was granted
	// AdoptsRecord is set if a hold of this process has left its record to the caller. The attempt may draw several
	// fencing tokens then.
	AdoptsRecord bool
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

// A target is the attempt on one lock, and the hold that it is made for.
type target struct {
	hold *hold
	Attempt
}

// An Outcome is the result of an attempt, as the reply of Redis describes it.
type Outcome struct {
	Status      Status
	Wait        time.Duration // Busy: the time until the next attempt at the latest; negative: the reply has none
	ttl         time.Duration // Busy: the rest of the lease of the current holder; negative: the reply has none
	token       int64         // Held: the fencing token of a fenced lock
	following   int           // Held: how many tokens after token belong to the next holds of this process
	More        int           // Held: the number of permits that are still free, if the lock is a semaphore
	Total       int           // Busy: the number of permits of the semaphore, at least 1; 0 for other locks
	leavesEntry bool          // Busy: the attempt left an entry in Redis, to be rolled back if the caller gives up

	Standing standing // Busy: how the caller notices that it can have the lock
}

// A Status is the answer of Redis to an attempt.
type Status int

const (
	Busy Status = iota
	Held
	Gone // the hold that was to be re-entered does not exist
)

// An Answer is the result of an attempt on all locks of an acquire operation.
type Answer struct {
	Outcome
	Sent   time.Time // when the request was sent: the leases that it granted are valid from then on
	at     int       // which of several targets the Outcome is about: the first that is not held, else the last
	tokens []int64   // the fencing tokens of several targets
	stays  bool      // not Held: an earlier try was granted a target in front of at, which is still held with its field

	provisional time.Duration // the lease of a grant that is shorter than the lease asked for; 0: it is not shorter
	longest     time.Duration // the longest lease that a request with the field of the place in the line has asked for
}

// A View is the state of a lock in Redis.
type View struct {
	Locked bool          // an owner holds the lock
	Held   bool          // the field that was asked about holds the lock
	TTL    time.Duration // of the record; negative: there is no record, or it has no lease
}

// ParseOutcome reads what all lock types have in the reply to an attempt: {1, following, token} (see readTokens) is
// Held, {0, pttl, ?} Busy, and {-1, ?, ?} Gone. The numbers shown as ? differ between lock types, which read them by
// themselves.
func ParseOutcome(r send.Reply) (Outcome, error) {
	switch r[0] {
	case 1:
		token, following := readTokens(r)
		return Outcome{Status: Held, token: token, following: following}, nil
	case 0:
		return Outcome{Status: Busy, Wait: send.FromMilliseconds(r[1]), ttl: send.FromMilliseconds(r[1])}, nil
	case -1:
		return Outcome{Status: Gone}, nil
	}
	return Outcome{}, send.Unexpected(r)
}

// WithStanding returns the outcome of an attempt on a lock with a line. The third number of the reply r to such an
// attempt is the standing of the caller, if the lock is busy.
func (o Outcome) WithStanding(r send.Reply) Outcome {
	if o.Status == Busy {
		o.Standing = standing(r[2])
	}
	return o
}

// WithEntry returns the outcome of an attempt on a lock whose waiters have an entry in Redis. If the lock is busy, the
// attempt a has left or renewed the entry, unless a does not wait. The caller has to make another attempt, which renews
// the entry, before the time heartbeat has passed.
func (o Outcome) WithEntry(a Attempt, heartbeat time.Duration) Outcome {
	if o.Status == Busy {
		o.leavesEntry = !a.NoWait
		if o.Wait < 0 || o.Wait > heartbeat {
			o.Wait = heartbeat
		}
	}
	return o
}
