package engine

// What a call asks for, and what Redis answers: the words that the engine and the lock types share.
//
// Rules: these are values. None of them sends, waits or looks at a clock.

import (
	"cmp"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A Record is a lock that has a record in Redis, as data: which call each of its commands is, and how the reply to
// an attempt reads. It sends nothing, waits for nothing, reads no clock, and holds no state.
type Record interface {
	Lock
	Commands
}

// A Lock has the constant properties of a lock. A lock type embeds Traits, which implement it.
type Lock interface {
	// ID tells locks apart: locks with the same id are the same lock to an owner.
	ID() LockID
	// Name is the lock's name as users know it: without the prefix of WithKeyPrefix, which its id has.
	Name() string
	// Type is the lock's type in events.
	Type() string
	// Counterpart is the id of the other half of a lock that has two; else zero.
	Counterpart() LockID
	// Admission is how goroutines of one process get past one another.
	Admission() Admission
	// Fenced reports whether each hold draws a fencing token.
	Fenced() bool
	// Limits are the limits of each hold.
	Limits() Limits
	// BusyText reports who blocks, for errors. ago an attempt has found the lock busy, with ttl of the lease of the
	// record left then and left now; a negative ttl: none was answered.
	BusyText(ttl, left, ago time.Duration) string
	// Bundled is the script of a bundle for this lock; 0: the lock cannot be taken together with other locks.
	// A bundle runs the two scripts that it was made of, with the keys and arguments of acquire and undo.
	Bundled() BundledScript
	// MaxHoldCount is how many levels of a hold an owner may have, and why there are no more; 0: there is no limit.
	MaxHoldCount() (int, error)
	// Suffix is what Redis adds to the field of a hold.
	Suffix() string
}

// A LockID is the name of a lock, and the half if the lock has two. Lock types with the same LockID share their
// holds, and a hold is re-entered by the verbs of the lock that took it first: a type with other rules of
// re-entry needs a half of its own.
type LockID struct {
	Name, Half string
}

// An Admission is how goroutines of one process get past the wait queue of a lock.
type Admission int

const (
	Exclusive     Admission = iota // one goroutine contends or holds, the others wait
	Uncoordinated                  // there is no wait queue
	Shared                         // one goroutine contends; when it holds the lock, it admits the waiters
	Counting                       // several hold it; of those that have found it busy, one contends at a time
)

// Limits are how long a hold, or its record, lasts; 0: there is no limit.
type Limits struct {
	Max     time.Duration // MaxHold
	MinHold time.Duration // MinHold
}

// A BundledScript is the number of a pair of scripts that a bundle can run: one takes a lock, the other
// undoes that. Locks with the number zero are taken by themselves.
type BundledScript int

// A BundledCall takes one lock of several, and can undo that.
type BundledCall struct {
	Script            BundledScript
	Acquire, RollBack send.Call
}

// The Commands of a lock are calls. Every call sets a state and adds nothing, so that it may run twice, and late.
type Commands interface {
	// Acquire makes one attempt, and granted reads its reply. An error refuses the attempt for good (see
	// errUpgrade): the script has changed nothing then.
	Acquire(a Attempt) send.Call
	ReadReply(a Attempt, r send.Reply) (Outcome, error)
	// Release sets the levels of a hold to left. {1, heard, passed}: it is done; heard connections received the message
	// that the lock is free. passed is 1 where the lock was granted to the next process, and 2 where the next process
	// could not be told. {-1, ...}: Redis does not have the hold.
	Release(r Release) send.Call
	// RollBack takes an attempt back: {1, ...} Redis had its hold.
	RollBack(a Attempt) send.Call
	// Unbury takes away the tombstone that a release or an undo has left of a field; no script: they leave none.
	Unbury(field string) send.Call
	// Renew sets a lease: {1, ...} done, {-1, ...} Redis does not have the hold. Only an exact renew may
	// shorten the lease.
	Renew(field string, lease time.Duration, exact bool) send.Call
	// Inspect asks for the state of the lock: {holders, levels of that field, PTTL}.
	Inspect(field string) send.Call
	// Force frees the lock: {1, ...} it was held.
	Force() send.Call
	// Grants is the channel on which this Client is told that the lock was granted to an attempt: see line.go. It is ""
	// where the lock is not granted.
	Grants(a Attempt) string
	// Channel is where the release is announced that an attempt waits for. It is "" where only waiters with
	// an entry in Redis receive the announcement, and the attempt leaves no entry.
	Channel(a Attempt) string
}

// Traits are the properties of a lock, as data: they implement Lock.
type Traits struct {
	Lock            LockID
	Given           string // its name; "": that of lock
	Kind            string
	CounterpartHalf string // its other half; or ""
	Admits          Admission
	Tokens          bool
	Limit           Limits
	Script          BundledScript
	MaxCount        int   // how many an owner may have; 0: there is no limit
	TooMany         error // the error of one more
	Ending          string
}

func (t *Traits) ID() LockID                 { return t.Lock }
func (t *Traits) Name() string               { return cmp.Or(t.Given, t.Lock.Name) }
func (t *Traits) Type() string               { return t.Kind }
func (t *Traits) Admission() Admission       { return t.Admits }
func (t *Traits) Fenced() bool               { return t.Tokens }
func (t *Traits) Limits() Limits             { return t.Limit }
func (t *Traits) Bundled() BundledScript     { return t.Script }
func (t *Traits) MaxHoldCount() (int, error) { return t.MaxCount, t.TooMany }
func (t *Traits) Suffix() string             { return t.Ending }

func (t *Traits) Counterpart() LockID {
	if t.CounterpartHalf == "" {
		return LockID{}
	}
	return LockID{t.Lock.Name, t.CounterpartHalf}
}

// A Request is the call of one caller to the engine.
type Request struct {
	Wait  time.Duration // negative: as long as ctx lasts
	Lease time.Duration // 0: the watchdog's

	// The lease of a fresh hold until StartLease; 0: lease from the beginning.
	Interim time.Duration

	Component bool // the caller is a MultiLock: errors say which of its locks they are about
	Again     bool // of a MultiLock: too little was left of the lease when all locks had been taken
	Trial     bool // the caller asks again if this fails: it has not given up
}

// An Attempt asks for one level of a lock.
type Attempt struct {
	Field       string        // of the hold in the record
	Lease       time.Duration // at least
	HoldCount   int           // 1: a fresh hold
	NoWait      bool          // no other attempt follows: a busy one leaves nothing in Redis
	Delivery    string        // how the attempt stands in the line; "": the lock has none
	Asked       uint64        // its number among the requests of the wait
	Late        bool          // undo: tries of the attempt may still run; see undo.go
	Share       time.Duration // undo: as in a release
	Counterpart string        // field of the owner's hold on the other half of the lock, or ""

	Renewed bool // by the watchdog, once it is granted
}

// A Release sets the levels of a hold.
type Release struct {
	Field     string
	HoldCount int           // levels
	Late      bool          // a request that asks for this field may still run
	Share     time.Duration // how long a line may keep the lock from those that have no place in it, for example Java services
}

// AsRelease is the release that sets the hold back to its levels before the attempt.
func (a *Attempt) AsRelease() Release { return Release{a.Field, a.HoldCount - 1, a.Late, a.Share} }

// A target is one level of one lock, and the hold that it will belong to.
type target struct {
	hold *hold
	Attempt
}

// An Outcome is the answer to an attempt.
type Outcome struct {
	Status      Status
	Wait        time.Duration // busy: the rest of the lease that blocks; negative: there is no lease
	ttl         time.Duration // busy: the same, also where an attempt has to be made sooner
	token       int64         // held: of a fenced lock
	More        int           // held: so many times more the lock is free, if it is a counted one
	leavesEntry bool          // busy: the attempt left an entry in Redis that has to be undone

	Standing standing // busy: how the caller hears that it can have the lock
}

type Status int

const (
	Busy Status = iota
	Held
	Gone // the hold that was to be re-entered is not there
)

// An Answer is the answer to an attempt on all wants.
type Answer struct {
	Outcome
	Sent   time.Time // before the attempt
	at     int       // of several wants: the one that is not held, which the answer is about
	tokens []int64   // of several wants

	provisional time.Duration // the lease of a grant that is not the whole one; 0: it is
}

// A View is what Redis says about a lock.
type View struct {
	Locked bool
	Held   bool
	TTL    time.Duration // of the record; negative when there is none, or it has none
}

// ParseOutcome reads the reply to an attempt: {1, 0, token} held, {0, pttl, 0} busy, {-1, 0, 0} gone.
func ParseOutcome(r send.Reply) (Outcome, error) {
	switch r[0] {
	case 1:
		return Outcome{Status: Held, token: r[2]}, nil
	case 0:
		return Outcome{Status: Busy, Wait: send.FromMilliseconds(r[1]), ttl: send.FromMilliseconds(r[1])}, nil
	case -1:
		return Outcome{Status: Gone}, nil
	}
	return Outcome{}, send.Unexpected(r)
}

// WithStanding is the grant of an attempt on a lock with a line, whose reply describes how the caller stands.
func (o Outcome) WithStanding(r send.Reply) Outcome {
	if o.Status == Busy {
		o.Standing = standing(r[2])
	}
	return o
}

// WithEntry is the grant of an attempt that leaves a sign of life in Redis where the lock
// is busy. Another attempt renews the sign every heartbeat.
func (o Outcome) WithEntry(a Attempt, heartbeat time.Duration) Outcome {
	if o.Status == Busy {
		o.leavesEntry = !a.NoWait
		if o.Wait < 0 || o.Wait > heartbeat {
			o.Wait = heartbeat
		}
	}
	return o
}
