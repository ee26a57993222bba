package engine

// Owners: who holds a lock. An owner is the calling goroutine, or the owner that ctx carries.
//
// Rules: the number of an owner is never used again within a process. Goroutines have positive
// numbers, and owners made by NewOwner negative ones.

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/petermattis/goid"
)

type Owner int64

type ownerKey struct{}

var ownersMade atomic.Int64

// NewOwner makes an owner that is no goroutine.
func NewOwner() Owner { return Owner(-ownersMade.Add(1)) }

// In returns a ctx that carries o, for goroutines that work for o.
func (o Owner) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerOf is the owner that ctx carries, or else the calling goroutine.
func OwnerOf(ctx context.Context) Owner {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o
	}
	return Owner(goid.Get())
}

func (o Owner) String() string {
	if o < 0 {
		return fmt.Sprintf("owner %d", -o)
	}
	return fmt.Sprintf("goroutine %d", int64(o))
}
