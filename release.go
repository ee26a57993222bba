package relock

// Giving back: Unlock, the undoing of attempts that were given up, and force.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// release gives back one level. It does not look at ctx's end, and works after Close.
//
// The level is given back here whatever Redis says: an Unlock is owed once, and a
// hold that nobody is going to unlock must not be renewed.
func (e *engine) release(ctx context.Context, b backend, o owner) error {
	e.beginWork()
	defer e.endWork()
	h, left, done := e.giveBackAtOnce(b, o)
	if done {
		e.sawRelease(ctx, h, 0, nil)
		return nil
	}
	now := time.Now()
	p := patience{ctx: ctx, deadline: now.Add(unlockTime), prompt: e.promptly()}
	if ctx.Done() != nil {
		p.ctx = context.WithoutCancel(ctx)
	}
	if h != nil {
		return e.releaseRecord(ctx, &p, h, left, nil, now)
	}
	if p.parts = isComposite(b); p.parts { // they take that long themselves, and then have something to say
		p.deadline = p.deadline.Add(answerTime)
	}
	return e.releaseInTurn(ctx, p, b, o)
}

// giveBackAtOnce gives back one level of the hold that o has on b, if that is trusted, not made of
// others, and nobody else of o is at it; else it returns nil. Done is all there is to do where somebody of this process
// is next, or has the record too; else it is the caller's turn at the hold, whose levels have to be set to left.
func (e *engine) giveBackAtOnce(b backend, o owner) (h *hold, left int, done bool) {
	e.mu.Lock()
	h = e.holds[holdKey{b.id(), o}]
	if h == nil || !h.turn.tryEnter() {
		e.mu.Unlock()
		return nil, 0, false
	}
	if len(h.guards) > 0 && e.heirLocked(h) != nil { // they end before the next one is in
		guards := h.takeGuardsLocked()
		e.mu.Unlock()
		endGuards(guards, nil)
		e.mu.Lock()
	}
	var guards []*guardEnd
	switch {
	case e.handOverLocked(h):
		done = true
		h.turn.leave()
	case h.state != holding || !e.dog.trusted(&h.tenure.lease) || isComposite(b):
		h.turn.leave()
		h = nil
	default:
		var last bool
		left, last, guards = h.giveBackLocked()
		if done = left == 0 && !last; done {
			e.endTurnLocked(h)
		}
	}
	e.mu.Unlock()
	endGuards(guards, nil)
	return h, left, done
}

// releaseInTurn is release where others of the same owner are at the hold, or it may have been lost.
func (e *engine) releaseInTurn(ctx context.Context, p patience, b backend, o owner) error {
	h, err := e.takeTurn(&p, b, o, false)
	if err != nil { // the others are waiting for Redis
		if h := e.find(b.id(), o); h != nil {
			err = unconfirmed(err)
			left, last := h.giveBack()
			if last {
				e.spawn(h.clear)
			}
			e.sawRelease(ctx, h, left, err)
			return err
		}
		return unconfirmed(err)
	}
	if h == nil {
		return e.notHeldError(b.id(), o)
	}
	loss := h.lossOf() // takeTurn has looked at the clock
	left, last := h.giveBack()
	switch {
	case loss != nil && (left > 0 || errors.Is(loss, errGone)):
		e.endTurn(h)
		return loss
	case left == 0 && !last:
		e.endTurn(h)
		e.sawRelease(ctx, h, 0, nil)
		return nil
	}
	return e.releaseRecord(ctx, &p, h, left, loss, time.Now())
}

// releaseRecord has the levels of h set to left in Redis, at which it is the caller's turn
// until then, and reports what has become of it. The hold may have been lost before.
func (e *engine) releaseRecord(ctx context.Context, p *patience, h *hold, left int, loss error, now time.Time) error {
	r, ghosts, err := e.setLevels(p, h, left, now)
	if err != nil && left == 0 {
		e.spawn(h.clear)
	}
	switch {
	case loss != nil: // but its record may still have been there
		return loss
	case errors.Is(err, ErrNotALock): // the record was replaced by something else
		if left > 0 {
			h.lose(errGone)
		} else {
			h.sawEnd(errGone)
		}
		return lossError(err)
	case err != nil:
		err = unconfirmed(err)
	case r.there || left == 0 && ghosts > 0: // an earlier try has done it
	case left > 0:
		h.lose(errGone)
		return lossError(errGone)
	default:
		h.sawEnd(errGone)()
		return lossError(errGone)
	}
	e.sawRelease(ctx, h, left, err)
	return err
}

