package engine

// Acquiring one lock: through the wait queue of its name, and where it has a record also through its line.
//
// Rules: the caller keeps its owner mutex and its wait queue while it waits for a release, so that the callers behind
// it need not ask. It has one place in the line, of which line.go tells more.

import (
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// oneLock is what the backends of one lock have in common.
type oneLock struct {
	acquisition
	name [1]*name // memory for names and wants
	want [1]want
}

// begin begins an acquisition at b. The caller has the owner mutex of h.
func (o *oneLock) begin(p *waitOptions, b backend, h *hold, r Request) {
	o.acquisition = acquisition{waitOptions: *p, engine: h.name.engine, owner: h.key.owner, request: r, backend: b}
	o.name[0], o.want[0] = h.name, want{hold: h}
	o.names, o.wants = o.name[:], o.want[:]
}

// isPastQueue reports whether the caller contends beside the caller in the wait queue: for a counted lock, or because
// Redis has not answered that caller.
func (o *oneLock) isPastQueue() bool {
	h := o.wants[0].hold
	if o.NoWait || h.queue != nil {
		return false
	}
	return h.lock.Admission() == Counted || h.needsQueue()
}

// enterQueue waits until the wait queue has admitted the caller.
func (o *oneLock) enterQueue() error {
	if o.bypass {
		o.bypass = false
		return nil
	}
	err := entrance{o.engine}.enterQueue(&o.waitOptions, o.wants)
	if err == errAskYourself || err == errLookAgain {
		return nil
	}
	return err
}

// rejoinQueue ends an attempt past the wait queue, which has found the lock busy: the caller waits in the wait queue
// now, and not for a release. See errAskYourself.
func (o *oneLock) rejoinQueue(in want, res Answer) error {
	o.noteBusy(in.hold, res.ttl)
	if in.hold.lock.Admission() == Counted {
		o.foundBusy = true
		return errBeginAgain
	}
	o.lastReply = time.Now()
	return o.Over()
}

// present is wants: one lock keeps its hold.
func (o *oneLock) present(wants []want) []want { return wants }

// oneRecord is the backend of one lock that has a record.
type oneRecord struct {
	oneLock
	place place // in the line
}

func (r *oneRecord) admit() error {
	if err := r.enterQueue(); err != nil {
		return err
	}
	r.takePlace()
	r.wants = withOtherHalves(r.wants)
	return nil
}

func (r *oneRecord) ask(lastReply time.Time) (Answer, error) {
	r.stand()
	res, err := r.askRedis(lastReply)
	if err == nil {
		return r.checkFields(res)
	}
	return res, err
}

func (r *oneRecord) await(res Answer) (Answer, error) {
	in := r.wants[0]
	switch {
	case r.isPastQueue():
		return res, r.rejoinQueue(in, res)
	case r.NoWait:
		return res, send.ErrTimeUp
	}
	if res.Standing.Apart() {
		r.leftovers.joins()
	}
	wake, ready, _ := r.listen(in, res)
	delay, stop := r.nextPoll(in, res)
	defer stop()
	in.hold.interrupt()
	err := r.sleepUntilFree(&r.waitOptions, in, wake, ready, delay)
	if err == nil || err == send.ErrTimeUp {
		if granted, ok := r.granted(); ok {
			return granted, nil
		}
	}
	if err == nil {
		r.subscription.confirm()
	}
	return res, err
}

func (r *oneRecord) rollback(_ Answer, err error, returned bool) {
	failed := r.hasFailed(err, returned)
	if !failed || !r.leftovers.toUndo(failed) {
		return
	}
	if r.leftovers.inLine && err != errBeginAgain && r.leavePlace() {
		return
	}
	r.undo(r.wants, failed, err)
}

// stand says in the attempt of a caller of one lock how it stands in the line.
func (r *oneRecord) stand() {
	w := r.wants[0]
	if w.hold.verbs().Grants(w.Attempt) == "" {
		return
	}
	w.Line = YieldsLine
	switch {
	case !r.engine.Servers.Counts(), r.engine.sender.Narrowed(): // the line cannot be used
		w.Line = ""
	case w.Level > 1 || w.NoWait || w.hold.hasOtherHalf():
		w.Line = PassesLine
	case r.isPastQueue(): // the place in the line is that of the caller in the wait queue
	case r.subscription.hearsGrants(w):
		w.Line = HearsGrant
	case r.subscription.refused():
		w.Line = AsksAgain
	}
	first := r.place.field == ""
	w.Asked = r.place.asks(time.Now())
	r.place.lock, r.place.field, r.place.lease = w.hold.verbs(), w.Field, max(r.place.lease, w.Lease)
	if w.Line == HearsGrant || w.Line == AsksAgain {
		r.leftovers.joins()
	}
	if first {
		r.wants[0] = w
	} else {
		r.wants = []want{w} // a new one: an abandoned attempt still reads the old one
	}
}

// granted returns the grant that the caller has been told of, if the caller can rely on it.
func (r *oneRecord) granted() (res Answer, ok bool) {
	if !r.leftovers.inLine {
		return res, false
	}
	g, ok := ParseLineGrant(r.subscription.message(), r.wants[0].hold.lock.Suffix())
	w := r.wants[0]
	sent := r.place.sentAt(g.Asked)
	switch {
	case !ok, g.Field != w.Field, sent.IsZero():
		return res, false
	case r.engine.ConfirmsGrants: // replicas have to confirm it
		return res, false
	case g.Lease < min(w.Lease, ProvisionalLease), g.Lease < w.Lease && !w.Renewed: // another caller had asked for it
		return res, false
	case w.hold.lock.Fenced() != (g.Token != 0):
		return res, false
	case !lease.EnoughValidityLeft(lease.Trust(g.Lease)-time.Since(sent), lease.Trust(g.Lease), w.Renewed):
		return res, false
	}
	res = Answer{Outcome: Outcome{State: Held, token: g.Token}, Sent: sent}
	if g.Lease < w.Lease {
		res.provisional = g.Lease
	}
	return res, true
}

// takePlace gives the caller the place that the caller before it has left. A caller that wants a shorter lease waits
// for itself: the lock would be held for longer than it says.
func (r *oneRecord) takePlace() {
	w := r.wants[0]
	n := w.hold.name
	n.Lock()
	defer n.Unlock()
	q := w.hold.queue
	if q == nil || q.place == nil || w.Level > 1 {
		return
	}
	if r.place.field != "" && !r.takesOver { // the caller has asked past the wait queue: its field is not used any more
		if r.leftovers.toUndo(true) {
			n.oweLocked(duty{undo: w.hold.verbs(), attempt: Attempt{Field: r.place.field, Level: 1}, unknown: r.leftovers.grants})
			r.leftovers = leftovers{}
		}
		r.place = place{}
	}
	if (!w.Renewed || w.hold.lock.Limits().Max > 0) && w.Lease < min(q.place.lease, ProvisionalLease) {
		n.dropPlaceLocked(q)
		if r.place.field == "" { // the number of the field must be higher than that of the place
			r.useFieldLocked(n.engine.newField(w.hold.key.owner))
		}
		return
	}
	r.place, q.place = *q.place, nil
	r.leftovers.inherits(r.place.unknown)
	r.useFieldLocked(r.place.field)
}

// useFieldLocked has the caller ask with field from now on.
func (r *oneRecord) useFieldLocked(field string) {
	w := r.wants[0]
	w.hold.field, w.Field = field, field
	r.wants = []want{w}
}

// leavePlace leaves the place of a caller that gives up to the next caller of this process, if there is one.
func (r *oneRecord) leavePlace() bool {
	w := r.wants[0]
	n := w.hold.name
	n.Lock()
	defer n.Unlock()
	q := w.hold.queue
	if q == nil || q.place != nil || q.First() == nil || n.closed || w.hold.state != fresh || r.asking || w.OtherHalf != "" {
		return false
	}
	left := r.place
	if left.unknown = 0; n.engine.late.MayRun(left.field) {
		left.unknown = r.leftovers.leavesTries()
	}
	q.place = &left
	return true
}
