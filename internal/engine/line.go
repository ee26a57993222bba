package engine

// The line: how a lock passes from the process that unlocks to the process that is next.
//
// The script that frees a lock grants it to the next place in the line (lua/line.lua) and tells that process, whose
// caller returns without asking. This file is the side of the process that waits.
//
// The waiters of a fair lock have places of their own, in Redisson's queue (lua/queue.lua), and are granted the lock in the
// same way.
//
// Rules: a process has one place in a line, which the caller in front of its wait queue keeps. Every request of a
// wait has a number, and a grant names the last request that Redis had seen of the wait. So Redis has made the grant after
// that request was sent, and trust begins there: not when the message came, and not with a later answer "busy", which
// may have overtaken a grant that has ended since. The numbers are random: who may publish, and may not read the line,
// cannot make a grant. A grant that is too old, or is not what the caller wants, is confirmed by asking. A caller that
// leaves while others of its process wait leaves its place to the next of them.

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// How a caller asks for a lock that has a line: see lua/lock_acquire.lua.
const (
	PassesLine = "pass"  // takes a free lock before all others: it has no place, and does not wait, or has or wants other locks too
	YieldsLine = "yield" // lets the line go first, and waits for its subscription to join it
	HearsGrant = "hears" // waits in the line, and hears the channel of grants
	AsksAgain  = "asks"  // waits in the line, and asks often: it may not subscribe
)

const (
	ProvisionalLease = 5 * time.Second // of a grant: see lua/line.lua
	requestsKept     = 2               // of a wait
)

// A place is what this process knows of its place in the line of a lock.
type place struct {
	lock    Record
	field   string
	lease   time.Duration              // the longest that a request wanted: a grant may last so long
	asked   [requestsKept]placeRequest // the last requests that named the field, the latest first
	unknown int                        // tries of them that may still run
	stands  bool                       // a request may have joined the line, or the caller may have been told that the lock is free
}

// A placeRequest is a request of a wait.
type placeRequest struct {
	number uint64
	sent   time.Time
}

// asks notes a request that is about to be sent, and returns its number.
func (p *place) asks(now time.Time) uint64 {
	copy(p.asked[1:], p.asked[:])
	p.asked[0] = placeRequest{rand.Uint64(), now}
	return p.asked[0].number
}

// sentAt is when the request with this number was sent; zero if the process has forgotten it, or has not sent it.
func (p *place) sentAt(number uint64) time.Time {
	for _, r := range p.asked {
		if r.number == number {
			return r.sent
		}
	}
	return time.Time{}
}

// stand says in the attempt of a caller of one lock how it stands in the line.
func (a *acquisition) stand() {
	w := a.wants[0]
	if a.group != nil || w.hold.verbs().Grants(w.Attempt) == "" {
		return
	}
	w.Line = YieldsLine
	switch {
	case !a.engine.Servers.Counts(), a.engine.sender.Narrowed(): // the line cannot be used
		w.Line = ""
	case w.Level > 1 || w.NoWait || w.hold.hasOtherHalf():
		w.Line = PassesLine
	case a.isPastQueue(): // the place in the line is that of the caller in the wait queue
	case a.subscription.hearsGrants(w):
		w.Line = HearsGrant
	case a.subscription.refused():
		w.Line = AsksAgain
	}
	first := a.place.field == ""
	w.Asked = a.place.asks(time.Now())
	a.place.lock, a.place.field, a.place.lease = w.hold.verbs(), w.Field, max(a.place.lease, w.Lease)
	a.place.stands = a.place.stands || w.Line == HearsGrant || w.Line == AsksAgain
	if first {
		a.wants[0] = w
	} else {
		a.wants = []want{w} // a new one: an abandoned attempt still reads the old one
	}
}

// hasOtherHalf says whether the owner of h has the other half, so that the line cannot grant h: the lock is not free. The
// process may have a caller with a place beside it.
func (h *hold) hasOtherHalf() bool {
	if h.lock.OtherHalf() == (LockID{}) {
		return false
	}
	h.name.mu.Lock()
	defer h.name.mu.Unlock()
	other := h.name.otherHalfLocked(h)
	return other != nil && other.state == holding
}

// A LineGrant is the message that grants the lock to a field.
type LineGrant struct {
	Field string
	Asked uint64 // the number of the last request that Redis had seen
	Lease time.Duration
	Token int64
}

