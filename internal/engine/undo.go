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
func (e rollbacker) rollBack(ctx context.Context, wants []target, unknown int) (done <-chan struct{}) {
	ended := make(chan struct{})
	e.workers.Spawn(func() {
		defer close(ended)
		e.rollBackAll(ctx, wants, unknown)
	})
	return ended
}

// rollBackAll undoes attempts.
func (e rollbacker) rollBackAll(ctx context.Context, wants []target, unknown int) {
	var all sync.WaitGroup
	for _, w := range wants[1:] {
		waitgroup.Go(&all, func() { _ = e.rollBackOne(ctx, w.hold.commands(), w.Attempt, unknown) })
	}
	_ = e.rollBackOne(ctx, wants[0].hold.commands(), wants[0].Attempt, unknown)
	all.Wait()
}

// rollBackOne undoes an attempt. Tries of the attempt without a known answer may still be on
// their way, so rollBackOne repeats the undo a few times. If only one try is unknown, it stops
// as soon as an undo has found the hold. The error describes why the undo failed.
func (e rollbacker) rollBackOne(ctx context.Context, b Record, a Attempt, unknown int) error {
	buried := false
	defer func() {
		if buried {
			e.buried(b, a.Field)
		}
	}()
	for _, pause := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		p := &waitOptions{Wait: send.Wait{Ctx: context.WithoutCancel(ctx), Background: true}}
		if pause > 0 {
			_ = p.sleep(e.closed, nil, pause) // Close ends the pause
		}
		p.Deadline = time.Now().Add(UnlockTime)
		mayRun := a.HoldCount == 1 && e.late.MayRun(a.Field)
		a.Late, a.Share = a.Late || mayRun, e.shareTime()
		answer := e.sender.Do(&p.Wait, send.Request{Call: b.RollBack(a)}, time.Now())
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
func (e rollbacker) heardGrant(b Record, message string) {
	g, ok := ParseLineGrant(message, b.Suffix())
	if !ok {
		return
	}
	n := e.retain(b.ID().Name)
	defer n.release()
	if n.uses(g.Field) {
		return
	}
	e.rollBackSoon(b, g.Field, !e.made(g.Field), 0)
}

// rollBackSoon releases what requests of a wait may have taken with field, its place too, on a goroutine of its own. late
// and unknown are as in an attempt and its undo.
func (e rollbacker) rollBackSoon(b Record, field string, late bool, unknown int) {
	e.workers.Spawn(func() {
		_ = e.rollBackOne(context.Background(), b, Attempt{Field: field, HoldCount: 1, Late: late}, unknown)
	})
}

// callersLeft notes that the callers of an attempt on wants wait no longer for so many of its tries. lost says that
// others may run that nobody hears of.
func (e rollbacker) callersLeft(wants []target, orphans int, lost bool) {
	if orphans > 0 || lost {
		e.late.Left(acquiringFields(wants), orphans, lost)
	}
}

// acquiringFields are the fields of wants that a late try would take something for. A re-entry that runs late takes
// nothing.
func acquiringFields(wants []target) (fields []string) {
	for _, w := range wants {
		if w.HoldCount <= 1 {
			fields = append(fields, w.Field)
		}
	}
	return fields
}

// buried notes that Redis has a tombstone of field, which has ended, and has it taken away as soon as it is not needed.
func (e rollbacker) buried(b Record, field string) {
	if drop := b.Unbury(field); e.late.Buried(field, drop) && drop.Script != nil {
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
