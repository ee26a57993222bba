package engine

// Acquiring: the one path by which locks are acquired, one lock or several together.
//
// Invariants (the numbers appear in comments of the code):
//
//  1. The caller passes the local queue of the lock first, if the lock has one (see Admission). As a rule, one caller
//     of the process contends for the lock, and the others wait behind it in order. Several contend for a semaphore
//     until it was found busy, for a read lock if they do not share a record, and if Redis does not answer
//     (errBypassQueue).
//  2. The caller makes one attempt. A lock that is free needs no more than this one request.
//  3. If the lock is busy, the caller subscribes to the channel on which it will learn of a grant or a release. It
//     makes another attempt when the subscription is in force, because it would not have noticed a release before that.
//  4. The caller sleeps until it is woken, or until it is time to ask again (nextPoll). If a message has granted it the
//     lock, the wait is over. Otherwise it makes another attempt. When its time is up, it makes a last one if a message
//     may not have reached it.
//  5. An attempt that was given up may have been granted, or may still be granted. It is rolled back by its field, so
//     the rollback affects no hold with another field. If Redis runs the attempt after its rollback, a tombstone of the
//     field refuses it (rollback.go). Where there is none, the record expires, because its lease is not renewed.
//  6. A hold that was granted is valid from the time before its attempt was sent.

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/slow"
)

const MostAsked = 5 // how many requests a caller sends at most while the grants come so late that it does not keep them

// A Request describes how one caller wants to acquire its locks.
type Request struct {
	Wait  time.Duration // how long to wait for other owners; 0: make one attempt; negative: until ctx is done
	Lease time.Duration // 0: the watchdog timeout, and the watchdog renews the lease

	// LeastLease is the least lease of a new hold in Redis if Lease is shorter. A MultiLock that acquires its locks in
	// several steps sets it: KeepLease extends the lease until all of them are held.
	LeastLease time.Duration

	// AnswerBy limits how long a caller with a Wait of 0 waits for an answer, if it is sooner than Services.Patience
	// (zero: it is not). Even if it has passed already, there is one attempt, which has send.MinWait for an answer.
	AnswerBy time.Time

	Component bool // the locks are part of a MultiLock: an error names the one that it is about
	Again     bool // a MultiLock tries again: too little of the lease was left when it had all of its locks
	Trial     bool // if this request fails before AnswerBy, the caller tries again, so no event reports that it gave up
}

// A target is the attempt on one lock, and the hold that it is made for.
type target struct {
	hold *hold
	contract.Attempt
	cut bool // the lease is as long as MaxHold allows: the watchdog will not renew it
}

// An acquireOp is one acquire operation: what one call does to acquire its locks, until they are held or the call gives
// up. A call has another operation after errRestart.
type acquireOp struct {
	waitOptions
	engine  *Engine
	backend backend

	states  lockStates // the states of the locks
	targets []target   // one for each lock; during an attempt, the caller has the owner mutexes of their holds

	subscription subscription
	polling      *polling  // nil: the caller has not polled
	lastReply    time.Time // when Redis last answered this operation that the lock is busy; zero: it has not
	leftovers    leftovers
	cause        error            // why the last attempt was not granted, if other owners are not the reason; or nil
	unanswered   bool             // the caller gives up because Redis has not answered at all
	atEnd        bool             // the time is up, and the caller makes its last attempt: see asksAtEnd
	adoptsRecord bool             // a hand-off has left the record of the last holder to it: see handoff.go
	asking       bool             // an attempt is under way; in rollback: a hook has panicked, or ended the goroutine
	givenUp      atomic.Bool      // the operation has failed: what late answers grant is rolled back (orphans.go)
	orphans      orphans          // of the first attempt
	unlocks      bool             // the outcome also unlocks the owner mutex of the only hold
	redisWait    slow.Wait[*hold] // for a lock that Redis has found busy
}

// errRestart makes the call begin another acquire operation, with new fields. There are five reasons. Another caller of
// the owner has released the hold that was to be re-entered. Or a semaphore is busy, so that the caller has to enter
// the local queue. Or a field carries the mark of a Client that uses the line, and the attempt has shown that this
// Client may not use it. Or an earlier attempt on several locks was granted, and some of them are busy by now. Or a
// late answer has granted them, and another caller of the owner asks for one of them.
var errRestart = errors.New("the acquire operation starts again")

