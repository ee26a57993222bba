package engine

// Clearing: how what a hold that has ended may have left in Redis is released.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
)

// clearRecord deletes the record, and keeps it until MinHold has passed before that. If Redis cannot be reached, it goes on
// for as long as the record may exist. The next waiter of the local queue makes an attempt meanwhile, and finds the lock
// busy.
func clearRecord(h *hold) {
	e, ctx := h.lockState.engine, h.owner.In(context.Background())
	h.leaveQueue()
	if !keepRecord(ctx, h) {
		left := contract.Attempt{Field: h.Field().ID, HoldCount: 1, Lease: time.Until(recordEnd(h))}
		e.undo(ctx, h.commands(), left, h)
	}
}
