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
//  7. Given back: released, or left to the next one at the gate (handover.go).
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
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	unlockTime   = 5 * time.Second // what Unlock and an undo take at most, and for how long a request waits for a connection
	closeTime    = 7 * time.Second // how long Close waits for requests under way, which may take unlockTime and a quarter
	lapsedKept   = 1024            // lapsed holds remembered, so that a late Unlock is told what happened
	mostAsked    = 5               // times for one grant whose answers come too late
	quickTries   = 4               // at least, of a request that Redis does not answer, for a caller who has nothing yet,
	quickTime    = 4 * time.Second // and for how long
	mostIdle     = 2               // goroutines that are kept for the next request
	clearPause   = time.Second     // before a record that could not be cleared is cleared again
	firstPause   = 10 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// A backend is one lock type: how its state in Redis moves. Every method is one
// request at most; repeating, waiting and counting are the engine's.
type backend interface {
	// id tells locks apart: what has the same id is the same lock to an owner.
	id() lockID
	// typ is what it is called in events.
	typ() LockType
	// kin is the other half of a lock that has two.
	kin() lockID
	// passage is how goroutines of one process get past its gate.
	passage() passage
	// acquire makes one attempt.
	acquire(ctx context.Context, a attempt) (grant, error)
	// release sets the levels of a hold to left.
	release(ctx context.Context, field string, left int) (released, error)
	// renewal is the call that renews a lease; it answers {1, ...} or {-1, ...}. Only
	// if it is exact, it may shorten it.
	renewal(field string, lease time.Duration, exact bool) call
	// abandon undoes an attempt that was given up, and says whether its hold was there.
	abandon(ctx context.Context, a attempt) (bool, error)
	// channel is where the release is announced that an attempt waits for; "" where
	// it is announced only to those who have left something in Redis, and it does not.
	channel(a attempt) string
}

// A composite is a backend that is made of other locks. Its holds are trusted
// as long as theirs.
type composite interface {
	backend
	// listen joins the channels on which the release is announced that an attempt
	// waits for which was answered with g; one wake serves them all.
	listen(g grant) []*listener
	// ranking orders composites: the same in every process, for whatever can be known there.
	ranking() string
	// renew says whether a hold can be trusted on, and looks after its parts. It does not block.
	renew(field string) bool
	// trusted says whether a hold can be trusted now.
	trusted(field string) bool
	// lost hears that a hold was lost, and gives back what is left of it. It does not block.
	lost(field string)
}

func isComposite(b backend) bool {
	_, ok := b.(composite)
	return ok
}

// An attempt asks for one level of a lock.
type attempt struct {
	field string        // of the hold in the record
	lease time.Duration // at least
	level int           // 1: a fresh hold
	once  bool          // there will be no other: nothing is to be left in Redis if it is busy
	kin   string        // field of the owner's hold on the lock's kin, or ""

	renewed bool // by the watchdog, once it is granted
}

// A grant is the answer to an attempt.
type grant struct {
	state grantState
	wait  time.Duration // busy: what is left of the lease that is in the way; negative: it has none
	ttl   time.Duration // busy: the same, also where an attempt has to be made sooner
	token int64         // held: of a fenced lock
	left  bool          // busy: the attempt left something in Redis that has to be abandoned
	pause time.Duration // busy: ask again no sooner than that
	nodes []int         // busy: those of a composite that were
	cause error         // busy: what whoever gives up now is to be told beside that, or nil
}

// A released is the answer to a release.
type released struct {
	there bool // the hold was there
	heard int  // processes that were told that the lock is free, as far as that is known
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

	// What a fresh hold gets instead of lease until it is settled; 0: nothing else.
	provisional time.Duration

	member bool // the caller is a MultiLock: errors say which of its locks they are about
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
	slice           time.Duration
	prompt          bool // requests that were sent end by themselves within resendTime
	log             *slog.Logger
	observer        Observer // or nil
	reporter        reporter // of what no call has asked about

	runAll    func(context.Context, []call) ([]reply, []error)
	runBundle func(context.Context, []bundledCall) ([]reply, error)

	batches *batches // or nil: every request goes by itself

	wakeups *pubsub
	dog     *watchdog
	closed  <-chan struct{}
	life    context.Context // until Close
	endLife context.CancelFunc

	soon limit // resendTime

	ailing  atomic.Bool  // the last request was not answered
	trip    atomic.Int64 // about how long a request takes
	asking  atomic.Int64 // requests under way
	resent  atomic.Int64 // requests under way that were sent before, and not answered yet
	working atomic.Int64 // callers that have something under way in Redis, and our goroutines
	idle    atomic.Int64 // those of them that wait for jobs
	jobs    chan func()
	closing atomic.Bool // somebody waits until there are none

	mu       sync.Mutex // guards below, all gates, and the fields of holds that say so
	holds    map[holdKey]*hold
	gates    map[lockID]*gate
	lapsed   []*hold // the last ones, in a ring
	lapsedAt int
	groups   map[holdKey][]*group // that ask for what its owner may come to hold by another caller
	made     uint64               // fields
	tickets  uint64
	isClosed bool
	drained  chan struct{} // closed when nothing is under way any more, if somebody waits for it
}