// setLevels has the levels of h set to left in Redis, ends the caller's turn at it, and with the last
// level lets the next one contend for the lock: whatever Redis says.
func (e *engine) setLevels(p *patience, h *hold, left int, now time.Time) (r released, ghosts int, err error) {
	returned := false
	defer func() { // also when a hook of the Redis client ends the goroutine
		if !returned && left == 0 {
			e.spawn(h.clear)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if left == 0 {
			e.endStreakLocked(h, e.others(h, r))
			e.leaveGateLocked(h)
		}
		e.endTurnLocked(h)
	}()
	made, err := e.tryAtOnce(p, now, func(ctx context.Context) (err error) {
		r, err = h.backend.release(ctx, h.field, left)
		return err
	})
	switch {
	case !made:
		r, ghosts, err = e.persistRelease(*p, h, left, now, nil)
	case err != nil:
		r, ghosts, err = e.persistRelease(*p, h, left, now, &try[released]{now, r, err})
	}
	returned = true
	return r, ghosts, err
}

// persistRelease goes on from the first try, if it was made.
func (e *engine) persistRelease(p patience, h *hold, left int, now time.Time, first *try[released]) (released, int, error) {
	return persist(e, &p, now, first, func(ctx context.Context) (released, error) {
		return h.backend.release(ctx, h.field, left)
	}, nil)
}

func unconfirmed(err error) error {
	if err == errTimeUp {
		err = silence(unlockTime, 1, nil)
	}
	return fmt.Errorf("not confirmed: the release goes on in the background until the record is gone or its lease is over: %w", err)
}

// giveBack takes one level from the hold, and with the last one ends it here. It
// returns the levels that are left, and whether nobody needs the record any more.
func (h *hold) giveBack() (left int, last bool) {
	h.engine.mu.Lock()
	left, last, guards := h.giveBackLocked()
	h.engine.mu.Unlock()
	endGuards(guards, nil)
	return left, last
}

// giveBackLocked also returns the guards that are to be ended.
func (h *hold) giveBackLocked() (left int, last bool, guards []*guardEnd) {
	if h.state != over {
		h.levels--
		left = h.levels
	}
	if left > 0 || h.state == over { // perhaps since its owner looked
		return left, false, nil
	}
	last = h.state == lost || h.partLocked()
	h.state = over
	if last {
		h.engine.closeLocked(h.tenure)
		h.engine.dog.remove(&h.tenure.lease)
	}
	return 0, last, h.takeGuardsLocked()
}

// clear takes whatever there is of the hold out of Redis, and lets the next one
// contend for its lock. It tries for as long as the record may last: until the lease
// is over; and where the other half renews that lease, for as long as it does.
func (h *hold) clear() {
	e := h.engine
	ctx := h.key.owner.in(context.Background())
	end := e.recordEnd(h)
	for e.abandon(ctx, h.backend, attempt{field: h.field, level: 1}, 1) != nil && (time.Now().Before(end) || h.keptByKin()) {
		p := &patience{ctx: ctx, closed: e.closed}
		if p.wait(nil, nil, clearPause) != nil {
			break // nothing is renewed any more
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaveGateLocked(h)
}

// recordEnd is when the lease of the record of h is over at the latest. A renewal may be on its way.
func (e *engine) recordEnd(h *hold) time.Time {
	t := h.tenure
	if t == nil {
		return time.Now()
	}
	if e.dog.renews(&t.lease) {
		return time.Now().Add(e.watchdogTimeout)
	}
	return e.dog.end(&t.lease).Add(drift(e.dog.left(&t.lease)))
}

// keptByKin says whether the owner holds the other half, which keeps the record alive.
func (h *hold) keptByKin() bool {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	kin := h.engine.kinOfLocked(h)
	return kin != nil && kin.state == holding
}

// undo has abandonAll done by a goroutine of its own, so that whoever gave up need not wait for it.
func (e *engine) undo(ctx context.Context, wants []want, ghosts int) (done <-chan struct{}) {
	ended := make(chan struct{})
	e.spawn(func() {
		defer close(ended)
		e.abandonAll(ctx, wants, ghosts)
	})
	return ended
}

// abandonAll undoes attempts.
func (e *engine) abandonAll(ctx context.Context, wants []want, ghosts int) {
	var all sync.WaitGroup
	for _, w := range wants[1:] {
		all.Go(func() { _ = e.abandon(ctx, w.hold.backend, w.attempt, ghosts) })
	}
	_ = e.abandon(ctx, wants[0].hold.backend, wants[0].attempt, ghosts)
	all.Wait()
}

// abandon undoes an attempt. Tries of it whose answer is not known may still be on
// their way, so abandon looks again, a few times; but for a single one only until
// it has found it. The error is that of what could not be undone.
func (e *engine) abandon(ctx context.Context, b backend, a attempt, ghosts int) error {
	for _, pause := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		p := &patience{ctx: context.WithoutCancel(ctx), parts: isComposite(b), background: true}
		if pause > 0 {
			_ = p.wait(e.closed, nil, pause) // Close does not wait so long
		}
		p.deadline = time.Now().Add(unlockTime)
		there, _, err := persist(e, p, time.Now(), nil, func(ctx context.Context) (bool, error) {
			return b.abandon(ctx, a)
		}, nil)
		if ghosts == 0 || ghosts == 1 && there || err != nil { // what cannot be undone lapses with its lease
			return err
		}
	}
	return nil
}

// force frees b, whoever holds it, and ends the holds that this process had on
// it. It is sent once: a repetition could free a later hold.
func (e *engine) force(ctx context.Context, b lockType) (bool, error) {
	p := e.patienceFor(ctx, b)
	p.prompt = false // there is no second try that would wait longer for a connection
	if err := p.over(); err != nil {
		return false, err
	}
	before := e.tenuresOf(b.id())
	freed, err, why := answer(e, p, b.force, nil)
	if err := cmp.Or(why, err); err != nil {
		return false, err
	}
	if freed {
		var lost []*hold
		for _, t := range before {
			lost = append(lost, t.end(errForced)...)
		}
		for _, h := range lost {
			h.sawEnd(errForced)()
		}
	}
	return freed, nil
}

// tenuresOf returns what this process has of the lock of that id.
func (e *engine) tenuresOf(id lockID) []*tenure {
	e.mu.Lock()
	defer e.mu.Unlock()
	var of []*tenure
	for key, h := range e.holds {
		if key.id == id && h.state == holding {
			of = append(of, h.tenure)
		}
	}
	return of
}
