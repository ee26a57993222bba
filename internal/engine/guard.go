package engine

// Guards: contexts that are canceled when a hold ends. See internal/guard.
//
// Rules: the mutex of the lock state guards the guards of a hold. A hold that was released or lost has none.

import (
	"cmp"
	"context"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
)

// Guard returns a ctx that is canceled when ctx is canceled, or when the hold that o has on kind ends.
func (e *Engine) Guard(ctx context.Context, kind contract.Lock, o Owner) (context.Context, error) {
	if err := e.Open(); err != nil {
		return nil, err
	}
	h, err := e.held(kind, o)
	if err != nil {
		return nil, err
	}
	return guard.New(ctx, (*guardedHold)(h))
}

// A guardedHold is a hold as package guard sees it: it implements guard.Hold.
type guardedHold hold

// Lost returns why the hold was lost, or nil. It looks at the clock.
func (g *guardedHold) Lost() error {
	h := (*hold)(g)
	h.expireIfDue()
	if loss := lossOf(h); loss != nil {
		return h.withName(loss)
	}
	return nil
}

// guardableLocked returns nil if the hold can have guards, or else the error of Guard.
func (g *guardedHold) guardableLocked() error {
	return cmp.Or(g.lockState.engine.Open(), (*hold)(g).heldLocked())
}

// EndOf returns the End of the guards whose parents have this done channel, or nil.
func (g *guardedHold) EndOf(done <-chan struct{}) (*guard.End, error) {
	g.lockState.Lock()
	defer g.lockState.Unlock()
	return g.guards[done], g.guardableLocked()
}

// KeepEnd keeps end for parents with this done channel, and returns it; or the End that is kept for them already.
func (g *guardedHold) KeepEnd(done <-chan struct{}, end *guard.End) (*guard.End, error) {
	g.lockState.Lock()
	defer g.lockState.Unlock()
	if err := g.guardableLocked(); err != nil {
		return nil, err
	}
	return g.guards.Keep(done, end), nil
}

// ForgetEnd forgets end, whose parents are canceled.
func (g *guardedHold) ForgetEnd(done <-chan struct{}, end *guard.End) {
	g.lockState.Lock()
	defer g.lockState.Unlock()
	g.guards.Forget(done, end)
}