func newEngine(id string, o options, r router, runAll func(context.Context, []call) ([]reply, []error)) *engine {
	e := &engine{
		id:              id,
		watchdogTimeout: o.watchdogTimeout,
		maxWakeDelay:    o.maxWakeDelay,
		slice:           o.handoverSlice,
		log:             calmLogger(o.logger),
		runAll:          runAll,
		holds:           make(map[holdKey]*hold),
		gates:           make(map[lockID]*gate),
		soon:            limit{d: resendTime},
	}
	e.reporter.spawn = e.spawn
	if o.observer != nil {
		e.observer = &calmObserver{Observer: o.observer, log: e.log}
	}
	e.wakeups = newPubSub(r, e.log)
	e.wakeups.report = e.reporter.later
	e.jobs = make(chan func())
	e.life, e.endLife = context.WithCancel(context.Background())
	e.closed = e.life.Done()
	renew := e.renew
	if e.observer != nil {
		renew = e.observedRenew
	}
	e.dog = newWatchdog(renew, e.renewGroup, e.wakeups.reload)
	return e
}

// renewGroup tells leases apart that must not wait for one another: those of
// different servers, and those that need no request.
func (e *engine) renewGroup(l *lease) string {
	t := l.holder.(*tenure)
	if isComposite(t.backend) {
		return "composite"
	}
	return e.wakeups.router.node(t.backend.id().name).name
}

// renew asks for one more watchdog timeout for every lease.
func (e *engine) renew(ctx context.Context, leases []*lease) []renewal {
	answers := make([]renewal, len(leases))
	var calls []call
	var called []int // whose
	for i, l := range leases {
		t := l.holder.(*tenure)
		if c, ok := t.backend.(composite); ok {
			answers[i].held = c.renew(t.field)
			continue
		}
		calls = append(calls, t.backend.renewal(t.field, e.watchdogTimeout, false))
		called = append(called, i)
	}
	if len(calls) == 0 {
		return answers
	}
	type result struct {
		replies []reply
		errs    []error
	}
	r, err := catchPanic(ctx, func(ctx context.Context) (r result, _ error) {
		r.replies, r.errs = e.runAll(ctx, calls)
		return r, nil
	})
	if err != nil {
		e.logPanic(err)
		r.replies, r.errs = make([]reply, len(calls)), slices.Repeat([]error{err}, len(calls))
	}
	e.noteHealth(cmp.Or(r.errs...))
	for n, i := range called {
		answers[i] = renewal{held: r.replies[n][0] == 1, err: r.errs[n]}
		if errors.Is(r.errs[n], ErrNotALock) { // the record was replaced by something else
			answers[i].err = nil
		}
	}
	return answers
}

// acquire takes one level of a lock for o. It returns false when r.wait is over.
func (e *engine) acquire(ctx context.Context, b backend, o owner, r request) (bool, error) {
	return e.acquireAll(ctx, []backend{b}, o, r)
}

// acquireAll takes one level of every lock of bs for o: of all of them, or of
// none. If they are several, they are bundlers of one Redis.
func (e *engine) acquireAll(ctx context.Context, bs []backend, o owner, r request) (bool, error) {
	e.beginWork()
	defer e.endWork()
	p := patience{ctx: ctx, closed: e.closed, once: r.wait == 0, parts: isComposite(bs[0])}
	switch {
	case ctx.Err() != nil:
		return false, ctxError(ctx)
	case e.closing.Load():
		return false, ErrClosed
	}
	p.prompt = ctx.Done() == nil && r.wait <= 0 && e.promptly()
	if r.wait > 0 {
		p.deadline = time.Now().Add(r.wait)
	}
	p.seen = e.sight(ctx, bs, o)
	err := e.take(&p, bs, o, r)
	for err == errGivenBack {
		err = e.take(&p, bs, o, r)
	}
	p.seen.conclude(err)
	if err == errTimeUp { // itself: what wraps it is a reason to report
		return false, nil
	}
	return err == nil, err
}

