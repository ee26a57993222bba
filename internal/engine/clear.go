package engine

// Clearing: how what a hold that has ended may have left in Redis is released.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
)

// clearRecord deletes the record, and keeps it until MinHold has passed before that. If Redis cannot be reached, it goes on
// in the background for as long as the record may exist.
func clearRecord(h *hold) {
	e, ctx := h.lockState.engine, h.owner.In(context.Background())
	if !keepRecord(ctx, h) {
		left := contract.Attempt{Field: h.Field().ID, HoldCount: 1, Lease: time.Until(recordEnd(h))}
		e.undo(ctx, h.commands(), left, h)
	}
	h.leaveQueue()
}
