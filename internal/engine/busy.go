package engine

// Busy: whether a wait has ended because other owners have the lock, or for another reason. A TryLock then returns
// false, and an error that ends a wait with its context matches ErrBusy.
//
// The rule: a lock is busy if the newest fact in this process is that other owners hold it, or are ahead of the caller.
// There are three such facts: the last answer of Redis to the caller itself; the last answer to the caller in front,
// for those that wait behind it in the local queue; and a hold of another owner of this process that is valid. No lease
// that such an answer has named may have expired more than send.MinWait ago without another question. No request of the
// caller, or of the one in front, may have failed since, or be without an answer for more than send.MinWait. Otherwise
// Redis may be the reason.
//
// An answer to a question that is asked when the lease ends is due send.MinWait later. So a wait that ends shortly after
// the lease has the same result whether the timer that was to ask has fired or not.
//
// A caller of this process that is ahead in the local queue counts as ahead, too, while its own request was sent so
// recently that no answer is due, if an owner has had the lock since the first of them came. So does one that is
// releasing the lock. Where no owner was seen, a caller whose time is up asks Redis itself: see gaveUpLocked. A message
// of a release is a hint, and no fact: the caller is about to ask.

import (
	"errors"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
)

// ErrBusy is joined to the error of a caller whose context ended while other owners had the lock.
var ErrBusy = errors.New("the lock is busy")

// errUnasked is the error of a TryLock whose time is up after the lease of the holder has expired.
var errUnasked = errors.New("the lease of the last known holder has expired, and Redis was not asked since")

// findings are what a caller knows newest of the lock that it waits for, or what the admitted callers of a local queue
// know, for all that wait there. The zero value is for a caller that knows nothing.
type findings struct {
	reply   *blocker    // the newest answer that a lock is busy, to the caller or to the one in front; or nil
	request inquiry     // of the caller, or of the one in front
	look    poller.Look // what the poller has found since the reply
	behind  string      // the name of the lock in whose local queue the caller was behind another one; or ""
	unseen  bool        // no owner has had the lock since the first of them came
}

// An inquiry is a request about a lock. The zero value is one that was answered.
type inquiry struct {
	due    time.Time // since when an answer is due: send.MinWait after the request was sent; zero: it was answered
	failed bool      // a try of it, or a request before it, has failed, and none was answered since
}

// begin notes that a request is about to be sent, whose answer takes at most patience. It keeps the time of an earlier
// request that has no answer either.
func (i *inquiry) begin(patience time.Duration) {
	if i.due.IsZero() {
		i.due = time.Now().Add(patience)
	}
}

// underWay reports whether the last request has no answer.
func (i *inquiry) underWay() bool { return !i.due.IsZero() }

// inDoubt reports whether Redis may be the reason why the caller has no lock.
func (i *inquiry) inDoubt(now time.Time) bool { return i.failed || i.underWay() && now.After(i.due) }

// busyAt reports whether other owners are the reason why the caller has no lock: see the rule above. holder reports
// that another owner of this process has a valid hold that blocks the caller.
func (f *findings) busyAt(now time.Time, holder bool) bool {
	switch {
	case f.request.inDoubt(now), f.look.InDoubt(now, send.MinWait):
		return false
	case holder:
		return true
	case f.reply != nil:
		asked := f.request.underWay() || !f.look.Asked.IsZero()
		return f.reply.cause == nil && (f.look.Held || asked || !f.reply.expiredAt(now.Add(-send.MinWait)))
	}
	return f.behind != "" && !f.unseen
}

// expiredAt reports whether the lease that the answer has named has expired. An answer that others are ahead in the
// line holds for longer than that lease.
func (o *blocker) expiredAt(now time.Time) bool {
	return o.ttl >= 0 && !o.ahead && !now.Before(o.at.Add(o.ttl))
}

// A blocker describes an attempt that has found a lock busy.
type blocker struct {
	lock  contract.Lock // the lock that is busy
	ttl   time.Duration // the rest of the lease in the reply; negative: the reply had none
	at    time.Time     // when the reply came
	total int           // Outcome.Total of the reply
	ahead bool          // others are ahead of the caller in the line
	who   string        // how the lock itself describes its holder; or ""
	cause error         // why the lock could not be acquired, if other owners are not the reason; or nil
}

func (o *blocker) String() string {
	if o.who != "" {
		return o.who
	}
	ago := time.Since(o.at)
	return o.lock.BusyText(o.ttl, o.ttl-ago, ago)
}