// errGivenBack says that what was to be re-entered was given back meanwhile, by another caller of its owner:
// the acquisition begins again.
var errGivenBack = errors.New("another caller of the owner has given it back")

// take is acquireAll once.
func (e *engine) take(p *patience, bs []backend, o owner, r request) error {
	if len(bs) > 1 {
		patient := *p // escapes
		return e.saysWho(&patient, bs, o, r, e.takeTogether(&patient, bs, o, r))
	}
	var l legacy
	if !p.parts {
		var err error
		if l, err = e.standInLine(p, bs[0], o, r.lease > 0); err != nil {
			return e.saysWho(p, bs, o, r, err)
		} else if l.all {
			return nil
		}
	}
	var first *firstTry
	if l.clear {
		var err error
		var taken bool
		if first, taken, err = e.takeAtOnce(p, l.hold, r); taken || err != nil {
			return err
		}
	}
	patient := *p // escapes
	return e.saysWho(&patient, bs, o, r, e.takeOne(&patient, bs[0], o, r, l, first))
}

// A firstTry is the first attempt of an acquire, which contend goes on from.
type firstTry struct {
	retry[tried]
	patience patience // of that attempt
	asked    [1]want
	givenUp  atomic.Bool // the acquire: see undoOrphan
}

func newFirstTry(e *engine) *firstTry {
	first := new(firstTry)
	first.engine = e
	return first
}

// takeAtOnce makes the first attempt for a fresh hold, where no other goroutine of this process is in the
// way. It does for less what takeOne would do, and is all that most locks need. If they
// are not taken then, takeOne goes on from that try.
func (e *engine) takeAtOnce(p *patience, h *hold, r request) (first *firstTry, taken bool, err error) {
	w := want{h, attempt{field: h.field, level: 1}}
	returned := false
	defer func() {
		if !returned { // a hook of the Redis client has ended the goroutine
			e.undo(p.ctx, []want{w}, 1)
			e.endTurn(h)
		}
	}()
	e.asksFresh(&w, p, r)
	t := tried{sent: time.Now()}
	made, failed := e.tryAtOnce(p, t.sent, func(ctx context.Context) (err error) {
		t.grant, err = h.backend.acquire(ctx, w.attempt)
		return err
	})
	answered := made
	if !made {
		if first, err = e.askAnyway(p, w); err == nil && first.made != nil {
			t, failed, answered = first.made.value, first.made.err, true
		}
	}
	returned = true
	if err != nil { // the caller has no more time
		first.end()
		if first.p.leftBehind || len(first.underWay) > 0 {
			e.undo(p.ctx, []want{w}, 0)
		}
		e.endTurn(h)
		if err == errTimeUp { // nobody said that it is busy
			err = errNoAnswer
		}
		return nil, false, err
	}
	if answered && failed == nil && t.state == held {
		now := e.dog.now()
		trip := now - t.sent.Sub(e.dog.epoch)
		if whole := trust(w.lease); lasts(whole-trip, whole) {
			e.mu.Lock()
			if taken = !e.isClosed; taken {
				e.grantLocked(&w, t.token, t.sent, now)
				e.endTurnLocked(h)
			}
			e.mu.Unlock()
		}
		e.noteTrip(trip)
	}
	switch {
	case !taken && made:
		first = newFirstTry(e)
		first.made = &try[tried]{t.sent, t, failed}
		return first, false, nil
	case !taken:
		return first, false, nil
	case !made:
		first.end()
	}
	if p.seen != nil {
		p.seen.took([]want{w})
	}
	return nil, true, nil
}

// askAnyway makes one attempt with others, or on a goroutine of its own. The error is why the caller leaves.
// Where first.made is nil there is no outcome yet.
func (e *engine) askAnyway(p *patience, w want) (first *firstTry, err error) {
	first = newFirstTry(e)
	first.patience, first.asked[0] = *p, w
	r, asked := &first.retry, first.asked[:]
	r.p = &first.patience
	r.request = func(ctx context.Context) (tried, error) { return e.ask(ctx, asked) }
	r.onOrphan = func(t tried, err error) { e.undoOrphan(first.patience.ctx, &first.givenUp, asked, t, err) }
	r.made, err = r.send()
	if r.made == nil && err == nil {
		r.made, err = r.wait(time.Time{})
	}
	first.givenUp.Store(err != nil)
	return first, err
}

