package relock

// The order in which a MultiLock acquires its steps where the addresses of the servers do not tell them apart.
//
// Rules: a call that holds some of its steps waits for another one only for a limited time, and waits without a limit
// only while it holds none. So two calls never wait for each other for ever, in whatever order they acquire the steps.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

// A sequence is the order in which one call acquires the steps. If the order may differ between processes, two calls
// may wait for each other. So a call holds the first steps only for a limited time while it waits for another one, and
// then begins again with that one, for which it can wait without holding any other. The limit is short at first, and
// grows each time, so that the call does not starve while others hold its locks for long.
type sequence struct {
	steps []step
	limit time.Duration // 0: the order is the same everywhere, so there is no limit
	busy  int           // the step for which the call has waited too long
}

const (
	firstLimit  = 25 * time.Millisecond
	limitGrowth = 4
	lastLimit   = 24 * time.Hour
)

// errHeldTooLong is the error if a step was busy for as long as the steps before it may be held.
var errHeldTooLong = errors.New("one of its locks was busy for too long")

func (l *multi) newSequence() sequence {
	if l.doubt == nil {
		return sequence{steps: l.steps}
	}
	return sequence{steps: slices.Clone(l.steps), limit: firstLimit}
}

// begin makes the sequence begin with step i, and lets the first steps be held for longer.
func (q *sequence) begin(i int) {
	s := q.steps[i]
	q.steps = slices.Insert(slices.Delete(q.steps, i, i+1), 0, s)
	q.limit = min(limitGrowth*q.limit, lastLimit)
}

// limited returns r for step i, and until when it waits if that is sooner than the deadline of the caller. The limit is
// random within bounds, so that one of two calls that wait for each other gives up before the other one.
func (q *sequence) limited(i int, r engine.Request, deadline time.Time) (engine.Request, time.Time) {
	if q.limit == 0 || i == 0 || r.Wait == 0 {
		return r, time.Time{}
	}
	wait := q.limit/2 + rand.N(q.limit)
	until := time.Now().Add(wait)
	if !deadline.IsZero() && !until.Before(deadline) {
		return r, time.Time{}
	}
	r.Wait, r.Trial = wait, true
	return r, until
}

// twice returns an error if step i, which is busy, contains a lock that the caller already holds, through another
// Client.
func (q *sequence) twice(ctx context.Context, i int) error {
	if q.limit == 0 {
		return nil
	}
	ctx, done := context.WithTimeout(ctx, send.MinWait)
	defer done()
	for _, s := range q.steps[:i] {
		for _, held := range s.members {
			for _, m := range q.steps[i].members {
				if m.record == nil || held.record == nil || m.client == held.client || m.id.Name != held.id.Name {
					continue
				}
				if held.isOnServerOf(ctx, m) {
					return invalid("the same lock was passed twice: %s and %s", held.where(), m.where())
				}
			}
		}
	}
	return nil
}

// acquire acquires step i. It returns errHeldTooLong if the steps before it must not be held any longer, and notes that
// the step is the busy one.
func (q *sequence) acquire(ctx context.Context, i int, r engine.Request, deadline time.Time) (bool, error) {
	limited, until := q.limited(i, r, deadline)
	ok, err := q.steps[i].acquire(ctx, limited)
	switch {
	case ok, errors.Is(err, ErrLockLost), errors.Is(err, ErrClosed): // a loss is told once
		return ok, err
	case err == nil: // it is busy
		if err = q.twice(ctx, i); err != nil {
			return false, err
		}
	}
	if isOver(until) && !isOver(deadline) && ctx.Err() == nil { // whatever the reason is: the others are held meanwhile
		q.busy = i
		return false, errHeldTooLong
	}
	return false, err
}

// acquireInTurn acquires all steps in the order of q. As long as one of them is busy for too long, it begins again with
// that one.
func (l *multi) acquireInTurn(ctx context.Context, deadline time.Time, r engine.Request, q *sequence) (bool, error) {
	ok, err := l.acquireInOrder(ctx, deadline, r, q)
	for errors.Is(err, errHeldTooLong) {
		q.begin(q.busy)
		ok, err = l.acquireInOrder(ctx, deadline, r, q)
	}
	if err != nil && ctx.Err() != nil && l.doubt != nil {
		err = fmt.Errorf("%w (the order of %s and %s may differ between processes)", err, l.doubt[0], l.doubt[1])
	}
	return ok, err
}