// ErrLate is the cause of the loss that a call returns if each grant came so late that too little was left of its
// lease.
var ErrLate = errors.New("the answers of Redis take so long that too little of the lease remains")

// Acquire acquires every lock for o, or none of them. A lock that o already holds gets a higher hold count. Acquire
// returns false, and no error, if r.Wait has passed, or if it is 0 and a lock is busy. Several locks must be on one
// Redis, and of types that a bundle can acquire together.
func (e *Engine) Acquire(ctx context.Context, o Owner, r Request, locks ...contract.Lock) (bool, error) {
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
		if err := l.Traits().Limits.CheckLease(r.Lease); err != nil {
			return false, err
		}
	}
	op.Deadline = e.deadlineOf(r)
	op.Patient = op.NoWait && isPatient(ctx)
	op.part = partOf(ctx)
	op.span = startSpan(e, ctx, locks, o)
	err := errRestart
	for err == errRestart {
		err = e.acquireOnce(&op, o, r, locks)
	}
	err = whyEnded(e, &op, locks, o, r, err)
	if err == nil || !r.Trial || r.isLate() {
		op.span.finish(err)
	}
	if err == nil {
		e.noteStacks(locks, o)
	}
	if err == send.ErrTimeUp { // not errors.Is: an error that wraps ErrTimeUp has a reason that the caller must see
		return false, nil
	}
	return err == nil, err
}

// deadlineOf returns when the wait of r ends; zero: it does not.
func (e *Engine) deadlineOf(r Request) (deadline time.Time) {
	switch {
	case r.Wait > 0:
		return time.Now().Add(r.Wait)
	case r.Wait == 0 && !r.AnswerBy.IsZero() && time.Until(r.AnswerBy) < e.Patience():
		return r.AnswerBy
	}
	return deadline
}

// isLate reports whether AnswerBy has passed.
func (r *Request) isLate() bool { return !r.AnswerBy.IsZero() && !time.Now().Before(r.AnswerBy) }

// acquireOnce runs one acquire operation for all locks. A caller that holds the lock without a request, because it was
// handed off to it, gets no acquireOp: to allocate one for every hand-off would cost as much as the rest of the
// hand-off.
func (e *Engine) acquireOnce(op *waitOptions, o Owner, r Request, locks []contract.Lock) error {
	if len(locks) > 1 {
		e.noteAcquire()
		g := e.newMultiAcquire(op, locks, o, r)
		defer g.end()
		return g.finish(op)
	}
	s := e.retain(locks[0].Traits().ID.Name)
	defer s.release()
	op.changed = nil
	if l, kept := locks[0].(VotedLock); kept {
		return e.acquireVote(op, s, l, o, r)
	}
	e.noteAcquire()
	in, t, err := s.enter(op, locks[0], o, r)
	if in.holds {
		op.part.count(in.hold)
		op.span.handedOff(in.hold.token)
	}
	if in.holds || err != nil {
		return err
	}
	one := new(recordBackend)
	one.begin(op, one, t)
	one.unlocks = true
	defer one.unlockIfEnded()
	if in.adopts {
		one.leftovers.grantNotKept()
		one.adoptsRecord, one.targets[0].AdoptsRecord = true, !locks[0].Traits().DrawsSingly
	}
	return one.finish(op)
}

// noteAcquire notes that a lock is about to be acquired: see Config.OnAcquire.
func (e *Engine) noteAcquire() {
	if e.OnAcquire != nil {
		e.OnAcquire()
	}
}

// noteSlow notes that a lock is not held for a moment only: see Config.OnSlow.
func (e *Engine) noteSlow() {
	if e.OnSlow != nil {
		e.OnSlow()
	}
}

// finish runs the operation, and notes its outcome. The operation has a copy of the options; finish copies it back to
// op.
func (a *acquireOp) finish(op *waitOptions) error {
	res, err := a.run()
	a.span.asked(a.targets)
	err = a.conclude(res, err)
	*op = a.waitOptions
	return err
}