// A want is one level of one lock, and the hold that it will belong to.
type want struct {
	hold *hold
	attempt
}

// takeOne takes one level of b. first is the first try, if it was made.
func (e *engine) takeOne(p *patience, b backend, o owner, r request, l legacy, first *firstTry) error {
	h := l.hold
	if h == nil {
		var err error
		if h, err = e.takeTurn(p, b, o, true); err != nil {
			return err
		}
	}
	defer e.endTurn(h)
	wants := []want{{hold: h}}
	if err := e.prepare(p, &wants[0], r); err != nil {
		return err
	}
	p.seen.took(wants)
	_, t, err := e.contend(p, wants, nil, l.record, first)
	return e.conclude(p, wants, t, err)
}

// takeTogether takes one level of all bs.
func (e *engine) takeTogether(p *patience, bs []backend, o owner, r request) error {
	g := e.newGroup(bs, o, r)
	defer g.end()
	wants, t, err := e.contend(p, nil, g, false, nil)
	p.seen.took(wants)
	return e.conclude(p, wants, t, err)
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
			h := e.newHoldLocked(b, key)
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
		if makeOne && h.forgottenLocked() {
			e.forgetLocked(h)
		}
		if h.known {
			e.mu.Unlock()
			return h, nil
		}
		h.turn.leave() // it is over: look again
		e.mu.Unlock()
	}
}

// newHoldLocked makes a fresh hold, and it is the caller's turn at it.
func (e *engine) newHoldLocked(b backend, key holdKey) *hold {
	h := &hold{engine: e, backend: b, key: key, known: true}
	h.turn.tryEnter()
	e.holds[key] = h
	return h
}

// endTurn forgets the hold if there is nothing to remember, and lets the next of its owner at it.
func (e *engine) endTurn(h *hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endTurnLocked(h)
}

func (e *engine) endTurnLocked(h *hold) {
	if h.state == fresh {
		e.leaveGateLocked(h) // a hook of the Redis client has panicked: else it has left by now
	}
	if h.state == fresh || h.state == over {
		e.forgetLocked(h)
	}
	h.turn.leave()
}

// forgetLocked takes h out of the holds that are known.
func (e *engine) forgetLocked(h *hold) {
	if h.known {
		h.known = false
		delete(e.holds, h.key)
	}
}

// fieldLocked makes the name of a new acquisition in the record.
func (e *engine) fieldLocked(o owner) string {
	e.made++
	var room [96]byte
	field := append(append(room[:0], e.id...), ':')
	field = append(strconv.AppendInt(field, int64(o), 10), ':')
	return string(strconv.AppendUint(field, e.made, 10))
}

// prepare makes the attempt that w is for.
func (e *engine) prepare(p *patience, w *want, r request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.prepareLocked(p, w, r)
}

func (e *engine) prepareLocked(p *patience, w *want, r request) error {
	h := w.hold
	if h.field == "" {
		h.field = e.fieldLocked(h.key.owner)
	}
	w.attempt = attempt{field: h.field, lease: r.lease, level: h.levels + 1, renewed: r.lease == 0}
	switch h.state {
	case fresh:
		e.asksFresh(w, p, r)
	case lost:
		h.told = true
		return h.loss
	default:
		w.renewed = w.renewed || e.dog.renews(&h.tenure.lease)
		if w.renewed {
			w.lease = e.watchdogTimeout
		}
	}
	return nil
}

// asksFresh is what r asks for where nothing is held yet.
func (e *engine) asksFresh(w *want, p *patience, r request) {
	w.once, w.renewed = p.once, r.lease == 0
	w.lease = cmp.Or(r.provisional, r.lease)
	if w.renewed {
		w.lease = e.watchdogTimeout
	}
}

