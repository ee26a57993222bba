package faults

// The workers of a storm: they acquire locks, work, and release them, and record each answer: see storm_test.go.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/history"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
)

// try tries to acquire one of the locks.
func (w *stormWorker) try(wait time.Duration) (stormLock, *stormHold) {
	l := w.kind.locks(w.procs[w.proc].current(), w.names, w.rng)
	return l, w.take(l, takes{wait: wait})
}

// A stormWorker acquires locks, works, and releases them.
type stormWorker struct {
	*storm
	number int
	proc   int
	rng    *rand.Rand
	ctx    context.Context
	err    error // why it did not acquire the last one that it asked for
}

func (w *stormWorker) run() {
	for !w.over.Load() {
		w.round()
		time.Sleep(time.Duration(w.rng.IntN(10)) * time.Millisecond)
	}
}

// takes describes how a lock is asked for.
type takes struct {
	lease  time.Duration // 0 for automatic renewal
	wait   time.Duration // negative to wait forever, 0 for one attempt
	cancel bool          // the context is canceled during the wait
}

func (w *stormWorker) round() {
	l := w.kind.locks(w.procs[w.proc].current(), w.names, w.rng)
	how := takes{wait: -1}
	least := 20 * time.Millisecond
	if w.kind.nodes > 1 { // a server has half of the lease for its answer, which is too little for a busy process
		least = stormLease / 2
	}
	switch {
	case w.recorder != nil: // leases that expire before their grants are received
		if w.rng.IntN(3) > 0 {
			how.lease = locktest.Between(w.rng, 20*time.Millisecond, stormLease/3)
		}
	case w.rng.IntN(3) == 0:
		how.lease = locktest.Between(w.rng, least, stormLease)
	}
	switch w.rng.IntN(5) {
	case 0:
		how.wait = 0
	case 1, 2:
		how.wait = locktest.Between(w.rng, time.Millisecond, stormTimeout)
		how.cancel = w.rng.IntN(2) == 0
	case 3:
		if how.lease == 0 {
			w.do(l)
			return
		}
	}
	h := w.take(l, how)
	if h == nil {
		return
	}
	h.work()
	var inner *stormHold
	if l.inside != nil && w.rng.IntN(3) == 0 {
		inner = w.take(stormLock{Locker: l.inside, names: l.names, shared: true}, takes{wait: 0})
	} else if w.rng.IntN(3) == 0 {
		h.again()
		h.work()
	}
	h.give()
	if inner != nil { // downgrade
		inner.work()
		inner.give()
	}
}

// op returns the record of one call.
func (w *stormWorker) op(kind history.Kind, l stormLock, c *Client) history.Op {
	return history.Op{
		Kind:   kind,
		Name:   l.names[0],
		Owner:  fmt.Sprintf("%s:%d", c.ID(), int64(engine.OwnerOf(w.ctx))),
		Client: w.proc,
		Shared: l.shared,
	}
}

// outcomeOf evaluates the results of a call.
func (w *stormWorker) outcomeOf(err error) history.Outcome {
	assert.NotErrorIs(w, err, ErrInvalid, "a valid call is refused")
	switch {
	case err == nil:
		return history.Done
	case errors.Is(err, ErrLockLost):
		return history.Lost
	case errors.Is(err, ErrNotHeld):
		return history.NotHeld
	}
	return history.Unsure
}

// take acquires a lock that its owner does not hold yet. It returns nil if that fails.
func (w *stormWorker) take(l stormLock, how takes) *stormHold {
	h := &stormHold{w: w, l: l, c: locktest.ClientOf(l.Locker)}
	op := w.op(history.Take, l, h.c)
	op.Lease, op.Level = how.lease, 1
	// RedLocks that lose a round release their grants in the background; and of several locks another one may have
	// blocked.
	op.Once = how.wait == 0 && w.kind.nodes <= 1 && len(l.names) == 1
	if how.wait > 0 {
		op.GiveUp = w.rec.Now() + how.wait
		if len(l.names) > 1 || w.kind.nodes > 1 {
			op.GiveUp += send.ConnectTime // to release the locks of the set that it has acquired
		}
	}
	op = w.rec.Begin(w.number, op)
	ok, err := w.ask(l, how)
	w.err = err
	outcome := w.outcomeOf(err)
	if err == nil && !ok {
		outcome = history.Refused
	}
	op = w.rec.End(w.number, op, outcome)
	if outcome != history.Done {
		w.count(outcome.String())
		for _, name := range l.names {
			op.Name = name
			w.rec.Fail(op)
		}
		return nil
	}
	h.begin(op, nil)
	return h
}

