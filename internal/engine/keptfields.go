package engine

// Kept fields: the fields whose records MinHold keeps in Redis when their holds have ended.
//
// Rules: a hold is forgotten when its release has run, so that its owner can ask again. A message that has granted the
// lock to its field, or an answer to an attempt, may come later, and must not end the record sooner. If the record has to
// be deleted after all, the call that keeps it does so, also if a request makes another one later.

import (
	"maps"
	"sync"
	"time"
)

// keptFields are fields whose records are kept. The zero value has none. All times are those of the clock of the
// watchdog.
type keptFields struct {
	mu    sync.Mutex // guards the fields below; no other mutex is locked while it is held
	until map[string]time.Duration
	most  int // how many there may be before those whose time is over are forgotten
}

// add notes at now that the record of field is kept until then.
func (k *keptFields) add(field string, now, until time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.until == nil {
		k.until = make(map[string]time.Duration)
	}
	if k.until[field] = until; len(k.until) > k.most {
		maps.DeleteFunc(k.until, func(_ string, until time.Duration) bool { return until <= now })
		k.most = 2*len(k.until) + 16
	}
}

// has reports whether the record of field, or of some of the same permits, is kept at now.
func (k *keptFields) has(field string, now time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for kept, until := range k.until {
		if now < until && overlap(kept, field) {
			return true
		}
	}
	return false
}
