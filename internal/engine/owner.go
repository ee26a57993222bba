package engine

// Owners: an owner of locks is the calling goroutine, or the owner that a context carries.
//
// Rules: the number of an owner is never used again within a process. Goroutines have positive numbers, and owners that
// were made by NewOwner have negative ones. The number 0 is that of no owner.

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/petermattis/goid"
)

// An Owner is the number of an owner of locks.
type Owner int64

// NoOwner is the owner of a detached hold, which no process has: see detach.go.
const NoOwner Owner = 0

type ownerKey struct{}

var ownersMade atomic.Int64

// NewOwner returns an owner that is not a goroutine.
func NewOwner() Owner { return Owner(-ownersMade.Add(1)) }

// In returns a copy of ctx that carries o, for goroutines that work on behalf of o.
func (o Owner) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerOf returns the owner that ctx carries, or else the calling goroutine.
func OwnerOf(ctx context.Context) Owner {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o
	}
	return Owner(goid.Get())
}

func (o Owner) String() string {
	switch {
	case o == NoOwner:
		return "detached"
	case o < 0:
		return fmt.Sprintf("owner %d", -o)
	}
	return fmt.Sprintf("goroutine %d", int64(o))
}
