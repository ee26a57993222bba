package relock

// The engine waits for locks, counts what is held, and notices what is lost. It
// is the same for every lock type; what is different is behind backend.
//
// Invariants of taking a lock (the numbers are used in comments below):
//
//  1. First the gate of the name: in this process one contender at a time goes
//     to Redis (where the type is exclusive), the others wait for it in order.
//  2. One attempt. An uncontended lock needs no more than this.
//  3. Busy: join the channel, wait for the subscription, and attempt again: a
//     release between 2 and the subscription would not be heard.
//  4. Sleep until a wake-up, or until the lease that is in the way or the max
//     wake delay ends; then attempt again.
//  5. An attempt that was given up may have been granted, or may still be. It is
//     undone, by the field that belongs to this acquisition alone, so that the
//     undo can never touch a later hold. Should Redis run the attempt after its
//     undo, the record has a finite lease and nobody renews it.
//  6. Held: trusted from before the successful attempt was sent.
//
// Repeating is ours and always safe: every script sets a state and adds nothing,
// and names the acquisition it is for. So a request whose answer was lost is sent
// again as it was. A release that finds nothing to release is done if an earlier
// try of it may have run, and a loss if not.
//
// One mutex guards the state of all holds and gates; nothing that blocks, no
// request and no user code runs while it is held.

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	unlockTime   = 5 * time.Second // what Unlock and an undo take at most
	closeTime    = 6 * time.Second // how long Close waits for requests under way
	lapsedKept   = 1024            // lapsed holds remembered, so that a late Unlock is told what happened
	quickTries   = 4               // of a request that Redis does not answer, for a caller who has nothing yet,
	quickTime    = 4 * time.Second // and for how long
	firstPause   = 10 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// A backend is one lock type: how its state in Redis moves. Every method is one
// request at most; repeating, waiting and counting are the engine's.
type backend interface {
	// id tells locks apart: what has the same id is the same lock to an owner.
	id() lockID
	// kin is the other half of a lock that has two.
	kin() lockID
	// exclusive says whether one contender of a process at a time is enough.
	exclusive() bool
	// acquire makes one attempt.
	acquire(ctx context.Context, a attempt) (grant, error)
	// release sets the levels of a hold to left and says whether it was there.
	release(ctx context.Context, field string, left int) (bool, error)
	// renewal is the call that renews a lease; it answers {1, ...} or {-1, ...}.
	renewal(field string, lease time.Duration) call
	// abandon undoes an attempt that was given up, and says whether its hold was there.
	abandon(ctx context.Context, a attempt) (bool, error)
	// channel is where the release is announced that an attempt waits for.
	channel(a attempt) string
}

// An attempt asks for one level of a lock.
type attempt struct {
	field string        // of the hold in the record
	lease time.Duration // at least
	level int           // 1: a fresh hold
	once  bool          // there will be no other: nothing is to be left in Redis if it is busy
	kin   string        // field of the owner's hold on the lock's kin, or ""
}

// A grant is the answer to an attempt.
type grant struct {
	state grantState
	wait  time.Duration // busy: what is left of the lease that is in the way; negative: it has none
	token int64         // held: of a fenced lock
	left  bool          // busy: the attempt left something in Redis that has to be abandoned
}

type grantState int

const (
	busy grantState = iota
	held
	gone // the hold that was to be re-entered is not there
)

// A request is what one caller asks of the engine.
type request struct {
	wait  time.Duration // negative: as long as ctx lasts
	lease time.Duration // 0: the watchdog's
}

// A lockID is the name of a lock, and which half of it is meant if it has two.
type lockID struct {
	name, half string
}

type holdKey struct {
	id    lockID
	owner owner
}

type engine struct {
	id              string // the client's, in every field
	watchdogTimeout time.Duration
	maxWakeDelay    time.Duration
	prompt          bool   // requests end by themselves within unlockTime
	noAnswer        func() // called, if it is set, after a request that was not answered
	log             *slog.Logger

	wakeups *pubsub
	dog     *watchdog
	closed  chan struct{}
	ailing  atomic.Bool // the last request was not answered

	mu       sync.Mutex // guards below, all gates, and the fields of holds that say so
	holds    map[holdKey]*hold
	gates    map[lockID]*gate
	lapsed   []*hold // the last ones, in a ring
	lapsedAt int
	made     uint64 // fields
	isClosed bool
	working  int           // goroutines and callers that have something under way in Redis
	drained  chan struct{} // closed when there are none, if somebody waits for it
}

