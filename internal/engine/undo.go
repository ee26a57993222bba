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

// An undoer takes back what Redis may have of this process.
type undoer struct{ *Engine }

// undo has undoAll done by a goroutine of its own, so that a caller that gave up need not wait for it.
func (e undoer) undo(ctx context.Context, wants []want, unknown int) (done <-chan struct{}) {
	ended := make(chan struct{})
	e.workers.Spawn(func() {
		defer close(ended)
		e.undoAll(ctx, wants, unknown)
	})
	return ended
}

// undoAll undoes attempts.
func (e undoer) undoAll(ctx context.Context, wants []want, unknown int) {
	var all sync.WaitGroup
	for _, w := range wants[1:] {
		waitgroup.Go(&all, func() { _ = e.undoOne(ctx, w.hold.verbs(), w.Attempt, unknown) })
	}
	_ = e.undoOne(ctx, wants[0].hold.verbs(), wants[0].Attempt, unknown)
	all.Wait()
}

// undoOne undoes an attempt. Tries of the attempt without a known answer may still be on
// their way, so undoOne repeats the undo a few times. If only one try is unknown, it stops
// as soon as an undo has found the hold. The error describes why the undo failed.
func (e undoer) undoOne(ctx context.Context, b Record, a Attempt, unknown int) error {
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
		mayRun := a.Level == 1 && e.late.MayRun(a.Field)
		a.Late, a.Share = a.Late || mayRun, e.shareTime()
		answer := e.sender.Do(&p.Wait, send.Request{Call: b.Undo(a)}, time.Now())
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
func (e undoer) heardGrant(b Record, message string) {
	g, ok := ParseLineGrant(message, b.Suffix())
	if !ok {
		return
	}
	n := e.use(b.ID().Name)
	defer n.done()
	if n.uses(g.Field) {
		return
	}
	e.undoSoon(b, g.Field, !e.made(g.Field), 0)
}

// undoSoon releases what requests of a wait may have taken with field, its place too, on a goroutine of its own. late
// and unknown are as in an attempt and its undo.
func (e undoer) undoSoon(b Record, field string, late bool, unknown int) {
	e.workers.Spawn(func() {
		_ = e.undoOne(context.Background(), b, Attempt{Field: field, Level: 1, Late: late}, unknown)
	})
}

// callersLeft notes that the callers of an attempt on wants wait no longer for so many of its tries. lost says that
// others may run that nobody hears of.
func (e undoer) callersLeft(wants []want, orphans int, lost bool) {
	if orphans > 0 || lost {
		e.late.Left(takingFields(wants), orphans, lost)
	}
}

// takingFields are the fields of wants that a late try would take something for. A re-entry that runs late takes
// nothing.
func takingFields(wants []want) (fields []string) {
	for _, w := range wants {
		if w.Level <= 1 {
			fields = append(fields, w.Field)
		}
	}
	return fields
}

// buried notes that Redis has a tombstone of field, which has ended, and has it taken away as soon as it is not needed.
func (e undoer) buried(b Record, field string) {
	if drop := b.Unbury(field); e.late.Buried(field, drop) && drop.Script != nil {
		e.workers.Spawn(func() { e.unburyAll([]send.Call{drop}) })
	}
}

// unburyAll takes tombstones away. One that stays because Redis does not answer costs other scripts hardly
// anything.
func (e undoer) unburyAll(drops []send.Call) {
	for _, drop := range drops {
		if e.sender.Narrowed() {
			return // there are no tombstones
		}
		w := send.Wait{Ctx: context.Background(), Closed: e.closed, Background: true}
		w.Deadline = time.Now().Add(send.ResendTime)
		_ = e.sender.Once(&w, send.Request{Call: drop})
	}
}
