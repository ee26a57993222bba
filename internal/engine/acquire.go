package engine

// Acquiring: the one path by which locks are taken, one or several together.
//
// Invariants (the numbers are used in comments below):
//
//  1. First the wait queue of the name: in this process one contender at a time goes
//     to Redis (where the lock is exclusive, or counted and known to be busy), and the others wait behind it in order.
//  2. One attempt. An uncontended lock needs no more than this.
//  3. Busy: join the channel, wait for the subscription, and attempt again: a
//     release between 2 and the subscription would go unnoticed.
//  4. Sleep until a wake-up, or until the lease of the holder or the poll
//     interval ends; then attempt again.
//  5. An attempt that was given up may have been granted, or may still be granted. It is
//     undone, by the field that belongs to this acquisition alone, so that the
//     undo can never touch a later hold. Should Redis run the attempt after its
//     undo, the record has a finite lease and is not renewed.
//  6. Held: trusted from before the successful attempt was sent.

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
)

const MostAsked = 5 // how often one caller asks again because its grants come too late

// An acquireOp is one call that takes locks, from its first attempt until they are held or it gives up.
type acquireOp struct {
	waitOptions
	engine  *Engine
	owner   Owner
	request Request
	backend backend

	names   lockStates // of the locks
	targets []target   // the caller has the owner mutexes of these holds

	subscription subscription
	polling      polling
	lastReply    time.Time // of Redis; zero: none
	leftovers    leftovers
	cause        error // why the last attempt was not granted, where other owners are not why; or nil
	unanswered   bool  // the caller gives up because Redis has not answered at all
	adoptsRecord bool  // one of its grants is the record of a holder before
	asking       bool  // an attempt is under way; afterwards true only if a hook has ended the goroutine
	givenUp      atomic.Bool
}

// errRestart says that the call makes another acquisition, with new fields. There are three reasons. Another caller
// of the owner has released the hold that was to be re-entered. A counted lock is busy, and the caller has to enter
// the wait queue. Or the fields say that this Client uses the line, which it may not use.
var errRestart = errors.New("the acquisition begins again")

// ErrLate is the cause of an acquire whose answers came when the lease had hardly any time left.
var ErrLate = errors.New("the answers of Redis take so long that too little is left of the lease")

// Acquire takes one level of every lock for o: of all of them, or of none. It returns false when r.wait
// is over. If there are several locks, they are on one Redis and can be taken together.
func (e *Engine) Acquire(ctx context.Context, o Owner, r Request, locks ...Lock) (bool, error) {
	e.workers.Begin()
	defer e.workers.End()
	op := waitOptions{Wait: send.Wait{Ctx: ctx, Closed: e.noNewHolds, NoWait: r.Wait == 0, OnCaller: true}}
	switch {
	case ctx.Err() != nil:
		return false, send.CtxError(ctx)
	case e.Open() != nil:
		return false, send.ErrClosed
	}
	for _, l := range locks {
		if err := l.Limits().checkLease(r.Lease); err != nil {
			return false, err
		}
	}
	if r.Wait > 0 {
		op.Deadline = time.Now().Add(r.Wait)
	}
	op.Patient = op.NoWait && isPatient(ctx)
	op.span = startSpan(e, ctx, locks, o)
	err := errRestart
	for err == errRestart {
		err = e.acquireOnce(&op, o, r, locks)
	}
	err = withHolder(e, op, locks, o, r, err)
	if err == nil || !r.Trial {
		op.span.finish(err)
	}
	if err == send.ErrTimeUp { // not errors.Is: an error that wraps errTimeUp has a reason to report
		return false, nil
	}
	return err == nil, err
}

// acquireOnce makes all locks the caller's, or none. A caller that is handed its lock needs no acquisition: an object
// on the heap for each handover costs as much as all the rest of it.
func (e *Engine) acquireOnce(op *waitOptions, o Owner, r Request, locks []Lock) error {
	if len(locks) > 1 {
		e.noteUse()
		g := e.newMultiAcquire(op, locks, o, r)
		defer g.end()
		return g.finish(op)
	}
	s := e.retain(locks[0].ID().Name)
	defer s.release()
	op.changed = nil
	if l, kept := locks[0].(VotedLock); kept {
		return e.acquireVote(op, s, l, o, r)
	}
	e.noteUse()
	in, err := s.enter(op, locks[0], o, r)
	if in.holds || err != nil {
		return err
	}
	defer in.hold.unlockHold()
	one := new(recordBackend)
	one.begin(op, one, in.hold, r)
	if err := one.targets[0].prepare(r); err != nil {
		return err
	}
	if in.adopts {
		one.leftovers.grantNotKept()
		one.adoptsRecord = true
	}
	return one.finish(op)
}

