package relock

// How a MultiLock acquires its locks.
//
// The algorithm:
//
//  1. The locks have one order in all processes: by name, then by the address of the server.
//  2. Ask for all that are not held at once, without waiting. If all are granted, the call is done.
//  3. Otherwise keep those before the first one that is busy, give back those behind it, wait for the busy one in its
//     queue, as any caller of that lock does, and go on with 2.
//  4. A call that does not wait makes one pass in the order instead of 3, so that one of two such calls gets the locks.
//  5. Two locks are tied if another process may have them in the other order: see members.go. While the call holds one of
//     them and waits for the other, it is patient for a short, random time only. Then it gives back the first, stays in the
//     queue, and has the other one before the first in its order from then on.
//  6. While the call waits, the explicit leases of what it holds are extended when half of them is over, and once more
//     when all is held, unless it was acquired at the same time.
//  7. What was lost meanwhile, or has too little left of an explicit lease, counts as not held in 2.
//  8. What the owner holds already is acquired once more, like the others, but an explicit lease stays as it is until all
//     is held. Then it is extended, and renewed from then on if the call has no lease.
//
// Rules: a call waits only for a lock that comes behind all that it holds, or for a limited time, so no two calls wait for
// each other; and each wait is a place in a queue, so none starves. What the call gives back it has not used: no event and
// no MinHold applies.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

const (
	// vainPause is how long a call sleeps after it has lost what it had acquired without waiting.
	vainPause = 10 * time.Millisecond

	firstPatience  = 25 * time.Millisecond // with which tied locks are awaited at first
	patienceGrowth = 4
)

var (
	errNotLasting = engine.LossError(errors.New("one of its locks was lost before all of them were acquired"))
	errAllLate    = engine.LossError(engine.ErrLate)
)

// A gathering is one call that acquires all locks of a MultiLock.
type gathering struct {
	*multi
	ctx     context.Context // of the caller, with its owner; it ends with the call, and with the Clients, too
	request engine.Request  // its AnswerBy is the end of the wait, zero: there is none

	parts    []*part // in the order in which this call acquires them
	patience time.Duration
}

// A part is one of the locks of a gathering.
type part struct {
	member
	held   bool
	found  bool            // askAll has found it busy
	guard  context.Context // of the hold
	report engine.Report   // the outcome of the last attempt
}

// A progress is how a gathering, or an attempt on one of its locks, has ended.
type progress int

const (
	acquired progress = iota
	busy              // or there is an error, which says more
	lost              // what was acquired did not last, because of the error: the call may try again
	late              // too little is left of an explicit lease, because of the error: the call may try again
)

// gather acquires all locks. If it does not, some of them may be held.
func (g *gathering) gather() (progress, error) {
	for vain := 1; ; vain++ {
		first, out, err := g.pass()
		switch {
		case g.request.Wait == 0 && (first >= 0 || out == lost):
			return g.inOrder()
		case g.request.Wait == 0, out == late && vain >= engine.MostAsked:
			return out, err
		case out == lost, out == late:
			why := g.client.engine().UntilShutdown(g.ctx, g.request.AnswerBy).Sleep(nil, nil, nil, vainPause)
			if why != errTimeUp {
				err = why
			}
		case out == acquired && first >= 0:
			vain = 0
		default:
			return out, err
		}
		if err != nil {
			return busy, err
		}
	}
}

// pass asks for all locks once. If it gets all, it completes the call; otherwise it waits for the first one that it does
// not get, if the caller waits, and returns its index; or -1 if there is none, or an error.
func (g *gathering) pass() (first int, out progress, err error) {
	asked := time.Now()
	_ = g.giveBack(g.lost())
	apart := slices.ContainsFunc(g.parts, func(p *part) bool { return p.held })
	if err = g.askAll(); err != nil {
		return -1, busy, err
	}
	first = g.missing()
	switch {
	case first < 0:
		out, err = g.complete(apart)
	case g.request.Wait != 0:
		out, err = g.await(first, asked)
	}
	return first, out, err
}

// those returns the parts that are so.
func those(parts []*part, so func(p *part) bool) (some []*part) {
	for _, p := range parts {
		if so(p) {
			some = append(some, p)
		}
	}
	return some
}

