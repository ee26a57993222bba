package relock

// The owner of a hold, as users see it: the calling goroutine, or the owner that ctx carries.

import (
	"context"

	"github.com/relock-go/relock/internal/engine"
)

// An Owner is a goroutine or an owner made by [WithOwner]. No two owners of a process have the same number.
type Owner int64

// String is the owner as it appears in errors.
func (o Owner) String() string { return engine.Owner(o).String() }

// WithOwner returns a ctx that carries a new logical owner. A caller that passes
// this ctx, or one derived from it, acts for that owner, on any goroutine. Use WithOwner
// for a lock that is taken in one goroutine and released in another, or
// re-entered across goroutines. Without it the owner is the calling goroutine.
//
// Goroutines that share an owner do not exclude one another.
func WithOwner(ctx context.Context) context.Context {
	return engine.NewOwner().In(ctx)
}

// ContextWithOwner is the name that WithOwner has from v0.1.0 on.
func ContextWithOwner(ctx context.Context) context.Context { return WithOwner(ctx) }
