package engine

// Keepers: what keeps a hold. Redis has a record of most holds, under their field. The hold of a RedLock is kept by its
// vote. What the two do is in recordkeeper.go and votekeeper.go.
//
// Rules: a hold is released, extended, renewed, checked and lost through its keeper. Code that depends otherwise on
// whether there is a record asks hasRecord. A keeper has no state: it is its hold, as seen from there.

import (
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A keeper is what keeps a hold that was acquired. Its methods are called without a mutex; those that wait for answers
// say so.
type keeper interface {
	// setHoldCount sets the hold count to that of r, waits for the answer, and then unlocks the owner mutex. If the count
	// is zero, it also admits the next waiter of the local queue, even after an error, and what may be left then is
	// released in the background. gone is why there was nothing to release, or nil. Release calls it.
	setHoldCount(r releasing, wait send.Wait) (gone, err error)
	// extend makes the lease last for length, counted from sent, and waits for the answer. A hold that is found to be gone
	// ends as lost. Extend calls it, with the owner mutex.
	extend(wait *send.Wait, length time.Duration) (sent time.Time, err error)
	// renewal returns the request that renews the lease l, and the part of the answer that is known already; or the whole
	// answer, if no request is needed. Then request.Lock is nil. The watchdog calls it.
	renewal(l *lease.Lease) (answer lease.Renewal, request Renewal)
	// check returns why the hold is not valid although its lease has not expired, or nil. What looks at the clock for the
	// hold calls it.
	check() error
	// clear releases a hold that has ended, for as long as something may be left of it, and admits the next waiter of the
	// local queue. unknown requests with the field of the hold have an unknown outcome. It waits for the answers, on a
	// goroutine of the engine.
	clear(unknown int)
	// lost releases a hold that was lost, after its guards were canceled, unless loseLocked does.
	lost()
}

// keeper returns what keeps h.
func (h *hold) keeper() keeper {
	if h.hasRecord() {
		return recordKeeper{h}
	}
	return voteKeeper{h}
}

// clear is keeper.clear for a hold with one request whose outcome is unknown.
func (h *hold) clear() { h.keeper().clear(1) }

// A recordKeeper is the keeper of a hold that has a record in Redis.
type recordKeeper struct{ *hold }

// A releasing is a hold whose count has been decremented in this process, and is now set to count in Redis. Its caller
// has the owner mutex of the hold.
type releasing struct {
	*hold
	count int
	loss  error // why the hold had been lost before; nil if it had not

	unused bool // as in Report.GiveBack
}

// A voteKeeper is the keeper of a hold that a vote keeps. The vote itself goes on with what is not confirmed.
type voteKeeper struct{ *hold }