// missing returns the index of the first lock that is not held, or -1.
func (g *gathering) missing() int {
	return slices.IndexFunc(g.parts, func(p *part) bool { return !p.held })
}

// askAll asks for all locks that are not held, at the same time. A lock without an answer counts as busy. The error is one
// that another attempt must not repeat, or the reason why the call ends.
func (g *gathering) askAll() error {
	r := g.request
	if r.Wait == 0 {
		r.AnswerBy = time.Time{} // the patience of each lock
	}
	r.Wait = 0
	asked := those(g.parts, func(p *part) bool { return !p.held })
	if len(asked) < len(g.parts) && g.isOver(send.MinWait/2) {
		return nil // if the last attempt of the wait was granted, the rest has been asked for once more
	}
	errs := forEach(asked, func(_ int, p *part) error {
		out, err := g.acquire(p, r)
		if out == lost {
			return nil
		}
		return err
	})
	first, over := g.missing(), g.isOver(0)
	for i, p := range asked {
		e := errs[i]
		if e == send.ErrHookExited { // no answer: it ends the goroutine of the caller when the call waits for this lock
			e = nil
		}
		p.found = e == nil
		if e != nil && (g.request.Wait == 0 || p.held || over && p == g.parts[first] || isFinal(e)) {
			p.tellFailure()
			return e
		}
	}
	return nil
}

// isFinal reports whether err must not be dropped, because no later attempt returns it. What single nodes of a RedLock
// have answered is not final for it.
func isFinal(err error) bool {
	return send.PanicOf(err) != nil || !errors.As(err, new(*QuorumError)) &&
		(errors.Is(err, ErrLockLost) || errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid))
}

// isOver reports whether the wait of the caller has been over for that long.
func (g *gathering) isOver(long time.Duration) bool {
	return !g.request.AnswerBy.IsZero() && time.Since(g.request.AnswerBy) >= long
}

// inOrder gives back what the call holds, and asks for one lock after the other, without waiting.
func (g *gathering) inOrder() (progress, error) {
	if err := g.giveBack(g.parts); err != nil {
		return busy, err
	}
	for _, p := range g.parts {
		if out, err := g.acquire(p, g.request); out != acquired {
			p.tellFailure()
			return out, err
		}
	}
	return g.complete(true)
}

// await gives back what comes behind lock i, which the call has asked for at the time asked, and waits for lock i in its
// queue.
func (g *gathering) await(i int, asked time.Time) (out progress, err error) {
	p := g.parts[i]
	_ = g.giveBack(g.parts[i+1:]) // a release that is not confirmed goes on in the background
	if g.isOver(0) {
		p.tellFailure()
		return busy, nil
	}
	r := g.request
	if r.Wait > 0 {
		r.Wait = max(0, time.Until(r.AnswerBy))
	}
	defer g.meanwhile(i)()
	found := p.found
	if out, err = g.acquire(p, r); out != busy {
		return out, err
	}
	p.tellFailure()
	if found && time.Since(asked) < send.MinWait {
		err = g.stillBusy(err)
	}
	return busy, err
}

// stillBusy returns the error of a wait that has ended with err, so soon that the answer before it is the newest fact:
// that the lock is busy.
func (g *gathering) stillBusy(err error) error {
	switch {
	case g.ctx.Err() != nil && err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrClosed):
		return fmt.Errorf("%w: %w", err, ErrBusy)
	case errors.Is(err, engine.ErrNoAnswer) && g.isOver(0):
		return nil
	}
	return err
}

