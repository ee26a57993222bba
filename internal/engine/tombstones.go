package engine

// Tombstones: a field that has ended never takes the lock again while a request may still run that asks with it.
//
// Rules: internal/late counts, for each field, the tries that may still run although no caller waits for them. Only where
// there are some does a release or an undo leave a tombstone in Redis (lua/line.lua), which is taken away when nothing can
// run any more.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// callersLeft notes that the callers of an attempt on wants wait no longer for so many of its tries. lost says that others
// may run that nobody hears of.
func (e *Engine) callersLeft(wants []want, orphans int, lost bool) {
	if orphans > 0 || lost {
		e.late.Left(takingFields(wants), orphans, lost)
	}
}

// takingFields are the fields of wants that a late try would take something for. A re-entry that runs late takes nothing.
func takingFields(wants []want) (fields []string) {
	for _, w := range wants {
		if w.Level <= 1 {
			fields = append(fields, w.Field)
		}
	}
	return fields
}

// buried notes that Redis has a tombstone of field, which has ended, and has it taken away as soon as it is not needed.
func (e *Engine) buried(b Record, field string) {
	if drop := b.Unbury(field); e.late.Buried(field, drop) && drop.Script != nil {
		e.workers.Spawn(func() { e.dropTombstones([]send.Call{drop}) })
	}
}

// dropTombstones takes tombstones away. One that stays because Redis does not answer costs other scripts hardly
// anything.
func (e *Engine) dropTombstones(drops []send.Call) {
	for _, drop := range drops {
		if e.sender.Narrowed() {
			return // there are no tombstones
		}
		w := send.Wait{Ctx: context.Background(), Closed: e.closed, Background: true}
		w.Deadline = time.Now().Add(send.ResendTime)
		_ = e.sender.Once(&w, send.Request{Call: drop})
	}
}
