package engine

// Acquiring and keeping a lock whose holds are votes instead of records: a RedLock.
//
// Rules: a hold whose last attempt was released gets a new Vote. The Vote releases all that the caller does not hold in
// the end.

import (
	"errors"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// settleTime is how long a caller waits at most after a message, because a release may be announced before the process of the
// holder has noted it.
const settleTime = 100 * time.Millisecond

// roundTime is how long an attempt takes if one of the nodes does not answer, with the default timeout of nodes.
const roundTime = send.MinWait + send.MinWait/4

// A voteBackend is the backend of a VotedLock.
type voteBackend struct {
	oneLock
	lock     VotedLock
	refusal  Refusal
	taken    []int // the nodes that subscription listens to
	notified bool  // a message has ended the last sleep
}

// checkVote ends the hold as lost if v, its vote, is not valid any more. A vote that was replaced is over, and may still
// call checkVote. So checkVote does not read h.vote, which the caller of ask may be setting.
func (h *hold) checkVote(v Vote) {
	if !v.Over() && v.Check() != nil {
		h.loseIfDue()
	}
}

func (k *voteBackend) admit() error {
	return k.enter(func() { k.asksLocked(roundTime) })
}

// ask makes one attempt with the Vote of the hold. If the last attempt was released, it makes a new Vote, so that late
// answers to the last attempt are released too.
func (k *voteBackend) ask(time.Time) (res Answer, err error) {
	t := k.target
	if h := t.hold; t.HoldCount == 1 && (h.vote == nil || h.vote.Over()) {
		h.vote = k.lock.NewVote(h.owner, h.checkVote)
	}
	res, refused, err := t.hold.vote.Ask(&k.Wait, t.Attempt)
	if err == nil {
		k.refusal, k.cause = refused, refused.Cause
	} else if refused.isBusy() { // the caller leaves in the middle of a round
		k.refusal, k.cause = refused, nil
		k.noteRefusal()
	}
	return res, err
}

// noteRefusal notes what the nodes have answered, for the caller and for those behind it.
func (k *voteBackend) noteRefusal() {
	r := k.refusal
	k.noteBlocker(k.target.hold, &blocker{lock: k.lock, ttl: -1, at: time.Now(), who: r.Who, cause: r.Cause})
}

// answered does nothing: the time of an attempt is not that of one round trip.
func (k *voteBackend) answered(time.Duration) {}

// await sleeps until a release is announced, or until the time for another attempt has come.
func (k *voteBackend) await(res Answer) (Answer, error) {
	h, r := k.target.hold, k.refusal
	k.noteRefusal()
	switch {
	case k.bypassesQueue():
		return res, k.rejoinQueue(k.target)
	case k.NoWait:
		return res, send.ErrTimeUp
	}
	k.lastReply = time.Now()
	h.interrupt()
	if !slices.Equal(k.taken, r.Taken) {
		k.taken = r.Taken
		k.subscription.listenTo(h.vote.Listen(r.Taken))
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
		if err := k.sleep(nil, nil, r.Pause); err != nil {
			return res, err
		}
	}
	if delay > r.Pause {
		if err := k.sleep(wake, ready, delay); err != nil {
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

// rollback releases what was granted too late, and waits for that, but not for long. acquireVote releases everything
// else that the caller does not keep.
func (k *voteBackend) rollback(_ Answer, err error, _ bool) {
	if t := k.target; errors.Is(err, ErrLate) && t.hold.vote != nil {
		t.hold.vote.Lower(k.Ctx, t.HoldCount-1)(send.MinWait)
	}
}

func (k *voteBackend) dismissLocked(t target, _ Answer) {
	if t.hold.Asks() {
		t.hold.leaveQueueLocked()
	}
}

// acquireVote runs one acquire operation for l.
func (e *Engine) acquireVote(op *waitOptions, s *lockState, l VotedLock, o Owner, r Request) (*hold, error) {
	var t target
	if err := s.lockTarget(op, l, o, &r, &t); err != nil {
		return nil, err
	}
	h := t.hold
	defer h.unlockHold()
	k := &voteBackend{lock: l}
	k.begin(op, k, t)
	if err := l.CheckLease(t.Lease); err != nil {
		return nil, err
	}
	granted := false
	defer func() { // also after a panic of a context of the user
		if h.vote != nil && !granted {
			h.vote.Lower(k.Ctx, t.HoldCount-1)
		}
	}()
	if err := k.finish(op); err != nil {
		return nil, err
	}
	granted = true
	h.checkVote(h.vote) // the vote may have changed before the hold was confirmed
	return h, nil
}