// ask asks for l.
func (w *stormWorker) ask(l stormLock, how takes) (bool, error) {
	switch {
	case how.wait >= 0 && !how.cancel:
		return l.TryLock(w.ctx, how.wait, how.lease)
	case how.cancel:
		ctx, cancel := context.WithTimeout(w.ctx, how.wait)
		defer cancel()
		how.cancel, how.wait = false, -1
		inner := *w
		inner.ctx = ctx
		return inner.ask(l, how)
	case how.lease > 0:
		err := l.LockLease(w.ctx, how.lease)
		return err == nil, err
	}
	err := l.Lock(w.ctx)
	return err == nil, err
}

// do uses Do for it.
func (w *stormWorker) do(l stormLock) {
	h := &stormHold{w: w, l: l, c: locktest.ClientOf(l.Locker)}
	take := w.op(history.Take, l, h.c)
	take.Level = 1
	take = w.rec.Begin(w.number, take)
	var give history.Op
	called := false
	err := l.Do(w.ctx, func(ctx context.Context) error {
		called = true
		h.begin(w.rec.End(w.number, take, history.Done), ctx)
		h.work()
		h.look(true)
		give = w.op(history.Give, l, h.c)
		give.GiveUp = w.rec.Now() + send.ConnectTime
		give = w.rec.Begin(w.number, give)
		return nil
	})
	if !called {
		take = w.rec.End(w.number, take, w.outcomeOf(err))
		assert.NotEqual(w, history.Done, take.Outcome, "Do did not call its function, and returned no error")
		if take.Outcome == history.Lost { // as soon as it was acquired
			take.Outcome = history.Unsure
		}
		for _, name := range l.names {
			take.Name = name
			w.rec.Fail(take)
		}
		return
	}
	h.then(w.rec.End(w.number, give, w.outcomeOf(err)))
	h.end()
}

// A stormHold is a hold of a worker.
type stormHold struct {
	w      *stormWorker
	l      stormLock
	c      *Client
	hold   history.Hold
	guard  context.Context
	levels int
	lost   bool

	dooms int64 // number of losses of the lock at the time of the acquire
	value int   // the value that was read under the lock
}

// begin is called when a lock was granted.
func (h *stormHold) begin(take history.Op, guard context.Context) {
	h.w.count("held")
	h.levels = 1
	h.hold.Take = take
	h.hold.Take.Token = h.token()
	at := h.w.rec.Now()
	if guard == nil {
		var err error
		if guard, err = h.l.Guard(h.w.ctx); err != nil {
			h.w.outcomeOf(err)
			h.lost = true
			return
		}
		h.hold.Trusted, h.hold.Untold = at, at
	}
	h.guard = guard
	h.dooms = h.doomed()
	h.look(true)
	if token := h.hold.Take.Token; token != 0 {
		at := h.w.rec.Now()
		var ok bool
		if h.value, ok = h.locked().read(token); !ok {
			h.hold.Overtaken = at
		}
		h.look(true)
	}
}

// doomed returns the number of losses that must be reported to its owner.
func (h *stormHold) doomed() int64 {
	return h.locked().deletions.Load() + h.w.procs[h.w.proc].holes.Load()
}

func (h *stormHold) locked() *guarded { return h.w.locked[h.l.names[0]] }

// write increments the value that the lock protects.
func (h *stormHold) write() {
	token := h.hold.Take.Token
	if token == 0 || h.hold.Overtaken != 0 || h.guard == nil {
		return
	}
	at := h.w.rec.Now()
	if !h.locked().write(token, h.value+1) {
		h.w.count("refused by a token")
		h.hold.Overtaken = at
	}
	h.value++
	h.look(true)
}

// token returns the fencing token of the hold, or 0 if it has none.
func (h *stormHold) token() int64 {
	l, ok := h.l.Locker.(interface {
		Token(context.Context) (int64, error)
	})
	if !ok {
		return 0
	}
	token, err := l.Token(h.w.ctx)
	if err != nil {
		return 0
	}
	return token
}

// look records whether the guard of the hold has ended. If ask is set, it also records whether the lock still confirms
// the hold, which makes the lock read the clock.
func (h *stormHold) look(ask bool) bool {
	if h.guard == nil {
		return false
	}
	at := h.w.rec.Now()
	select {
	case <-h.guard.Done():
		h.lost = true
		return false
	default:
		h.hold.Untold = at
	}
	if ask {
		if h.guard.Err() != nil {
			h.lost = true
			return false
		}
		h.hold.Trusted = at
	}
	return true
}

