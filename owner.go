package relock

// The owner of a hold, as users see it: the calling goroutine, or the owner that the context carries.

import (
	"context"

	"github.com/relock-go/relock/internal/engine"
)

// An Owner identifies an owner within this process: a goroutine, by its ID, or an owner that [ContextWithOwner] has
// created. No two owners of a process have the same number.
type Owner int64

// String returns the owner as it appears in errors: "goroutine 7", or "owner 7" for one that ContextWithOwner has
// created.
func (o Owner) String() string { return engine.Owner(o).String() }

// ContextWithOwner returns a copy of ctx that carries a new owner. A caller that passes this context, or one derived
// from it, acts for that owner in any goroutine. Without it the owner is the calling goroutine. Use it for a lock that
// is acquired in one goroutine and released in another, and for several goroutines that work under one lock. Goroutines
// that share an owner do not exclude each other.
func ContextWithOwner(ctx context.Context) context.Context {
	return engine.NewOwner().In(ctx)
}
