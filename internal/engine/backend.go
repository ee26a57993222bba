package engine

// Backends: where the holds of an acquisition are. Those of most locks are records in Redis. The hold of a RedLock is at its
// nodes: a keeper has it there.
//
// Rules: an acquisition asks, waits, and takes back what it has asked for through its backend, and knows nothing else of
// it. A keeper belongs to one hold. It knows no hold but its own, and no mutex of this package is held when it is called.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A backend is where the holds of one acquisition are.
type backend interface {
	// admit waits until this caller of the process may make an attempt.
	admit() error
	// ask makes one attempt on all wants. Later tries of it go on for a while after lastReply, if that is not zero.
	ask(lastReply time.Time) (Answer, error)
	// answered notes that the answer to an attempt, which was sent at sent, came in time.
	answered(sent time.Time)
	// await sleeps after the answer res, which says busy, until another attempt may be granted. It returns the grant where
	// the caller was granted the lock meanwhile, and else res.
	await(res Answer) (Answer, error)
	// rollback takes back what the attempts have left. returned is false where a panic, or the end of the goroutine, ended the
	// acquisition.
	rollback(res Answer, err error, returned bool)
	// dismissLocked ends a want that was not granted, or that the caller cannot keep.
	dismissLocked(w want, res Answer)
	// present is wants, of an earlier attempt, with the holds that the caller has now.
	present(wants []want) []want
}

// A KeptLock is a lock whose holds have keepers and no records.
type KeptLock interface {
	Lock
	// NewKeeper is the keeper of a fresh hold of o. It calls check when its answer to check may have changed, from a
	// goroutine of its own.
	NewKeeper(o Owner, check func()) Keeper
	// CheckLease says why a hold cannot have this lease.
	CheckLease(lease time.Duration) error
}

// A Keeper keeps a hold that has no record of its own in Redis. No request renews such a hold: the watchdog asks
// its keeper every third of the lease, and every check of the hold asks the keeper too.
type Keeper interface {
	// Ask makes one attempt. The refusal says why it is busy. ask returns false for gone where the hold that is to be
	// re-entered is over.
	Ask(p *send.Wait, a Attempt) (Answer, Refusal, error)
	// Over says whether the hold was given back, or lost: another attempt needs a new keeper.
	Over() bool
	// Listen listens to the releases of what a refusal has found taken.
	Listen(taken []int) []*wake.Listener
	// Lower gives back the levels above level. It does not block; settled waits until it is done, no longer than limit.
	Lower(ctx context.Context, level int) (settled func(limit time.Duration))
	// SetLevels gives back the levels above left, and says whether the hold was there.
	SetLevels(p *send.Wait, left int) (there bool, err error)
	// Extend lets the hold last for lease from sent on.
	Extend(ctx context.Context, lease time.Duration) (sent time.Time, err error)
	// Check says why the hold can no longer be trusted, or nil. It does not use the clock of the watchdog.
	Check() error
	// Renew says whether the hold can be trusted further, and repairs its parts. It does not block.
	Renew() bool
	// Lost is called when the hold was lost, and gives back the rest of it. It does not block.
	Lost()
}

// A Refusal is why an attempt of a keeper is busy, and when to ask again.
type Refusal struct {
	Taken []int         // what other owners have, and announce the release of
	Pause time.Duration // ask no sooner
	Wait  time.Duration // ask no later; negative: when a release is announced
	Cause error         // it could not be granted anyway; nil: other owners are in the way
	Who   string        // is in the way
}

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

// ask has a keeper make one attempt. A hold that has given back its last attempt gets a new keeper, so that late answers to that
// attempt are given back.
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
