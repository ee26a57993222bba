package relock

// Tombstones: a field that has ended never takes the lock again while a request may still run that asks with it.
//
// Rules: the engine counts, for each field, the tries that may still run although no caller waits for them. Only where
// there are some does a release or an undo leave a tombstone in Redis (lua/line.lua). A field that has ended is not
// asked for again. So when the outcomes of all these tries are known, nothing can run any more, and the tombstone is
// taken away. Where a connection has failed, the try may be on its way for as long as the tombstone lasts, which stays
// then.

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/send"
)

const (
	tombstoneLife = time.Minute // see lua/line.lua
	mostLost      = 64          // fields with lost tries before the engine looks which it can forget
)

var tombstoneUndo = script("tombstone_undo")

// lateTries are the tries of attempts that may still run although no caller waits for them. A field without any is not
// in it.
type lateTries struct {
	n atomic.Int64 // len(fields): most engines have none

	mu     sync.Mutex // guards below
	fields map[string]*fieldTries
	lost   int // fields with lost tries, about
}

// fieldTries are those of one field.
type fieldTries struct {
	open int       // tries whose outcome will be heard; below 0 where it was heard before the caller had left
	lost time.Time // until when tries may run whose outcome nobody hears; zero: there are none
	drop call      // takes away the tombstone of the field; no script: Redis has none
}

// left notes that the caller of an attempt on wants waits no longer for so many tries. lost says that others may run
// that nobody hears of.
func (l *lateTries) left(wants []want, orphans int, lost bool) {
	if orphans == 0 && !lost {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range wants {
		l.addLocked(w, orphans, lost)
	}
}

// heard notes the outcome of one such try. known says that the try has run or never runs. It returns the calls that
// take away tombstones that are not needed any more.
func (l *lateTries) heard(wants []want, known bool) (drops []call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range wants {
		if drop := l.addLocked(w, -1, !known); drop.Script != nil {
			drops = append(drops, drop)
		}
	}
	return drops
}

// addLocked adds open tries of w. A re-entry that runs late takes nothing.
func (l *lateTries) addLocked(w want, open int, lost bool) (drop call) {
	if w.level > 1 {
		return call{}
	}
	f := l.fields[w.field]
	if f == nil {
		f = new(fieldTries)
		if l.fields == nil {
			l.fields = make(map[string]*fieldTries)
		}
		l.fields[w.field] = f
	}
	f.open += open
	if lost {
		f.lost = time.Now().Add(tombstoneLife)
		if l.lost++; l.lost > mostLost {
			l.sweepLocked()
		}
	}
	if f.open == 0 && f.lost.IsZero() {
		drop = f.drop
	}
	if f.open == 0 && (f.lost.IsZero() || f.drop.Script != nil) {
		delete(l.fields, w.field)
	}
	l.n.Store(int64(len(l.fields)))
	return drop
}

// sweepLocked forgets lost tries whose time is over.
func (l *lateTries) sweepLocked() {
	l.lost = 0
	for field, f := range l.fields {
		switch {
		case f.lost.IsZero():
		case time.Now().Before(f.lost):
			l.lost++
		case f.open == 0:
			delete(l.fields, field)
		}
	}
	l.lost /= 2 // so that half as many come again before the next look
}

// mayRun says whether a try may still run that asks with field.
func (l *lateTries) mayRun(field string) bool {
	if l.n.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fields[field]
	return f != nil && (f.open > 0 || time.Now().Before(f.lost))
}

// buried notes that Redis has a tombstone of field, which drop takes away. It says whether the tombstone is not needed
// any more.
func (l *lateTries) buried(field string, drop call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fields[field]
	switch {
	case f == nil:
		return true
	case f.open > 0:
		f.drop = drop
	case !f.lost.IsZero(): // the tombstone lasts as long as the tries
		delete(l.fields, field)
		l.n.Store(int64(len(l.fields)))
	}
	return false
}

// buried notes that Redis has a tombstone of field, which has ended, and has it taken away as soon as it is not needed.
func (e *engine) buried(b lockType, field string) {
	if drop := b.unbury(field); e.late.buried(field, drop) && drop.Script != nil {
		e.workers.Spawn(func() { e.dropTombstones([]call{drop}) })
	}
}

// dropTombstones takes tombstones away. One that stays because Redis does not answer costs other scripts hardly
// anything.
func (e *engine) dropTombstones(drops []call) {
	for _, drop := range drops {
		if e.sender.Narrowed() {
			return // there are no tombstones
		}
		w := send.Wait{Ctx: context.Background(), Closed: e.closed, Background: true}
		w.Deadline = time.Now().Add(send.ResendTime)
		_ = e.sender.Once(&w, send.Request{Call: drop})
	}
}
