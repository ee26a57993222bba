package relock

// Giving back: Unlock, the undoing of attempts that were given up, and force.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// release gives back one level. It does not look at ctx's end, and works after Close.
func (e *engine) release(ctx context.Context, b backend, o owner) error {
	p := &patience{ctx: ctx, deadline: time.Now().Add(unlockTime), prompt: e.promptly()}
	if ctx.Done() != nil {
		p.ctx = context.WithoutCancel(ctx)
	}
	h, err := e.takeTurn(p, b, o, false)
	if err != nil {
		return err
	}
	if h == nil {
		return e.notHeldError(b.id(), o)
	}
	defer e.endTurn(h)

	h.lapseIfDue()
	e.mu.Lock()
	h.levels--
	wasLost, left, loss := h.state == lost, h.levels, h.loss
	var guards []*guard
	if left == 0 {
		h.state = over
		guards = h.takeGuardsLocked()
	}
	e.mu.Unlock()
	if left == 0 {
		e.dog.remove(&h.lease)
		endGuards(guards, nil)
	}
	if wasLost && (left > 0 || errors.Is(loss, errGone)) {
		return loss
	}

	there, unsure, err := persist(e, p, time.Now(), func(ctx context.Context) (bool, error) {
		return b.release(ctx, h.field, left)
	}, nil)
	if left == 0 {
		e.mu.Lock()
		e.leaveGateLocked(h)
		e.mu.Unlock()
	}
	switch {
	case wasLost: // but its record may still have been there
		return loss
	case err != nil:
		return fmt.Errorf("not confirmed, the record lapses with its lease: %w", err)
	case there || left == 0 && unsure: // an earlier try has done it
		return nil
	case left > 0:
		h.lose(errGone)
	}
	return lossError(errGone)
}

// undo has abandon done by a goroutine of its own, so that whoever gave up need not wait for it.
func (e *engine) undo(ctx context.Context, b backend, a attempt) (done <-chan struct{}) {
	ended := make(chan struct{})
	e.spawn(func() {
		defer close(ended)
		e.abandon(ctx, b, a)
	})
	return ended
}

func (e *engine) abandon(ctx context.Context, b backend, a attempt) {
	p := &patience{ctx: context.WithoutCancel(ctx), deadline: time.Now().Add(unlockTime), prompt: true}
	_, _, _ = persist(e, p, time.Now(), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.abandon(ctx, a)
	}, nil) // what cannot be undone lapses with its lease
}

// force frees b, whoever holds it, and ends the holds that this process had on
// it. It is sent once: a repetition could free a later hold.
func (e *engine) force(ctx context.Context, b lockType) (bool, error) {
	p := &patience{ctx: ctx, closed: e.closed, prompt: ctx.Done() == nil && e.promptly()}
	if err := p.over(); err != nil {
		return false, err
	}
	before := e.holdsOf(b.id())
	freed, err, why := answer(e, p, b.force, nil)
	if err := cmp.Or(why, err); err != nil {
		return false, err
	}
	if freed {
		for _, h := range before {
			h.lose(errForced)
		}
	}
	return freed, nil
}

// holdsOf returns all holds on the lock of that id.
func (e *engine) holdsOf(id lockID) []*hold {
	e.mu.Lock()
	defer e.mu.Unlock()
	var of []*hold
	for key, h := range e.holds {
		if key.id == id && h.state == holding {
			of = append(of, h)
		}
	}
	return of
}
