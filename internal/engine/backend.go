package engine

// Backends: where the holds of an acquire operation are kept.
//
// Rules: an acquire operation makes attempts, waits and rolls back through its backend, and knows nothing else about
// it.

import (
	"time"
)

// A backend is where the holds of one acquire operation are kept.
type backend interface {
	// admit waits until the caller may make an attempt: the other callers of the process have let it pass.
	admit() error
	// ask makes one attempt. If lastReply is not zero, Redis has answered the caller at that time
	// before, and the attempt is repeated for longer if it gets no answer.
	ask(lastReply time.Time) (Answer, error)
	// await waits after res, whose status is Busy, until another attempt may be granted. If the lock was granted to the
	// caller by a message meanwhile, it returns that grant, and otherwise res.
	await(res Answer) (Answer, error)
	// rollback undoes what the attempts of an operation may have left that has failed with err; nil: a panic, or the end of
	// the goroutine, has ended it.
	rollback(err error)
	// dismissLocked ends the target if it was not granted, or that the caller cannot keep.
	dismissLocked(res Answer)
}
