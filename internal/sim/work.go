//go:build go1.25

package sim

// The work: what a worker does with the locks of its kind.
//
// Rules: a worker uses the public API as a service does, and reports each call to the witness before it is made and
// after it has returned. All random decisions in a round depend on the seed of the worker.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock"
)

// A worker is a Worker at work.
type worker struct {
	Worker
	world *world
	rng   *rand.Rand
	over  <-chan struct{} // closed when it is to finish
}

func (w *worker) run() {
	if !w.rest(w.Start) {
		return
	}
	for range w.Rounds {
		w.world.gate(w.Process)
		p := w.world.process(w.Process)
		switch {
		case w.Worker.java():
			w.java()
		case p.gone.Load():
			w.rest(100 * time.Millisecond)
		case w.Kind == Leader:
			w.lead(p)
		default:
			w.round(p)
		}
		if !w.rest(w.upTo(w.Rest)) {
			return
		}
	}
}

// rest sleeps, and reports whether the work continues.
func (w *worker) rest(d time.Duration) bool {
	select {
	case <-w.over:
		return false
	case <-time.After(d):
		return true
	}
}

func (w *worker) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

func (w *worker) upTo(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most) + 1))
}

// A lock is the set of methods that all lock types have.
type lock interface {
	relock.Locker
	relock.Acquirer
}

// lock returns the lock that w uses in a round, and the names of which it is the read lock.
func (w *worker) lock(p *process) (l lock, read []string) {
	var opts []relock.LockOption
	if w.MinHold > 0 {
		opts = append(opts, relock.MinHold(w.MinHold))
	}
	if w.MaxHold > 0 {
		opts = append(opts, relock.MaxHold(max(w.MaxHold, w.MinHold)))
	}
	c, name := p.clients[0], w.Names[0]
	switch w.Kind {
	case Plain:
		return c.NewLock(name, opts...), nil
	case FencedOne:
		return c.NewLock(name, append(opts, relock.Fenced())...), nil
	case Fair:
		return c.NewFairLock(name, append(opts, relock.Fenced())...), nil
	case ReadWrite:
		rw := c.NewRWLock(name, append(opts, relock.Fenced())...)
		if w.rng.IntN(3) > 0 {
			return rw.Read(), w.Names
		}
		return rw.Write(), nil
	case Write:
		return c.NewRWLock(name).Write(), nil
	case Permits:
		return c.NewSemaphore(name, w.Kind.permits()), nil
	case Wide:
		return several{c.NewSemaphore(name, w.Kind.permits()), max(1, w.Wants)}, nil
	case Multi:
		var members []relock.Locker
		for i, name := range w.Names {
			member := &worker{Worker: Worker{Kind: w.Members[i], Names: []string{name}}, rng: w.rng}
			l, reads := member.lock(p)
			members, read = append(members, l), append(read, reads...)
		}
		return c.NewMultiLock(members...), read
	case Red:
		var members []relock.Locker
		for _, c := range p.clients {
			members = append(members, c.NewLock(name))
		}
		return c.NewRedLock(members...), nil
	}
	panic("no lock of kind " + w.Kind)
}

// A several is a semaphore of which a worker acquires n permits at once. Its other methods acquire one.
type several struct {
	*relock.Semaphore
	n int
}

func (s several) Acquire(ctx context.Context) (*relock.Hold, error) { return s.AcquireN(ctx, s.n) }

func (s several) TryAcquire(ctx context.Context, wait, lease time.Duration) (*relock.Hold, bool, error) {
	return s.TryAcquireN(ctx, s.n, wait, lease)
}

// A manner describes how a lock is asked for.
type manner struct {
	lease  time.Duration // 0: renewed
	wait   time.Duration // negative: forever
	cancel time.Duration // when its context is canceled; 0: never
	value  bool          // acquired as a Hold
	do     bool
}

func (w *worker) manner() manner {
	m := manner{wait: -1, value: w.Wants > 1}
	if w.Steady {
		return m
	}
	if w.rng.IntN(4) == 0 {
		plan := w.world.plan
		// Half of it must be left when the call is answered.
		m.lease = 50*time.Millisecond + 10*(plan.Latency+plan.Jitter) + w.upTo(plan.Watchdog)
		if w.MaxHold > 0 {
			m.lease = min(m.lease, w.MaxHold)
		}
		m.lease = max(m.lease, w.MinHold)
	}
	switch w.rng.IntN(8) {
	case 0:
		m.wait = 0
	case 1, 2:
		m.wait = w.upTo(10 * time.Second)
	case 3:
		m.cancel = 1 + w.upTo(10*time.Second)
	}
	m.value = w.Wants > 1 || w.Moves || w.rng.IntN(3) == 0
	m.do = !m.value && m.lease == 0 && m.wait < 0 && m.cancel == 0 && w.rng.IntN(4) == 0
	return m
}