// enter waits until the caller may go on among the callers of this process. It then has a hold. If in.holds is set, it
// holds the lock already; otherwise it has the owner mutex of the hold, and has to ask Redis by the attempt of t.
func (s *lockState) enter(op *waitOptions, kind contract.Lock, o Owner, r Request) (in admitted, t target, err error) {
	s.Lock()
	defer s.Unlock()
	in, err = s.admitUnlocking(op, kind, o, r.Lease > 0)
	if err == nil && in.hold == nil {
		in.hold, err = s.lockHoldUnlocking(op, kind, o, op.part, true)
	}
	if err != nil || in.holds {
		return in, t, err
	}
	t.hold = in.hold
	if err = t.prepareLocked(r, op.part); err != nil {
		in.hold.unlockHoldLocked()
	}
	return in, t, err
}

// prepare sets the attempt of t. It returns an error if the owner may make none: if its hold was lost, or would get too
// high a hold count.
func (t *target) prepare(r Request, p *Part) error {
	t.hold.lockState.Lock()
	defer t.hold.lockState.Unlock()
	return t.prepareLocked(r, p)
}

func (t *target) prepareLocked(r Request, p *Part) error {
	h := t.hold
	e := h.lockState.engine
	if h.field == nil {
		h.newField()
	}
	if l := h.lock.Traits(); l.MaxHoldCount > 0 && h.count >= l.MaxHoldCount {
		return l.TooMany
	}
	t.Attempt = contract.Attempt{Field: h.field.ID, Lease: r.Lease, HoldCount: h.count + 1, Renewed: r.Lease == 0}
	switch h.state {
	case fresh:
		t.NoWait = r.Wait == 0
		t.Lease = h.lock.Traits().Limits.Cut(cmp.Or(max(r.Lease, r.LeastLease), e.WatchdogTimeout))
	case lost, expired, lossReported:
		return h.reportLossLocked(p)
	default:
		t.Renewed = t.Renewed || e.watchdog.Renews(&h.record.lease)
		if t.Renewed {
			t.Lease = e.WatchdogTimeout
		}
		t.Lease = e.watchdog.RestOf(&h.record.lease, t.Lease)
	}
	most := h.lock.Traits().Limits.Max
	t.cut = most > 0 && t.Lease >= most
	return nil
}

// run makes attempts until Redis answers one with anything but Busy, until a message grants the lock, or until the wait
// ends. If it returns an error, none of the attempts counts, and those that may have been granted are being rolled
// back.
func (a *acquireOp) run() (res Answer, err error) {
	returned := false
	defer func() {
		a.engine.slow.Strike(&a.redisWait)
		a.subscription.leave()
		a.backend.rollback(res, err, returned)
	}()
	for {
		if err = a.backend.admit(); err == nil { // 1
			a.asking = true
			res, err = a.attempt() // 2
			a.asking = false
		}
		if err == nil && res.Status == contract.Busy {
			res, err = a.backend.await(res) // 3, 4
			if err == nil && res.Status == contract.Busy || a.asksAtEnd(err) {
				continue
			}
		}
		returned = true
		if err != nil && err != errRestart {
			err = send.WithLast(err, a.cause)
		}
		return res, err
	}
}

// asksAtEnd reports whether the caller makes one attempt more, although its time is up: the lock may have been released
// since the last attempt without any sign of it.
func (a *acquireOp) asksAtEnd(err error) bool {
	if err != send.ErrTimeUp || a.atEnd || !a.subscription.mayHaveMissed() {
		return false
	}
	a.atEnd = true
	return true
}

// attempt makes one attempt on all targets. If a grant comes so late that too little validity is left, attempt asks
// again: another grant restores the lease, which counts from the last request. From the second grant on, a smaller rest
// is enough of a lease that is not renewed (see enoughValidityLeft). After MostAsked requests attempt returns a loss
// with the cause ErrLate.
func (a *acquireOp) attempt() (res Answer, err error) {
	lastReply, first := a.lastReply, a.leftovers.tries
	for asked := 1; ; asked++ {
		res, err = a.backend.ask(lastReply)
		if err != nil {
			return res, err
		}
		took := time.Since(res.Sent)
		if res.Status != contract.Held || a.engine.enoughValidityLeft(a.targets, took, asked) {
			if a.leftovers.tries == first {
				a.backend.answered(took)
			}
			return res, nil
		}
		a.leftovers.grantNotKept()
		lastReply = time.Now()
		if asked == MostAsked {
			res.Status = contract.Busy // rollback undoes the grant, and dismissLocked must not undo it again
			return res, LossError(ErrLate)
		}
	}
}

