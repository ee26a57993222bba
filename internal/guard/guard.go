// Package guard has contexts that are canceled when a hold of a lock is lost or ends.
//
// Rules: a hold keeps one End for all guards whose parents have the same Done channel, so that many calls of New need
// no more memory than one. It keeps none for a parent that is done. A context that is already canceled with the hold
// is its own guard. The context that NewCall returns for a function is canceled when the function has returned. The
// methods of the user's context, and of a Hold, are called without a mutex held.
package guard

import (
	"context"
	"time"
)

// A Hold is what guards are bound to. Holds are compared with ==, so the same hold must always be the same value.
type Hold interface {
	// Lost returns why the hold was lost, or nil. It checks the clock.
	Lost() error

	// EndOf returns the End that the hold keeps for parents with the Done channel done, or nil. An error describes
	// why the hold can have no guard.
	EndOf(done <-chan struct{}) (*End, error)

	// KeepEnd keeps end for parents with the Done channel done until the hold ends, and returns it. If another
	// goroutine has set one meanwhile, KeepEnd returns that one instead. An error describes why the hold can have no
	// guard any more.
	KeepEnd(done <-chan struct{}, end *End) (*End, error)

	// ForgetEnd makes the hold drop end, because its parents are done.
	ForgetEnd(done <-chan struct{}, end *End)
}

// A guard is a context that is canceled with a hold.
type guard struct {
	parent context.Context
	hold   Hold
	end    *End
	shares bool // end was made for a different parent, which is canceled together with the parent of this guard
}

// An End is canceled with a hold, or with the parents of its guards, and cancels these guards.
type End struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// forget stops the function that runs when the parents are done; nil: there is none.
	forget func() bool
}

// New returns a context that is canceled with h and with ctx.
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
	case <-inner.Done(): // the parent is done, and so is the guard
		return &guard{ctx, h, made, false}, nil
	default:
	}
	if done != nil {
		made.forget = context.AfterFunc(inner, func() { h.ForgetEnd(done, made) })
	}
	if end, err = h.KeepEnd(done, made); end != made {
		made.Now(err)
	}
	if made.ctx.Err() != nil { // since before KeepEnd, perhaps: then nobody else forgets it
		h.ForgetEnd(done, made)
	}
	if err != nil {
		return nil, err
	}
	return &guard{ctx, h, end, end != made}, nil
}

// Now cancels the guards of e. If cause is nil, it is context.Canceled.
func (e *End) Now(cause error) {
	if e.forget != nil {
		e.forget()
	}
	e.cancel(cause)
}

// A key is the key of a context value: the nearest context, among a context and its ancestors, that is canceled with
// the hold.
type key struct{ hold Hold }

// endsWith reports whether ctx is known to be canceled with the hold of k.
func endsWith(ctx context.Context, k key) bool {
	ends, ok := ctx.Value(k).(context.Context)
	// If the channels differ, ctx may be detached from ends, as by context.WithoutCancel.
	return ok && ends.Done() == ctx.Done()
}

// value returns the value of ctx, which is canceled with parent, under the key k.
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

// String keeps fmt, with which mocks print contexts, from copying the fields of g.
func (g *guard) String() string { return "relock.Guard" }

func (g *guard) Done() <-chan struct{} { return g.end.ctx.Done() }

func (g *guard) Deadline() (time.Time, bool) { return g.parent.Deadline() }

// Err checks the clock, too: after a pause of the whole process, it reports a hold that has expired before any timer
// had the time to fire.
func (g *guard) Err() error {
	if err := g.end.ctx.Err(); err != nil {
		return err
	}
	_ = g.parent.Err()                      // the parent may be another guard
	if loss := g.hold.Lost(); loss != nil { // the goroutine that noticed the loss may not have canceled this guard yet
		g.end.Now(loss)
	}
	return g.end.ctx.Err()
}

// Value returns the values of the parent, and the private values that package context keeps in the end.
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

// A call is the context of one call of a function.
type call struct {
	context.Context // canceled with guard, or when the function has returned
	guard           context.Context
}

// NewCall returns the context for one call of a function. It is canceled with guard, and by end, which must be called
// when the function has returned.
func NewCall(guard context.Context) (ctx context.Context, end context.CancelFunc) {
	inner, end := context.WithCancel(guard)
	return &call{inner, guard}, end
}

func (c *call) String() string { return "relock.Guard" }

// Err checks the clock, as the Err of a guard does.
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