// conclude notes what has become of an attempt: all that was wanted is held, or nothing of it.
func (e *engine) conclude(p *patience, wants []want, t tried, err error) error {
	if err == nil && t.state == gone {
		wants[t.at].hold.lose(errGone)
	}
	for _, w := range wants {
		if err == nil && w.level > 1 && !e.dog.watches(&w.hold.tenure.lease) {
			w.hold.lose(errLapsed) // the watchdog has found it over, and is just going to say so
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range wants {
		switch h := w.hold; {
		case err != nil:
		case h.state == lost || h.state == over: // now, or while we asked
			h.told = true
			err = cmp.Or(h.loss, errGivenBack)
		case h.state == fresh && e.isClosed:
			err = ErrClosed
		}
	}
	for i, w := range wants {
		h := w.hold
		switch {
		case err == nil && h.state == fresh:
			token := t.token
			if t.tokens != nil {
				token = t.tokens[i]
			}
			e.grantLocked(&wants[i], token, t.sent, e.dog.now())
		case err == nil:
			h.levels++
			e.dog.extend(&h.tenure.lease, t.sent, w.lease, w.renewed)
		default:
			e.dismissLocked(p, w, t, err)
		}
	}
	return err
}

// grantLocked notes that what w asked for, at sent, is held since now.
func (e *engine) grantLocked(w *want, token int64, sent time.Time, now time.Duration) {
	h := w.hold
	h.hasLocked(h.newTenure(now), sent.Sub(e.dog.epoch))
	if g := h.gate; g != nil {
		g.obstacle = nil
		if g.streak.since == 0 {
			g.streak.since = now
		}
	}
	h.token = token
	e.dog.watch(&h.tenure.lease, sent, w.lease, w.renewed) // 6
	e.openLocked(h)
}

// dismissLocked ends w, which failed with err.
func (e *engine) dismissLocked(p *patience, w want, t tried, err error) {
	h := w.hold
	if h.state == fresh {
		if p.unheard && h.gate != nil {
			h.gate.turnAway()
		}
		e.leaveGateLocked(h)
	} else {
		h.stretched = true // perhaps: what was asked for may have been granted
	}
	switch {
	case t.state != held: // and contend has seen to what it left
	case h.state == lost || h.state == over && len(h.tenure.holds) == 0: // else it is the record of those who share it
		e.spawn(h.clear)
	default:
		e.spawn(func() { _ = e.abandon(p.ctx, h.backend, w.attempt, 0) })
	}
}

// A tried is the answer to an attempt and when the attempt was sent.
type tried struct {
	grant
	sent   time.Time
	at     int     // of several: whose the answer is, where they are not all held
	tokens []int64 // of several
}

// contend makes attempts until one is answered with anything but busy. On an
// error nothing is held, and what was left in Redis is on its way out. inherited
// says that the record is there already, handed over by its holder. first is the first
// try, if it was made. Where g is not nil it gathers the wants for each attempt. contend returns those at
// which it is still the caller's turn.
func (e *engine) contend(p *patience, wants []want, g *group, inherited bool, first *firstTry) (_ []want, t tried, err error) {
	var (
		ears   ears
		poll   polling
		heard  time.Time // of Redis, last
		cause  error     // beside "busy", last
		ghosts int       // attempts without an answer: they may have been granted, or may be
		queued bool      // an attempt has left something in Redis
		next   = first   // the try to go on from; nil: none is made yet
		asking bool      // now; afterwards only if a hook has ended the goroutine

		notified bool // the last wait ended before its time
	)
	if first == nil {
		first = newFirstTry(e)
	}
	if inherited {
		ghosts = 1
	}
	defer func() {
		ears.leave()
		if asking {
			ghosts = max(ghosts, 1)
		}
		if ghosts == 0 && !queued && (err == nil || !p.leftBehind) {
			return
		}
		left := wants
		switch failed := err != nil || asking; {
		case g != nil && !failed && t.state == held:
			left = g.unwanted(wants, ghosts)
		case g != nil:
			left = g.unwanted(nil, ghosts)
		case !failed:
			return
		}
		if len(left) == 0 {
			return
		}
		first.givenUp.Store(err != nil || asking)
		undone := e.undo(p.ctx, left, ghosts) // 5
		if err == nil {
			return
		}
		if queued || errors.Is(err, ErrNotSynced) || errors.Is(err, errLate) { // others stand behind it, or it is there for sure
			select {
			case <-undone:
			case <-time.After(answerTime):
			}
		}
	}()
	for {
		var way time.Duration
		switch {
		case g != nil:
			if wants, err = g.gather(p); err != nil { // 1
				return nil, t, whyAfter(err, cause)
			}
		case p.past:
			p.past = false
		default:
			if way, err = e.enterGates(p, wants); err != nil && err != errAskYourself { // 1
				return wants, t, err
			}
		}
		if way > 0 && p.hasTime(way) {
			p.seen.waits()
			if err = p.wait(nil, nil, way); err != nil {
				return wants, t, whyAfter(err, cause)
			}
		}
		wants = e.withKin(wants)
		if g != nil {
			g.asks(wants)
		}
		asking = true
		var unknown int
		t, unknown, err = e.attempt(p, wants, g, heard, next, &first.givenUp) // 2
		asking, next = false, nil
		ghosts, queued = ghosts+unknown, queued || t.left
		if err == nil && unknown == 0 {
			e.noteTrip(time.Since(t.sent))
		}
		switch {
		case err == errTimeUp && heard.IsZero(): // nobody said that it is busy
			return wants, t, errNoAnswer
		case err != nil:
			// A script that Redis has stopped half way has written something, perhaps.
			if answered(err) && ghosts == 0 {
				ghosts = 1
			}
			return wants, t, whyAfter(err, cause)
		case t.state != busy:
			return wants, t, nil
		case p.once:
			return wants, t, whyAfter(errTimeUp, t.cause)
		}
		heard, cause = time.Now(), t.cause
		e.noteBusy(p, wants[t.at].hold, t.grant)
		wake, ready, turned := ears.turnTo(e, wants[t.at], t.grant) // 3, 4
		p.seen.waits()
		p.seen.ends(PathPolled)
		nap := e.nap(t.wait)
		if notified && p.parts {
			nap = min(nap, reserveTime) // a node may announce a release before the process of the holder has noted it
		}
		notified = false
		if !t.left && ears.deaf() { // what it has left in Redis is its place there
			nap = min(nap, poll.next(heard, t.wait))
		}
		patient := p
		if g == nil {
			e.leaveGates(wants, t.at)
		} else {
			patient = g.waiting(p)
			if turned {
				// It asks again in a moment. If others passed its gates before, each of them would ask too.
				nap = min(nap, reserveTime)
			}
			g.letGo(t.at, turned)
		}
		if t.pause > 0 {
			err = patient.wait(nil, nil, t.pause)
		}
		if err == nil && (t.pause == 0 || nap > t.pause) {
			slept := time.Now()
			err = patient.wait(wake, ready, nap)
			if time.Since(slept) < nap {
				p.seen.ends(PathNotified)
				notified = true
				if ready == nil {
					e.heardRelease(wants[t.at].hold)
				}
			}
		}
		if err != nil && g != nil {
			return nil, t, whyAfter(err, cause)
		}
		if err != nil {
			return wants, t, whyAfter(err, cause)
		}
		ears.settle()
	}
}

// errLate is the cause of an acquire whose answers came when hardly anything was left of the lease.
var errLate = errors.New("the answers of Redis take so long that too little is left of the lease")

// attempt makes one attempt on wants. Where the answer comes so late that too little trust is left, it
// asks again, a few times: that restores the lease. ghosts are the tries that may have
// left something in Redis; on an error, those that were granted too late are among them. next is the try
// to go on from, or nil.
func (e *engine) attempt(p *patience, wants []want, g *group, heard time.Time, next *firstTry, givenUp *atomic.Bool) (t tried, ghosts int, err error) {
	for asked := 1; ; asked++ {
		if next == nil {
			next = newFirstTry(e)
		}
		r := &next.retry
		r.p = p
		r.request = func(ctx context.Context) (tried, error) { return e.ask(ctx, wants) }
		r.onOrphan = func(t tried, err error) { e.undoOrphan(p.ctx, givenUp, g.now(wants), t, err) }
		var unknown int
		t, unknown, err = r.run(heard)
		next = nil
		ghosts += unknown
		switch {
		case err != nil || t.state != held || e.inTime(wants, t.sent):
			return t, ghosts, err
		case asked == mostAsked:
			t.state = busy // and is undone
			return t, max(ghosts, 1), lossError(errLate)
		}
		ghosts, heard = max(ghosts, 1), time.Now()
	}
}

// inTime says whether enough is left now of what was asked for at sent.
func (e *engine) inTime(wants []want, sent time.Time) bool {
	passed := time.Since(sent)
	for _, w := range wants {
		whole := trust(w.lease)
		left := whole - passed
		if w.level > 1 {
			left = max(left, e.dog.left(&w.hold.tenure.lease))
		}
		if !lasts(left, whole) {
			return false
		}
	}
	return true
}

// undoOrphan undoes an attempt that was answered too late for its caller: the caller has
// given up; or another try of the attempt was granted, and that hold is over.
func (e *engine) undoOrphan(ctx context.Context, givenUp *atomic.Bool, asked []want, t tried, err error) {
	ghosts := 0
	switch {
	case err == nil && t.state == busy && !t.left:
		return
	case err != nil && mayHaveRun(err):
		ghosts = 1
	case err != nil && !answered(err): // else half of it has run, perhaps
		return
	}
	if !givenUp.Load() {
		asked = slices.DeleteFunc(slices.Clone(asked), func(w want) bool { return e.needs(w) })
	}
	if len(asked) > 0 {
		e.abandonAll(ctx, asked, ghosts) // 5
	}
}

// needs says whether the field of w is that of a hold of this process, of an acquire that goes on, or
// of a release that is under way: its record must be there until the release has run.
func (e *engine) needs(w want) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch h := w.hold; h.state {
	case over:
		return h.turn.taken || h.tenure != nil && (h.tenure.handedOn || len(h.tenure.holds) > 0)
	case lost:
		return false
	}
	return true
}

// ask makes one attempt.
func (e *engine) ask(ctx context.Context, wants []want) (tried, error) {
	t := tried{sent: time.Now()}
	var err error
	if len(wants) == 1 {
		t.grant, err = wants[0].hold.backend.acquire(ctx, wants[0].attempt)
	} else {
		err = e.askTogether(ctx, wants, &t)
	}
	return t, err
}

// withKin is wants with the holds that their owner has on the other halves by
// now: they may come while this one waits.
func (e *engine) withKin(wants []want) []want {
	var changed []want
	for i, w := range wants {
		kin := e.find(w.hold.backend.kin(), w.hold.key.owner)
		if kin == nil {
			kin = kinAmong(wants, w)
		}
		if kin == nil || kin.field == w.kin || !e.sendKin(kin) {
			continue
		}
		if changed == nil { // an attempt that was left behind still looks at the old ones
			changed = slices.Clone(wants)
		}
		changed[i].kin = kin.field
	}
	if changed != nil {
		return changed
	}
	return wants
}

// sendKin notes that the field of kin is going to be sent, so that kin is not handed
// over or shared. It returns false if it is over by now, or shared: then others are in
// the way beside kin, unless they all ask for the other half.
func (e *engine) sendKin(kin *hold) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if kin.state == over {
		return false
	}
	kin.wasKin = true
	if kin.state == fresh {
		return true
	}
	for _, other := range kin.tenure.holds {
		if other != kin && e.kinOfLocked(other) == nil {
			return false
		}
	}
	e.closeLocked(kin.tenure)
	return true
}