// bound returns how long the call takes at most, or 0 if it takes until it is its turn.
func (m manner) bound() time.Duration {
	switch {
	case m.wait >= 0:
		return m.wait + callBound
	case m.cancel > 0:
		return m.cancel + callBound
	}
	return 0
}

// round acquires the lock once, and releases it.
func (w *worker) round(p *process) {
	l, read := w.lock(p)
	switch some := w.rng.IntN(40); {
	case w.Steady:
	case some == 0:
		w.force(p, l, read)
		return
	case some < 3 && w.counts():
		w.setPermits(p)
		return
	case some == 3 && w.Kind != Red:
		_, _ = w.inspect(p)
	}
	m := w.manner()
	ctx := relock.ContextWithOwner(context.Background())
	asking := ctx
	if m.cancel > 0 {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, m.cancel)
		defer cancel()
	}
	h := &hold{p: p, worker: &w.Worker, names: w.Names, read: read, lease: m.lease, asked: time.Now()}
	for _, c := range p.clients {
		h.ids = append(h.ids, c.ID())
	}
	bound := m.bound()
	switch {
	case bound > 0 && (w.Kind == Multi || w.Kind == Red): // they may have to release some locks
		bound += callBound
	case m.wait >= 0:
		bound = m.wait + slack
	}
	call := w.world.witness.begin(p, &w.Worker, fmt.Sprintf("worker %d %+v", w.ID, m), bound)
	alone := w.world.witness.asking(call)
	var err error
	var has bool
	switch {
	case m.do:
		called, ended := false, false
		err = l.Do(asking, func(guard context.Context) error {
			called = true
			call.end(nil)
			w.hold(ctx, l, h, guard)
			ended = guard.Err() != nil
			w.world.witness.given(h)
			call = w.world.witness.begin(p, &w.Worker, "end of Do", callBound)
			return nil
		})
		call.end(err)
		w.world.witness.freed(h)
		if ended {
			w.world.witness.unlocked(h, err)
		}
		if !called && err != nil {
			w.had(call, alone, false, err, m)
		}
		if !called && err == nil {
			w.world.witness.Report("Do calls its function", "%s: %v", p.name, w.Names)
		}
		return
	case m.value:
		var held *relock.Hold
		held, has, err = w.acquire(asking, l, m)
		call.end(err)
		if w.had(call, alone, has, err, m) {
			h.token, _ = held.Token()
			h.tokens = w.memberTokens(held.Context(), p)
			w.hold(held.Context(), l, h, held.Context())
			for h.lease > 0 && !h.again && w.MaxHold == 0 && h.ctx.Err() == nil && w.rng.IntN(2) == 0 && !w.isOver() {
				w.extend(p, held, h)
			}
			w.letGo(held, h)
		}
		return
	case m.wait >= 0:
		has, err = l.TryLock(asking, m.wait, m.lease)
	case m.lease > 0:
		err = l.LockLease(asking, m.lease)
		has = err == nil
	default:
		err = l.Lock(asking)
		has = err == nil
	}
	call.end(err)
	if !w.had(call, alone, has, err, m) {
		return
	}
	if guard, err := l.Guard(ctx); err == nil {
		if fenced, ok := l.(interface {
			Token(context.Context) (int64, error)
		}); ok && w.Kind != Plain {
			h.token, err = fenced.Token(ctx)
			if h.ctx = guard; err != nil && (w.Kind == FencedOne || w.Kind == Fair) && w.world.witness.lives(h) {
				w.world.witness.Report("a fenced hold has a token", "%v: %v: %v", w.Names, h, err)
			}
		}
		h.tokens = w.memberTokens(ctx, p)
		w.hold(ctx, l, h, guard)
	}
	w.release(h, func() error { return l.Unlock(ctx) })
}

func (w *worker) acquire(ctx context.Context, l lock, m manner) (*relock.Hold, bool, error) {
	if m.wait >= 0 || m.lease > 0 {
		if m.wait < 0 {
			m.wait = w.world.plan.Watchdog // there is no other call for a lease and a Hold
		}
		return l.TryAcquire(ctx, m.wait, m.lease)
	}
	h, err := l.Acquire(ctx)
	return h, err == nil, err
}

// had checks the result of a call for a lock, and reports whether it was acquired.
func (w *worker) had(c *call, alone, has bool, err error, m manner) bool {
	if has {
		return true
	}
	w.world.note(c.p, "worker %d did not acquire %v: %v", w.ID, w.Names, err)
	w.world.witness.refused(c, alone, err, m)
	return false
}