// meanwhile looks after the locks before lock i until stop is called: it extends their explicit leases, and when the
// patience of the call is over, it gives back those that are tied with lock i. stop then puts them behind it.
func (g *gathering) meanwhile(i int) (stop func()) {
	p, held := g.parts[i], those(g.parts[:i], func(o *part) bool { return !o.report.Kept })
	tied := those(g.parts[:i], func(o *part) bool { return o.held && o.isTied(p.member) })
	if len(tied) == 0 && (g.request.Lease == 0 || len(held) == 0) {
		return func() {}
	}
	var over <-chan time.Time
	if len(tied) > 0 {
		over = time.After(g.patience/2 + rand.N(g.patience))
	}
	ctx, cancel := context.WithCancel(g.ctx)
	ended := make(chan struct{})
	g.client.engine().Spawn(func() {
		defer close(ended)
		for {
			select {
			case <-g.halfOver(held):
				_ = g.extend(ctx, held)
			case <-over:
				g.release(tied)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		<-ended
		if len(tied) > 0 && !slices.ContainsFunc(tied, func(p *part) bool { return p.held }) {
			g.reorder(i, tied)
		}
	}
}

// reorder puts tied, which the call has given back, behind lock i. Locks that are not tied with each other keep their
// order: what is not tied with one in tied, and comes behind it, is tied with lock i.
func (g *gathering) reorder(i int, tied []*part) {
	p := g.parts[i]
	g.patience *= patienceGrowth
	front := those(g.parts[:i], func(o *part) bool { return !slices.Contains(tied, o) })
	g.parts = slices.Concat(front, []*part{p}, tied, g.parts[i+1:])
}

// halfOver returns a channel on which a value comes when half of the explicit lease of one of the locks is over; nil if
// they have none.
func (g *gathering) halfOver(held []*part) <-chan time.Time {
	whole := lease.Validity(g.request.Lease)
	if g.request.Lease == 0 || len(held) == 0 {
		return nil
	}
	left := time.Until(g.validUntil(held...)) - whole/2
	return time.After(max(left, whole/8, time.Millisecond))
}

// extend gives the locks in held that have an explicit lease the lease of the call, from now on. A loss ends a guard, and
// what is left after another error is seen to by complete. The caller does not wait for longer than for answers. The error
// is one of a lock whose lease was kept until now.
func (g *gathering) extend(ctx context.Context, held []*part) (kept error) {
	if by := g.request.AnswerBy; !by.IsZero() {
		limited, cancel := context.WithDeadline(ctx, by.Add(send.MinWait))
		defer cancel()
		ctx = limited
	}
	errs := forEach(held, func(_ int, p *part) error {
		switch {
		case !p.held || p.in == nil:
			return nil
		case p.report.Extend != nil:
			return p.report.Extend(ctx)
		}
		return extendLocker(ctx, p.Locker, g.request.Lease)
	})
	for i, p := range held {
		if p.report.Kept {
			kept = cmp.Or(kept, errs[i])
		}
	}
	return kept
}

// acquire acquires p as r demands. A hold that was lost at once is found by lost.
func (g *gathering) acquire(p *part, r engine.Request) (progress, error) {
	p.report.Drop()
	p.report, r.Report = engine.Report{}, &p.report
	ok, err := p.acquire(g.ctx, r)
	switch {
	case errors.Is(err, engine.ErrExpired) && !errors.Is(err, engine.ErrUnrenewed):
		return lost, errNotLasting // the owner already held it, and its lease was about to expire
	case !ok:
		return busy, err
	}
	p.held, p.guard = true, ended // also if Guard ends the goroutine
	guard, err := p.Guard(g.ctx)
	switch {
	case err == nil:
		p.guard = guard
	case !errors.Is(err, ErrNotHeld):
		return busy, err
	}
	return acquired, nil
}

// tellFailure tells that p was not acquired, if that is the outcome of the last attempt.
func (p *part) tellFailure() {
	if p.report.GiveBack == nil {
		p.report.Tell()
	}
}

// lost returns the locks that the call has acquired and lost. An explicit lease that is too short for any validity has
// ended as soon as it is acquired, as documented.
func (g *gathering) lost() []*part {
	if g.request.Lease != 0 && lease.Validity(g.request.Lease) <= 0 {
		return nil
	}
	return those(g.parts, func(p *part) bool { return p.held && p.guard.Err() != nil })
}

// late returns the locks of which too little is left of the explicit lease; or which have the lease that the owner had
// before, because of why.
func (g *gathering) late(why error) []*part {
	whole := lease.Validity(g.request.Lease)
	return those(g.parts, func(p *part) bool {
		if g.request.Lease == 0 {
			return p.report.Kept && why != nil
		}
		return whole > 0 && !lease.Suffices(time.Until(g.validUntil(p)), whole, false)
	})
}

// endsApart reports whether the explicit leases of the locks end at different times: by more than a fiftieth of a lease.
func (g *gathering) endsApart() bool {
	last := g.validUntil(g.parts...).Add(lease.Validity(g.request.Lease) / 50)
	return slices.ContainsFunc(g.parts, func(p *part) bool { return g.validUntil(p).After(last) })
}

// complete ends a call that holds all locks. apart is set if it has not acquired all of them at the same time: then the
// extension also finds out what was lost meanwhile.
func (g *gathering) complete(apart bool) (progress, error) {
	together := g.request.Lease != 0 && len(g.parts) > 1
	kept := slices.ContainsFunc(g.parts, func(p *part) bool { return p.report.Kept })
	var why error
	if kept || together && (apart || g.endsApart()) {
		why = g.extend(g.ctx, g.parts)
	}
	if g.ctx.Err() != nil {
		return busy, ctxError(g.ctx)
	}
	if err := g.client.engine().Open(); err != nil {
		return busy, err
	}
	if len(g.lost()) > 0 {
		return lost, errNotLasting
	}
	if some := g.late(why); len(some) > 0 && (together || kept) {
		_ = g.giveBack(some)
		return late, cmp.Or(why, errAllLate)
	}
	for _, p := range g.parts {
		p.held = p.in == nil // if the Observer ends the goroutine, the engine releases this lock
		p.report.Tell()
		p.held = true
	}
	return acquired, nil
}

// validUntil returns the time until which the locks in held are valid that have an explicit lease.
func (g *gathering) validUntil(held ...*part) time.Time {
	end := time.Now().Add(lease.Validity(cmp.Or(g.request.Lease, math.MaxInt64)))
	for _, p := range held {
		if p.held && p.in != nil {
			end = p.in.client.engine().ValidUntil(p.in.lock, engine.OwnerOf(g.ctx), end)
		}
	}
	return end
}

// A giving is locks that are being given back.
type giving struct {
	done chan struct{} // closed when they are
	err  error         // written before
}

// release begins to give back those of parts that are held; it returns nil if there are none. It calls no code of the user
// on this goroutine. A panic is logged, because the caller has nothing to do with what it gives back.
func (g *gathering) release(parts []*part) *giving {
	var back []func(context.Context) error
	for _, p := range parts {
		if p.held {
			p.held, back = false, append(back, p.back())
		}
	}
	if len(back) == 0 {
		return nil
	}
	r, ctx := &giving{done: make(chan struct{})}, context.WithoutCancel(g.ctx)
	g.client.engine().Spawn(func() {
		defer close(r.done)
		errs := forEach(back, func(_ int, giveBack func(context.Context) error) error { return giveBack(ctx) })
		r.err = errors.Join(slices.DeleteFunc(errs, func(err error) bool {
			send.LogPanic(g.client.engine().Log, err)
			return send.PanicOf(err) != nil
		})...)
	})
	return r
}

// back returns the function that gives p back.
func (p *part) back() func(ctx context.Context) error {
	if giveBack := p.report.GiveBack; giveBack != nil {
		return giveBack
	}
	return func(ctx context.Context) error { // of a Locker with methods of its own, or after a panic of the Observer
		if err := p.Unlock(ctx); !errors.Is(err, ErrNotHeld) {
			return err
		}
		return nil
	}
}

// giveBack releases those of parts that are held. If Redis does not answer while the caller has time, the release goes on
// without it.
func (g *gathering) giveBack(parts []*part) error {
	r := g.release(parts)
	if r == nil {
		return nil
	}
	by, least := g.request.AnswerBy, send.MinWait
	if g.client.engine().UntilShutdown(g.ctx, by).Sleep(r.done, nil, nil, 0) != nil {
		if !by.IsZero() {
			least = max(time.Millisecond, min(least, time.Until(by)+send.MinWait)) // the hold counts are lowered by then
		}
		select {
		case <-r.done:
		case <-time.After(least):
			return nil
		}
	}
	return r.err
}
