package engine

// Acquiring one lock: through the local queue of the lock, and, if the lock has a record, through the line, which is
// its wait queue in Redis.
//
// Rules: while the caller waits for a release, it keeps its owner mutex and its position at the front of the local
// queue, so that the callers behind it need not ask Redis. It has one place in the line: see line.go. The exception is
// a caller that wants more permits than a semaphore has: it waits beside the local queue until there are enough.

import (
	"cmp"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// begin begins an operation with the backend b for t. The caller has the owner mutex of its hold.
func (a *acquireOp) begin(op *waitOptions, b backend, t target) {
	*a = acquireOp{waitOptions: *op, engine: t.hold.lockState.engine, backend: b, target: t}
	a.place = &a.room
}

// isBeside reports whether the caller asks beside the local queue, which it has to enter if the lock is busy.
func (a *acquireOp) isBeside() bool {
	h := a.target.hold
	if h.queue != nil || !h.Asks() {
		return false
	}
	admission := h.lock.Traits().Admission
	return admission == contract.Counting || admission == contract.Exclusive && !h.hasCounterpart()
}

// yield waits for as long as the hand-off policy lets other processes go first. Then the caller is about to make an
// attempt, whose answer takes at most patience.
func (a *acquireOp) yield(patience time.Duration) (err error) {
	d := a.yieldStep(patience, true)
	if d == 0 {
		return nil
	}
	if a.HasTime(d) {
		a.span.waits()
		err = a.Sleep(nil, nil, nil, d)
	}
	if err == nil {
		a.yieldStep(patience, false)
	}
	return err
}

// yieldStep returns for how long other processes go first, if mayYield is set. Otherwise the caller makes an attempt.
func (a *acquireOp) yieldStep(patience time.Duration, mayYield bool) time.Duration {
	h := a.target.hold
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if mayYield && h.queue != nil {
		if d := h.queue.policy.Yield(a.engine.watchdog.Now()); d > 0 {
			return d
		}
	}
	a.takePlaceLocked()
	a.findingsLocked(h).request.begin(patience)
	return 0
}

// A recordBackend is the backend of one lock that has a record.
type recordBackend struct {
	acquireOp
	missed bool // a grant came on which the caller did not rely, and Redis has not answered since
	joined bool // the caller may have had a place
}

func (r *recordBackend) admit() error {
	if err := r.yield(send.MinWait); err != nil {
		return err
	}
	r.target.nameCounterpart()
	return nil
}

func (r *recordBackend) ask(lastReply time.Time) (Answer, error) {
	r.chooseDelivery()
	res, err := r.askRedis(lastReply)
	if err == nil {
		if r.missed && res.Status == contract.Busy {
			r.engine.missed.Store(int64(r.engine.watchdog.Now()))
		}
		r.missed = false
		r.joined = r.joined || r.target.WaitsInLine() && !res.Standing.SubscriptionLost()
	}
	return res, err
}

func (r *recordBackend) await(res Answer) (Answer, error) {
	h, beside, cause := r.target.hold, r.isBeside(), error(nil)
	r.fitted = true
	if n := h.lock.Traits().Permits(); n > res.Total && res.Total > 0 && !r.NoWait {
		// It waits beside the local queue, without a place: callers of this process that want fewer permits go first.
		h.leaveQueue()
		beside, cause = false, send.Invalid("%d permits at once: the semaphore has fewer in Redis", n)
	}
	r.noteBusy(h, res, cause)
	switch {
	case r.NoWait:
		return res, send.ErrTimeUp
	case beside:
		return res, cmp.Or(r.Over(), errRestart)
	}
	if res.Standing.LegacyHolder() {
		r.place.enqueued = true
	}
	r.listen(res)
	delay, stop := r.nextPoll(res)
	defer stop()
	err := r.sleepUntilFree(delay)
	if err == nil || err == send.ErrTimeUp {
		if granted, ok := r.granted(); ok {
			r.span.ends(pathNotified)
			return granted, nil
		}
	}
	if err == nil {
		r.subscription.confirm()
	}
	return res, err
}

func (r *recordBackend) rollback(err error) {
	if !r.place.enqueued || err == nil || err == errRestart || !r.leavePlace() {
		r.acquireOp.rollback(err)
	}
}

// chooseDelivery sets in the attempt whether the caller waits in the line, and how it is notified of a grant.
func (r *recordBackend) chooseDelivery() {
	t := &r.target
	if t.hold.commands().Grants(t.Attempt) == "" {
		return
	}
	t.Delivery = contract.Defer
	switch {
	case !r.engine.Servers.Counts(): // the line cannot be used
		t.Delivery = ""
	case t.HoldCount > 1 || t.NoWait || t.hold.hasCounterpart():
		t.Delivery = contract.Barge
	case r.isBeside(): // the place in the line is that of the caller at the front of the local queue
	case r.subscription.hearsGrants(*t):
		t.Delivery = contract.Push
	case r.subscription.isRefused():
		t.Delivery = contract.Poll
	}
	t.Asked, t.Waits, t.GrantLease = r.place.asks(time.Now()), r.fitted, r.grantLease()
	r.place.lock, r.place.field, r.place.lease = t.hold.commands(), t.hold.Field(), t.Lease
	if t.WaitsInLine() {
		r.place.enqueued = true
	}
}

// grantLease returns how long a grant lasts at most if the caller gets a new place, 0 for as long as usual. If it had one
// and that is gone, it was granted the lock, and has not noticed it in time.
func (r *recordBackend) grantLease() time.Duration {
	e := r.engine
	if at := e.missed.Load(); r.joined || at != 0 && e.watchdog.Now()-time.Duration(at) < e.WatchdogTimeout {
		return min(r.target.Lease, max(e.WatchdogTimeout, ProvisionalLease))
	}
	return 0
}

// granted returns the grant of which a message has notified the caller, if the caller can rely on it.
func (r *recordBackend) granted() (res Answer, ok bool) {
	if !r.place.enqueued {
		return res, false
	}
	g, ok := ParseLineGrant(r.subscription.message(), r.target.hold.lock.Traits().Suffix)
	t := r.target
	sent := r.place.sentAt(g.Asked)
	if !ok || g.Field != t.Field {
		return res, false
	}
	r.missed = true
	switch {
	case sent.IsZero():
		return res, false
	case r.engine.ConfirmsGrants: // replicas have to confirm it
		return res, false
	case g.Lease < min(t.Lease, ProvisionalLease), g.Lease < t.Lease && !t.Renewed: // another caller asked for it
		return res, false
	case t.hold.lock.Traits().Fenced != (g.Token != 0):
		return res, false
	case !lease.EnoughValidityLeft(lease.Validity(g.Lease)-time.Since(sent), lease.Validity(g.Lease), t.Renewed):
		return res, false
	}
	res = Answer{Outcome: contract.Outcome{Status: contract.Held, Token: g.Token}, Sent: sent}
	if g.Lease < t.Lease {
		res.provisional = g.Lease
	}
	if l, now := t.hold.lock.Traits().Limits, r.engine.watchdog.Now(); l.Max > 0 { // the caller may have asked long ago
		res.limits = &limitEnds{keepUntil: endOf(l.MinHold, now), limit: endOf(l.Max, now)}
	}
	return res, true
}

// takePlaceLocked gives the caller the place in the line that the caller before it has left. A caller that asks for a
// shorter lease gets a place of its own, because the grant for the old place may last longer than its lease. So does
// a caller that wants another number of permits of a semaphore, because the field of the old place tells that number.
func (a *acquireOp) takePlaceLocked() {
	h := a.target.hold
	q := h.queue
	if q == nil || q.place == nil {
		return
	}
	if p := q.place; a.target.Lease < p.lease || h.lock.Traits().Permits() != p.lock.Traits().Permits() {
		h.lockState.dropPlaceLocked(q)
		return
	}
	a.place, q.place = q.place, nil
	h.AsksWith(a.place.field)
	a.target.Field = a.place.field.ID
}

// leavePlace leaves the place in the line of a caller that gives up to the next caller of this process. It reports
// whether it has done so.
func (r *recordBackend) leavePlace() bool {
	t := r.target
	s := t.hold.lockState
	s.Lock()
	defer s.Unlock()
	q := t.hold.queue
	if q == nil || r.place.field == nil || q.First() == nil || s.engine.isLeaving.Load() || !t.hold.Asks() || t.Counterpart != "" {
		return false
	}
	q.place = r.place
	return true
}