// work works for a while, or until its guard ends. Some workers wait for that end.
func (h *stormHold) work() {
	rng := h.w.rng
	d := locktest.Between(rng, 0, 8*time.Millisecond)
	if rng.IntN(80) == 0 {
		d = locktest.Between(rng, 0, 3*stormTimeout/2)
	}
	asks := rng.IntN(2) == 0 // if false, it relies on its guard
	if lease := h.hold.Take.Lease; lease > 0 && rng.IntN(20) == 0 {
		d = 2*stormLease + stormSlack
	}
	if h.guard == nil {
		return
	}
	step := time.NewTicker(2 * time.Millisecond)
	defer step.Stop()
	end := h.w.rec.Now() + d
	for h.look(asks) && h.w.rec.Now() < end {
		select {
		case <-h.guard.Done():
		case <-step.C:
		}
		if dooms := h.doomed(); h.hold.Take.Lease == 0 && h.dooms != dooms {
			h.dooms = dooms
			h.w.waiting.Add(1)
			defer h.w.waiting.Add(-1)
			end = h.w.rec.Now() + stormTimeout + stormSlack
		}
	}
	h.look(true)
	h.write()
	if !h.lost && rng.IntN(10) == 0 {
		h.checkHoldCount()
	}
}

func (h *stormHold) checkHoldCount() {
	w := h.w
	op := w.rec.Begin(w.number, w.op(history.Count, h.l, h.c))
	ctx, cancel := context.WithTimeout(w.ctx, stormTimeout)
	defer cancel()
	n, err := h.l.HoldCount(ctx)
	op = w.rec.End(w.number, op, w.outcomeOf(err))
	op.Level = n
	if err == nil && n == 0 {
		op.Outcome = history.Lost
	}
	h.then(op)
}

// again acquires the lock once more.
func (h *stormHold) again() {
	w := h.w
	how := takes{wait: 0}
	if w.rng.IntN(2) == 0 {
		how = takes{wait: stormTimeout, cancel: true}
	}
	if w.rng.IntN(2) == 0 && h.hold.Take.Lease > 0 {
		how.lease = locktest.Between(w.rng, 20*time.Millisecond, stormLease)
	}
	if !h.look(true) {
		return
	}
	op := w.op(history.Take, h.l, h.c)
	op.Lease, op.Level, op.Once = how.lease, h.levels+1, how.wait == 0
	op = w.rec.Begin(w.number, op)
	ok, err := w.ask(h.l, how)
	outcome := w.outcomeOf(err)
	if err == nil && !ok {
		outcome = history.Refused
	}
	op = w.rec.End(w.number, op, outcome)
	if ok && !h.look(true) {
		// The hold was lost around that time, and the present one may be a new hold.
		op.Outcome = history.Unsure
		for _, name := range h.l.names {
			op.Name = name
			w.rec.Fail(op)
		}
		_ = h.l.Unlock(w.ctx)
		return
	}
	if ok {
		w.count("entered again")
		h.levels++
		op.Token = h.token()
	}
	h.then(op)
}

// then records the outcome of a call.
func (h *stormHold) then(op history.Op) {
	if op.Outcome == history.NotHeld && h.hold.Take.Lease > 0 {
		op.Outcome = history.Lost // there is no hold to release
	}
	if op.Outcome == history.Lost {
		h.lost = true
		h.w.count("lost")
	}
	h.hold.Then = append(h.hold.Then, op)
}

// give calls Unlock until the hold count is 0.
func (h *stormHold) give() {
	w := h.w
	for ; h.levels > 0; h.levels-- {
		h.look(true)
		op := w.op(history.Give, h.l, h.c)
		op.GiveUp, op.Level = w.rec.Now()+send.ConnectTime, h.levels-1
		op = w.rec.Begin(w.number, op)
		err := h.l.Unlock(w.ctx)
		h.then(w.rec.End(w.number, op, w.outcomeOf(err)))
	}
	h.end()
}

// end records the hold, for every lock to which it belonged.
func (h *stormHold) end() {
	for _, name := range h.l.names {
		hold := h.hold
		hold.Take.Name = name
		hold.Then = slices.Clone(hold.Then)
		for i := range hold.Then {
			hold.Then[i].Name = name
		}
		h.w.rec.Hold(hold)
	}
}
