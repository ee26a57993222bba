package engine

// Local locks: locks whose calls are carried out in this process. A RedLock is one: it asks the locks of which it
// consists.
//
// Rules: a hold of such a lock has a field and a lease like every other one, and is released, extended and renewed by
// the calls of its lock. Only the attempts are others, because the lock knows best when another one makes sense.

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A LocalLock is a lock whose calls are run in this process.
type LocalLock interface {
	contract.Record
	// Ask makes one attempt for o. If the status is Busy, the Refusal describes why; so it does with an error, if the wait
	// of w has ended in the middle of the attempt. It is Gone if the hold that was to be re-entered has ended.
	Ask(w *send.Wait, o Owner, a contract.Attempt) (contract.Status, Refusal, error)
	// Listen listens for the releases that a Refusal lists as Taken.
	Listen(taken []int) []*wake.Listener
	// Check returns why the hold with this field is not valid, or nil. Lost is called when it was lost, with a mutex held.
	// Neither blocks.
	Check(field string) error
	Lost(field string)
	// Unanswered is the error for a caller that gives up because it has no answer.
	Unanswered() error
}

// A Refusal describes why an attempt was not granted, and when to make another one.
type Refusal struct {
	Taken []int         // the parts of the lock that other owners hold, and that announce their release
	Pause time.Duration // make no attempt sooner
	Wait  time.Duration // make an attempt at the latest then; negative: wait for a message of a release
	Cause error         // why it could not be granted if other owners are not the reason; or nil
	Who   string        // describes the current holder; "": it is no refusal
}

// local returns the lock of c if it is a LocalLock, or nil.
func (c *claim) local() LocalLock {
	l, _ := c.lock.(LocalLock)
	return l
}

// wasReplaced reports whether err says that the record was replaced by something else. Parts of a LocalLock may be, and the
// hold goes on.
func (c *claim) wasReplaced(err error) bool {
	return c.local() == nil && errors.Is(err, send.ErrNotALock)
}
