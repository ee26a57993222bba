package engine

// Owners: an owner of locks is the calling goroutine, or the owner that a context carries. An agent is an owner that
// acquires locks for another one: a RedLock has one at its nodes for each of its holds.
//
// Rules: the number of an owner is never used again within a process. Goroutines have positive numbers, and owners that
// were made by NewOwner have negative ones. The number 0 is that of no owner. Nothing but the number of an owner decides
// on what it holds. Texts, events and holder IDs have the owner for which an agent acts, because people know that one.

import (
	"context"
	"fmt"
	"sync"
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

// agents has the Agents that are in use, by their owners.
var agents sync.Map

// holding is the number of Agents that hold what they were made for.
var holding atomic.Int64

// An Agent is an owner that acquires locks for another one, from NewAgent until End.
type Agent struct {
	Owner
	Principal Owner
	holds     atomic.Bool // its principal has all that it was made for, and has to release it
}

// NewAgent returns an owner that acquires locks for o.
func NewAgent(o Owner) *Agent {
	a := &Agent{Owner: NewOwner(), Principal: o.principal()}
	agents.Store(a.Owner, a)
	return a
}

// Holds notes whether the owner for which a acts holds what a was made for.
func (a *Agent) Holds(holds bool) {
	switch was := a.holds.Swap(holds); {
	case holds && !was:
		holding.Add(1)
	case was && !holds:
		holding.Add(-1)
	}
}

// End notes that a acquires nothing any more, and has released what it held.
func (a *Agent) End() {
	a.Holds(false)
	agents.Delete(a.Owner)
}

// principal returns the owner for which o acts: that of an agent, or o itself.
func (o Owner) principal() Owner {
	if a := o.agent(); a != nil {
		return a.Principal
	}
	return o
}

// agent returns the Agent with this number, or nil.
func (o Owner) agent() *Agent {
	if o >= 0 {
		return nil
	}
	a, _ := agents.Load(o)
	agent, _ := a.(*Agent)
	return agent
}

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
