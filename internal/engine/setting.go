package engine

// Settings: requests that set a state of a lock which stays, such as the number of permits of a semaphore.
//
// Rules: a setting has a field of its own, as an attempt does, although it acquires nothing. Its script leaves a
// tombstone of the field, and a run that finds one changes nothing. So a try that runs late, after another one was
// answered, does not undo a setting that was made since. If no try is answered, a rollback leaves the tombstone.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
)

// A setting is one call of Set.
type setting struct {
	*Engine
	kind  contract.Record
	field string
}

// effect is the most that a try may do when it runs late: as for one that acquires, the field needs a tombstone.
func (x setting) effect() late.Effect { return late.Effect{Acquires: true} }

// Set sends the call that call returns for a new field, and repeats it as Ask does.
func (e *Engine) Set(ctx context.Context, kind contract.Record, call func(field string) send.Call) error {
	e.workers.Begin()
	defer e.workers.End()
	x := setting{e, kind, e.fields.newField(OwnerOf(ctx), 1)}
	answer := send.Answer{Err: send.ErrHookExited, Lost: 1} // if a hook of the Redis client ends the goroutine
	defer func() { x.asked(&answer) }()
	request := send.Request{Call: call(x.field), OnOrphan: x}
	answer = e.sender.Do(&e.waitOptionsFor(ctx).Wait, request, time.Time{})
	_, err := answer.Reply()
	return err
}

// asked notes what is known of the tries of x.
func (x setting) asked(answer *send.Answer) {
	x.late.Left(x.field, x.effect(), answer.Orphans, answer.Lost > 0)
	if answer.Err != nil && x.late.MayAcquire(x.field) {
		x.rollBackSoon(x.kind, contract.Attempt{Field: x.field, HoldCount: 1, Lease: x.WatchdogTimeout})
	}
}

// HandleOrphan handles the answer to a try that came too late for the caller.
func (x setting) HandleOrphan(_ time.Time, _ any, err error) {
	x.late.Heard(x.field, x.effect(), !send.MayRunLater(err))
}
