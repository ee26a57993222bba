// Package locks tests what users see of each lock type, on real servers.
//
// A file has the name of the file of package relock that it is about; that of a part with many rules has a second word,
// as semaphore_line has. These are about more than one part:
//
//	conformance      the rules that every lock type keeps
//	notalock         keys that hold other data than a lock
//	guard, handoff   contexts that end with a hold; how a lock passes inside the process
//	extend, limits   leases that are extended; MaxHold and MinHold
//	tokens           fencing tokens
//	line, line_...   the wait queue in Redis: grants, places that expire, callers that leave, Java, permissions
//	tombstones       fields that must no longer acquire a lock
//	poller           how waiters notice that a lock is free
//	busy             when a wait ends as busy, and when as an error
//	fuzz             options and calls of users
//	allocs, bench    what a section costs
//
// What the scripts do by themselves is told by the stories in internal/lua/testdata. The tests of the engine, which need
// no Client, are in internal/engine.
package locks

import (
	"context"
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

func TestMain(m *testing.M) {
	locktest.InRepository()
	locktest.Main(m)
}
