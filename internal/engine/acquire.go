package engine

// Acquiring: the one path by which locks are acquired.
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
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
)

// An acquireOp is one acquire operation: what one call does to acquire its lock, until it is held or the call gives up. A
// call has another operation after errRestart.
type acquireOp struct {
	waitOptions
	engine  *Engine
	backend backend

	target target // during an attempt, the caller has the owner mutex of its hold

	subscription subscription
	polling      *polling    // nil: the caller has not polled
	place        *place      // in the line, or what the attempts have left in Redis otherwise
	room         place       // memory for place
	unanswered   bool        // the caller gives up because Redis has not answered at all
	givenUp      atomic.Bool // the operation has failed: what late answers grant is rolled back (orphans.go)
	orphans      orphans     // of the first attempt
	concluded    bool        // the owner mutex of the hold is unlocked
}

// ErrLate is the cause of the loss that a call returns if each grant came so late that too little was left of its
// lease.
var ErrLate = errors.New("the answers of Redis take so long that too little of the lease remains")

// finish runs the operation, and notes its outcome. The operation has a copy of the options; finish copies it back to
// op.
func (a *acquireOp) finish(op *waitOptions) error {
	defer func() {
		if !a.concluded { // code of the user has panicked, or ended the goroutine
			a.target.hold.unlockHold()
		}
	}()
	res, err := a.run()
	a.span.asks(a.target.HoldCount)
	err = a.conclude(res, err)
	*op = a.waitOptions
	return err
}

// run makes attempts until Redis answers one with anything but Busy, until a message grants the lock, or until the wait
// ends. If it returns an error, none of the attempts counts, and those that may have been granted are being rolled
// back.
func (a *acquireOp) run() (res Answer, err error) {
	returned := false
	defer func() { a.leave(err, returned) }()
	for {
		if err = a.backend.admit(); err == nil { // 1
			res, err = a.attempt() // 2
		}
		if err == nil && res.Status == contract.Busy && !a.NoWait {
			err = a.engine.checkWait(a.target.hold.lock, a.target.hold.owner)
		}
		if err == nil && res.Status == contract.Busy {
			res, err = a.backend.await(res) // 3, 4
			if err == nil && res.Status == contract.Busy || a.asksAtEnd(err) {
				continue
			}
		}
		returned, a.over = true, time.Now()
		return res, err
	}
}

// leave ends the subscription, and rolls back what attempts have left if the operation has failed. If it has not
// returned, code of the user has panicked, or ended the goroutine, perhaps during an attempt.
func (a *acquireOp) leave(err error, returned bool) {
	a.subscription.leave()
	if !returned {
		err = nil
		a.place.granted = true
		a.engine.callersLeft(&a.target, 0, true)
	}
	if (err != nil || !returned) && (a.place.granted || a.place.enqueued) {
		a.backend.rollback(err)
	}
}

// asksAtEnd reports whether the caller makes one attempt more, although its time is up: the lock may have been released
// since the last attempt without any sign of it. If the answer to that attempt came after the time was up, there is no
// other one: the caller stays for send.MinWait at most.
func (a *acquireOp) asksAtEnd(err error) bool {
	return err == send.ErrTimeUp && a.lastReply.Before(a.Deadline) && a.subscription.mayHaveMissed()
}

// attempt makes one attempt. If a grant comes so late that too little validity is left, attempt asks
// again: another grant restores the lease, which counts from the last request. From the second grant on, a smaller rest
// is enough of a lease that is not renewed (see enoughValidityLeft). After MostAsked requests attempt returns a loss
// with the cause ErrLate.
func (a *acquireOp) attempt() (res Answer, err error) {
	lastReply := a.lastReply
	for asked := 1; ; asked++ {
		res, err = a.backend.ask(lastReply)
		if err != nil {
			return res, err
		}
		took := time.Since(res.Sent)
		if res.Status != contract.Held || a.engine.enoughValidityLeft(&a.target, took, asked) {
			if a.target.hold.local() == nil {
				a.engine.rtt.Observe(took)
			}
			return res, nil
		}
		a.place.granted = true
		if t := &a.target; t.HoldCount > 1 { // the lease is confirmed, whatever becomes of the next request
			a.engine.watchdog.Extend(&t.hold.record.lease, res.Sent, t.Lease, false)
		}
		lastReply = time.Now()
		if asked == MostAsked {
			res.Status = contract.Busy // rollback undoes the grant, and dismissLocked must not undo it again
			return res, LossError(ErrLate)
		}
	}
}

// askRedis sends one attempt. If Redis does not answer, the sender repeats it for a limited time.
func (a *acquireOp) askRedis(lastReply time.Time) (Answer, error) {
	t := &a.target
	call := t.hold.commands().Acquire(t.Attempt)
	answer := a.engine.sender.Do(&a.Wait, send.Request{Call: call, Acquiring: true, OnOrphan: a.orphansOf(*t), OnFailure: a}, lastReply)
	res, err := t.readResult(&answer)
	a.noteAnswer(&answer, res.LeavesEntry, err)
	return res, err
}