// noteUse says that a lock is about to be acquired: see Config.FirstUse.
func (e *Engine) noteUse() {
	if e.FirstUse != nil {
		e.FirstUse()
	}
}

// finish runs the acquisition of a caller with these options, and leaves it what was seen and used up of them.
func (a *acquireOp) finish(op *waitOptions) error {
	res, err := a.run()
	a.span.asked(a.targets)
	err = a.conclude(res, err)
	*op = a.waitOptions
	return err
}

// enter admits the caller past the others of this process. Unless the lock was handed to it, it has a hold then, with
// its owner mutex.
func (s *lockState) enter(op *waitOptions, kind Lock, o Owner, r Request) (in admitted, err error) {
	in, err = s.admit(op, kind, o, r.Lease > 0)
	if err == nil && in.hold == nil {
		in.hold, err = s.lockHold(op, kind, o, true)
	}
	return in, err
}

// prepare sets the attempt of t.
func (t *target) prepare(r Request) error {
	t.hold.name.Lock()
	defer t.hold.name.Unlock()
	return t.prepareLocked(r)
}

func (t *target) prepareLocked(r Request) error {
	h := t.hold
	e := h.name.engine
	if h.field == "" {
		h.field = e.newField(h.key.owner)
	}
	if most, tooDeep := h.lock.MaxHoldCount(); most > 0 && h.count >= most {
		return tooDeep
	}
	t.Attempt = Attempt{Field: h.field, Lease: r.Lease, HoldCount: h.count + 1, Renewed: r.Lease == 0}
	switch h.state {
	case fresh:
		t.NoWait = r.Wait == 0
		t.Lease = h.lock.Limits().cut(cmp.Or(r.Interim, r.Lease, e.WatchdogTimeout))
	case lost, expired, lossReported:
		h.state = h.state.afterReport()
		return h.loss
	default:
		t.Renewed = t.Renewed || e.watchdog.Renews(&h.record.lease)
		if t.Renewed {
			t.Lease = e.WatchdogTimeout
		}
		t.Lease = e.watchdog.RestOf(&h.record.lease, t.Lease)
	}
	return nil
}

// run makes attempts until one is answered with anything but busy. On an error nothing
// is held, and the undo of the attempts has begun.
func (a *acquireOp) run() (res Answer, err error) {
	returned := false
	defer func() {
		a.subscription.leave()
		a.backend.rollback(res, err, returned)
	}()
	for {
		if err = a.backend.admit(); err == nil { // 1
			a.asking = true
			res, err = a.attempt() // 2
			a.asking = false
		}
		if err == nil && res.Status == Busy {
			res, err = a.backend.await(res) // 3, 4
			if err == nil && res.Status == Busy {
				continue
			}
		}
		returned = true
		if err != nil {
			err = send.WithLast(err, a.cause)
		}
		return res, err
	}
}

// attempt makes one attempt on all wants. Where the answer comes so late that too little trust is left, attempt asks
// again, a few times: another grant restores the lease, which counts from the last request. A Redis that always takes
// so long ends the call with ErrLate, or with a hold of which some is left.
func (a *acquireOp) attempt() (res Answer, err error) {
	lastReply, first := a.lastReply, a.leftovers.tries
	for asked := 1; ; asked++ {
		res, err = a.backend.ask(lastReply)
		switch {
		case err == send.ErrTimeUp && a.lastReply.IsZero(): // no answer has said that the lock is busy
			return res, ErrNoAnswer
		case err != nil:
			return res, err
		case res.Status != Held || a.engine.enoughValidityLeft(a.targets, res.Sent, asked):
			if a.leftovers.tries == first {
				a.backend.answered(res.Sent)
			}
			return res, nil
		}
		a.leftovers.grantNotKept()
		lastReply = time.Now()
		if asked == MostAsked {
			res.Status = Busy // and rollback undoes the grant
			return res, LossError(ErrLate)
		}
	}
}

// askRedis sends one attempt, until Redis answers.
func (a *acquireOp) askRedis(lastReply time.Time) (Answer, error) {
	e, targets := a.engine, a.targets
	call := attemptCall(targets)
	answer := e.sender.Do(&a.Wait, send.Request{Call: call, Acquiring: true, OnOrphan: &orphans{a, targets}}, lastReply)
	res, err := readResult(targets, &answer)
	a.leftovers.attempted(answer.Unknown, answer.Abandoned, res.leavesEntry)
	a.unanswered = answer.Unanswered
	rollbacker{e}.callersLeft(targets, answer.Orphans, answer.Lost > 0)
	if err != nil && send.Answered(err) { // a script that Redis has stopped half way may have written data
		a.leftovers.grantNotKept()
	}
	return res, err
}

