package lua_test

// The scripts of the semaphore, against a simple model of it.
//
// Rule: whatever requests come in whatever order, late or more than once, Redis answers and stores what the model does.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of the seeds that have a file, in 62 a field asks again whose grant has expired, in 205 a caller takes its permit
// behind a place that is passed over, and in 636542716 ahead of the line that begins with such a place.
var semaphoreModels = seeds.New("semaphore")

// The scripts do what a model does, for any requests, each of them sent once or more, late or not, in any order. The
// clients may not subscribe, so that a grant sends no message.
func TestSemaphoreScriptsFollowTheModel(t *testing.T) {
	t.Parallel()
	granted, several := 0, 0
	semaphoreModels.Play(t, locktest.Full(40, 200), func(q *seeds.Sequence) {
		t, seed := q.T, q.Seed
		m := testredis.StillMini(t)
		b := locktest.NewBench(t, m.Addr())
		l := locktest.RecordOf(b.Client().NewSemaphore(b.LockName, 4))
		model := semaphoreModel{permits: 4, ends: make(map[string]int64), over: make(map[string]bool)}
		rng := locktest.NewRand(int(seed))
		for step := range 100 {
			model.now += int64(rng.IntN(40))
			m.SetTime(time.UnixMilli(1_800_000_000_000 + model.now))
			id := fmt.Sprint(rng.IntN(4), locktest.JavaThread[1:36], ":") // of four clients, with three owners each
			id += []string{"0:9", "1:9+2", "2:9+3"}[rng.IntN(3)]
			got, want, what := send.Reply{}, send.Reply{}, ""
			do := func(name string, c send.Call, expect send.Reply) {
				var err error
				what, want = name+" "+id, expect
				got, err = locktest.Run(context.Background(), b.Rdb, c)
				b.Must(err)
			}
			lease := int64(20 + rng.IntN(100))
			level := 1 + rng.IntN(4)/3
			switch op := rng.IntN(22); {
			case op < 9:
				a := contract.Attempt{Field: id, Lease: time.Duration(lease) * time.Millisecond, HoldCount: level,
					Delivery: []string{contract.Poll, contract.Poll, contract.Defer, contract.Barge}[rng.IntN(4)]}
				do("acquire, "+a.Delivery, l.Acquire(a), model.acquire(id, lease, level, a.Delivery))
			case op < 14:
				left, late := rng.IntN(5)/4, rng.IntN(20) == 0
				c := l.RollBack(contract.Attempt{Field: id, HoldCount: left + 1, Late: late})
				c.Args[3] = int64(1e13) // the hand-off window
				do("release, rollback", c, model.release(id, left, late))
			case op < 17:
				do("renew", l.Renew(id, time.Duration(lease)*time.Millisecond, op == 16), model.renew(id, lease, op == 16))
			case op == 17:
				do("inspect", l.Inspect(id), model.inspect(id))
			case op == 18:
				n := rng.IntN(6)
				do("set", locktest.SetPermits(l, n), model.set(n))
			case op == 19:
				do("force", l.Force(), model.force())
			case op == 20: // Java takes an expired permit away, by its own clock, and another script finds one available
				if members := b.Rdb.ZRange(context.Background(), locktest.KeysOf(l)[1], 0, -1).Val(); len(members) > 0 {
					member := members[rng.IntN(len(members))]
					b.Must(b.Rdb.ZRem(context.Background(), locktest.KeysOf(l)[1], member).Err())
					b.Must(b.Rdb.Incr(context.Background(), b.LockName).Err())
					delete(model.ends, member)
				}
				do("set after Java", locktest.SetPermits(l, model.permits), model.set(model.permits))
			default:
				do("count", send.Call{Script: record.Script("semaphore_inspect"), Keys: locktest.KeysOf(l)[:2], Args: []any{"", 4}}, model.count())
			}
			switch what[:3] {
			case "rel":
				got[1] = 0 // who was notified
			case "acq":
				got[2] %= 4 // how many are ahead
			}
			q.Note(what, got)
			require.Equal(t, want, got, "seed %d, step %d: %s", seed, step, what)
			if model.exists {
				require.Equal(t, model.permits-len(model.ends), b.Permits(model.permits), "seed %d, step %d: %s", seed, step, what)
			}
			require.ElementsMatch(
				t,
				slices.Collect(maps.Keys(model.ends)),
				b.Rdb.ZRange(context.Background(), locktest.KeysOf(l)[1], 0, -1).Val(),
				"seed %d, step %d: %s: permits that are taken",
				seed,
				step,
				what,
			)
			var line []string
			for _, p := range b.Places() {
				line = append(line, p.Field)
			}
			require.Equal(t, model.fields(), line, "seed %d, step %d: %s: the line", seed, step, what)
		}
		granted += model.granted
		several += model.several
		b.Forget()
		m.Del(b.LockName)
	})
	if semaphoreModels.IsChosen() {
		return
	}
	assert.Greater(t, granted, 100, "places that were granted what they wanted")
	assert.Greater(t, several, 50, "those of them that wanted several permits")
}

