package engine

// Clearing: how what a hold that has ended may have left in Redis is released.

import (
	"context"

	"github.com/relock-go/relock/internal/contract"
)

// clearRecord deletes the record, and keeps it until MinHold has passed before that. It retries for as long as the
// record may exist: until its lease has expired, and while the owner holds the counterpart of the lock, whose renewals extend the
// same lease.
func clearRecord(h *hold) {
	e := h.lockState.engine
	ctx := h.owner.In(context.Background())
	if keepRecord(ctx, h) {
		return
	}
	isOver := untilOver(h)
	for e.rollBackOne(ctx, h.commands(), contract.Attempt{Field: h.Field().ID, HoldCount: 1}) != nil &&
		(!isOver() || keptByCounterpart(h)) {
		if e.Pause(ctx, clearPause) != nil {
			break // the engine is closed: no lease is renewed any more
		}
	}
	h.leaveQueue()
}
