package engine

// Guards: contexts that end with a hold. See internal/guard.
//
// Rules: the mutex of the name guards the ends that a hold keeps. A hold that is over, or lost, has no guards.

import (
	"cmp"
	"context"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
)

// Guard returns a ctx that is canceled with o's hold on kind.
func (e *Engine) Guard(ctx context.Context, kind Lock, o Owner) (context.Context, error) {
	if err := e.Open(); err != nil {
		return nil, err
	}
	s := e.retain(kind.ID().Name)
	defer s.release()
	h := s.find(kind.ID(), o)
	if h == nil {
		return nil, s.notHeldError(kind.ID(), o)
	}
	h.expireIfDue()
	return guard.New(ctx, (*guardedHold)(h))
}

// A guardedHold is a hold, as its guards see it.
type guardedHold hold

// Lost is why the hold was lost, or nil.
func (g *guardedHold) Lost() error {
	h := (*hold)(g)
	h.loseIfDue()
	if loss := h.lossOf(); loss != nil {
		return h.withName(loss)
	}
	return nil
}

// guardableLocked reports why there can be no guard of the hold, or nil.
func (g *guardedHold) guardableLocked() error {
	switch {
	case g.name.closed:
		return send.ErrClosed
	case !g.state.holds():
		return cmp.Or(g.loss, ErrNotHeld)
	}
	return nil
}

// EndOf is the end of guards whose parents end with done, or nil.
func (g *guardedHold) EndOf(done <-chan struct{}) (*guard.End, error) {
	g.name.Lock()
	defer g.name.Unlock()
	return g.guards[done], g.guardableLocked()
}

// KeepEnd keeps end, and returns it; or the one that another goroutine has kept meanwhile.
func (g *guardedHold) KeepEnd(done <-chan struct{}, end *guard.End) (*guard.End, error) {
	g.name.Lock()
	defer g.name.Unlock()
	if err := g.guardableLocked(); err != nil {
		return nil, err
	}
	return g.guards.Keep(done, end), nil
}

// ForgetEnd forgets an end whose parents have ended.
func (g *guardedHold) ForgetEnd(done <-chan struct{}, end *guard.End) {
	g.name.Lock()
	defer g.name.Unlock()
	g.guards.Forget(done, end)
}
