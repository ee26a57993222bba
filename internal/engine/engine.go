// Package engine does what is the same for every lock type: it acquires and releases locks, keeps the holds of a
// process, and hands locks off. A lock type is data: it builds the calls of its scripts, and reads their replies. Read
// package contract first.
//
// An engine acquires locks (acquire.go) and releases them (release.go). It keeps the state of each lock that this
// process uses (lockstate.go, hold.go). It hands a lock off to the next goroutine of the process
// (handoff.go, sharing.go). In the line, which is the wait queue of a lock in Redis, it waits until the turn of the
// process comes (line.go). Package relock has what users see, and what is particular to Redis and to Redisson.
//
// The files are in layers. The state of a lock name is at the bottom: lockstate.go, claim.go, hold.go and queue.go
// know each other, and this file. No other files do: each one is understood with those below it.
//
// Rules: a request may run more than once, and late. Every script sets a state instead of adding to one, and names the
// field of its acquire operation. So the sender repeats a request without an answer unchanged. Only a forced release is
// sent once.
package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/hints"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
)

// An Engine acquires, keeps and releases the locks of one Client.
type Engine struct {
	Config

	Services
	poller   *poller.Poller
	watchdog *lease.Watchdog
	life     context.Context // canceled by Close
	endLife  context.CancelFunc
	leaving  context.Context // canceled by Shutdown or Close
	leave    context.CancelFunc

	isLeaving, isClosed atomic.Bool

	// These call what depends on lock states, which do not depend on it.
	fulfil     func(*duty) // carries a duty out
	slowBegins func()      // slowWatch.begins

	slowWalks atomic.Bool // there is a goroutine of the slowWatch

	table   stateTable
	expired chan *hold       // the latest lost holds with explicit leases: see remember
	limited chan *hold       // the latest holds that MaxHold has ended
	losses  report.LineLimit // only the reporter uses it
	hints   *hints.Channel
	late    late.Requests
	missed  atomic.Int64 // when this Client last missed a grant, on the clock of the watchdog; 0: never
	kept    *keptFields
	undoing atomic.Int64 // attempts that are rolled back in the background: see undo

	rtt    handoff.RoundTrip
	fields fieldMaker
}

// Inspect asks Redis for the state of a lock, and whether the hold with this field has it.
func (e *Engine) Inspect(ctx context.Context, kind contract.Record, field string) (contract.View, error) {
	r, err := e.Ask(ctx, kind.Inspect(field))
	return contract.View{Locked: r[0] > 0, Held: r[1] > 0, TTL: send.FromMilliseconds(r[2])}, err
}

// pace returns how fast locks change hands here, as far as e has measured it.
func (e *Engine) pace() handoff.Pace { return handoff.PaceOf(e.rtt.Get(), e.HandoffWindow) }

// shareTime is how long a line may keep a lock to itself: see Release.Share.
func (e *Engine) shareTime() time.Duration { return max(e.pace().Window, LeastShare) }

// Open returns ErrClosed after Shutdown or Close, when no caller can acquire a lock any more, and otherwise nil.
func (e *Engine) Open() error {
	if e.isLeaving.Load() {
		return send.ErrClosed
	}
	return nil
}

// Alive returns ErrClosed after Close, and otherwise nil.
func (e *Engine) Alive() error {
	if e.isClosed.Load() {
		return send.ErrClosed
	}
	return nil
}

// UntilClosed returns a copy of ctx that is also canceled, with the cause ErrClosed, by Shutdown or Close, or, if ctx
// carries an agent, by Close. The caller must call stop when it does not need the copy any more.
func (e *Engine) UntilClosed(ctx context.Context) (_ context.Context, stop func()) {
	end := e.leaving
	if OwnerOf(ctx).agent() != nil {
		end = e.life
	}
	ctx, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(end, func() { cancel(send.ErrClosed) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// noteAcquire notes that a lock is about to be acquired: see Config.OnAcquire.
func (e *Engine) noteAcquire() {
	if e.OnAcquire != nil {
		e.OnAcquire()
	}
}

// noteSlow notes that a lock is not held for a moment only: see Config.OnSlow.
func (e *Engine) noteSlow() {
	if e.OnSlow != nil {
		e.OnSlow()
	}
}