// hold works while it holds the lock, until the section ends, the hold is lost, or the run ends.
func (w *worker) hold(ctx context.Context, l lock, h *hold, guard context.Context) {
	h.ctx = guard
	if guard.Err() != nil { // before it could be used
		h.since = time.Now()
		w.world.witness.lost(h)
		return
	}
	w.world.witness.hasTime(h)
	w.world.witness.held(h)
	defer context.AfterFunc(guard, func() { w.world.witness.ends(h) })()
	if l != nil && !w.Steady && w.rng.IntN(4) == 0 {
		h.again = true
		w.reenter(ctx, l, h, 1+w.rng.IntN(3))
	}
	if l != nil && !w.Steady && w.Kind != Red && w.rng.IntN(8) == 0 {
		defer w.beside(ctx, l, h)()
	}
	if w.Kind != Red && w.rng.IntN(20) == 0 {
		was := w.world.witness.lives(h)
		i, err := w.inspect(h.p)
		shown := slices.ContainsFunc(i.Holders, func(o relock.Holder) bool { return o.Client == h.ids[0] })
		if was && w.world.witness.lives(h) && (err != nil || !shown && !i.More) {
			w.world.witness.Report("Inspect shows the holder", "%v: %v is not among %v, %v", w.Names, h, i.Holders, err)
		}
	}
	section := w.Section
	if w.Moves && h.moves == 0 { // most of the work is for another process
		section /= 8
	}
	select {
	case <-guard.Done():
	case <-w.over:
	case <-time.After(w.upTo(section)):
	}
	w.world.gate(w.Process)
	if guard.Err() != nil {
		w.world.witness.lost(h)
	}
}

// inspect asks who has the first of the locks.
func (w *worker) inspect(p *process) (relock.Inspection, error) {
	call := w.world.witness.begin(p, &w.Worker, "Inspect", callBound)
	i, err := p.clients[0].Inspect(context.Background(), w.Names[0])
	call.end(err)
	return i, err
}

// force releases the lock regardless of its holder, as an operator does. Of a read/write lock it releases the read
// lock or the write lock.
func (w *worker) force(p *process, l relock.Locker, read []string) {
	bound := callBound
	if w.Kind == Multi || w.Kind == Red {
		bound *= 2
	}
	done := w.world.witness.forcing(w.Kind, w.Names, func(h *hold) bool {
		return slices.ContainsFunc(w.Names, func(name string) bool {
			return slices.Contains(h.names, name) && h.reads(name) == slices.Contains(read, name)
		})
	})
	call := w.world.witness.begin(p, &w.Worker, "ForceUnlock", bound)
	freed, err := l.ForceUnlock(context.Background())
	call.end(err)
	done(err)
	w.world.note(p, "worker %d force-unlocks %v, read locks %v: %v", w.ID, w.Names, read, freed)
}

// setPermits sets the semaphore to a different number of permits.
func (w *worker) setPermits(p *process) {
	least := 1
	if w.Kind == Wide {
		least = mostWanted
	}
	n := least + w.rng.IntN(2*w.Kind.permits())
	done := w.world.witness.sets(w.Names[0], n)
	call := w.world.witness.begin(p, &w.Worker, "SetPermits", callBound)
	err := p.clients[0].NewSemaphore(w.Names[0], w.Kind.permits()).SetPermits(context.Background(), n)
	call.end(err)
	done(err)
	w.world.note(p, "worker %d sets %v to %d: %v", w.ID, w.Names, n, err)
}

// memberTokens returns the tokens of the fenced locks of a MultiLock, each of which is held as if it had been locked
// by itself.
func (w *worker) memberTokens(ctx context.Context, p *process) map[string]int64 {
	if w.Kind != Multi {
		return nil
	}
	tokens := map[string]int64{}
	for i, name := range w.Names {
		if w.Members[i] == FencedOne {
			tokens[name], _ = p.clients[0].NewLock(name, relock.Fenced()).Token(ctx)
		}
	}
	return tokens
}

// reenter acquires the lock again, levels times, and releases these.
func (w *worker) reenter(ctx context.Context, l lock, h *hold, levels int) {
	bound, was := 2*callBound, w.world.witness.lives(h)
	call := w.world.witness.begin(h.p, &w.Worker, "re-entry", bound)
	var ok bool
	var err error
	switch lease := time.Duration(0); w.rng.IntN(4) {
	case 0, 1:
		err = l.Lock(ctx)
		ok = err == nil
	case 2: // the longer of what is left and the new one, if it has an explicit lease
		if w.MaxHold == 0 {
			lease = time.Second + w.upTo(2*w.world.plan.Watchdog)
		}
		fallthrough
	default:
		ok, err = l.TryLock(ctx, 0, lease)
	}
	call.end(err)
	if !ok {
		if was && w.world.witness.lives(h) && w.Kind != Red {
			w.world.witness.Report("a holder can acquire again", "%v: %v: %v", w.Names, h, err)
		}
		return
	}
	if levels > 1 {
		w.reenter(ctx, l, h, levels-1)
	}
	was = w.world.witness.lives(h)
	call = w.world.witness.begin(h.p, &w.Worker, "inner Unlock", bound)
	err = l.Unlock(ctx)
	call.end(err)
	if err != nil && was && w.world.witness.lives(h) {
		w.world.witness.Report("Unlock of a valid hold returns nil", "an inner hold of %v: %v: %v", w.Names, h, err)
	}
}

