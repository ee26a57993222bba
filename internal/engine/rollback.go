package engine

// Rolling back: what attempts and releases may have left in Redis is removed when no caller needs it any more. An
// attempt that was given up is rolled back by its field. A field that has ended does not acquire the lock again, even
// if Redis runs a request with this field late.
//
// Rules: a rollback sets a state and adds nothing, so it may run twice, and late. internal/late knows for each field
// the tries that may still run although no caller waits for them. Only if one of them acquires does a release or a
// rollback leave a tombstone in Redis (internal/lua/tombstones.lua), which lasts for longer than any of them can run.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
)

// mostUndone is how many attempts are rolled back for longer at a time: see undo.
const mostUndone = 1000

// undo rolls back one attempt as rollBackOne does. If Redis cannot be reached, or refuses writes for some time, undo
// goes on for as long as the attempt may leave a record: a request waits in its connection while Redis is paused, and
// acquires the lock when Redis continues. In an outage there may be as many attempts as callers that have given up. If
// there are very many, the records with leases that are no longer than a watchdog timeout are left to their leases, and
// so are those of attempts that Redis has probably refused, too. If ended is not nil, it is the hold whose record a
// stands for: then undo goes on whatever Redis answers, and while the counterpart keeps the record.
func (e *Engine) undo(ctx context.Context, kind contract.Record, a contract.Attempt, ended *hold) {
	end := e.mayLeaveUntil(a.Field, a.Lease)
	goesOn := func(err error) bool {
		switch {
		case err == nil || a.HoldCount > 1 || send.RedisClosed(err):
			return false
		case ended == nil:
			return send.MayPass(err) && time.Now().Before(end)
		}
		return time.Now().Before(end) || keptByCounterpart(ended)
	}
	err := e.rollBackOne(ctx, kind, a)
	if !goesOn(err) {
		return
	}
	defer e.undoing.Add(-1)
	if e.undoing.Add(1) > mostUndone && ended == nil && (a.Lease <= e.WatchdogTimeout || !send.Transient(err)) {
		return
	}
	for goesOn(err) && e.Pause(context.Background(), clearPause) == nil {
		err = e.rollBackOne(ctx, kind, a)
	}
}

// mayLeaveUntil returns until when requests with field, which ask for this lease, may leave a record: those that have
// run, and those that may still run.
func (e *Engine) mayLeaveUntil(field string, lease time.Duration) time.Time {
	end := time.Now().Add(bounded(lease))
	if e.late.MayAcquire(field) {
		end = end.Add(late.Life)
	}
	return end
}

// rollBackOne rolls back one attempt, and returns why this has failed.
func (e *Engine) rollBackOne(ctx context.Context, kind contract.Record, a contract.Attempt) error {
	return e.repeat(ctx, a.Field, func(mayRun bool) send.Call {
		a.Late, a.Share = mayRun && a.HoldCount == 1, e.shareTime()
		return kind.RollBack(a)
	})
}

// repeat sends the call that undoes what requests with field may have done. As long as one of them may still run that
// acquires, it repeats the call, which leaves a tombstone if mayRun is set, a few times, or until it has undone something:
// not all lock types have tombstones.
func (e *Engine) repeat(ctx context.Context, field string, undo func(mayRun bool) send.Call) error {
	for _, pause := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		wait := send.Wait{Ctx: context.WithoutCancel(ctx), Background: true}
		if pause > 0 {
			_ = wait.Sleep(e.closed, nil, nil, pause) // Close cuts the pause short
		}
		wait.Deadline = time.Now().Add(UnlockTime)
		mayRun := e.late.MayAcquire(field)
		answer := e.sender.Do(&wait, send.Request{Call: undo(mayRun)}, time.Now())
		if r, err := answer.Reply(); !mayRun || r[0] == 1 || err != nil { // if it fails, the caller decides
			return err
		}
	}
	return nil
}

// heardGrant handles a message that grants the lock to a field of this process. If no caller waits with this field any
// more, and MinHold does not keep what it has acquired, it releases the lock. A message that names a field that this
// process has not made is forged: what it would release may be the hold of a caller to come, or one that another process
// attaches. The goroutine that reads the messages of Redis calls heardGrant, so it does not block.
func (e *Engine) heardGrant(kind contract.Record, message string) {
	g, ok := ParseLineGrant(message, kind.Traits().Suffix)
	if !ok || !e.fields.made(g.Field) {
		return
	}
	s := e.retain(kind.Traits().ID.Name)
	defer s.release()
	if s.uses(g.Field) || e.kept.has(g.Field) { // in this order: a release keeps its field before it ends
		return
	}
	attempt := contract.Attempt{Field: g.Field, HoldCount: 1, Lease: g.Lease}
	e.workers.Spawn(func() { e.undo(context.Background(), kind, attempt, nil) })
}

// callersLeft notes that the caller of the attempt t has left while some of its tries may still run. orphans is the number
// of those whose outcome will be known later, and lost reports whether there are others.
func (e *Engine) callersLeft(t *target, orphans int, lost bool) {
	e.late.Left(t.Field, t.effect(), orphans, lost)
}

// heard notes the outcome of a try of the attempt t whose caller has left, which ended with err.
func (e *Engine) heard(t *target, err error) {
	e.late.Heard(t.Field, t.effect(), !send.MayRunLater(err))
	mayLast(t.hold, t.Lease, err) // if it is a re-entry; a grant that no hold keeps is rolled back
}
