package relock

// What a call asks for, and what Redis answers: the words that the engine and the lock types share.
//
// Rules: these are values. None of them sends, waits or looks at a clock.

import "time"

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
	otherHalf string        // field of the owner's hold on the other half of the lock, or ""

	renewed bool // by the watchdog, once it is granted
}

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