// beside lets another goroutine of the owner acquire the lock again, and release it, while the worker goes on. The worker
// must call wait before it releases its own hold.
func (w *worker) beside(ctx context.Context, l lock, h *hold) (wait func()) {
	h.again = true
	other := *w
	other.rng = newRand(w.world.plan.Seed, w.ID+int(w.rng.Uint32()))
	pause := w.upTo(w.Section)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-h.ctx.Done():
		case <-w.over:
		case <-time.After(pause):
			other.reenter(ctx, l, h, 1)
		}
	}()
	return func() { <-ended }
}

// extend extends an explicit lease.
func (w *worker) extend(p *process, held *relock.Hold, h *hold) {
	was := w.world.witness.lives(h)
	bound := 3 * callBound // if answers are slow, it sends the request up to five times
	call := w.world.witness.begin(p, &w.Worker, "Extend", bound)
	more, began := time.Millisecond+w.upTo(w.world.plan.Watchdog), time.Now()
	err := held.Extend(context.Background(), more)
	call.end(err)
	w.world.witness.extended(h, more, began, err)
	if err != nil && was && w.world.witness.lives(h) {
		w.world.witness.Report("Extend of a valid hold returns nil", "%v: %v: %v", w.Names, h, err)
	}
	select {
	case <-h.ctx.Done():
	case <-w.over:
	case <-time.After(w.upTo(w.Section)):
	}
}

// release releases the hold, which must succeed if there was no fault.
func (w *worker) release(h *hold, unlock func() error) {
	if h.ctx == nil { // it had ended before there was a guard
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		h.ctx, h.since = ctx, time.Now()
	}
	bound := callBound
	if w.Kind == Multi || w.Kind == Red {
		bound *= 2
	}
	ended, left, began := h.ctx.Err() != nil, w.world.leaseLeft(w.Names[:1]), time.Now()
	alive := w.world.witness.given(h)
	call := w.world.witness.begin(h.p, &w.Worker, "Unlock", bound)
	err := unlock()
	call.end(err)
	w.world.witness.freed(h)
	select {
	case <-h.ctx.Done():
	default:
		if err == nil {
			w.world.witness.Report("Done is closed after the release", "%v: %v", w.Names, h)
		}
	}
	if ended {
		w.world.witness.unlocked(h, err)
	}
	if single := w.Kind == Plain || w.Kind == FencedOne || w.Kind == Fair; single && !ended && !h.p.gone.Load() &&
		errors.Is(err, relock.ErrLockLost) && !w.world.witness.hasLost(h) && time.Since(began) < left-w.world.delay() {
		w.world.witness.Report("Unlock reports no false loss", "%v: %v: %v", w.Names, h, err)
	}
	limited := h.lease > 0 || w.MaxHold > 0 // it may end during the call
	// This may have changed by now.
	alive = alive && w.world.calm(h.asked) && !h.p.gone.Load() && !w.world.witness.hasLost(h)
	if alive && err != nil && !(limited && errors.Is(err, relock.ErrLockLost)) {
		w.world.witness.Report("Unlock of a valid hold returns nil", "%v: %v: %v", w.Names, h, err)
	}
}

// lead campaigns, and leads for a while.
func (w *worker) lead(p *process) {
	ctx := context.Background()
	if !w.Steady && w.rng.IntN(4) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 1+w.upTo(time.Minute))
		defer cancel()
	}
	if !w.Steady && w.rng.IntN(40) == 0 {
		w.force(p, p.clients[0].NewLock(w.Names[0], relock.Fenced()), nil)
		return
	}
	e := p.clients[0].NewElection(w.Names[0])
	h := &hold{p: p, worker: &w.Worker, names: w.Names, asked: time.Now(), ids: []string{p.clients[0].ID()}}
	call := w.world.witness.begin(p, &w.Worker, "Campaign", 0)
	term, err := e.Campaign(ctx)
	call.end(err)
	if err != nil {
		m := manner{wait: -1}
		if ctx.Done() != nil {
			m.cancel = 1
		}
		w.had(call, false, false, err, m)
		return
	}
	h.token, h.ctx = term.Token(), term.Context()
	w.hold(ctx, nil, h, term.Context())
	w.release(h, func() error { return term.Resign(context.Background()) })
}

// shares reports whether two workers use a lock of the same name.
func (w Worker) shares(o Worker) bool {
	return slices.ContainsFunc(w.Names, func(name string) bool { return slices.Contains(o.Names, name) })
}
