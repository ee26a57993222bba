package engine

// Kept fields: the fields whose records MinHold keeps in Redis when their holds have ended.

import (
	"sync"
	"time"
)

// keptFields are the fields whose records MinHold keeps in Redis when their holds have ended. A hold is forgotten when its
// release has run, so that its owner can ask again. A message that has granted the lock to its field, or an answer to an
// attempt, may come later, and must not end the record sooner. If the record has to be deleted after all, the call that
// keeps it does so, also if a request makes another one later.
type keptFields struct{ fields sync.Map }

// add notes that the record of field is kept for rest.
func (k *keptFields) add(field string, rest time.Duration) {
	k.fields.Store(field, nil)
	time.AfterFunc(rest, func() { k.fields.Delete(field) })
}

// has reports whether the record of field, or of some of the same permits, is kept.
func (k *keptFields) has(field string) (has bool) {
	k.fields.Range(func(kept, _ any) bool {
		has = overlap(kept.(string), field)
		return !has
	})
	return has
}