// askRedis sends one attempt. If Redis does not answer, the sender repeats it for a limited time.
func (a *acquireOp) askRedis(lastReply time.Time) (Answer, error) {
	e, targets := a.engine, a.targets
	call := attemptCall(targets)
	answer := e.sender.Do(&a.Wait, send.Request{Call: call, Acquiring: true, OnOrphan: a.orphansOf(targets), OnFailure: a}, lastReply)
	res, err := readResult(targets, &answer)
	a.noteAnswer(&answer, res.LeavesEntry, err)
	return res, err
}

// noteAnswer notes what an attempt may have left in Redis, and may still do. waits reports whether it has left the entry
// of a waiter, and err is that of the answer, or why it cannot be read.
func (a *acquireOp) noteAnswer(answer *send.Answer, waits bool, err error) {
	a.leftovers.attempted(answer.Unknown, answer.Abandoned, waits)
	a.unanswered = answer.Unanswered
	rollbacker{a.engine}.callersLeft(a.targets, answer.Orphans, answer.Lost > 0)
	if err != nil && send.Answered(err) { // a script that Redis has stopped halfway may have written data
		a.leftovers.grantNotKept()
	}
}

// checkFields returns errRestart if a field carries the mark of a Client that uses the line, and the attempt has shown
// that this Client may not use it. Another process that waits in the line would rely on the mark, and would not listen
// for the release of this hold.
func (a *acquireOp) checkFields(res Answer) (Answer, error) {
	misnamed := func(t target) bool { return t.HoldCount == 1 && UsesLine(t.Field) }
	if a.adoptsRecord || !a.engine.sender.Degraded() || !slices.ContainsFunc(a.targets, misnamed) {
		return res, nil
	}
	if res.Status == contract.Held {
		a.leftovers.grantNotKept()
		res.Status = contract.Busy // rollback undoes the grant, and dismissLocked must not undo it again
	}
	return res, errRestart
}

func (a *acquireOp) answered(took time.Duration) { a.engine.rtt.Observe(took) }

// enoughValidityLeft reports whether enough is left of the leases that the last request has asked for, which was sent
// the time took ago. asked is the number of requests so far in this attempt. A smaller rest is enough (lease.Suffices)
// of a lease that is not renewed, if the caller has asked for it twice, or if MaxHold allows no longer one.
func (e *Engine) enoughValidityLeft(targets []target, took time.Duration, asked int) bool {
	for _, t := range targets {
		whole := lease.Validity(t.Lease)
		left := whole - took
		if t.HoldCount > 1 {
			left = max(left, e.watchdog.Left(&t.hold.record.lease))
		}
		if !lease.EnoughValidityLeft(left, whole, t.Renewed) &&
			(asked < 2 && !t.cut || !lease.Suffices(left, whole, t.Renewed && !t.cut)) {
			return false
		}
	}
	return true
}

// listen makes the caller listen for a grant or a release of the lock of in, a target that res has found busy. It
// returns the channels for sleepUntilFree. begun reports whether the caller has not listened to the same channels
// before.
func (a *acquireOp) listen(in target, res Answer) (wake, ready <-chan struct{}, begun bool) {
	a.lastReply = time.Now()
	a.engine.noteSlow()
	a.noteBusy(in.hold, res, a.cause)
	wake, ready, begun = a.subscription.watch(in, res.Standing.LegacyHolder() || res.Standing.SubscriptionLost()) // 3
	if res.Standing.SubscriptionLost() {
		a.subscription.listeners[0].Renew() // the channel of grants
	}
	in.hold.wokenBy(a.subscription.listeners[0].Wake)
	a.waitsFor(in.hold)
	return wake, ready, begun
}

// wokenBy makes wake that which wakes the caller of h, unless it has another channel. A late grant that was handled
// before wakes the caller now.
func (h *hold) wokenBy(wake chan struct{}) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.changed != nil {
		return
	}
	if h.changed = wake; h.late {
		wakeCaller(wake)
	}
}

// waitsFor notes that the caller is about to sleep until the lock of h may be free in Redis.
func (a *acquireOp) waitsFor(h *hold) {
	if since := a.engine.beginWait(&a.waitOptions); !h.lock.Traits().Lasting {
		a.engine.slow.List(&a.redisWait, h, since)
	}
	a.engine.slow.Begins()
	a.span.waits()
	a.span.ends(pathPolled)
}

