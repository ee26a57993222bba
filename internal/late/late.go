// Package late counts the tries of attempts that may still run in Redis although no caller waits for them.
//
// An attempt asks for a lock with a field of its own. Only where a try may still run that asks with a field does a
// release or an undo leave a tombstone of that field in Redis: then the try takes nothing.
//
// Rules: a field that has ended is not asked for again. So when the outcomes of all its tries are known, nothing can
// run any more, and the tombstone is taken away. Where a connection has failed, a try may be on its way for as long as
// the tombstone lasts, which stays then: also where the field is buried once more, because two undos of it were under
// way.
package late

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/send"
)

const (
	life     = time.Minute // of a tombstone; see lua/line.lua
	mostLost = 64          // fields with lost tries before Tries looks which it can forget
)

// Tries are the tries that may still run although no caller waits for them. Its zero value has none.
type Tries struct {
	n atomic.Int64 // len(fields): most processes have none

	mu     sync.Mutex // guards below
	fields map[string]*triesOf
	lost   int       // fields with lost tries, about
	sweep  time.Time // when to look again which of these can be forgotten; zero: there are none
}

// triesOf are those of one field.
type triesOf struct {
	open int       // tries whose outcome will be heard; below 0 where it was heard before the caller had left
	lost time.Time // until when tries may run whose outcome nobody hears; zero: there are none
	drop send.Call // takes away the tombstone of the field; no script: Redis has none
}

// Left notes that the callers of attempts with fields do not wait any more for so many tries of each, the outcomes of
// which will be heard. lost says that other tries may run that nobody hears of.
func (t *Tries) Left(fields []string, orphans int, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, field := range fields {
		t.addLocked(field, orphans, lost)
	}
}

// Heard notes the outcome of a try of each of fields. known says that the try has run, or never runs. It returns the
// calls that take away tombstones that are not needed any more.
func (t *Tries) Heard(fields []string, known bool) (drops []send.Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, field := range fields {
		if drop := t.addLocked(field, -1, !known); drop.Script != nil {
			drops = append(drops, drop)
		}
	}
	return drops
}

// addLocked adds open tries of a field.
func (t *Tries) addLocked(field string, open int, lost bool) (drop send.Call) {
	f := t.fields[field]
	if f == nil {
		f = new(triesOf)
		if t.fields == nil {
			t.fields = make(map[string]*triesOf)
		}
		t.fields[field] = f
	}
	f.open += open
	if lost {
		f.lost = time.Now().Add(life)
		if t.lost++; t.lost > mostLost {
			t.sweepLocked()
		} else if t.sweep.IsZero() {
			t.sweep = f.lost
		}
	}
	if f.open == 0 && f.lost.IsZero() {
		drop = f.drop
		delete(t.fields, field)
	}
	t.n.Store(int64(len(t.fields)))
	return drop
}

// sweepLocked forgets lost tries whose time is over.
func (t *Tries) sweepLocked() {
	t.lost, t.sweep = 0, time.Time{}
	for field, f := range t.fields {
		switch {
		case f.lost.IsZero():
		case time.Now().Before(f.lost):
			t.lost++
			t.sweep = time.Now().Add(life)
		case f.open == 0:
			delete(t.fields, field)
		}
	}
	t.lost /= 2 // so that half as many come again before the next look
	t.n.Store(int64(len(t.fields)))
}

// MayRun reports whether a try may still run that asks with field.
func (t *Tries) MayRun(field string) bool {
	if t.n.Load() == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sweep.IsZero() && time.Now().After(t.sweep) {
		t.sweepLocked()
	}
	f := t.fields[field]
	return f != nil && (f.open > 0 || time.Now().Before(f.lost))
}

// Buried notes that Redis has a tombstone of field, which drop takes away. It reports whether the tombstone is not
// needed any more.
func (t *Tries) Buried(field string, drop send.Call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.fields[field]
	if f == nil {
		return true
	}
	f.drop = drop // for the last outcome, unless tries were lost
	return false
}

// Fields is how many fields have such tries.
func (t *Tries) Fields() int { return int(t.n.Load()) }
