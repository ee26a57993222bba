package engine

// Acquiring a lock that has a keeper in place of a record.
//
// Rules: a hold that has released its last attempt gets a new keeper. What the caller does not hold in the end, its
// keeper releases.

import (
	"errors"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// atKeeper is the backend of a KeptLock.
type atKeeper struct {
	oneLock
	lock     KeptLock
	refusal  Refusal
	taken    []int // that subscription listens to
	notified bool  // a release has ended the last sleep
}

// takeKept makes the lock the caller's, or not.
func (e *Engine) takeKept(p *waitOptions, n *name, l KeptLock, o Owner, r Request) error {
	h, err := n.lockHold(p, l, o, true)
	if err != nil {
		return err
	}
	defer h.unlockHold()
	k := &atKeeper{lock: l}
	k.begin(p, k, h, r)
	if err := k.wants[0].prepare(r); err != nil {
		return err
	}
	w := k.wants[0]
	if err := l.CheckLease(w.Lease); err != nil {
		return err
	}
	granted := false
	defer func() { // also when a ctx of the user has panicked
		if h.keeper != nil && !granted {
			h.keeper.Lower(k.Ctx, w.Level-1)
		}
	}()
	if err := k.finish(p); err != nil {
		return err
	}
	granted = true
	h.checkKeeper() // it may have changed before the hold was confirmed
	return nil
}

// checkKeeper ends the hold if its keeper does not have it any more.
func (h *hold) checkKeeper() {
	if k := h.keeper; !k.Over() && k.Check() != nil {
		h.loseIfDue()
	}
}

func (k *atKeeper) admit() error { return k.enterQueue() }

// ask has a keeper make one attempt. A hold that has released its last attempt gets a new keeper, so that late
// answers to that attempt are released.
func (k *atKeeper) ask(time.Time) (res Answer, err error) {
	w := k.wants[0]
	if h := w.hold; w.Level == 1 && (h.keeper == nil || h.keeper.Over()) {
		h.keeper = k.lock.NewKeeper(h.key.owner, h.checkKeeper)
	}
	res, refused, err := w.hold.keeper.Ask(&k.Wait, w.Attempt)
	if err == nil {
		k.refusal, k.cause = refused, refused.Cause
	}
	return res, err
}

// answered does nothing: the answers of a keeper say nothing of one round trip.
func (k *atKeeper) answered(time.Time) {}

// await sleeps until a release is announced, or until it is time to ask again.
func (k *atKeeper) await(res Answer) (Answer, error) {
	h, r := k.wants[0].hold, k.refusal
	switch {
	case k.isPastQueue():
		return res, k.rejoinQueue(k.wants[0], res)
	case k.NoWait:
		return res, send.ErrTimeUp
	}
	k.lastReply = time.Now()
	k.noteObstacle(h, &obstacle{lock: k.lock, at: time.Now(), who: r.Who, known: r.Cause != nil})
	h.interrupt()
	if !slices.Equal(k.taken, r.Taken) {
		k.taken = r.Taken
		k.subscription.listenTo(h.keeper.Listen(r.Taken))
	}
	wake, ready := k.subscription.awaited()
	k.span.waits()
	k.span.ends(pathPolled)
	delay := k.engine.PollDelay(r.Wait)
	if k.notified { // a release may be announced before the process of the holder has noted it
		delay = min(delay, reserveTime)
	}
	k.notified = false
	if r.Pause > 0 {
		if err := k.sleep(nil, nil, r.Pause); err != nil {
			return res, err
		}
	}
	if delay > r.Pause {
		slept := time.Now()
		if err := k.sleep(wake, ready, delay); err != nil {
			return res, err
		}
		if k.notified = time.Since(slept) < delay; k.notified {
			k.span.ends(pathNotified)
		}
	}
	k.subscription.confirm()
	return res, nil
}

// rollback waits for what was granted too late: takeKept gives it back.
func (k *atKeeper) rollback(_ Answer, err error, _ bool) {
	if w := k.wants[0]; errors.Is(err, ErrLate) && w.hold.keeper != nil {
		w.hold.keeper.Lower(k.Ctx, w.Level-1)(send.MinWait)
	}
}

func (k *atKeeper) dismissLocked(w want, _ Answer) {
	if w.hold.state == fresh {
		w.hold.leaveQueueLocked()
	}
}