// kinAmong is the hold on the other half of w that is wanted too.
func kinAmong(wants []want, w want) *hold {
	if w.hold.backend.kin() == (lockID{}) {
		return nil
	}
	for _, other := range wants {
		if other.hold.key.id == w.hold.backend.kin() {
			return other.hold
		}
	}
	return nil
}

// ears are where a waiter hears of the release of the lock that is in its way.
type ears struct {
	of        lockID
	nodes     []int       // of a composite
	listeners []*listener // with one wake between them
	unsure    []*listener // those whose subscription may have come after the last attempt
}

// turnTo listens for w, and returns what to wait for: first confirmations that a
// release will be heard, because one of before was not; and releases. It says
// whether it listened for something else before.
func (x *ears) turnTo(e *engine, w want, g grant) (wake, ready <-chan struct{}, turned bool) {
	if x.of != w.hold.key.id || !slices.Equal(x.nodes, g.nodes) {
		x.leave()
		x.of, x.nodes, x.listeners = w.hold.key.id, g.nodes, e.listen(w, g)
		x.unsure = slices.Clone(x.listeners)
		turned = true
	}
	if len(x.listeners) > 0 {
		wake = x.listeners[0].wake
	}
	if len(x.unsure) > 0 {
		ready = x.unsure[0].ready
	}
	return wake, ready, turned
}

