// Package contract is what the engine and the lock types say to each other: what a lock type implements, and the values
// that pass between the two.
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
// After Busy the engine waits, and makes another attempt. A RedLock has no record in Redis: its calls are carried out in
// this process (see engine.LocalLock).
//
// Words of this package and of the engine:
//
//   - A claim is what one call wants of a lock for its owner: the lock, a field, and a position in the local queue. A
//     hold is what one owner has of one lock, from when its claim was granted until it has released the lock, or knows
//     that it has lost it. Its hold count is the number of its successful Lock calls that have no Unlock yet.
//   - A record is what the key of a lock in Redis has for a hold, and what this process knows about it: see hold.go.
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
//     in the line, and read locks have some only against late renames: see internal/lua/readers.lua.
//
// Rules: nothing in this package has a state, sends a request, waits, reads a clock, or writes a log. Files that
// comments name are those of the engine.
package contract

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A Record describes a lock that is stored as a record in Redis: its properties, and the calls that operate on it. It
// sends nothing, waits for nothing, reads no clock, and does not know who holds the lock.
type Record interface {
	Lock
	Commands
}

// A Lock describes a lock.
type Lock interface {
	// Traits are the constant properties of the lock.
	Traits() *Traits
	// BusyText describes, for an error, who blocks the caller. An attempt has found the lock busy. Since its reply the
	// time ago has passed. The lease of the record had ttl left then, and left is what remains of ttl now; if it is
	// negative, the lease is over. A negative ttl means that the reply contained no lease. As a rule it is BusyText of
	// this package.
	BusyText(ttl, left, ago time.Duration) string
}

// Traits are the constant properties of a lock. Most lock types set a few of them.
type Traits struct {
	ID   LockID // two values with the same ID are the same lock
	Name string // that the user gave to the lock; the ID also contains the prefix of WithKeyPrefix
	Type string // in events

	// Counterpart is the ID of the other half of a read/write lock. It is zero for other locks.
	Counterpart LockID
	Admission   Admission // which goroutines of a process may contend for the lock at the same time
	Limits      Limits    // of every hold

	// Fenced is set if every hold gets a fencing token. DrawsSingly is set if each hold of a fenced lock draws its own
	// token in Redis, so that the counter there is the token of the holder: see tokens.go.
	Fenced, DrawsSingly bool

	// MaxHoldCount is the highest hold count of an owner, and TooMany the error for an attempt to exceed it. 0 means that
	// there is no limit.
	MaxHoldCount int
	TooMany      error

	// Lasting is set if holds are meant to last, and waits to be long, so that neither is slow: see internal/engine/slow.go.
	Lasting bool

	Several int    // the permits that a hold has of a semaphore, if it has more than one: see Permits
	Suffix  string // what the scripts append to the field of a hold when they store it; most lock types have none
}

// Permits is the number of permits that a hold has of a semaphore. It is 1 for all other locks.
func (t *Traits) Permits() int { return max(t.Several, 1) }

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

// BusyText is the BusyText of most locks.
func BusyText(ttl, left, ago time.Duration) string {
	switch {
	case ttl < 0:
		return "its key in Redis has no expiry, so it does not become free by itself"
	case left > 0:
		return fmt.Sprintf("another process (or Client) holds it, and its lease expires in %v", Rounded(left))
	}
	return fmt.Sprintf("another process (or Client) held it %v ago, when Redis was last asked", Rounded(ago))
}

// Rounded returns d rounded for a text that people read.
func Rounded(d time.Duration) time.Duration {
	unit := time.Millisecond
	if d >= time.Second {
		unit = 100 * time.Millisecond
	}
	return (d + unit/2) / unit * unit
}