// sleepUntilFree sleeps for delay, or until one of the channels is ready. It returns an error if the wait of op ends
// before that.
func (a *acquireOp) sleepUntilFree(op *waitOptions, in target, wake, ready <-chan struct{}, delay time.Duration) error {
	err := op.sleep(wake, ready, delay) // 4
	message, begun := a.subscription.wakeUp()
	if message || begun {
		a.span.ends(pathNotified)
	}
	if message {
		in.hold.heardRelease()
	}
	return err
}

// nextPoll returns how long the caller sleeps at most before it makes another attempt on the target in. The poller of
// the Client may look at the lock meanwhile, and the caller must call stop after the sleep to end that.
func (a *acquireOp) nextPoll(in target, res Answer) (delay time.Duration, stop func()) {
	e, stop := a.engine, func() {}
	delay = e.PollDelay(res.Wait)
	queued := res.Standing.IsEnqueued()
	switch {
	// A waiter that has an entry in Redis, and no place in the line, is not in this case: its entry keeps its position, so
	// the waiter need not ask often.
	case (!res.LeavesEntry || queued) && a.subscription.isRefused():
		if a.polling == nil {
			a.polling = new(polling)
		}
		delay = min(delay, a.polling.next(a.lastReply, res.TTL))
	// The poller cannot see in the key whether a permit is free.
	case queued && in.hold.lock.Traits().Admission == contract.Counting:
		delay = min(delay*time.Duration(1+res.Standing.Ahead()/poller.NearHead), rareAsk)
	case queued && !res.LeavesEntry:
		d, looked := looking{e}.awaitInLine(in.hold.lockState.name, in.Field, a.subscription.listeners[0], res)
		delay, stop = d, func() { a.noteLook(in.hold, looked()) }
	}
	return delay, stop
}

// interrupt notes, for the hand-off policy, that another process has the lock of h.
func (h *hold) interrupt() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if q := h.queue; q != nil {
		q.policy.Interrupted()
	}
}

// heardRelease notes, for the hand-off policy, that another process has released the lock of h.
func (h *hold) heardRelease() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if e := h.lockState.engine; h.queue != nil {
		h.queue.policy.HeardRelease(e.watchdog.Now(), e.pace())
	}
}

// PollDelay returns how long a waiter sleeps if nothing wakes it: until the current holder's lease, which lasts for
// lease from now on, has expired, but no longer than the poll interval. A negative lease means that no lease is known;
// the waiter then sleeps for about the poll interval. The delay is random within bounds, so that the waiters of many
// processes do not ask at the same moment.
func (e *Engine) PollDelay(lease time.Duration) time.Duration {
	if lease < 0 || lease >= e.PollInterval {
		return e.PollInterval - rand.N(e.PollInterval/5+1)
	}
	return min(lease+time.Millisecond+rand.N(10*time.Millisecond), e.PollInterval)
}

// hasFailed reports whether run has failed. err is the error of run, and returned is as in backend.rollback. hasFailed
// also notes an attempt that was still under way.
func (a *acquireOp) hasFailed(err error, returned bool) bool {
	if a.asking { // a hook has panicked, or ended the goroutine, during the attempt
		a.leftovers.grantNotKept()
		rollbacker{a.engine}.callersLeft(a.targets, 0, true)
	}
	return err != nil || !returned
}

// rollBack starts to roll back the attempts in left: they may have left something in Redis. failed means that the
// operation holds nothing. If err is not nil, and other clients or the next operation of this call would have to wait
// for what is there, rollBack waits for the rollback, but not for long: a caller whose time is up has send.MinWait for
// its last attempt and the rollback together.
func (a *acquireOp) rollBack(left []target, failed bool, err error) {
	a.givenUp.Store(failed)
	undone := rollbacker{a.engine}.rollBack(a.Ctx, left, a.leftovers.tries) // 5
	if err == nil || !a.leftovers.delays() && err != errRestart &&
		!errors.Is(err, send.ErrNotSynced) && !errors.Is(err, ErrLate) {
		return
	}
	most := send.MinWait
	if !a.Deadline.IsZero() {
		most = min(most, time.Until(a.Deadline.Add(send.MinWait)))
	}
	select { // others wait behind the attempt, or its record is certainly there
	case <-undone:
	case <-time.After(most):
	}
}