// noteAnswer notes what an attempt may have left in Redis, and may still do. waits reports whether it has left the entry
// of a waiter, and err is that of the answer, or why it cannot be read.
func (a *acquireOp) noteAnswer(answer *send.Answer, waits bool, err error) {
	a.unanswered = answer.Unanswered
	a.engine.callersLeft(&a.target, answer.Orphans, answer.Lost > 0)
	stopped := send.Answered(err) && !send.NotAdmitted(err) // a script that Redis has stopped halfway may have written data
	a.place.granted = a.place.granted || answer.Unknown > 0 || answer.Abandoned || stopped
	a.place.enqueued = a.place.enqueued || waits
}

// listen makes the caller listen for a grant or a release of its lock, which res has found busy.
func (a *acquireOp) listen(res Answer) {
	in := a.target
	a.engine.noteSlow()
	a.subscription.watch(in, res.Standing.LegacyHolder() || res.Standing.SubscriptionLost()) // 3
	if res.Standing.SubscriptionLost() {
		a.subscription.listeners[0].Renew() // the channel of grants
	}
	a.waitsFor(in.hold)
}

// waitsFor notes that the caller is about to sleep until the lock of h may be free in Redis. Another process has it now.
func (a *acquireOp) waitsFor(h *hold) {
	a.engine.beginWait(&a.waitOptions)
	h.waitsForRedis(&a.since)
	a.engine.slowBegins()
	a.span.waits()
	a.span.ends(pathPolled)
}

// sleepUntilFree sleeps for delay, or until the caller is told that its lock may be free. It returns an error if the wait
// ends before that.
func (a *acquireOp) sleepUntilFree(delay time.Duration) error {
	wake, ready := a.subscription.awaited()
	err := a.Sleep(wake, ready, a.target.hold.changed, delay) // 4
	message, begun := a.subscription.wakeUp()
	if message || begun {
		a.span.ends(pathNotified)
	}
	if message {
		a.target.hold.heardRelease()
	}
	return err
}

// nextPoll returns how long the caller sleeps at most before it makes another attempt. The poller of the Client may look at
// the lock meanwhile, and the caller must call stop after the sleep to end that.
func (a *acquireOp) nextPoll(res Answer) (delay time.Duration, stop func()) {
	in, e, stop := a.target, a.engine, func() {}
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
	// The poller cannot see in the key whether a permit is free; nor does it look at the queue of a fair lock, where the
	// attempt tells that the waiter lives, and lasts the longer: see life_of in internal/lua/queue.lua.
	case queued && in.hold.lock.Traits().Admission == contract.Counting, res.LeavesEntry && !queued:
		delay = min(delay*time.Duration(1+res.Standing.Ahead()/poller.NearHead), RareAsk)
	case queued && !res.LeavesEntry:
		d, looked := e.awaitInLine(in.hold.lockState.name, a.subscription.listeners[0], res)
		delay, stop = d, func() { a.noteLook(in.hold, looked()) }
	}
	return delay, stop
}

// rollback starts to roll back the attempt, which may have left something in Redis. If err is not nil, and other clients
// or the next operation of this call would have to wait for what is there, it waits for that, but not for long: a caller
// whose time is up has send.MinWait for its last attempt and the rollback together.
func (a *acquireOp) rollback(err error) {
	a.givenUp.Store(true)
	var most time.Duration
	if err != nil && (a.place.enqueued || err == errRestart || errors.Is(err, send.ErrNotSynced) || errors.Is(err, ErrLate)) {
		most = send.MinWait // others wait behind the attempt, or its record is certainly there
		if !a.Deadline.IsZero() {
			most = min(most, time.Until(a.Deadline.Add(send.MinWait)))
		}
	}
	a.engine.workers.Within(context.Background(), most, func() {
		a.engine.undo(a.Ctx, a.target.hold.commands(), a.target.Attempt, nil) // 5
	})
}

// conclude notes the outcome of the operation, and unlocks the owner mutex of the hold.
func (a *acquireOp) conclude(res Answer, err error) error {
	h := a.target.hold
	if err == nil {
		a.endIfGone(res)
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if err == nil {
		err = a.target.confirmLocked(res)
	}
	if err != nil {
		a.backend.dismissLocked(res)
	}
	a.concluded = true
	h.unlockHoldLocked()
	return err
}

// endIfGone ends a hold as lost that was to be re-entered, if Redis does not have it, or if the watchdog is about to.
func (a *acquireOp) endIfGone(res Answer) {
	if res.Status == contract.Gone {
		a.target.hold.lose(errGone)
	}
	if a.target.HoldCount > 1 {
		a.target.hold.expireIfDue()
	}
}

// dismissLocked ends the target, which the caller does not get.
func (a *acquireOp) dismissLocked(res Answer) {
	t := &a.target
	h := t.hold
	if h.Asks() {
		if q := h.queue; q != nil {
			a.found.seesLocked(q)
			if a.unanswered {
				q.FailBehind(1, errBypassQueue)
			}
		}
		h.leaveQueueLocked()
	} else {
		h.mayLastLocked(bounded(t.Lease) + late.Life) // the attempt may have been granted, and may run later
	}
	switch {
	case h.clearIfOverLocked(): // the attempt may have made the lease longer
	case res.Status == contract.Held: // if there was no answer, backend.rollback undoes it
		h.lockState.oweLocked(duty{rollBack: h.commands(), attempt: t.Attempt})
	}
}

// HandleFailure notes that a try of the attempt has failed: it implements send.FailureHandler.
func (a *acquireOp) HandleFailure() {
	h := a.target.hold
	h.lockState.Lock()
	defer h.lockState.Unlock()
	a.findingsLocked(h).request.failed = true
}