// checkFields begins again where a field says that this Client uses the line, which it may not: the answer res has
// shown that. Processes in the line would not listen for the release of the hold.
func (a *acquireOp) checkFields(res Answer) (Answer, error) {
	misnamed := func(t target) bool { return t.HoldCount == 1 && UsesLine(t.Field) }
	if a.adoptsRecord || !a.engine.sender.Degraded() || !slices.ContainsFunc(a.targets, misnamed) {
		return res, nil
	}
	if res.Status == Held {
		a.leftovers.grantNotKept()
		res.Status = Busy // and rollback undoes the grant
	}
	return res, errRestart
}

func (a *acquireOp) answered(sent time.Time) { a.engine.rtt.Observe(time.Since(sent)) }

// enoughValidityLeft reports whether enough is left now of the leases that were asked for at sent, for the asked-th time.
func (e *Engine) enoughValidityLeft(targets []target, sent time.Time, asked int) bool {
	passed := time.Since(sent)
	for _, t := range targets {
		whole := lease.Validity(t.Lease)
		left := whole - passed
		if t.HoldCount > 1 {
			left = max(left, e.watchdog.Left(&t.hold.record.lease))
		}
		most := t.hold.lock.Limits().Max
		last := most > 0 && t.Lease >= most // MaxHold: the watchdog does not renew it, and the owner has asked for no more
		if !lease.EnoughValidityLeft(left, whole, t.Renewed) && (asked < 2 && !last || !lease.Suffices(left, whole, t.Renewed && !last)) {
			return false
		}
	}
	return true
}

// listen listens for the release of the lock that res has found busy: of the want in. begun says that it has just begun
// to.
func (a *acquireOp) listen(in target, res Answer) (wake, ready <-chan struct{}, begun bool) {
	a.lastReply = time.Now()
	a.noteBusy(in.hold, res.ttl)
	wake, ready, begun = a.subscription.watch(in, res.Standing.LegacyHolder() || res.Standing.SubscriptionLost()) // 3
	if res.Standing.SubscriptionLost() {
		a.subscription.listeners[0].Renew() // of the channel of grants
	}
	a.span.waits()
	a.span.ends(pathPolled)
	return wake, ready, begun
}

// sleepUntilFree sleeps for delay, or until one of the channels is ready; op says why sooner.
func (a *acquireOp) sleepUntilFree(op *waitOptions, in target, wake, ready <-chan struct{}, delay time.Duration) error {
	slept := time.Now()
	err := op.sleep(wake, ready, delay) // 4
	if time.Since(slept) < delay {
		a.span.ends(pathNotified)
		if ready == nil {
			in.hold.heardRelease()
		}
	}
	return err
}

// nextPoll is how long the caller sleeps at most before it asks again about in; stop is to be called when it has slept.
func (a *acquireOp) nextPoll(in target, res Answer) (delay time.Duration, stop func()) {
	e, stop := a.engine, func() {}
	delay = e.PollDelay(res.Wait)
	placed := res.Standing.isEnqueued()
	switch {
	case (!res.leavesEntry || placed) && a.subscription.isRefused(): // a queued waiter keeps its entry in Redis, and need not ask often
		delay = min(delay, a.polling.next(a.lastReply, res.ttl))
	case placed && in.hold.lock.Admission() == Counting: // the key of a semaphore does not say whether a permit is free
		delay = min(delay*time.Duration(1+res.Standing.ahead()/poller.NearHead), rareAsk)
	case placed && !res.leavesEntry:
		delay, stop = looking{e}.awaitInLine(in.hold.key.id.Name, in.Field, a.subscription.listeners[0], res)
	}
	return delay, stop
}

// interrupt notes that another process has the lock of h.
func (h *hold) interrupt() {
	h.name.Lock()
	defer h.name.Unlock()
	if q := h.queue; q != nil {
		q.policy.Interrupted()
	}
}

// heardRelease notes that another process has released the lock of h.
func (h *hold) heardRelease() {
	h.name.Lock()
	defer h.name.Unlock()
	if e := h.name.engine; h.queue != nil {
		h.queue.policy.HeardRelease(e.watchdog.Now(), e.pace())
	}
}

// PollDelay is how long a waiter sleeps without a wake-up: until the lease that is in
// the way has ended, and never longer than the poll interval. The jitter keeps
// many waiters from asking at the same moment.
func (e *Engine) PollDelay(lease time.Duration) time.Duration {
	if lease < 0 || lease >= e.PollInterval {
		return e.PollInterval - rand.N(e.PollInterval/5+1)
	}
	return min(lease+time.Millisecond+rand.N(10*time.Millisecond), e.PollInterval)
}