// conclude notes the outcome of the operation: all targets are held, or none.
func (a *acquireOp) conclude(res Answer, err error) error {
	if len(a.targets) == 0 {
		return err
	}
	if err == nil {
		a.endIfGone(res)
	}
	a.states.Lock()
	defer a.states.Unlock()
	if err == nil {
		err = confirmLocked(a.targets, a.part, res)
	}
	if err != nil {
		for _, t := range a.targets {
			a.backend.dismissLocked(t, res)
		}
	}
	if a.unlocks {
		a.unlocks = false
		a.targets[0].hold.unlockHoldLocked()
	}
	return err
}

// unlockIfEnded unlocks the owner mutex if conclude has not, because code of the user has panicked, or ended the
// goroutine.
func (a *acquireOp) unlockIfEnded() {
	if a.unlocks {
		a.targets[0].hold.unlockHold()
	}
}

// endIfGone ends a hold as lost that was to be re-entered, if Redis does not have it, or if the watchdog is about to.
func (a *acquireOp) endIfGone(res Answer) {
	if res.Status == contract.Gone {
		a.targets[res.at].hold.lose(errGone)
	}
	for _, t := range a.targets {
		if t.HoldCount > 1 {
			t.hold.loseIfUnwatched()
		}
	}
}

// confirmLocked notes that all targets were granted and that their owner holds them. It returns an error if the owner
// cannot keep one of the holds: see lossLocked.
func confirmLocked(targets []target, p *Part, res Answer) error {
	if err := lossLocked(targets, p); err != nil {
		return err
	}
	for i, t := range targets {
		token := res.Token
		if res.tokens != nil {
			token = res.tokens[i]
		}
		t.acquiredLocked(token, res)
		p.countLocked(t.hold)
	}
	return nil
}

// lossLocked returns why the caller cannot keep the targets although they were granted, or nil.
func lossLocked(targets []target, p *Part) (err error) {
	for _, t := range targets {
		switch h := t.hold; {
		case h.state.isLost() || h.state == ended: // now, or while the attempt was under way
			err = cmp.Or(err, h.reportLossLocked(p), errRestart)
		case h.state == fresh && h.lockState.closed:
			err = cmp.Or(err, send.ErrClosed)
		}
	}
	return err
}

// acquiredLocked notes that the attempt of t was granted, and that its owner holds the lock from now on.
func (t *target) acquiredLocked(token int64, res Answer) {
	h, sent := t.hold, res.Sent
	e := h.lockState.engine
	if h.state != fresh {
		h.count++
		t.mayLastLocked(e.watchdog.Now(), 0)
		e.watchdog.Extend(&h.record.lease, sent, t.Lease, t.Renewed)
		return
	}
	now := e.watchdog.Now()
	h.acquiredLocked(h.newRecord(now), e.watchdog.At(sent))
	t.mayLastLocked(now, res.longest)
	if q := h.queue; q != nil {
		q.request = inquiry{}
		if h.lock.Traits().Admission != contract.Counting { // a granted permit does not mean that another one is free
			q.foundFree()
		}
		q.policy.Acquired(now)
	}
	h.token, h.record.tokens = token, newTokenBlock(token, res.Following)
	limit := limitOf(h.lock.Traits().Limits, e.watchdog.At(sent))
	if res.limits != nil {
		h.keepUntil, limit = res.limits.keepUntil, res.limits.limit
	}
	h.record.lease.SetLimit(limit)
	e.watchdog.Watch(&h.record.lease, sent, t.Lease, t.Renewed, res.provisional) // 6
	h.checkIfForcedLocked(e.watchdog.At(sent))
	h.openLocked(res.More)
}

// dismissLocked ends t, which the caller does not get.
func (a *acquireOp) dismissLocked(t target, res Answer) {
	h := t.hold
	if h.state == fresh {
		if a.unanswered && h.queue != nil {
			h.queue.FailBehind(1, errBypassQueue)
		}
		h.leaveQueueLocked()
	} else {
		h.mayLastLocked(bounded(t.Lease) + late.Life) // the attempt may have been granted, and may run later
	}
	switch {
	case res.Status != contract.Held: // no grant is left, or backend.rollback undoes it
	case h.state.isLost() || h.state == ended && !h.field.InUse(): // no other hold needs the field
		h.lockState.oweLocked(duty{clear: h})
	default:
		h.lockState.oweLocked(duty{rollBack: h.commands(), attempt: t.Attempt, ctx: a.Ctx})
	}
}
