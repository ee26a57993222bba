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
	wants []target
}

func (o *orphans) HandleOrphan(sent time.Time, value any, err error) {
	answer := send.Answer{Value: value, Err: err, Sent: sent}
	res, err := readResult(o.wants, &answer)
	drops := o.engine.late.Heard(acquiringFields(o.wants), !send.MayRunLater(answer.Err))
	o.rollBackOrphan(o.wants, res, err)
	rollbacker{o.engine}.unburyAll(drops)
}

// rollBackOrphan undoes an attempt that was answered too late for its caller. The caller has
// given up; or another try of the attempt was granted, and the hold of that try is over.
func (a *acquireOp) rollBackOrphan(wants []target, res Answer, err error) {
	unknown := 0
	switch {
	case err == nil && res.Status == Busy && !res.leavesEntry:
		return
	case err != nil && send.MayHaveRun(err):
		unknown = 1
	case err != nil && !send.Answered(err): // after an answer, half of the script may have run
		return
	}
	wants = a.backend.present(wants)
	if !a.givenUp.Load() {
		wants = slices.DeleteFunc(slices.Clone(wants), func(w target) bool { return w.hold.needs(w.Field) })
	}
	if len(wants) == 0 {
		return
	}
	rollbacker{a.engine}.rollBackAll(a.Ctx, wants, unknown) // 5
}

// needs reports whether field is that of a hold of this process, or of an acquire that goes on. While a release is
// under way the record must be there, and a late try may have taken it after the release has run: needs waits for its
// end.
func (h *hold) needs(field string) bool {
	n := h.name
	n.Lock()
	defer n.Unlock()
	if field != h.field && (h.record == nil || field != h.record.field) {
		return false // the caller asks with another one by now
	}
	switch h.state {
	case ended:
		if n.enterHoldLocked(n.engine.waitOptionsFor(context.Background()), h) != nil {
			return true // closed
		}
		h.owner.Release()
		return h.record != nil && (h.record.adopted || len(h.record.holds) > 0)
	case lost, expired, lossReported:
		return false
	}
	return true
}
