package engine

// The line: how a lock passes from the process that unlocks to the process that is next.
//
// The script that frees a lock grants it to the next place in the line (lua/line.lua) and tells that process, whose
// caller returns without asking. This file is the side of the process that waits.
//
// The waiters of a fair lock have places of their own, in Redisson's queue (lua/queue.lua), and are granted the lock in
// the same way.
//
// Rules: a process has one place in a line, which the caller in front of its wait queue keeps. Every request of a wait
// has a number, and a grant names the last request that Redis had seen of the wait. So Redis has made the grant after
// that request was sent, and validity begins there: not when the message came, and not with a later answer "busy",
// which may have overtaken a grant that has ended since. The numbers are random: who may publish, and may not read the
// line, cannot make a grant. A grant that is too old, or is not what the caller wants, is confirmed by asking. A caller
// that leaves while others of its process wait leaves its place to the next of them.

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// How a caller asks for a lock that has a line: see lua/lock_acquire.lua.
const (
	Barge = "pass"  // takes a free lock before all others: it has no place, and does not wait, or has or wants other locks too
	Defer = "yield" // lets the line go first, and waits for its subscription to join it
	Push  = "hears" // waits in the line, and hears the channel of grants
	Poll  = "asks"  // waits in the line, and asks often: it may not subscribe
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

// hasCounterpart reports whether the owner of h has the other half, so that the line cannot grant h: the lock is not
// free. The process may have a caller with a place beside it.
func (h *hold) hasCounterpart() bool {
	if h.lock.Counterpart() == (LockID{}) {
		return false
	}
	h.name.Lock()
	defer h.name.Unlock()
	other := h.name.counterpartLocked(h)
	return other != nil && other.state.holds()
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

// dropPlaceLocked gives up the place that the last caller of q has left.
func (s *lockState) dropPlaceLocked(q *waitQueue) {
	if p := q.place; p != nil {
		q.place = nil
		s.oweLocked(duty{rollBack: p.lock, attempt: Attempt{Field: p.field, HoldCount: 1}, unknown: p.unknown})
	}
}

// uses reports whether field belongs to a wait or a hold of this process that goes on, or is about to be released.
func (s *lockState) uses(field string) bool {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.field == field || h.record != nil && h.record.field == field {
			return true
		}
	}
	return slices.ContainsFunc(s.queues, func(q *waitQueue) bool { return q.place != nil && q.place.field == field })
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
