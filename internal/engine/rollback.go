package engine

// Undoing: what attempts and releases may have left in Redis that nobody has any more is taken back. An attempt that
// was given up is undone by its field. A field that has ended never takes the lock again while a request may still run
// that asks with it.
//
// Rules: an undo sets a state, so that it may run twice, and late. internal/late counts, for each field, the tries that
// may still run although no caller waits for them. Only where there are some does a release or an undo leave a
// tombstone in Redis (lua/tombstones.lua), which is taken away when nothing can run any more.

import (
	"context"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// An rollbacker takes back what Redis may have of this process.
type rollbacker struct{ *Engine }

// rollBack has rollBackAll done by a goroutine of its own, so that a caller that gave up need not wait for it.
func (e rollbacker) rollBack(ctx context.Context, targets []target, unknown int) (done <-chan struct{}) {
	ended := make(chan struct{})
	e.workers.Spawn(func() {
		defer close(ended)
		e.rollBackAll(ctx, targets, unknown)
	})
	return ended
}

// rollBackAll undoes attempts.
func (e rollbacker) rollBackAll(ctx context.Context, targets []target, unknown int) {
	var all sync.WaitGroup
	for _, t := range targets[1:] {
		waitgroup.Go(&all, func() { _ = e.rollBackOne(ctx, t.hold.commands(), t.Attempt, unknown) })
	}
	_ = e.rollBackOne(ctx, targets[0].hold.commands(), targets[0].Attempt, unknown)
	all.Wait()
}

// rollBackOne undoes an attempt. Tries of the attempt without a known answer may still be on
// their way, so rollBackOne repeats the undo a few times. If only one try is unknown, it stops
// as soon as an undo has found the hold. The error describes why the undo failed.
func (e rollbacker) rollBackOne(ctx context.Context, kind Record, a Attempt, unknown int) error {
	buried := false
	defer func() {
		if buried {
			e.buried(kind, a.Field)
		}
	}()
	for _, pause := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		op := &waitOptions{Wait: send.Wait{Ctx: context.WithoutCancel(ctx), Background: true}}
		if pause > 0 {
			_ = op.sleep(e.closed, nil, pause) // Close ends the pause
		}
		op.Deadline = time.Now().Add(UnlockTime)
		mayRun := a.HoldCount == 1 && e.late.MayRun(a.Field)
		a.Late, a.Share = a.Late || mayRun, e.shareTime()
		answer := e.sender.Do(&op.Wait, send.Request{Call: kind.RollBack(a)}, time.Now())
		r, err := answer.Reply()
		buried = buried || mayRun && err == nil
		there := r[0] == 1
		if unknown == 0 || unknown == 1 && there || err != nil { // a hold whose undo fails expires with its lease
			return err
		}
	}
	return nil
}

// heardGrant releases a grant to a wait of this process that is over. It is called by the goroutine that reads
// messages.
func (e rollbacker) heardGrant(kind Record, message string) {
	g, ok := ParseLineGrant(message, kind.Suffix())
	if !ok {
		return
	}
	s := e.retain(kind.ID().Name)
	defer s.release()
	if s.uses(g.Field) {
		return
	}
	e.rollBackSoon(kind, g.Field, !e.made(g.Field), 0)
}

// rollBackSoon releases what requests of a wait may have taken with field, its place too, on a goroutine of its own. late
// and unknown are as in an attempt and its undo.
func (e rollbacker) rollBackSoon(kind Record, field string, late bool, unknown int) {
	e.workers.Spawn(func() {
		_ = e.rollBackOne(context.Background(), kind, Attempt{Field: field, HoldCount: 1, Late: late}, unknown)
	})
}

// callersLeft notes that the callers of an attempt on targets wait no longer for so many of its tries. lost says that
// others may run that nobody hears of.
func (e rollbacker) callersLeft(targets []target, orphans int, lost bool) {
	if orphans > 0 || lost {
		e.late.Left(acquiringFields(targets), orphans, lost)
	}
}

// acquiringFields are the fields of targets that a late try would take something for. A re-entry that runs late takes
// nothing.
func acquiringFields(targets []target) (fields []string) {
	for _, t := range targets {
		if t.HoldCount <= 1 {
			fields = append(fields, t.Field)
		}
	}
	return fields
}

// buried notes that Redis has a tombstone of field, which has ended, and has it taken away as soon as it is not needed.
func (e rollbacker) buried(kind Record, field string) {
	if drop := kind.Unbury(field); e.late.Buried(field, drop) && drop.Script != nil {
		e.workers.Spawn(func() { e.unburyAll([]send.Call{drop}) })
	}
}

// unburyAll takes tombstones away. One that stays because Redis does not answer costs other scripts hardly
// anything.
func (e rollbacker) unburyAll(drops []send.Call) {
	for _, drop := range drops {
		if e.sender.Degraded() {
			return // there are no tombstones
		}
		w := send.Wait{Ctx: context.Background(), Closed: e.closed, Background: true}
		w.Deadline = time.Now().Add(send.ResendTime)
		_ = e.sender.Once(&w, send.Request{Call: drop})
	}
}
