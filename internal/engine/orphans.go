package engine

// Orphans: answers that come when their caller has left.
//
// Rules: a grant that nobody needs any more is undone, by the field of its attempt. While a hold of the same field goes
// on, it is needed.

import (
	"context"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// orphans hears the tries of an attempt on wants that were answered too late for their caller.
type orphans struct {
	*acquireOp
	targets []target
}

func (o *orphans) HandleOrphan(sent time.Time, value any, err error) {
	answer := send.Answer{Value: value, Err: err, Sent: sent}
	res, err := readResult(o.targets, &answer)
	drops := o.engine.late.Heard(acquiringFields(o.targets), !send.MayRunLater(answer.Err))
	o.rollBackOrphan(o.targets, res, err)
	rollbacker{o.engine}.unburyAll(drops)
}

// rollBackOrphan undoes an attempt that was answered too late for its caller. The caller has
// given up; or another try of the attempt was granted, and the hold of that try is over.
func (a *acquireOp) rollBackOrphan(targets []target, res Answer, err error) {
	unknown := 0
	switch {
	case err == nil && res.Status == Busy && !res.leavesEntry:
		return
	case err != nil && send.MayHaveRun(err):
		unknown = 1
	case err != nil && !send.Answered(err): // after an answer, half of the script may have run
		return
	}
	targets = a.backend.present(targets)
	if !a.givenUp.Load() {
		targets = slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return t.hold.needs(t.Field) })
	}
	if len(targets) == 0 {
		return
	}
	rollbacker{a.engine}.rollBackAll(a.Ctx, targets, unknown) // 5
}

// needs reports whether field is that of a hold of this process, or of an acquire that goes on. While a release is
// under way the record must be there, and a late try may have taken it after the release has run: needs waits for its
// end.
func (h *hold) needs(field string) bool {
	s := h.name
	s.Lock()
	defer s.Unlock()
	if field != h.field && (h.record == nil || field != h.record.field) {
		return false // the caller asks with another one by now
	}
	switch h.state {
	case ended:
		if s.enterHoldLocked(s.engine.waitOptionsFor(context.Background()), h) != nil {
			return true // closed
		}
		h.owner.Release()
		return h.record != nil && (h.record.adopted || len(h.record.holds) > 0)
	case lost, expired, lossReported:
		return false
	}
	return true
}