func newEngine(id string, o options, dial func() subscriber, runAll func(context.Context, []call) ([]reply, []error)) *engine {
	e := &engine{
		id:              id,
		watchdogTimeout: o.watchdogTimeout,
		maxWakeDelay:    o.maxWakeDelay,
		log:             o.logger,
		wakeups:         newPubSub(dial, o.logger),
		closed:          make(chan struct{}),
		holds:           make(map[holdKey]*hold),
		gates:           make(map[lockID]*gate),
	}
	e.dog = newWatchdog(func(ctx context.Context, leases []*lease) []renewal {
		calls := make([]call, len(leases))
		for i, l := range leases {
			h := l.holder.(*hold)
			calls[i] = h.backend.renewal(h.field, e.watchdogTimeout)
		}
		replies, errs := runAll(ctx, calls)
		answers := make([]renewal, len(leases))
		for i := range answers {
			answers[i] = renewal{held: replies[i][0] == 1, err: errs[i]}
		}
		return answers
	})
	return e
}

// acquire takes one level of a lock for o. It returns false when r.wait is over.
func (e *engine) acquire(ctx context.Context, b backend, o owner, r request) (bool, error) {
	e.beginWork()
	defer e.endWork()
	p := &patience{ctx: ctx, closed: e.closed, once: r.wait == 0}
	p.prompt = ctx.Done() == nil && r.wait <= 0 && e.promptly()
	if err := p.over(); err != nil {
		return false, err
	}
	if r.wait > 0 {
		p.deadline = time.Now().Add(r.wait)
	}
	h, err := e.takeTurn(p, b, o, true)
	if err == nil {
		if h.state == fresh {
			err = e.enter(p, h, r)
		} else {
			err = e.reenter(p, h, r)
		}
		e.endTurn(h)
	}
	if err == errTimeUp { // itself: what wraps it is a reason to report
		return false, nil
	}
	return err == nil, err
}

// takeTurn finds the hold that o has on b, and lets nobody else of the same owner
// at it until endTurn. Where there is none it makes a fresh one, or returns nil.
func (e *engine) takeTurn(p *patience, b backend, o owner, makeOne bool) (*hold, error) {
	key := holdKey{b.id(), o}
	for {
		e.mu.Lock()
		h := e.holds[key]
		switch {
		case h == nil && makeOne:
			e.made++
			h = &hold{engine: e, backend: b, key: key, field: e.fieldLocked(o)}
			h.turn.tryEnter()
			e.holds[key] = h
			e.mu.Unlock()
			return h, nil
		case h == nil || h.state == fresh && !makeOne:
			e.mu.Unlock()
			return nil, nil
		}
		patient := *p
		if h.state == holding {
			patient.once = false // it is held by this owner, and whoever else is at it will soon be done
		}
		if err := e.passLocked(&patient, &h.turn); err != nil {
			e.mu.Unlock()
			return nil, err
		}
		e.mu.Unlock()

		h.lapseIfDue()
		e.mu.Lock()
		if makeOne && h.forgottenLocked() && e.holds[key] == h {
			delete(e.holds, key)
		}
		if e.holds[key] == h {
			e.mu.Unlock()
			return h, nil
		}
		h.turn.leave() // it is over: look again
		e.mu.Unlock()
	}
}

// endTurn forgets the hold if there is nothing to remember, and lets the next of its owner at it.
func (e *engine) endTurn(h *hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if (h.state == fresh || h.state == over) && e.holds[h.key] == h {
		delete(e.holds, h.key)
	}
	h.turn.leave()
}

// fieldLocked makes the name of a new acquisition in the record.
func (e *engine) fieldLocked(o owner) string {
	field := make([]byte, 0, len(e.id)+24)
	field = append(append(field, e.id...), ':')
	field = append(strconv.AppendInt(field, int64(o), 10), ':')
	return string(strconv.AppendUint(field, e.made, 10))
}

// enter takes a fresh hold.
func (e *engine) enter(p *patience, h *hold, r request) error {
	if err := e.enterGate(p, h); err != nil { // 1
		return err
	}
	renewed := r.lease == 0
	a := attempt{field: h.field, lease: cmp.Or(r.lease, e.watchdogTimeout), level: 1, once: p.once}
	t, err := e.contend(p, h, a)

	e.mu.Lock()
	if err == nil && e.isClosed {
		err = ErrClosed
		defer e.undo(p.ctx, h.backend, a, false)
	}
	if err != nil {
		if p.unheard && h.gate != nil {
			h.gate.turnAway(err)
		}
		e.leaveGateLocked(h)
		e.mu.Unlock()
		return err
	}
	h.state, h.levels, h.token = holding, 1, t.token
	h.lease.holder = h
	e.dog.watch(&h.lease, t.sent, a.lease, renewed) // 6
	e.mu.Unlock()
	return nil
}

