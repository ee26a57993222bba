// Package guard has contexts that end with a hold of a lock.
//
// Rules: a hold keeps one End for all guards whose parents end together, so that many calls of New need no more memory
// than one. It keeps none for a parent that has ended. A ctx that already ends with the hold is its own guard. The ctx
// that a function gets from NewCall ends when the function has returned. Methods of the user's ctx, and of a Hold, are
// called without a mutex held.
package guard

import (
	"context"
	"time"
)

// A Hold is what guards end with. Holds are compared: each is the same value each time.
type Hold interface {
	// Lost is why the hold was lost, or nil. It looks at the clock.
	Lost() error

	// EndOf is the End that the hold keeps for parents which end with done, or nil. The error describes why there can
	// be no guard of the hold.
	EndOf(done <-chan struct{}) (*End, error)

	// KeepEnd keeps end for parents which end with done, until the hold ends, and returns it; or the one that another
	// goroutine has it keep meanwhile. The error describes why there can be no guard of the hold any more.
	KeepEnd(done <-chan struct{}, end *End) (*End, error)

	// ForgetEnd has the hold keep end no longer: its parents have ended.
	ForgetEnd(done <-chan struct{}, end *End)
}

// A guard is a context that ends with a hold.
type guard struct {
	parent context.Context
	hold   Hold
	end    *End
	shares bool // end was made for another parent, which ends together with the parent of this guard
}

// An End ends with a hold, or with the parents of its guards.
type End struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	forget func() bool // stops the function that runs when the end comes by another cause; nil: there is none
}

// New returns a ctx that is canceled with h, and with ctx.
func New(ctx context.Context, h Hold) (context.Context, error) {
	done := ctx.Done()
	ends := endsWith(ctx, key{h})
	end, err := h.EndOf(done)
	switch {
	case err != nil:
		return nil, err
	case ends:
		return ctx, nil
	case end != nil:
		return &guard{ctx, h, end, true}, nil
	}
	inner, cancel := context.WithCancelCause(ctx)
	made := &End{ctx: inner, cancel: cancel}
	select {
	case <-inner.Done(): // the parent has ended, and with it the guard
		return &guard{ctx, h, made, false}, nil
	default:
	}
	if done != nil {
		made.forget = context.AfterFunc(inner, func() { h.ForgetEnd(done, made) })
	}
	if end, err = h.KeepEnd(done, made); end != made {
		made.Now(err)
	}
	if err != nil {
		return nil, err
	}
	return &guard{ctx, h, end, end != made}, nil
}

// Now ends the guards of e; a nil cause is context.Canceled.
func (e *End) Now(cause error) {
	if e.forget != nil {
		e.forget()
	}
	e.cancel(cause)
}

// EndAll ends the guards of all ends.
func EndAll(ends []*End, cause error) {
	for _, end := range ends {
		end.Now(cause)
	}
}

// A key is the key under which a ctx names the ctx that is canceled with a hold: itself, or the nearest of its
// ancestors.
type key struct{ hold Hold }

// endsWith reports whether ctx is known to end with the hold of k.
func endsWith(ctx context.Context, k key) bool {
	ends, ok := ctx.Value(k).(context.Context)
	return ok && ends.Done() == ctx.Done() // if not equal, ctx may be detached from ends, as by context.WithoutCancel
}

// value is the value of ctx, which ends with parent, under k.
func (k key) value(ctx, parent context.Context) any {
	ends, ok := parent.Value(k).(context.Context)
	switch {
	case !ok:
		return nil
	case ends.Done() == parent.Done():
		return ctx
	}
	return ends
}

func (g *guard) Done() <-chan struct{} { return g.end.ctx.Done() }

func (g *guard) Deadline() (time.Time, bool) { return g.parent.Deadline() }

// Err looks at the clock too: after a pause of the whole process, a hold that has expired is reported before any timer
// had the time to fire.
func (g *guard) Err() error {
	if err := g.end.ctx.Err(); err != nil {
		return err
	}
	_ = g.parent.Err()                      // the parent may be another guard
	if loss := g.hold.Lost(); loss != nil { // the goroutine that noticed the loss may not have ended this guard yet
		g.end.Now(loss)
	}
	return g.end.ctx.Err()
}

// Value has the values of the parent, and the private values that package context keeps in the end.
func (g *guard) Value(k any) any {
	if k, ok := k.(key); ok {
		if k.hold == g.hold {
			return g
		}
		return k.value(g, g.parent)
	}
	if v := g.end.ctx.Value(k); !g.shares || v == any(g.end.ctx) {
		return v
	}
	return g.parent.Value(k)
}

// A call is the ctx of one call of a function.
type call struct {
	context.Context // ends with guard, or when the function has returned
	guard           context.Context
}

// NewCall returns the ctx for one call of a function, which ends with a guard. end is to be called when the function
// has returned.
func NewCall(guard context.Context) (ctx context.Context, end context.CancelFunc) {
	inner, end := context.WithCancel(guard)
	return &call{inner, guard}, end
}

// Err looks at the clock, as guards do.
func (c *call) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	_ = c.guard.Err()
	return c.Context.Err()
}

func (c *call) Value(k any) any {
	if k, ok := k.(key); ok {
		return k.value(c, c.guard)
	}
	return c.Context.Value(k)
}
