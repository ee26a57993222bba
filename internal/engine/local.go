package engine

// Acquiring a local lock: see locallock.go.
//
// Rules: the caller waits in the local queue as for other locks, and is not handed the lock. The lock tells why it
// refuses an attempt, and listens for its release by itself.

import (
	"cmp"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// settleTime is how long a caller waits at most after a message, because a release may be announced before the process of the
// holder has noted it.
const settleTime = 100 * time.Millisecond

// roundTime is how long an attempt takes if a part of the lock does not answer, with the default timeout of nodes.
const roundTime = send.MinWait + send.MinWait/4

// A localBackend is the backend of a LocalLock.
type localBackend struct {
	acquireOp
	lock     LocalLock
	refusal  Refusal
	taken    []int // what subscription listens to
	notified bool  // a message has ended the last sleep
}

func (k *localBackend) admit() error {
	return k.yield(roundTime)
}

func (k *localBackend) ask(time.Time) (res Answer, err error) {
	if k.target.kept { // its parts answer within a part of the lease
		k.target.Lease = max(5*time.Millisecond, k.engine.watchdog.Left(&k.target.hold.record.lease))
	}
	t, sent := k.target, time.Now()
	status, refused, err := k.lock.Ask(&k.Wait, t.hold.owner, t.Attempt)
	res.Sent, res.Status = sent, status
	k.refusal = refused
	if err != nil && refused.Cause == nil && refused.Who != "" { // busy: the caller leaves in the middle of an attempt
		k.noteRefusal()
	}
	return res, err
}

// noteRefusal notes why the last attempt was refused, for the caller and for those behind it.
func (k *localBackend) noteRefusal() {
	r := k.refusal
	k.noteBlocker(k.target.hold, &blocker{lock: k.lock, ttl: -1, at: time.Now(), who: r.Who, cause: r.Cause})
}

// await sleeps until a release is announced, or until the time for another attempt has come.
func (k *localBackend) await(res Answer) (Answer, error) {
	h, r := k.target.hold, k.refusal
	k.noteRefusal()
	switch {
	case k.NoWait:
		return res, send.ErrTimeUp
	case k.isBeside():
		return res, cmp.Or(k.Over(), errRestart)
	}
	if !slices.Equal(k.taken, r.Taken) {
		k.taken = r.Taken
		k.subscription.listenTo(k.lock.Listen(r.Taken))
	}
	wake, ready := k.subscription.awaited()
	k.waitsFor(h)
	delay := k.engine.PollDelay(r.Wait)
	if k.notified { // a release may be announced before the process of the holder has noted it
		delay = min(delay, settleTime)
	}
	if len(k.subscription.unconfirmed) > 1 { // ready is that of the first one
		delay = min(delay, send.MinWait)
	}
	k.notified = false
	if r.Pause > 0 {
		if err := k.Sleep(nil, nil, nil, r.Pause); err != nil {
			return res, err
		}
	}
	if delay > r.Pause {
		if err := k.Sleep(wake, ready, nil, delay); err != nil {
			return res, err
		}
		message, begun := k.subscription.wakeUp()
		if k.notified = message || begun; k.notified {
			k.span.ends(pathNotified)
		}
	}
	k.subscription.confirm()
	return res, nil
}
