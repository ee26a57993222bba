// Package inside lets tests outside package relock look inside its values. Package relock sets the functions at init, and
// only tests and package relocktest call them.
package inside

import (
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
)

// A View is what a value of package relock consists of. What it does not have is zero.
type View struct {
	Client any // the *relock.Client
	Engine *engine.Engine
	Lock   contract.Lock         // of a Locker
	Owner  engine.Owner          // of a Hold
	Votes  *sync.Mutex           // of a Client: guards the votes of its RedLocks
	Redis  redis.UniversalClient // of a Client
}

var (
	// Of returns the View of a Client, a Locker, a record or a Hold.
	Of func(value any) View
)
