// Package late counts the tries of attempts that may still run in Redis although no caller waits for them.
//
// An attempt asks for a lock with a field of its own, and may consist of several tries. Only while a try with this
// field may still run, a release or a rollback leaves a tombstone of the field in Redis, which makes the try acquire
// nothing.
//
// Rules: a field that has ended is never used again. So when the outcomes of all its tries are known, nothing can run
// any more, and the tombstone is removed. After a connection has failed, a try may be on its way for as long as a
// tombstone lasts. The tombstone then stays, even if the field is buried a second time because two rollbacks of it
// were under way.
package late

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/send"
)

const (
	life     = time.Minute // of a tombstone; see lua/line.lua
	mostLost = 64          // fields with lost tries before Tries checks which of them it can forget
)

// Tries are the tries that may still run although no caller waits for them. The zero value has none.
type Tries struct {
	n atomic.Int64 // len(fields); most processes have none

	mu     sync.Mutex // guards below
	fields map[string]*triesOf
	lost   int       // fields with lost tries, approximately
	sweep  time.Time // when to check again which of these can be forgotten; zero: there are none
}

// triesOf are the tries with one field.
type triesOf struct {
	open int       // tries whose outcome will be known; negative if it was known before the caller had left
	lost time.Time // until when tries may run whose outcome stays unknown; zero: there are none
	drop send.Call // removes the tombstone of the field; without a script: Redis has none
}

// Left records that the callers of attempts with these fields have stopped waiting. orphans is the number of tries
// with each field whose outcome Heard will record. lost reports whether there may be other tries whose outcome stays
// unknown.
func (t *Tries) Left(fields []string, orphans int, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, field := range fields {
		t.addLocked(field, orphans, lost)
	}
}

// Heard records the outcome of one try for each of fields. known reports whether it is certain that the try has run
// or never will. Heard returns the calls that remove tombstones which are no longer needed.
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

// addLocked adds open tries with a field.
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

// sweepLocked forgets lost tries that can no longer run.
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
	t.lost /= 2 // so that half as many are added before the next sweep
	t.n.Store(int64(len(t.fields)))
}

// MayRun reports whether a try with field may still run.
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

// Buried records that Redis has a tombstone of field, which drop removes. It reports whether the tombstone is already
// unnecessary.
func (t *Tries) Buried(field string, drop send.Call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.fields[field]
	if f == nil {
		return true
	}
	f.drop = drop // used with the last outcome, unless tries were lost
	return false
}

// Fields returns the number of fields that have such tries.
func (t *Tries) Fields() int { return int(t.n.Load()) }
