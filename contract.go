package relock

// What a call asks for, and what Redis answers: the words that the engine and the lock types share.
//
// Rules: these are values. None of them sends, waits or looks at a clock.

import (
	"cmp"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A lockType is one kind of lock, as data: which call each verb is, and how the reply to
// an attempt reads. It sends nothing, waits for nothing, and holds no state.
type lockType interface {
	description
	verbs
}

// A description has the constant properties of a lock. A lock type embeds traits, which implement it.
type description interface {
	// id tells locks apart: locks with the same id are the same lock to an owner.
	id() lockID
	// name is the lock's name as users know it: without the prefix of WithKeyPrefix, which its id has.
	name() string
	// typ is the lock's type in events.
	typ() string
	// otherHalf is the id of the other half of a lock that has two; else zero.
	otherHalf() lockID
	// admission is how goroutines of one process get past one another.
	admission() admission
	// fenced says whether each hold draws a fencing token.
	fenced() bool
	// limits are the limits of each hold.
	limits() limits
	// busyText says who is in the way, for errors. ago an attempt has found the lock busy, with ttl of the lease of the record left
	// then and left now; a negative ttl: none was answered.
	busyText(ttl, left, ago time.Duration) string
	// bundled is the script of a bundle for this lock; 0: the lock cannot be taken together with other locks.
	// A bundle runs the two scripts that it was made of, with the keys and arguments of acquire and undo.
	bundled() bundledScript
	// mostLevels is how many levels of a hold an owner may have, and why there are no more; 0: there is no limit.
	mostLevels() (int, error)
	// suffix is what Redis adds to the field of a hold.
	suffix() string
}

// The verbs of a lock are calls. Every call sets a state and adds nothing, so that it may run twice, and late.
type verbs interface {
	// acquire makes one attempt, and granted reads its reply. An error refuses the attempt for good (see
	// errUpgrade): the script has changed nothing then.
	acquire(a attempt) send.Call
	granted(a attempt, r send.Reply) (grant, error)
	// release sets the levels of a hold to left. {1, heard, passed}: it is done; heard connections received the message
	// that the lock is free. passed is 1 where the lock was granted to the next process, and 2 where the next process could
	// not be told. {-1, ...}: Redis does not have the hold.
	release(r release) send.Call
	// undo takes an attempt back: {1, ...} Redis had its hold.
	undo(a attempt) send.Call
	// unbury takes away the tombstone that a release or an undo has left of a field; no script: they leave none.
	unbury(field string) send.Call
	// renew sets a lease: {1, ...} done, {-1, ...} Redis does not have the hold. Only an exact renew may
	// shorten the lease.
	renew(field string, lease time.Duration, exact bool) send.Call
	// inspect asks for the state of the lock: {holders, levels of that field, PTTL}.
	inspect(field string) send.Call
	// force frees the lock: {1, ...} it was held.
	force() send.Call
	// grants is the channel on which this Client is told that the lock was granted to an attempt: see line.go. It is "" where
	// the lock is not granted.
	grants(a attempt) string
	// channel is where the release is announced that an attempt waits for. It is "" where only waiters with
	// an entry in Redis receive the announcement, and the attempt leaves no entry.
	channel(a attempt) string
}

// traits are the description of a lock, as data.
type traits struct {
	lock    lockID
	given   string // its name; "": that of lock
	kind    string
	other   string // its other half; or ""
	admits  admission
	tokens  bool
	limit   limits
	script  bundledScript
	levels  int   // how many an owner may have; 0: there is no limit
	tooDeep error // the error of one more
	ending  string
}

func (t *traits) id() lockID               { return t.lock }
func (t *traits) name() string             { return cmp.Or(t.given, t.lock.name) }
func (t *traits) typ() string              { return t.kind }
func (t *traits) admission() admission     { return t.admits }
func (t *traits) fenced() bool             { return t.tokens }
func (t *traits) limits() limits           { return t.limit }
func (t *traits) bundled() bundledScript   { return t.script }
func (t *traits) mostLevels() (int, error) { return t.levels, t.tooDeep }
func (t *traits) suffix() string           { return t.ending }

func (t *traits) otherHalf() lockID {
	if t.other == "" {
		return lockID{}
	}
	return lockID{t.lock.name, t.other}
}

// A request is the call of one caller to the engine.
type request struct {
	wait  time.Duration // negative: as long as ctx lasts
	lease time.Duration // 0: the watchdog's

	// The lease of a fresh hold until startLease; 0: lease from the beginning.
	interim time.Duration

	component bool // the caller is a MultiLock: errors say which of its locks they are about
	again     bool // of a MultiLock: too little was left of the lease when all locks had been taken
	trial     bool // the caller asks again if this fails: it has not given up
}

// An attempt asks for one level of a lock.
type attempt struct {
	field     string        // of the hold in the record
	lease     time.Duration // at least
	level     int           // 1: a fresh hold
	noWait    bool          // no other attempt follows: a busy one leaves nothing in Redis
	line      string        // how the attempt stands in the line; "": the lock has none
	asked     uint64        // its number among the requests of the wait
	late      bool          // undo: tries of the attempt may still run; see tombstones.go
	share     time.Duration // undo: as in a release
	otherHalf string        // field of the owner's hold on the other half of the lock, or ""

	renewed bool // by the watchdog, once it is granted
}

// A release sets the levels of a hold.
type release struct {
	field string
	left  int           // levels
	late  bool          // a request that asks for this field may still run
	share time.Duration // how long a line may keep the lock from those that have no place in it, for example Java services
}

// asRelease is the release that sets the hold back to its levels before the attempt.
func (a *attempt) asRelease() release { return release{a.field, a.level - 1, a.late, a.share} }

// A want is one level of one lock, and the hold that it will belong to.
type want struct {
	hold *hold
	attempt
}

// A grant is the answer to an attempt.
type grant struct {
	state  grantState
	wait   time.Duration // busy: the rest of the lease that is in the way; negative: there is no lease
	ttl    time.Duration // busy: the same, also where an attempt has to be made sooner
	token  int64         // held: of a fenced lock
	more   int           // held: so many times more the lock is free, if it is a counted one
	queued bool          // busy: the attempt left an entry in Redis that has to be undone

	standing standing // busy: how the caller hears that it can have the lock
}

type grantState int

const (
	busy grantState = iota
	held
	gone // the hold that was to be re-entered is not there
)

// A result is the answer to an attempt on all wants.
type result struct {
	grant
	sent   time.Time // before the attempt
	at     int       // of several wants: the one that is not held, which the answer is about
	tokens []int64   // of several wants

	provisional time.Duration // the lease of a grant that is not the whole one; 0: it is
}

// A state is what Redis says about a lock.
type state struct {
	locked bool
	held   bool
	ttl    time.Duration // of the record; negative when there is none, or it has none
}

// parseGrant reads the reply to an attempt: {1, 0, token} held, {0, pttl, 0} busy, {-1, 0, 0} gone.
func parseGrant(r send.Reply) (grant, error) {
	switch r[0] {
	case 1:
		return grant{state: held, token: r[2]}, nil
	case 0:
		return grant{state: busy, wait: send.FromMilliseconds(r[1]), ttl: send.FromMilliseconds(r[1])}, nil
	case -1:
		return grant{state: gone}, nil
	}
	return grant{}, send.Unexpected(r)
}

// inLine is the grant of an attempt on a lock with a line, whose reply says how the caller stands.
func (g grant) inLine(r send.Reply) grant {
	if g.state == busy {
		g.standing = standing(r[2])
	}
	return g
}

// enqueued is the grant of an attempt that leaves a sign of life in Redis where the lock
// is busy. Another attempt renews the sign every heartbeat.
func (g grant) enqueued(a attempt, heartbeat time.Duration) grant {
	if g.state == busy {
		g.queued = !a.noWait
		if g.wait < 0 || g.wait > heartbeat {
			g.wait = heartbeat
		}
	}
	return g
}
