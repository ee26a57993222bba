package engine

// Fields: a field is the holder ID of one acquire operation. The key of a lock in Redis has its hold under this ID.
//
// Rules: a field is client:owner:number. The number counts the fields of the Client, so no field is made twice. The
// field of several permits of a semaphore is client:owner:number+n; it stands for n consecutive numbers, which the
// permits have in Redis: see internal/lua/semaphore.lua. Scripts know the holders and waiters of relock by this form:
// see is_relocks in internal/lua/record.lua.

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
)

// A fieldMaker makes the fields of one Client.
type fieldMaker struct {
	id    string        // of the Client
	count atomic.Uint64 // the number of fields that were made
}

// newField returns a new field of o, for one acquire operation that wants this number of permits; 1 for all locks
// except a semaphore.
func (m *fieldMaker) newField(o Owner, permits int) string {
	n := uint64(permits)
	return m.fieldOf(o, m.count.Add(n)-n+1, permits)
}

// fieldOf returns the field of o with this number.
func (m *fieldMaker) fieldOf(o Owner, number uint64, permits int) string {
	var room [96]byte
	field := append(append(room[:0], m.id...), ':')
	field = append(strconv.AppendInt(field, int64(o), 10), ':')
	field = strconv.AppendUint(field, number, 10)
	if permits > 1 {
		field = strconv.AppendUint(append(field, '+'), uint64(permits), 10)
	}
	return string(field)
}

// leastDetached is the lowest number of a detached field. The numbers have 15 digits, because Lua counts the permits of
// a hold from its number, and has whole numbers up to 2^53 only.
const leastDetached = 100_000_000_000_000

// detachedField returns a new detached field: that of a hold which no process has (see detach.go). It has no owner,
// so no acquire operation makes such a field, and its number is random, so it cannot be guessed.
func (m *fieldMaker) detachedField(permits int) string {
	return m.fieldOf(NoOwner, leastDetached+rand.Uint64N(9*leastDetached), permits)
}

// DetachedPermits returns the number of permits of a detached field; 1 for all locks except a semaphore. ok reports
// whether field is one.
func DetachedPermits(field string) (permits int, ok bool) {
	_, rest, _ := strings.Cut(field, ":")
	number, detached := strings.CutPrefix(rest, "0:")
	number, several, more := strings.Cut(number, "+")
	n, err := strconv.ParseUint(number, 10, 64)
	if !detached || err != nil || n < leastDetached || n >= 10*leastDetached {
		return 0, false
	}
	if !more {
		return 1, true
	}
	permits, err = strconv.Atoi(several)
	return permits, err == nil && permits > 1 && several == strconv.Itoa(permits)
}

// made reports whether m may have made field, which is not a detached one then: their numbers are too high.
func (m *fieldMaker) made(field string) bool {
	text, _, _ := strings.Cut(field[strings.LastIndexByte(field, ':')+1:], "+")
	number, err := strconv.ParseUint(text, 10, 64)
	return err == nil && number <= m.count.Load() && strings.HasPrefix(field, m.id+":")
}

// overlap reports whether the fields are equal, or stand for some of the same permits of a semaphore. A forged message
// may name any numbers.
func overlap(a, b string) bool {
	if a == b || !strings.Contains(a, "+") && !strings.Contains(b, "+") {
		return a == b
	}
	ofA, firstA, endA := numbersOf(a)
	ofB, firstB, endB := numbersOf(b)
	return ofA == ofB && firstA < endB && firstB < endA
}

// numbersOf returns the numbers of a field: the first one, and the one after the last. of is what is in front of them.
func numbersOf(field string) (of string, first, end uint64) {
	at := strings.LastIndexByte(field, ':') + 1
	number, permits, _ := strings.Cut(field[at:], "+")
	first, _ = strconv.ParseUint(number, 10, 64)
	n, _ := strconv.ParseUint(permits, 10, 64)
	return field[:at], first, first + max(n, 1)
}