// hasFailed reports whether the caller holds nothing, where run ends with err; returned is as in backend.rollback.
func (a *acquireOp) hasFailed(err error, returned bool) bool {
	if a.asking { // a hook has ended the goroutine
		a.leftovers.grantNotKept()
		rollbacker{a.engine}.callersLeft(a.targets, 0, true)
	}
	return err != nil || !returned
}

// rollBack undoes left, which the attempts may have left in Redis. A call that ends with err waits for a moment until it is
// undone where it delays others.
func (a *acquireOp) rollBack(left []target, failed bool, err error) {
	a.givenUp.Store(failed)
	undone := rollbacker{a.engine}.rollBack(a.Ctx, left, a.leftovers.tries) // 5
	if err == nil || !a.leftovers.delays() && err != errRestart && !errors.Is(err, send.ErrNotSynced) && !errors.Is(err, ErrLate) {
		return
	}
	select { // others stand behind the attempt, or its record is there for sure
	case <-undone:
	case <-time.After(send.MinWait):
	}
}

// conclude notes the outcome of the attempts: all wants are held, or none.
func (a *acquireOp) conclude(res Answer, err error) error {
	if len(a.targets) == 0 {
		return err
	}
	if err = confirm(a.names, a.targets, res, err); err == nil {
		return nil
	}
	a.names.Lock()
	defer a.names.Unlock()
	for _, t := range a.targets {
		a.backend.dismissLocked(t, res)
	}
	return err
}

// confirm notes that all targets were granted, unless there is an error; or says why they are not held all the same.
func confirm(all lockStates, targets []target, res Answer, err error) error {
	if err != nil {
		return err
	}
	if res.Status == Gone {
		targets[res.at].hold.lose(errGone)
	}
	for _, t := range targets {
		if t.HoldCount > 1 && !t.hold.name.engine.watchdog.Watches(&t.hold.record.lease) {
			t.hold.lose(ErrExpired) // the watchdog has found the lease over, and is about to end the hold
		}
	}
	all.Lock()
	defer all.Unlock()
	if err := lossLocked(targets); err != nil {
		return err
	}
	for i, t := range targets {
		token := res.token
		if res.tokens != nil {
			token = res.tokens[i]
		}
		t.acquiredLocked(token, res)
	}
	return nil
}

// lossLocked is why the caller does not have the targets that were granted, or nil.
func lossLocked(targets []target) (err error) {
	for _, t := range targets {
		switch h := t.hold; {
		case h.state.isLost() || h.state == ended: // now, or while the attempt was under way
			h.state = h.state.afterReport()
			err = cmp.Or(err, h.loss, errRestart)
		case h.state == fresh && h.name.closed:
			err = cmp.Or(err, send.ErrClosed)
		}
	}
	return err
}

// acquiredLocked notes that the attempt of t was granted: the level is held from now on.
func (t *target) acquiredLocked(token int64, res Answer) {
	h, sent := t.hold, res.Sent
	e := h.name.engine
	if h.state != fresh {
		h.count++
		e.watchdog.Extend(&h.record.lease, sent, t.Lease, t.Renewed)
		return
	}
	now := e.watchdog.Now()
	h.newRecord(now).joinLocked(h, e.watchdog.At(sent))
	if q := h.queue; q != nil {
		if h.lock.Admission() != Counting { // a permit more is not free
			q.foundFree()
		}
		q.policy.Acquired(now)
	}
	h.token = token
	h.record.lease.SetLimit(h.lock.Limits().end(e.watchdog.At(sent)))
	e.watchdog.Watch(&h.record.lease, sent, t.Lease, t.Renewed, res.provisional) // 6
	h.openLocked(res.More)
}

// dismissLocked ends t, which was not granted to the caller.
func (a *acquireOp) dismissLocked(t target, res Answer) {
	h := t.hold
	if h.state == fresh {
		if a.unanswered && h.queue != nil {
			h.queue.FailBehind(1, errBypassQueue)
		}
		h.leaveQueueLocked()
	} else {
		h.leaseUncertain = true // the attempt may have been granted, with a longer lease
	}
	switch {
	case res.Status != Held: // rollback has undone the attempts
	case h.state.isLost() || h.state == ended && len(h.record.holds) == 0: // no other hold shares the record
		h.name.oweLocked(duty{clear: h})
	default:
		h.name.oweLocked(duty{rollBack: h.commands(), attempt: t.Attempt, ctx: a.Ctx})
	}
}
