package engine

// Requests and answers: what a caller asks for, and the result of one of its attempts.

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

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

// isLate reports whether AnswerBy has passed.
func (r *Request) isLate() bool { return !r.AnswerBy.IsZero() && !time.Now().Before(r.AnswerBy) }

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

// mayHold reports whether the locks may be held after the answer res, or err, which is late. A try without a connection
// was not sent: where connections are rare, it must not begin the next attempt.
func (res *Answer) mayHold(err error) bool {
	if err != nil {
		return !errors.Is(err, send.ErrNoConnection)
	}
	return res.Status != contract.Busy || res.stays
}

// errRestart makes the call begin another acquire operation, with new fields. There are five reasons. Another caller of
// the owner has released the hold that was to be re-entered. Or a semaphore is busy, so that the caller has to enter
// the local queue. Or a field carries the mark of a Client that uses the line, and the attempt has shown that this
// Client may not use it. Or an earlier attempt on several locks was granted, and some of them are busy by now. Or a
// late answer has granted them, and another caller of the owner asks for one of them.
var errRestart = errors.New("the acquire operation starts again")
