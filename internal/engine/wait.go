package engine

// The wait of one caller of a lock: its limits, and its findings so far.
//
// Rules: send.Wait ends every wait: by a wake-up, its time, the ctx, or Close.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

type waitOptions struct {
	send.Wait
	bypass    bool          // the next attempt is made past the wait queue
	foundBusy bool          // an attempt past the wait queue has found a counted lock busy
	number    uint64        // of the waiter that was refused in a wait queue; 0: there is none
	span      *span         // of the call, or nil
	blocker   *blocker      // that the last attempt found, or nil
	changed   chan struct{} // ends a sleep too: see group; or nil
}

// A patientKey is the key of the value of a ctx that bounds itself how long an attempt without wait stays for its
// answer.
type patientKey struct{}

func Patiently(ctx context.Context) context.Context {
	return context.WithValue(ctx, patientKey{}, true)
}

func isPatient(ctx context.Context) bool { return ctx.Value(patientKey{}) != nil }

// changes is the channel that wakes the caller when its owner comes to hold the other half of kind; nil: kind has none.
func (op *waitOptions) changes(kind Lock) chan struct{} {
	if op.changed == nil && kind.Counterpart() != (LockID{}) {
		op.changed = make(chan struct{}, 1)
	}
	return op.changed
}

// sleep returns nil when one of the channels is ready or d has passed (0: no limit), or the
// reason why there is no more time.
func (op *waitOptions) sleep(wake, ready <-chan struct{}, d time.Duration) error {
	return op.Sleep(wake, ready, op.changed, d)
}
