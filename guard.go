package relock

// Guards: contexts that end with a hold.

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// A guard is a context that ends with a hold.
type guard struct {
	context.Context
	parent context.Context
	hold   *hold
	cancel context.CancelCauseFunc
	forget func() bool // stops waiting for its end by another cause
}

// Err looks at the clock too: after a pause of the whole process, a hold that
// has lapsed is reported before any timer had the time to fire.
func (g *guard) Err() error {
	if err := g.Context.Err(); err != nil {
		return err
	}
	_ = g.parent.Err() // it may be another guard
	g.hold.lapseIfDue()
	if loss := g.hold.lossOf(); loss != nil { // whoever noticed it may not have come to this guard yet
		endGuards([]*guard{g}, g.hold.named(loss))
	}
	return g.Context.Err()
}

// guard returns a ctx that ends with o's hold on b.
func (e *engine) guard(ctx context.Context, b backend, o owner) (context.Context, error) {
	if err := e.open(); err != nil {
		return nil, err
	}
	h := e.find(b.id(), o)
	if h == nil {
		return nil, e.notHeldError(b.id(), o)
	}
	h.lapseIfDue()
	inner, cancel := context.WithCancelCause(ctx)
	g := &guard{Context: inner, parent: ctx, hold: h, cancel: cancel}
	g.forget = context.AfterFunc(inner, func() { h.forgetGuard(g) })
	if err := h.addGuard(g); err != nil {
		endGuards([]*guard{g}, err)
		return nil, err
	}
	return g, nil
}

func (h *hold) addGuard(g *guard) error {
	e := h.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.isClosed:
		return ErrClosed
	case h.state != holding:
		return cmp.Or(h.loss, ErrNotHeld)
	case g.Context.Err() != nil: // its parent has ended, and nothing is left to end
		return nil
	}
	if h.guards == nil {
		h.guards = make(map[*guard]struct{})
	}
	h.guards[g] = struct{}{}
	return nil
}

func (h *hold) forgetGuard(g *guard) {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	delete(h.guards, g)
}

func (h *hold) takeGuardsLocked() []*guard {
	if len(h.guards) == 0 {
		return nil
	}
	guards := slices.Collect(maps.Keys(h.guards))
	h.guards = nil
	return guards
}

// endGuards ends guards; a nil cause is context.Canceled.
func endGuards(guards []*guard, cause error) {
	for _, g := range guards {
		g.forget()
		g.cancel(cause)
	}
}