// settle notes, before the next attempt, which subscriptions are in force.
func (x *ears) settle() {
	x.unsure = slices.DeleteFunc(x.unsure, func(l *listener) bool {
		select {
		case <-l.ready:
			return true
		default:
			return false
		}
	})
}

func (x *ears) leave() {
	for _, l := range x.listeners {
		l.leave()
	}
	*x = ears{}
}

// deaf says whether Redis does not allow to listen there.
func (x *ears) deaf() bool { return len(x.listeners) == 1 && x.listeners[0].refused() }

const (
	shortPoll  = 10 * time.Millisecond
	rarestPoll = time.Hour            // the max wake delay comes first
	hotFor     = 2 * longSlice        // after a lock was seen to change hands: it is really released before that is over
	pollSlack  = 5 * time.Millisecond // by which a lease may seem to have become later because an answer took longer
)

// polling is how often a waiter asks that hears of no release: often once it has seen that the lock
// has changed hands while it slept, and then more and more rarely, because a lock that somebody
// keeps costs Redis a request each time. A renewal looks as if the lock had changed hands.
type polling struct {
	end   time.Time     // of the lease in the way
	moved time.Time     // when that was last seen to have become later
	pause time.Duration // after an answer
}

// next is how long to sleep at most after an answer, which said what is left of the lease in the way.
func (p *polling) next(answered time.Time, left time.Duration) time.Duration {
	end := answered.Add(left)
	switch {
	case p.end.IsZero():
		p.pause = rarestPoll
	case left > 0 && end.Sub(p.end) > pollSlack:
		p.moved = answered
	}
	if p.end = end; answered.Sub(p.moved) < hotFor {
		p.pause = shortPoll
	} else {
		p.pause = min(2*p.pause, rarestPoll)
	}
	return p.pause
}

