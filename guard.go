package relock

// Guards: contexts that end with a hold.
//
// Rules: a hold keeps one guardEnd for all guards whose parents end together, so that many calls of
// Guard need no more memory than one. It keeps none for a parent that has ended. A ctx that already
// ends with the hold is its own guard. The ctx that Do gives to its function ends when the
// function has returned. Methods of the user's ctx are called without a mutex held.

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// A guard is a context that ends with a hold.
type guard struct {
	parent context.Context
	hold   *hold
	end    *guardEnd
	shares bool // end was made for another parent, which ends together with the parent of this guard
}

// A guardEnd ends with a hold, or with the parents of its guards.
type guardEnd struct {
	context.Context
	cancel context.CancelCauseFunc
	forget func() bool // stops the function that runs when the end comes by another cause; nil: there is none
}

// A guardKey is the key under which a ctx names the ctx that ends with a hold: itself, or the
// nearest of its ancestors.
type guardKey struct{ hold *hold }

// endsWith says whether ctx is known to end with the hold of key.
func endsWith(ctx context.Context, key guardKey) bool {
	ends, ok := ctx.Value(key).(context.Context)
	return ok && ends.Done() == ctx.Done() // if not equal, ctx may be detached from ends, as by context.WithoutCancel
}

// value is the value of ctx, which ends with parent, under key.
func (key guardKey) value(ctx, parent context.Context) any {
	ends, ok := parent.Value(key).(context.Context)
	switch {
	case !ok:
		return nil
	case ends.Done() == parent.Done():
		return ctx
	}
	return ends
}

func (g *guard) Done() <-chan struct{} { return g.end.Done() }

func (g *guard) Deadline() (time.Time, bool) { return g.parent.Deadline() }

// Err looks at the clock too: after a pause of the whole process, a hold that
// has lapsed is reported before any timer had the time to fire.
func (g *guard) Err() error {
	if err := g.end.Err(); err != nil {
		return err
	}
	_ = g.parent.Err() // the parent may be another guard
	g.hold.loseIfDue()
	if loss := g.hold.lossOf(); loss != nil { // the goroutine that noticed the loss may not have ended this guard yet
		endGuards([]*guardEnd{g.end}, g.hold.withName(loss))
	}
	return g.end.Err()
}

// Value has the values of the parent, and the private values that package context keeps in end.
func (g *guard) Value(key any) any {
	if key, ok := key.(guardKey); ok {
		if key.hold == g.hold {
			return g
		}
		return key.value(g, g.parent)
	}
	if v := g.end.Value(key); !g.shares || v == any(g.end.Context) {
		return v
	}
	return g.parent.Value(key)
}

// A doContext is the ctx of one call of a function by Do.
type doContext struct {
	context.Context // ends with guard, or when the function has returned
	guard           context.Context
}

func newDoContext(guard context.Context) (ctx context.Context, end context.CancelFunc) {
	inner, end := context.WithCancel(guard)
	return &doContext{inner, guard}, end
}

// Err looks at the clock, as guards do.
func (s *doContext) Err() error {
	if err := s.Context.Err(); err != nil {
		return err
	}
	_ = s.guard.Err()
	return s.Context.Err()
}

func (s *doContext) Value(key any) any {
	if key, ok := key.(guardKey); ok {
		return key.value(s, s.guard)
	}
	return s.Context.Value(key)
}

// guard returns a ctx that ends with o's hold on b.
func (e *engine) guard(ctx context.Context, b description, o owner) (context.Context, error) {
	if err := e.open(); err != nil {
		return nil, err
	}
	n := e.use(b.id().name)
	defer n.done()
	h := n.find(b.id(), o)
	if h == nil {
		return nil, n.notHeldError(b.id(), o)
	}
	h.expireIfDue()
	done := ctx.Done()
	ends := endsWith(ctx, guardKey{h})
	end, err := h.endOf(done)
	switch {
	case err != nil:
		return nil, err
	case ends:
		return ctx, nil
	case end != nil:
		return &guard{ctx, h, end, true}, nil
	}
	inner, cancel := context.WithCancelCause(ctx)
	made := &guardEnd{Context: inner, cancel: cancel}
	select {
	case <-inner.Done(): // the parent has ended, and with it the guard
		return &guard{ctx, h, made, false}, nil
	default:
	}
	if done != nil {
		made.forget = context.AfterFunc(inner, func() { h.forgetEnd(done, made) })
	}
	if end, err = h.keepEnd(done, made); end != made {
		endGuards([]*guardEnd{made}, err)
	}
	if err != nil {
		return nil, err
	}
	return &guard{ctx, h, end, end != made}, nil
}

// guardableLocked says why h cannot be guarded, or nil.
func (h *hold) guardableLocked() error {
	switch {
	case h.name.closed:
		return ErrClosed
	case h.state != holding:
		return cmp.Or(h.loss, ErrNotHeld)
	}
	return nil
}

// endOf is the end of guards whose parents end with done, or nil.
func (h *hold) endOf(done <-chan struct{}) (end *guardEnd, err error) {
	h.name.mu.Lock()
	defer h.name.mu.Unlock()
	return h.guards[done], h.guardableLocked()
}

// keepEnd registers end, which then ends with h, and returns end; or the one that another goroutine has registered
// meanwhile.
func (h *hold) keepEnd(done <-chan struct{}, end *guardEnd) (*guardEnd, error) {
	h.name.mu.Lock()
	defer h.name.mu.Unlock()
	if err := h.guardableLocked(); err != nil {
		return nil, err
	}
	if kept := h.guards[done]; kept != nil {
		return kept, nil
	}
	if h.guards == nil {
		h.guards = make(map[<-chan struct{}]*guardEnd)
	}
	h.guards[done] = end
	return end, nil
}

// forgetEnd forgets an end whose parents have ended.
func (h *hold) forgetEnd(done <-chan struct{}, end *guardEnd) {
	h.name.mu.Lock()
	defer h.name.mu.Unlock()
	if h.guards[done] == end {
		delete(h.guards, done)
	}
}

func (h *hold) takeGuardsLocked() []*guardEnd {
	if len(h.guards) == 0 {
		return nil
	}
	ends := slices.Collect(maps.Values(h.guards))
	h.guards = nil
	return ends
}

// endGuards ends guards; a nil cause is context.Canceled.
func endGuards(ends []*guardEnd, cause error) {
	for _, end := range ends {
		if end.forget != nil {
			end.forget()
		}
		end.cancel(cause)
	}
}