// A semaphoreModel is a simple model of a semaphore: the number of permits, when each held permit expires, and who
// waits.
type semaphoreModel struct {
	exists  bool
	permits int
	now     int64
	ends    map[string]int64
	line    []waitingPermit
	over    map[string]bool // fields that can no longer acquire a permit
	granted int
	several int // places of several permits that were granted
}

type waitingPermit struct {
	id    string
	lease int64
}

func semaphoreClient(id string) string {
	client, _, _ := strings.Cut(id, ":")
	return client
}

// permitsOf returns the IDs of the permits of a field: see internal/lua/semaphore.lua.
func permitsOf(field string) (ids []string) {
	head, n, several := strings.Cut(field, "+")
	if !several {
		return []string{field}
	}
	at := strings.LastIndexByte(head, ':') + 1
	first, size := 0, 0
	_, _ = fmt.Sscan(head[at:], &first)
	_, _ = fmt.Sscan(n, &size)
	for i := range size {
		ids = append(ids, fmt.Sprint(head[:at], first+i))
	}
	return ids
}

// taken returns when the first permit of a field expires, or 0 if some of its permits are not held.
func (m *semaphoreModel) taken(field string) (ends int64) {
	for i, id := range permitsOf(field) {
		if at, ok := m.ends[id]; !ok {
			return 0
		} else if i == 0 || at < ends {
			ends = at
		}
	}
	return ends
}

func (m *semaphoreModel) take(field string, ends int64) {
	for _, id := range permitsOf(field) {
		m.ends[id] = ends
	}
}

func (m *semaphoreModel) returns(field string) {
	for _, id := range permitsOf(field) {
		delete(m.ends, id)
	}
}

// next returns the index of the first place that the semaphore has enough permits for, or -1.
func (m *semaphoreModel) next() int {
	return slices.IndexFunc(m.line, func(w waitingPermit) bool { return len(permitsOf(w.id)) <= max(m.permits, 1) })
}

func (m *semaphoreModel) fields() (all []string) {
	for _, w := range m.line {
		all = append(all, w.id)
	}
	return all
}

func (m *semaphoreModel) drop() {
	for id, ends := range m.ends {
		if ends <= m.now {
			delete(m.ends, id)
		}
	}
}

func (m *semaphoreModel) free() int {
	if !m.exists {
		return 0
	}
	return m.permits - len(m.ends)
}

// pass grants free permits to the line, until it is the turn of asker, or until the next place wants more than there
// are: then it reports true.
func (m *semaphoreModel) pass(asker string) (short bool) {
	for at := m.next(); m.free() > 0 && at >= 0; at = m.next() {
		w := m.line[at]
		size := len(permitsOf(w.id))
		if size > m.free() || w.id == asker {
			return size > m.free()
		}
		m.take(w.id, m.now+w.lease)
		m.line = slices.Delete(m.line, at, at+1)
		m.granted++
		if size > 1 {
			m.several++
		}
	}
	return false
}