// listen joins the channels on which the release is announced that w waits for.
func (e *engine) listen(w want, g grant) []*listener {
	if q, ok := w.hold.backend.(composite); ok {
		return q.listen(g)
	}
	return []*listener{e.wakeups.join(w.hold.backend.channel(w.attempt))}
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

// untilClosed returns a ctx that ends with cause ErrClosed when the engine is closed.
func (e *engine) untilClosed(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(e.life, func() { cancel(ErrClosed) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// spawn runs f in a goroutine that Close waits for: one that has nothing to do, or a new one.
func (e *engine) spawn(f func()) {
	select {
	case e.jobs <- f:
	default:
		e.beginWork()
		go e.work(f)
	}
}

// work runs f and then what comes after it. A goroutine that has run a request is worth keeping
// for the next one: the stack of a new one has to grow first, which costs some microseconds.
func (e *engine) work(f func()) {
	defer e.endWork() // also when a hook of the Redis client ends the goroutine
	for f != nil {
		f()
		f = e.nextJob()
	}
}

// nextJob waits for something to do, until Close; nil: there are others who do.
func (e *engine) nextJob() func() {
	defer e.idle.Add(-1)
	if e.idle.Add(1) > mostIdle {
		return nil
	}
	select {
	case f := <-e.jobs:
		return f
	case <-e.closed:
		return nil
	}
}

// beginWork and endWork enclose what Close waits for.
func (e *engine) beginWork() { e.working.Add(1) }

func (e *engine) endWork() {
	if e.working.Add(-1) > 0 || !e.closing.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drainedLocked()
}

// drainedLocked tells close that nothing is under way, once.
func (e *engine) drainedLocked() {
	if e.drained != nil && e.working.Load() == 0 {
		close(e.drained)
		e.drained = nil
	}
}

// stillHeld are the holds that are still there at Close.
type stillHeld struct {
	count int
	some  []*hold // of them
}

const mostLogged = 16 // holds that Close names

func (s *stillHeld) add(h *hold) {
	if h.state == holding {
		if s.count++; len(s.some) < mostLogged {
			s.some = append(s.some, h)
		}
	}
}

// log names them. A goroutine that has ended, or forgotten to unlock, is seen nowhere else.
func (s *stillHeld) log(l *slog.Logger) {
	if !l.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	var locks []string
	for _, h := range s.some {
		locks = append(locks, fmt.Sprintf("%s by %v", cutName(h.key.id.name), h.key.owner))
	}
	l.Debug("relock: closed with locks held, whose records lapse with their leases",
		"count", s.count, "locks", locks)
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
	e.endLife()
	var guards []*guardEnd
	var held stillHeld
	for _, h := range e.holds {
		guards = append(guards, h.takeGuardsLocked()...)
		held.add(h)
	}
	drained := make(chan struct{})
	e.drained = drained
	e.closing.Store(true) // before the look at what is under way: the last one to end looks after it
	e.drainedLocked()
	e.mu.Unlock()
	endGuards(guards, ErrClosed)
	if held.count > 0 {
		e.reporter.later(func() { held.log(e.log) })
	}
	e.reporter.close()

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
		if e.reporter.busy() {
			return errors.New("relock: close: the Logger or the Observer has not returned")
		}
		return errors.New("relock: close: requests are still under way that Redis does not answer; they end with the timeouts of the Redis client")
	}
}
