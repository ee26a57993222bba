package relock

// The answer of the script any_inspect, which dumps all data that Redis has of a lock, is read into an Inspection.
//
// Rules: data that no lock writes are an error, and not a lock without holders. Durations in the answer are in
// milliseconds, and times are milliseconds of the Unix epoch, by the clock of Redis.

import (
	"cmp"
	"encoding/hex"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

// latestTime is the last millisecond of the year 9999. JSON cannot represent later times.
const latestTime = 253402300799999

// A reader reads the parts of an answer into an Inspection. It remembers if one of them had the wrong type.
type reader struct {
	Inspection
	key string
	now int64
	bad bool
	err error // the key has a field that no lock writes
}

// readInspection reads an answer of internal/lua/any_inspect.lua for the lock with this key.
func readInspection(key string, answer any) (Inspection, error) {
	parts, _ := answer.([]any)
	if len(parts) != 15 {
		return Inspection{}, send.Unexpected(answer)
	}
	p := reader{key: key}
	p.now = p.integer(parts[0])
	p.At, p.TTL = time.UnixMilli(p.now), leaseLeft(p.integer(parts[1]))
	if token, free := p.text(parts[3]), p.text(parts[4]); free != "" {
		p.semaphore(free, parts[5])
		p.waiters(parts[9:])
	} else {
		p.hash(parts[2], token)
		p.lines(parts)
		slices.SortFunc(p.Holders, func(a, b Holder) int {
			if a.Write == b.Write {
				return cmp.Compare(a.Field, b.Field)
			}
			return map[bool]int{true: -1, false: 1}[a.Write]
		})
	}
	p.Waiters = p.Waiters[:min(len(p.Waiters), record.MostWaiters)]
	p.More = p.More || p.Waiting > len(p.Waiters)
	for _, w := range p.Waiters {
		if w.Reachable == ReachableNo {
			p.Gone++
		}
	}
	for n := range p.Holders {
		p.Holders[n].hideNumber()
	}
	if p.bad || p.now < 0 || p.now > latestTime {
		return Inspection{}, send.Unexpected(answer)
	}
	if p.err != nil {
		return Inspection{}, p.err
	}
	return p.Inspection, nil
}

// hash reads the fields of a hash, and the token counter.
func (p *reader) hash(fields any, token string) {
	for e := range p.tuples(fields, 3) {
		if p.text(e[0]) == "mode" {
			p.Mode = p.text(e[1])
			p.need(p.Mode == "read" || p.Mode == "write", "mode")
		}
	}
	for e := range p.tuples(fields, 3) {
		field := p.text(e[0])
		if field == "mode" {
			continue
		}
		p.need(p.Mode != "" || len(p.Holders) == 0, field) // a lock without a mode has one holder
		holdCount, err := strconv.Atoi(p.text(e[1]))
		h := Holder{Contender: contender(field), HoldCount: holdCount, Remaining: leaseLeft(p.integer(e[2]))}
		if writer, writes := strings.CutSuffix(field, record.WriteSuffix); writes && p.Mode != "" {
			h.Contender, h.Write = contender(writer), true
			h.Field = field
		}
		p.need(err == nil && holdCount > 0 && h.Client != "", field)
		p.Holders = append(p.Holders, h)
	}
	var err error
	if p.Token, err = strconv.ParseInt(cmp.Or(token, "0"), 10, 64); err != nil {
		p.refuse(record.TokenKey(p.key), "a token counter that is not a number")
	}
}

// need notes that no lock writes this field, unless it is good.
func (p *reader) need(good bool, field string) {
	if !good {
		p.refuse(p.key, "a hash that is not a lock (field "+shortName(field)+")")
	}
}

// refuse notes that a key holds what no lock writes.
func (p *reader) refuse(key, what string) {
	p.err = cmp.Or(p.err, send.NotALock(key, "the key "+shortName(key)+" holds "+what, nil))
}

// lines reads who waits for a lock that is no semaphore, and finds out its type.
func (p *reader) lines(parts []any) {
	switch fair := p.integer(parts[6]) > 0 || len(p.scores(parts[8])) > 0; {
	case p.Mode != "":
		p.Type = TypeReadWrite
	case fair:
		p.Type = TypeFair
		p.waiters(parts[6:])
		return
	case len(p.Holders) > 0:
		p.Type = TypeLock
	}
	p.waiters(parts[9:])
	p.waiters(parts[12:])
	if p.Type == TypeNone && len(p.Waiters) > 0 {
		p.Type = TypeLock
		if p.Waiters[0].Write {
			p.Type = TypeReadWrite
		}
	}
}

// waiters reads the number of those who wait, the first of them, and a zset: of a fair lock the deadlines, of a line the
// heartbeats of writers. Writers that have no place are behind the line, if the whole line is known.
func (p *reader) waiters(parts []any) {
	n, times, fair := int(p.integer(parts[0])), p.scores(parts[2]), p.Type == TypeFair
	for e := range p.tuples(parts[1], 5) {
		name, field, alive := p.text(e[0]), p.text(e[1]), p.score(e[2])
		var deadline int64
		switch beat := strings.TrimSuffix(field, record.WriteSuffix); {
		case fair:
			field, deadline = name, times[name]
		case strings.HasPrefix(field, name+":"):
			alive = times[beat]
			delete(times, beat) // it is one waiter
		default:
			n-- // it has no place, and does not count
			continue
		}
		p.waiter(field, deadline, alive, p.score(e[3]), p.integer(e[4]))
	}
	p.Waiting += n
	for _, h := range p.Holders {
		delete(times, h.Field)
	}
	for e := range p.tuples(parts[2], 2) {
		if field := p.text(e[0]); !fair && n <= record.MostWaiters && times[field] > p.now {
			p.waiter(field+record.WriteSuffix, 0, times[field], 0, -1)
			p.Waiting++
		}
	}
}

// waiter adds one that waits for the hold with this field. A time of 0 is not known, or there is none. listeners is
// negative if it is not known how many connections would hear a grant.
func (p *reader) waiter(field string, deadline, alive, since, listeners int64) {
	field, write := strings.CutSuffix(field, record.WriteSuffix)
	w := Waiter{
		Contender: contender(field), Write: write, Since: epochTime(since),
		Deadline: epochTime(deadline), AliveUntil: epochTime(alive),
		Reachable: ReachableUnknown,
	}
	if w.usesRelock() {
		_, permits, _ := strings.Cut(w.Field, "+")
		w.Permits, _ = strconv.Atoi(permits) // 0 if it is not for several
		w.Field = w.Field[:strings.LastIndexByte(w.Field, ':')]
	}
	if p.Type == TypeSemaphore {
		w.Permits = max(1, w.Permits)
	}
	switch {
	case listeners == 0:
		w.Reachable = ReachableNo
	case listeners > 0:
		w.Reachable = ReachableYes
	}
	p.Waiters = append(p.Waiters, w)
}

// semaphore reads the number of free permits, and those that are held. If there are more than record.MostShown of these,
// they are the first ones to expire and the last one. The permits of one hold have one owner, who has no other hold, and
// one score.
func (p *reader) semaphore(free string, permits any) {
	available, err := strconv.Atoi(free)
	p.bad = p.bad || err != nil
	p.Type, p.TTL, p.Available, p.Ambiguous = TypeSemaphore, 0, available, true
	shown := 0
	for e := range p.tuples(permits, 2) {
		p.Ambiguous = false
		switch ends := p.score(e[1]); {
		case ends <= p.now: // the next attempt releases it
			p.Available++
			continue
		case ends == latestTime: // a Java permit without a lease
			p.TTL = -time.Millisecond
		default:
			p.TTL = send.FromMilliseconds(ends - p.now)
		}
		id := p.text(e[0])
		h := Holder{Contender: contender(id), HoldCount: 1, Permits: 1, Remaining: p.TTL}
		if h.Client == "" { // Redisson has written random bytes
			h.Field = hex.EncodeToString([]byte(id))
			h.Owner = "permit " + h.Field
		}
		shown++
		switch last := len(p.Holders) - 1; {
		case shown > record.MostShown:
			p.More = true
		case last >= 0 && p.Holders[last].hasToo(h):
			p.Holders[last].Permits++
			if numberOf(h.Field) < numberOf(p.Holders[last].Field) {
				p.Holders[last].Field = h.Field
			}
		default:
			p.Holders = append(p.Holders, h)
		}
	}
}

// hasToo reports whether the permit of other belongs to the hold of h. A Client may have several detached holds, whose
// numbers are far apart.
func (h Holder) hasToo(other Holder) bool {
	return h.Client != "" && h.Client == other.Client && h.Owner == other.Owner && h.Remaining == other.Remaining &&
		(!h.isDetached() || numberOf(other.Field)-numberOf(h.Field) < record.MostAtOnce)
}

// contender reads a field. The form uuid:owner:number is of relock. The form uuid:thread is of Redisson, which may append
// the ID of a transaction. A field of another form has no Client, and is the owner itself.
func contender(field string) Contender {
	const id = 36 // bytes of a UUID
	c := Contender{Field: field, Owner: field}
	if len(field) <= id || field[id] != ':' || uuid.Validate(field[:id]) != nil {
		return c
	}
	owner, number, ours := strings.Cut(field[id+1:], ":")
	n, err := strconv.ParseInt(owner, 10, 64)
	if err != nil {
		return c
	}
	c.Client, c.Owner = field[:id], "thread "+owner
	number, _, _ = strings.Cut(number, "+") // of permits
	if _, err = strconv.ParseUint(number, 10, 64); ours && err == nil {
		c.Owner = engine.Owner(n).String()
	}
	return c
}

// leaseLeft returns the remaining lease for a result of PTTL: 0 if the key does not exist, and negative if it has no
// expiry.
func leaseLeft(pttl int64) time.Duration {
	if pttl == -2 {
		return 0
	}
	return send.FromMilliseconds(pttl)
}

// epochTime returns the time for a score of a sorted set. It is zero if there is no score.
func epochTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

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
	return int64(min(max(score, 1), latestTime))
}
