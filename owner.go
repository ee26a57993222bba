package relock

// The owner of a hold: the calling goroutine, or the owner that ctx carries.
//
// Rules: the number of an owner is never used again within a process. Goroutines have positive
// numbers, owners made by WithOwner negative ones.

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/petermattis/goid"
)

type owner int64

type ownerKey struct{}

var ownersMade atomic.Int64

// WithOwner returns a ctx that carries a new logical owner. A caller that passes
// this ctx, or one derived from it, acts for that owner, on any goroutine. Use WithOwner
// for a lock that is taken in one goroutine and released in another, or
// re-entered across goroutines. Without it the owner is the calling goroutine.
//
// Goroutines that share an owner do not exclude one another.
//
// Redisson: the threadId argument of the Async methods.
func WithOwner(ctx context.Context) context.Context {
	return owner(-ownersMade.Add(1)).in(ctx)
}

// ContextWithOwner is the name that WithOwner has from v0.1.0 on.
func ContextWithOwner(ctx context.Context) context.Context { return WithOwner(ctx) }

// in returns a ctx that carries o, for goroutines that work for o.
func (o owner) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerOf(ctx context.Context) owner {
	if o, ok := ctx.Value(ownerKey{}).(owner); ok {
		return o
	}
	return owner(goid.Get())
}

func (o owner) String() string {
	if o < 0 {
		return fmt.Sprintf("owner %d", -o)
	}
	return fmt.Sprintf("goroutine %d", int64(o))
}