func (m *semaphoreModel) join(w waitingPermit) {
	at := slices.IndexFunc(
		m.line,
		func(other waitingPermit) bool { return semaphoreClient(other.id) == semaphoreClient(w.id) },
	)
	if at < 0 {
		m.line = append(m.line, w)
	} else {
		m.line[at] = w
	}
}

func (m *semaphoreModel) leave(id string) {
	m.line = slices.DeleteFunc(m.line, func(w waitingPermit) bool { return w.id == id })
}

func (m *semaphoreModel) acquire(id string, lease int64, level int, line string) send.Reply {
	m.drop()
	ends, size := m.taken(id), len(permitsOf(id))
	if ends == 0 {
		m.returns(id) // a part of a hold is of no use
	}
	if ends != 0 || level > 1 {
		if ends == 0 {
			m.pass("")
			return send.Reply{-1, 0, 0}
		}
		m.take(id, max(ends, m.now+lease))
		m.pass("")
		return send.Reply{1, 0, 0}
	}
	m.exists = true
	place, short := int64(0), false
	next := m.next()
	switch {
	case m.over[id]:
		m.pass("")
	case size > 1 && size > m.permits && !slices.Contains(m.fields(), id):
		m.pass("")
		return send.Reply{-2, int64(m.permits), 0}
	case line == contract.Poll:
		m.join(waitingPermit{id, lease})
		place = 1
		short = m.pass(id)
	case line == contract.Defer, size > m.free(), next >= 0 && len(permitsOf(m.line[next].id)) > 1:
		short = m.pass("")
	}
	if m.free() >= size && !short && !m.over[id] {
		m.take(id, m.now+lease)
		m.leave(id)
		if m.pass("") {
			return send.Reply{1, 0, 0}
		}
		return send.Reply{1, int64(max(0, m.free())), 0}
	}
	first := int64(-1)
	for _, ends := range m.ends {
		if first < 0 || ends-m.now < first {
			first = ends - m.now
		}
	}
	return send.Reply{0, first, place}
}

func (m *semaphoreModel) release(id string, left int, late bool) send.Reply {
	r := send.Reply{-1, 0, 0}
	if m.taken(id) > m.now {
		r[0] = 1
	}
	if left > 0 {
		return r
	}
	m.returns(id)
	m.leave(id)
	if late {
		m.over[id] = true
	}
	before := m.granted
	m.pass("")
	r[2] = int64(min(m.granted-before, 1))
	return r
}

func (m *semaphoreModel) force() send.Reply {
	m.drop()
	n := len(m.ends)
	clear(m.ends)
	m.pass("")
	return send.Reply{int64(min(n, 1)), 0, 0}
}

func (m *semaphoreModel) renew(id string, lease int64, exact bool) send.Reply {
	ends := m.taken(id)
	if ends <= m.now {
		return send.Reply{-1, 0, 0}
	}
	if m.take(id, m.now+lease); !exact {
		m.take(id, max(ends, m.now+lease))
	}
	return send.Reply{1, 0, 0}
}

func (m *semaphoreModel) inspect(id string) send.Reply {
	r := send.Reply{0, 0, -2}
	for _, ends := range m.ends {
		if ends > m.now {
			r[0]++
			r[2] = max(r[2], ends-m.now)
		}
	}
	if id != "" && m.taken(id) > m.now {
		r[1] = 1
	}
	return r
}

func (m *semaphoreModel) set(n int) send.Reply {
	m.drop()
	m.permits, m.exists = n, true
	m.pass("")
	return send.Reply{1, 0, 0}
}

func (m *semaphoreModel) count() send.Reply {
	return send.Reply{int64(m.permits), int64(m.permits) - m.inspect("")[0], 0}
}
