package engine

// Orphans: answers to attempts that come after the caller has left.
//
// Rules: a grant that is not needed any more is rolled back by the field of its attempt. It is needed as long as a hold
// of this process has that field. If the caller waits, because another try of the attempt has found the lock busy, the
// grant wakes it. Only the caller that a local queue has admitted waits with a field, or one that needs no queue.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// orphans handles the answers to the tries of an attempt that came too late for the caller.
type orphans struct {
	*acquireOp
	target target
}

// orphansOf returns the handler of an attempt on targets. The operation has memory for that of its first attempt, which
// is the only one as a rule.
func (a *acquireOp) orphansOf(t target) *orphans {
	o := &a.orphans
	if o.acquireOp != nil {
		o = new(orphans)
	}
	*o = orphans{a, t}
	return o
}

func (o *orphans) HandleOrphan(sent time.Time, value any, err error) {
	answer := send.Answer{Value: value, Err: err, Sent: sent}
	res, err := o.target.readResult(&answer)
	o.engine.heard(&o.target, answer.Err)
	o.rollBackOrphan(o.target, res, err)
}

// rollBackOrphan rolls back a try that was answered too late for its caller. Either the caller has given up, or another
// try of the attempt was granted; in that case the late try is rolled back if the hold has ended meanwhile.
func (a *acquireOp) rollBackOrphan(t target, res Answer, err error) {
	mayHold := res.mayHold(err)
	switch {
	case err == nil && !mayHold && !res.LeavesEntry, err != nil && !send.MayHaveActed(err):
		return
	}
	if a.givenUp.Load() || !t.hold.needs(t.Field, mayHold) {
		a.engine.undo(a.Ctx, t.hold.commands(), t.Attempt, nil) // 5
	}
}

// needs reports whether field belongs to a hold of this process, or to an acquire operation that goes on, or MinHold keeps
// what it has acquired. While a release is under way, the record is still needed. After the release has run, a late try
// may have acquired the lock again with the same field. So needs waits until the release has ended, also if another hold
// with the same field is released: it would find the record gone if the late try was rolled back before. If granted is
// set, needs wakes the caller that waits with the field, which a late answer may have granted: the caller of h, or
// another one to which it has left its place in the line.
func (h *hold) needs(field string, granted bool) bool {
	for {
		needed, released := h.needsNow(field, granted)
		switch {
		case released == nil:
			return needed
		case released.enterHold(h.lockState.engine.waitOptionsFor(context.Background())) != nil:
			return true // the Client is closed
		}
		released.unlockHold()
	}
}

// needsNow is needs for now, or returns a hold with field whose release is under way.
func (h *hold) needsNow(field string, granted bool) (needed bool, released *hold) {
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	switch e := s.engine; {
	case !h.has(field): // the caller makes its attempts with another field by now
		return false, nil
	case s.isNeededLocked(field, granted), e.kept.has(field):
		return true, nil
	}
	return false, s.releasedLocked(field)
}
