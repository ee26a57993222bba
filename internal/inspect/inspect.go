// Package inspect reads what the script any_inspect dumps: all data that Redis has of a lock. What the data mean is the
// affair of package relock. Durations are in milliseconds, and times are milliseconds of the Unix epoch, by the
// clock of Redis.
//
// Rules: data that no lock writes are an error, and not a lock without holders.
package inspect

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

var script = record.Script("any_inspect")

// Call asks for the data of the lock that users of c call name. Its first key is that of the record.
func Call(c *record.Client, name string) send.Call {
	key := c.Prefix + name
	keys := []string{
		key,
		record.PrefixName("redisson_lock_queue", key),
		record.PrefixName("redisson_lock_timeout", key),
		record.PlacesKey(key),
		record.PrefixName("relock_rwlock_writers", key),
		record.TokenKey(key),
		record.PermitsKey(key),
	}
	args := []any{record.SuffixName(key, ""), record.PrefixName("redisson_lock__channel", key),
		record.PrefixName("redisson_sc", key), record.PrefixName("redisson_rwlock", key), c.Verb()}
	return send.Call{Script: script, Keys: slices.Concat(keys, record.LineKeys(key), record.WritersLineKeys(key)), Args: args}
}

// A Lock is all data that Redis has of a lock.
type Lock struct {
	Name    string // its key
	Now     int64
	TTL     int64
	Entries []Entry
	Fair    bool // there is a queue of a fair lock
	Waiters []Waiter
	Waiting int64 // how many waiters there are
	Token   string
	Free    string   // the free permits of a semaphore; "" if the lock is none
	Permits []Permit // that are held, the first one to expire first
}

// A Permit is one of a semaphore.
type Permit struct {
	ID   string
	Ends int64
}

// An Entry is one field of the hash.
type Entry struct {
	Field, Value string
	Lease        int64
}

// NotALock returns the error for a hash with a field that no lock writes.
func (r *Lock) NotALock(field string) error {
	return send.NotALock(
		r.Name,
		fmt.Sprintf("the key %s holds a hash that is not a lock (field %s)", send.ShortName(r.Name), send.ShortName(field)),
		nil,
	)
}

// A Waiter is a waiter of the reply: see internal/lua/waiters.lua.
type Waiter struct {
	Field                       string
	Deadline, AliveUntil, Since int64 // 0: there is none
	Listeners                   int64 // 1: its client would hear a grant; 0: it would not; else this is not known
}

func (p *reader) waiter(parts []any) Waiter {
	w := Waiter{p.text(parts[0]), p.score(parts[1]), p.score(parts[2]), 0, p.integer(parts[4])}
	if since := p.text(parts[3]); since != "" {
		seconds, err := strconv.ParseInt(since, 10, 64)
		p.bad = p.bad || err != nil
		w.Since = min(max(seconds, 0), LatestTime/1000) * 1000
	}
	return w
}

// Owner reads a field: it returns the Client, and the owner there. The form uuid:owner:number is of relock. The form
// uuid:thread is of Redisson, which may append the ID of a transaction. A field of another form has no Client, and is the
// owner itself.
func Owner(field string) (client, owner string) {
	const id = 36 // bytes of a UUID
	if len(field) <= id || field[id] != ':' || uuid.Validate(field[:id]) != nil {
		return "", field
	}
	number, acquisition, ours := strings.Cut(field[id+1:], ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return "", field
	}
	if ours {
		acquisition, _, _ = strings.Cut(acquisition, "+") // the number of permits
		_, err = strconv.ParseUint(acquisition, 10, 64)
		ours = err == nil
	}
	if ours {
		return field[:id], engine.Owner(n).String()
	}
	return field[:id], "thread " + number
}

// LatestTime is the last millisecond of the year 9999. JSON cannot represent later times.
const LatestTime = 253402300799999

// Parse reads the reply of internal/lua/any_inspect.lua.
func Parse(answer any) (Lock, error) {
	parts, _ := answer.([]any)
	if len(parts) != 9 {
		return Lock{}, send.Unexpected(answer)
	}
	var p reader
	r := Lock{
		Now: p.integer(parts[0]), TTL: p.integer(parts[1]),
		Fair: p.integer(parts[3]) == 1, Waiting: p.integer(parts[5]),
		Token: p.text(parts[6]),
		Free:  p.text(parts[7]),
	}
	for e := range p.tuples(parts[2], 3) {
		r.Entries = append(r.Entries, Entry{p.text(e[0]), p.text(e[1]), p.integer(e[2])})
	}
	for e := range p.tuples(parts[8], 2) {
		r.Permits = append(r.Permits, Permit{p.text(e[0]), max(p.score(e[1]), 1)})
	}
	for w := range p.tuples(parts[4], 5) {
		r.Waiters = append(r.Waiters, p.waiter(w))
	}
	if p.bad || r.Now < 0 || r.Now > LatestTime {
		return Lock{}, send.Unexpected(answer)
	}
	return r, nil
}

// A reader reads the parts of a reply, and remembers if one of them had the wrong type.
type reader struct{ bad bool }

func (p *reader) integer(part any) int64 {
	n, ok := part.(int64)
	p.bad = p.bad || !ok
	return n
}

func (p *reader) text(part any) string {
	s, ok := part.(string)
	p.bad = p.bad || !ok
	return s
}

// tuples returns the elements of a flat list, in groups of n.
func (p *reader) tuples(part any, n int) iter.Seq[[]any] {
	list, ok := part.([]any)
	if !ok || len(list)%n != 0 {
		p.bad = true
		list = nil
	}
	return slices.Chunk(list, n)
}

// score reads the score of a member of a sorted set, or "0" if there is none. Another program may have written any
// score.
func (p *reader) score(part any) int64 {
	text := p.text(part)
	score, err := strconv.ParseFloat(text, 64)
	p.bad = p.bad || err != nil || math.IsNaN(score)
	if text == "0" {
		return 0
	}
	return int64(min(max(score, 1), LatestTime))
}
