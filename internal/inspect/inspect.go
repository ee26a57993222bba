// Package inspect reads what the script any_inspect dumps: all data that Redis has of a lock. It finds out who waits; what
// the rest means is the affair of package relock. Durations are in milliseconds, and times are milliseconds of the Unix
// epoch, by the clock of Redis.
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

// A Waiter is one that waits for the lock. A time of 0 is not known, or there is none.
type Waiter struct {
	Field      string // of the hold that it waits for; it ends with :write if that is a write lock
	Deadline   int64  // when Java gives its place in the queue of a fair lock away
	AliveUntil int64  // when it is overdue, or the heartbeat of a writer expires
	Since      int64  // it has waited at least since then
	Listeners  int64  // 1: its client would hear a grant; 0: it would not; -1: this is not known
}

// waiters reads the number of those who wait, the first of them, and a zset: of a fair lock the deadlines, of a line the
// heartbeats of writers. Writers that have no place are behind the line, if the whole line is known.
func (p *reader) waiters(r *Lock, parts []any) {
	n, times := p.integer(parts[0]), p.scores(parts[2])
	for e := range p.tuples(parts[1], 5) {
		w := Waiter{p.text(e[0]), 0, p.score(e[2]), p.score(e[3]), min(p.integer(e[4]), 1)}
		if field := p.text(e[1]); r.Fair {
			w.Deadline = times[w.Field]
		} else if strings.HasPrefix(field, w.Field+":") {
			beat := strings.TrimSuffix(field, record.WriteSuffix)
			w.Field, w.AliveUntil = field, times[beat]
			delete(times, beat) // it is one waiter
		} else {
			n-- // it has no place, and does not count
			continue
		}
		r.Waiters = append(r.Waiters, w)
	}
	r.Waiting += n
	for _, e := range r.Entries {
		delete(times, e.Field)
	}
	for e := range p.tuples(parts[2], 2) {
		if field := p.text(e[0]); !r.Fair && n <= record.MostWaiters && times[field] > r.Now {
			r.Waiters = append(r.Waiters, Waiter{field + record.WriteSuffix, 0, times[field], 0, -1})
			r.Waiting++
		}
	}
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
	if len(parts) != 15 {
		return Lock{}, send.Unexpected(answer)
	}
	var p reader
	r := Lock{
		Now: p.integer(parts[0]), TTL: p.integer(parts[1]),
		Token: p.text(parts[3]), Free: p.text(parts[4]),
	}
	for e := range p.tuples(parts[2], 3) {
		r.Entries = append(r.Entries, Entry{p.text(e[0]), p.text(e[1]), p.integer(e[2])})
	}
	for e := range p.tuples(parts[5], 2) {
		r.Permits = append(r.Permits, Permit{p.text(e[0]), max(p.score(e[1]), 1)})
	}
	r.Fair = r.Free == "" && (p.integer(parts[6]) > 0 || len(p.scores(parts[8])) > 0) &&
		!slices.ContainsFunc(r.Entries, func(e Entry) bool { return e.Field == "mode" })
	switch {
	case r.Fair:
		p.waiters(&r, parts[6:])
	case r.Free == "":
		p.waiters(&r, parts[9:])
		p.waiters(&r, parts[12:])
	default:
		p.waiters(&r, parts[9:])
	}
	r.Waiters = r.Waiters[:min(len(r.Waiters), record.MostWaiters)]
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

// scores reads a zset.
func (p *reader) scores(part any) map[string]int64 {
	all := make(map[string]int64)
	for e := range p.tuples(part, 2) {
		all[p.text(e[0])] = p.score(e[1])
	}
	return all
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
