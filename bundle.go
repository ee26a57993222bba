package relock

// Several locks on one Redis, taken together by one script: all of them, or none.
// Nothing else about their holds is special: each is released, renewed and lost by
// itself.

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// A bundler is a backend whose locks can be taken together.
type bundler interface {
	backend
	// takes is the call of an attempt, undoes the one that takes it back.
	takes(a attempt) call
	undoes(a attempt) call
	// granted reads the answer of takes.
	granted(a attempt, r reply) (grant, error)
	// bundled is what a bundle runs for them.
	bundled() bundledScript
}

// take makes one attempt.
func (c *Client) take(ctx context.Context, b bundler, a attempt) (grant, error) {
	r, err := c.attemptOne(ctx, b.takes(a))
	if err != nil {
		return grant{}, err
	}
	return b.granted(a, r)
}

// undo takes an attempt back, and says whether its hold was there.
func (c *Client) undo(ctx context.Context, b bundler, a attempt) (bool, error) {
	r, err := c.send(ctx, b.undoes(a))
	return r[0] == 1, err
}

// askTogether makes one attempt on all wants.
func (e *engine) askTogether(ctx context.Context, wants []want, t *tried) error {
	calls := make([]bundledCall, len(wants))
	for i, w := range wants {
		b := w.hold.backend.(bundler)
		calls[i] = bundledCall{b.bundled(), b.takes(w.attempt), b.undoes(w.attempt)}
	}
	replies, err := e.runBundle(ctx, calls)
	if err != nil {
		return err
	}
	if len(replies) == 0 || len(replies) > len(wants) {
		return fmt.Errorf("%w: %d locks were asked for, and %d answered", errReply, len(wants), len(replies))
	}
	left := false
	for i, r := range replies {
		w := wants[i]
		if t.grant, err = w.hold.backend.(bundler).granted(w.attempt, r); err != nil {
			return err
		}
		if t.state != held && i < len(replies)-1 {
			return fmt.Errorf("%w: of %d locks number %d is not held, and later ones answered", errReply, len(wants), i+1)
		}
		t.at = i
		t.tokens = append(t.tokens, t.token)
		left = left || t.left
	}
	t.left = left
	if t.state == held && len(replies) < len(wants) {
		return fmt.Errorf("%w: of %d locks only %d answered", errReply, len(wants), len(replies))
	}
	return nil
}

// settle gives the holds of o on bs the lease that they were asked for: fresh
// ones, which had a provisional one, exactly, counted from now; others at least.
func (e *engine) settle(ctx context.Context, bs []backend, o owner, lease time.Duration) error {
	e.beginWork()
	defer e.endWork()
	var holds []*hold
	var calls []call
	for _, b := range bs {
		h, levels := e.levels(b, o)
		if h == nil {
			return lossError(errLapsed)
		}
		if !e.dog.renews(&h.tenure.lease) {
			holds = append(holds, h)
			calls = append(calls, b.renewal(h.field, lease, levels == 1))
		}
	}
	if len(holds) == 0 {
		return nil
	}
	p := e.patienceFor(ctx, bs[0])
	p.alone = true
	replies, _, err := persist(e, p, time.Time{}, nil, func(ctx context.Context) ([]reply, error) {
		replies, errs := e.runAll(ctx, calls)
		return replies, cmp.Or(errs...)
	}, nil)
	if err != nil {
		return err
	}
	for i, h := range holds {
		if replies[i][0] != 1 {
			h.lose(errGone)
			return lossError(errGone)
		}
	}
	return nil
}

// trustEnd is until when all holds of o on bs are trusted that are not renewed, or
// end if that is sooner; now, if one is over already.
func (e *engine) trustEnd(bs []backend, o owner, end time.Time) time.Time {
	for _, b := range bs {
		h, _ := e.levels(b, o)
		if h == nil {
			return time.Now()
		}
		if until := e.dog.end(&h.tenure.lease); !e.dog.renews(&h.tenure.lease) && until.Before(end) {
			end = until
		}
	}
	return end
}

// setTrustEnd has the holds of o on bs that are not renewed end at the same
// moment: one that outlived the others would be re-entered when they are over.
func (e *engine) setTrustEnd(bs []backend, o owner, end time.Time) {
	for _, b := range bs {
		if h, levels := e.levels(b, o); h != nil && !e.dog.renews(&h.tenure.lease) {
			e.dog.settle(&h.tenure.lease, end, levels == 1)
		}
	}
}