// ParseLineGrant reads a message about fields that end with suffix. ok is false for messages that grant nothing.
func ParseLineGrant(message, suffix string) (g LineGrant, ok bool) {
	parts := strings.Fields(message)
	if len(parts) != 5 || parts[0] != "grant" {
		return g, false
	}
	asked, err1 := strconv.ParseUint(parts[2], 10, 64)
	lease, err2 := strconv.ParseInt(parts[3], 10, 64)
	token, err3 := strconv.ParseInt(parts[4], 10, 64)
	return LineGrant{strings.TrimSuffix(parts[1], suffix), asked, send.FromMilliseconds(lease), token}, err1 == nil && err2 == nil && err3 == nil
}

// granted returns the grant that the caller has been told of, if the caller can rely on it.
func (a *acquisition) granted() (res Answer, ok bool) {
	if a.group != nil || !a.place.stands {
		return res, false
	}
	g, ok := ParseLineGrant(a.subscription.message(), a.wants[0].hold.lock.Suffix())
	w := a.wants[0]
	sent := a.place.sentAt(g.Asked)
	switch {
	case !ok, g.Field != w.Field, sent.IsZero():
		return res, false
	case a.engine.ConfirmsGrants: // replicas have to confirm it
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

// takePlace gives the caller the place that the caller before it has left. A caller that wants a shorter lease waits for
// itself: the lock would be held for longer than it says.
func (a *acquisition) takePlace() {
	w := a.wants[0]
	n := w.hold.name
	n.mu.Lock()
	defer n.mu.Unlock()
	q := w.hold.queue
	if q == nil || q.place == nil || w.Level > 1 {
		return
	}
	if a.place.field != "" && !a.takesOver { // the caller has asked past the wait queue: its field is not used any more
		if a.leftovers.toUndo(true, a.place.stands) {
			undoer{n.engine}.undoSoon(w.hold.verbs(), a.place.field, false, a.leftovers.grants)
			a.leftovers = leftovers{}
		}
		a.place = place{}
	}
	if (!w.Renewed || w.hold.lock.Limits().Max > 0) && w.Lease < min(q.place.lease, ProvisionalLease) {
		q.dropPlaceLocked(n.engine)
		if a.place.field == "" { // the number of the field must be higher than that of the place
			a.useFieldLocked(n.engine.newField(w.hold.key.owner))
		}
		return
	}
	a.place, q.place = *q.place, nil
	a.leftovers.inherits(a.place.unknown)
	a.useFieldLocked(a.place.field)
}

// useFieldLocked has the caller ask with field from now on.
func (a *acquisition) useFieldLocked(field string) {
	w := a.wants[0]
	w.hold.field, w.Field = field, field
	a.wants = []want{w}
}

// misnamed says whether a field says that this Client uses the line, which it may not: the first answer of Redis has shown that.
// Processes in the line would not listen for the release of the hold.
func (a *acquisition) misnamed() bool {
	return a.engine.sender.Narrowed() && !a.takesOver &&
		slices.ContainsFunc(a.wants, func(w want) bool { return w.Level == 1 && UsesLine(w.Field) })
}

// leavePlace leaves the place of a caller that gives up to the next caller of this process, if there is one.
func (a *acquisition) leavePlace() bool {
	w := a.wants[0]
	n := w.hold.name
	n.mu.Lock()
	defer n.mu.Unlock()
	q := w.hold.queue
	if q == nil || q.place != nil || q.First() == nil || n.closed || w.hold.state != fresh || a.asking || w.OtherHalf != "" {
		return false
	}
	left := a.place
	if left.unknown = 0; n.engine.late.MayRun(left.field) {
		left.unknown = a.leftovers.leavesTries()
	}
	q.place = &left
	return true
}

// dropPlaceLocked gives up the place that the last caller of q has left.
func (q *waitQueue) dropPlaceLocked(e *Engine) {
	p := q.place
	if p == nil {
		return
	}
	q.place = nil
	undoer{e}.undoSoon(p.lock, p.field, false, p.unknown)
}

// uses says whether field belongs to a wait or a hold of this process that goes on, or is about to be given back.
func (n *name) uses(field string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for h := range n.holds.all() {
		if h.field == field || h.record != nil && h.record.field == field {
			return true
		}
	}
	return slices.ContainsFunc(n.queues, func(q *waitQueue) bool { return q.place != nil && q.place.field == field })
}

// fieldOf is the field that a message names, or "".
func fieldOf(message string) string {
	_, rest, _ := strings.Cut(message, " ")
	field, _, _ := strings.Cut(rest, " ")
	return field
}

// isFor returns the filter of a listener that waits with field. It lets no messages through that name another field.
func isFor(field string) func(message string) bool {
	return func(message string) bool {
		named := fieldOf(message)
		return field == "" || named == "" || named == field
	}
}