// reenter takes one more level of a hold.
func (e *engine) reenter(p *patience, h *hold, r request) error {
	e.mu.Lock()
	if h.state == lost {
		defer e.mu.Unlock()
		h.told = true
		return h.loss
	}
	a := attempt{field: h.field, lease: r.lease, level: h.levels + 1}
	e.mu.Unlock()
	renewed := r.lease == 0 || e.dog.renews(&h.lease)
	if renewed {
		a.lease = e.watchdogTimeout
	}
	t, err := e.contend(p, h, a)
	if err != nil {
		e.mu.Lock()
		h.stretched = true // perhaps: what was asked for may have been granted
		e.mu.Unlock()
		return err
	}
	if t.state == gone {
		h.lose(errGone)
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if h.state != holding { // now, or while we asked
		if t.state == held {
			e.spawnLocked(h.clear)
		}
		h.told = true
		return cmp.Or(h.loss, ErrNotHeld)
	}
	h.levels++
	e.dog.extend(&h.lease, t.sent, a.lease, renewed)
	return nil
}

// A tried is the answer to an attempt and when the attempt was sent.
type tried struct {
	grant
	sent time.Time
}

// contend makes attempts until one is answered with anything but busy. On an
// error nothing is held, and what was left in Redis is on its way out.
func (e *engine) contend(p *patience, h *hold, a attempt) (t tried, err error) {
	b := h.backend
	var (
		ears   *listener
		ready  <-chan struct{} // until it has been seen closed
		heard  time.Time       // of Redis, last
		unsure bool            // an attempt without an answer may have been granted
		queued bool            // an attempt has left something in Redis
	)
	defer func() {
		if ears != nil {
			e.wakeups.leave(ears)
		}
		if err == nil || !unsure && !queued {
			return
		}
		undone := e.undo(p.ctx, b, a, unsure) // 5
		if queued {                           // and others stand behind it
			select {
			case <-undone:
			case <-time.After(answerTime):
			}
		}
	}()
	for {
		if kin := e.find(b.kin(), h.key.owner); kin != nil { // now: it may come while this one waits
			a.kin = kin.field
		}
		asked := a
		try := func(ctx context.Context) (tried, error) {
			sent := time.Now()
			g, err := b.acquire(ctx, asked)
			return tried{g, sent}, err
		}
		late := func(t tried, err error) {
			if err == nil && (t.state != busy || t.left) || err != nil && mayHaveRun(err) {
				e.abandon(p.ctx, b, asked, err != nil) // 5
			}
		}
		var maybe bool
		t, maybe, err = persist(e, p, heard, try, late) // 2
		unsure, queued = unsure || maybe, queued || t.left
		switch {
		case err == errTimeUp && heard.IsZero(): // nobody said that it is busy
			return t, errNoAnswer
		case err != nil:
			// A script that Redis has stopped half way has written something, perhaps.
			unsure = unsure || answered(err)
			return t, err
		case t.state != busy:
			return t, nil
		case p.once:
			return t, errTimeUp
		}
		heard = time.Now()
		var wake <-chan struct{}
		if ears == nil { // 3
			ears = e.wakeups.join(b.channel(a))
			ready = ears.ready
		} else { // 4
			wake = ears.wake
		}
		if err = p.wait(wake, ready, e.nap(t.wait)); err != nil {
			return t, err
		}
		select {
		case <-ready:
			ready = nil
		default:
		}
	}
}

// nap is how long a waiter sleeps without a wake-up: until the lease that is in
// the way has ended, and never longer than the max wake delay. The jitter keeps
// many waiters from asking at the same moment.
func (e *engine) nap(lease time.Duration) time.Duration {
	if lease < 0 || lease >= e.maxWakeDelay {
		return e.maxWakeDelay - rand.N(e.maxWakeDelay/5+1)
	}
	return min(lease+time.Millisecond+rand.N(10*time.Millisecond), e.maxWakeDelay)
}

// spawn runs f in a goroutine that Close waits for.
func (e *engine) spawn(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spawnLocked(f)
}

func (e *engine) spawnLocked(f func()) {
	e.working++
	go func() {
		defer e.endWork()
		f()
	}()
}

// beginWork and endWork enclose what Close waits for.
func (e *engine) beginWork() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.working++
}

func (e *engine) endWork() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.working--
	if e.working == 0 && e.drained != nil {
		close(e.drained)
		e.drained = nil
	}
}

// close wakes everybody who waits and ends all guards. It returns when the
// goroutines have ended; those in a request that Redis does not answer are
// given a while.
func (e *engine) close() error {
	e.mu.Lock()
	if e.isClosed {
		e.mu.Unlock()
		return nil
	}
	e.isClosed = true
	close(e.closed)
	var guards []*guard
	for _, h := range e.holds {
		guards = append(guards, h.takeGuardsLocked()...)
	}
	drained := make(chan struct{})
	if e.working == 0 {
		close(drained)
	} else {
		e.drained = drained
	}
	e.mu.Unlock()
	endGuards(guards, ErrClosed)

	ended := make(chan struct{})
	go func() {
		e.wakeups.close()
		e.dog.close()
		<-drained
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(closeTime):
		return errors.New("relock: close: requests are still under way that Redis does not answer; they end with the timeouts of the Redis client")
	}
}
