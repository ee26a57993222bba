package engine

// The line: how a lock passes from the process that unlocks it to the next process that waits for it.
//
// The line is the wait queue in Redis of one lock. It consists of places, and each place belongs to a Client. The
// script that releases a lock grants the lock to the first place that can have it (internal/lua/passing.lua), and sends
// a message to the Client of that place, whose caller then holds the lock without another request. (A Client that may
// not subscribe gets no message, and asks.) This file has what the process that waits knows of its place.
//
// Each waiter of a fair lock has a place of its own, in the queue that Redisson uses (internal/lua/queue.lua), and is
// granted the lock in the same way.
//
// Rules: a Client has at most one place in a line; it belongs to the caller that the local queue has admitted. Every
// request of a wait has a number, and a grant names the last request of the wait that Redis had seen. So Redis has made
// the grant after that request was sent, and validity counts from there. It does not count from when the message came.
// It does not count from a later request that was answered with busy either: the grant may have expired before Redis
// ran that request, and its message may come after the answer all the same. The numbers are random, so that a client
// that may publish, but may not read the line, cannot forge a grant. If a grant is too old, or is not what the caller
// wants, the caller makes an attempt instead of relying on it. A caller that gives up while others of its process wait
// leaves its place to the next of them.
//
// A grant that is not used in time is lost, with the place: the caller joins the line again at the end. It was late then,
// for example because it is far from Redis, and the grants to its new place have the whole lease. If a message has told
// the Client that it was late, the same holds for all places that it gets within one watchdog timeout. So late grants do
// not go to and fro between slow processes.

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

const (
	ProvisionalLease = 5 * time.Second // the longest lease of a grant, unless the Client was late: see clients.lua
	requestsKept     = 2               // how many requests of a wait a place remembers
)

// A place is what this process knows of its place in the line of a lock.
type place struct {
	lock  contract.Record
	field *tenancy.Field
	lease time.Duration              // that the last request asked for: a grant lasts no longer
	asked [requestsKept]placeRequest // the last requests that named the field, the latest first

	// What the attempts that have named the field may have left in Redis:
	granted  bool // one may have acquired the lock, or may still do so, and the caller does not hold it
	enqueued bool // one may have joined the line, or has left the entry of a waiter, behind which others wait
}

// A placeRequest is one request of a wait.
type placeRequest struct {
	number uint64
	sent   time.Time
}

// asks notes that a request is about to be sent, and returns its number.
func (p *place) asks(now time.Time) uint64 {
	copy(p.asked[1:], p.asked[:])
	p.asked[0] = placeRequest{rand.Uint64(), now}
	return p.asked[0].number
}

// sentAt returns when the request with this number was sent; zero if the process does not remember such a request, or
// has never sent it.
func (p *place) sentAt(number uint64) time.Time {
	for _, r := range p.asked {
		if r.number == number {
			return r.sent
		}
	}
	return time.Time{}
}

// attempt returns the attempt that is rolled back to give up the place.
func (p *place) attempt() contract.Attempt {
	return contract.Attempt{Field: p.field.ID, HoldCount: 1, Lease: p.lease}
}

// A LineGrant is the message that the lock was granted to a field.
type LineGrant struct {
	Field string
	Asked uint64 // the number of the last request of the wait that Redis had seen
	Lease time.Duration
	Token int64
}

// ParseLineGrant parses a message of a channel whose fields end with suffix. ok is false for messages that grant
// nothing.
func ParseLineGrant(message, suffix string) (g LineGrant, ok bool) {
	parts := strings.Fields(message)
	if len(parts) != 5 || parts[0] != "grant" {
		return g, false
	}
	asked, err1 := strconv.ParseUint(parts[2], 10, 64)
	lease, err2 := strconv.ParseInt(parts[3], 10, 64)
	token, err3 := strconv.ParseInt(parts[4], 10, 64)
	g = LineGrant{strings.TrimSuffix(parts[1], suffix), asked, send.FromMilliseconds(lease), token}
	return g, err1 == nil && err2 == nil && err3 == nil
}

// fieldOf returns the field that a message names, or "".
func fieldOf(message string) string {
	_, rest, _ := strings.Cut(message, " ")
	field, _, _ := strings.Cut(rest, " ")
	return field
}

// isFor returns the filter of a listener that waits with field: it drops messages that name another field.
func isFor(field string) func(message string) bool {
	return func(message string) bool {
		named := fieldOf(message)
		return field == "" || named == "" || named == field
	}
}
