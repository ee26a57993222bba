package lua_test

// The scripts of the read/write lock do what a model does, for any requests, each of them sent once or more, late or
// not, in any order. The clients may not subscribe, so that a grant sends no message.
//
// The scripts are the real ones, on a miniredis whose clock the test moves. The model says what the record, the leases,
// the writers that wait and the line are after each request, to the millisecond. Renewals, looks and holds that move
// are in the story readwrite_both.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rwModels = seeds.New("rw")

// An rwModel is a simple model of a read/write lock. A time is in ms, and 0 is none. Fields of write holds have their
// suffix.
type rwModel struct {
	now     int64
	holds   map[string]int   // the hold counts of readers and of the writer
	mode    string           // read, write; "": nobody holds the lock
	ends    int64            // of the record
	leases  map[string]int64 // of each reader
	writers map[string]int64 // until when the heartbeat of a writer, or of the read hold of one, counts
	waiting int64            // until when these are kept

	line   []string         // the fields of the places, in order
	wishes map[string]int64 // the lease that each place wants
	over   map[string]bool  // fields that never wait or acquire the lock again

	seen map[string]int // what has happened, and how often
}

func newRWModel() *rwModel {
	return &rwModel{holds: make(map[string]int), leases: make(map[string]int64), writers: make(map[string]int64),
		wishes: make(map[string]int64), over: make(map[string]bool), seen: make(map[string]int)}
}

func rwClient(field string) string {
	client, _, _ := strings.Cut(field, ":")
	return client
}

func isWriter(field string) bool { return strings.HasSuffix(field, record.WriteSuffix) }

// waitNumber returns the number of the wait that a field belongs to.
func waitNumber(field string) int {
	n, _ := strconv.Atoi(strings.Split(field, ":")[2])
	return n
}

// tick moves the clock: what has expired is gone.
func (m *rwModel) tick(by int64) {
	m.now += by
	if m.ends <= m.now {
		m.free()
	}
	maps.DeleteFunc(m.leases, func(_ string, ends int64) bool { return ends <= m.now })
	if m.waiting <= m.now {
		m.forgetWriters()
	}
}

func (m *rwModel) free() {
	clear(m.holds)
	m.mode, m.ends = "", 0
}

func (m *rwModel) forgetWriters() {
	clear(m.writers)
	m.waiting = 0
}

func (m *rwModel) forget(writer string) {
	if delete(m.writers, writer); len(m.writers) == 0 {
		m.waiting = 0
	}
}

// ttl returns what PTTL returns of the record.
func (m *rwModel) ttl() int64 {
	if m.mode == "" {
		return -2
	}
	return m.ends - m.now
}

// evict removes readers without a lease, except one. It returns how many others live, until when the last of them does,
// and how many it has removed.
func (m *rwModel) evict(except string) (living int, ends int64, evicted int) {
	for field := range maps.Clone(m.holds) {
		if isWriter(field) || field == except {
			continue
		}
		if lease := m.leases[field]; lease > m.now {
			living++
			ends = max(ends, lease)
		} else {
			delete(m.holds, field)
			evicted++
			m.seen["evicted"]++
		}
	}
	return living, ends, evicted
}

func (m *rwModel) readAcquire(field string, lease int64, count int, writer string) send.Reply {
	there := m.holds[field] > 0
	if !there {
		switch {
		case count != 1:
			return send.Reply{-1, 0, 0}
		case m.over[field]:
			m.seen["a late reader"]++
			return send.Reply{0, m.ttl(), 0}
		}
		until := int64(0)
		for _, beat := range m.writers {
			until = max(until, beat)
		}
		switch {
		case m.mode == "write" && m.holds[writer] == 0:
			return send.Reply{0, m.ttl(), 0}
		case m.mode != "write" && until > m.now:
			m.seen["a reader waits for a writer"]++
			return send.Reply{0, until - m.now, 0}
		}
		if m.mode == "write" {
			m.seen["a writer reads"]++
		}
	}
	ends := m.now + lease
	if m.mode == "" {
		m.mode = "read"
	} else {
		ends = max(ends, m.leases[field])
	}
	m.holds[field] = count
	m.leases[field] = ends
	m.ends = max(m.ends, ends)
	return send.Reply{1, 0, 0}
}

func (m *rwModel) readRelease(field string, left int, late bool) send.Reply {
	held := m.holds[field]
	if late && left == 0 {
		m.over[field] = true
	}
	switch {
	case held == 0:
		delete(m.leases, field)
		return send.Reply{-1, 0, 0}
	case left > 0:
		m.holds[field] = left
		return send.Reply{1, 0, 0}
	case m.mode == "write":
		delete(m.leases, field)
		delete(m.holds, field)
		return send.Reply{1, 0, 0}
	}
	living, ends, _ := m.evict(field)
	delete(m.leases, field)
	delete(m.holds, field)
	if living > 0 {
		m.ends = ends
		return send.Reply{1, 0, 0}
	}
	m.free()
	return send.Reply{1, 0, one(m.pass("") != "")}
}

// writeAcquire is an attempt of field, whose read hold is reader.
func (m *rwModel) writeAcquire(field, reader string, lease int64, count int, delivery string, beat int64) send.Reply {
	own, mine := field+record.WriteSuffix, m.holds[field+record.WriteSuffix] > 0
	inLine := len(m.line) > 0 // before
	if !mine {
		if count != 1 {
			return send.Reply{-1, 0, 0}
		}
		if m.over[own] {
			m.seen["a late attempt"]++
			return send.Reply{0, m.ttl(), 0}
		}
		free := m.mode == ""
		if m.mode == "read" {
			living, _, evicted := m.evict("")
			if free = living == 0 && evicted > 0; free {
				m.free()
			} else if m.holds[reader] > 0 && living == m.upgrading(reader) {
				m.seen["an upgrade is refused"]++
				return send.Reply{-2, 0, 0}
			}
		}
		joined := delivery == contract.Poll && (!free || inLine) && m.join(own, lease)
		to := ""
		if free && inLine && delivery != contract.Barge {
			asker := ""
			if joined {
				asker = rwClient(own)
			}
			if to = m.pass(asker); joined && to == own {
				to = ""
			}
		}
		if !free || to != "" {
			if beat > 0 {
				m.beats(field, beat)
				if m.holds[reader] > 0 { // the caller may name one that has ended
					m.beats(reader, beat)
				}
			}
			if delivery == contract.Barge && slices.Contains(m.line, own) {
				m.seen["an upgrader leaves the line"]++
				m.leave(own)
			}
			return send.Reply{0, m.ttl(), one(joined)}
		}
	}
	m.forget(field)
	m.forget(reader)
	m.mode, m.holds[own] = "write", count
	m.ends = max(m.ends, m.now+lease)
	m.leave(own)
	return send.Reply{1, 0, 0}
}

// upgrading returns how many readers wait to write, the one that asks among them.
func (m *rwModel) upgrading(reader string) (n int) {
	for field, beat := range m.writers {
		if field != reader && m.holds[field] > 0 && beat >= m.now {
			n++
		}
	}
	return n + 1
}

func (m *rwModel) beats(field string, beat int64) {
	m.writers[field] = m.now + beat
	m.waiting = max(m.waiting, m.now+beat)
}

func (m *rwModel) writeRelease(field, reader string, left int, rollsBack, late bool) send.Reply {
	own := field + record.WriteSuffix
	if rollsBack {
		m.forget(field)
		m.forget(reader)
	}
	had := m.holds[own] > 0
	if left > 0 {
		if had {
			m.holds[own] = left
		}
		return send.Reply{2*one(had) - 1, 0, 0}
	}
	if had {
		living, ends, _ := m.evict("")
		delete(m.holds, own)
		m.forgetWriters()
		if m.mode, m.ends = "read", ends; living == 0 {
			m.free()
		} else {
			m.seen["a writer becomes a reader"]++
		}
	}
	to := ""
	m.leave(own)
	if late {
		m.over[own] = true
	}
	if m.mode == "" {
		to = m.pass("")
	}
	return send.Reply{2*one(had) - 1, 0, one(to != "")}
}

func (m *rwModel) force(writes bool) send.Reply {
	freed, longest := 0, int64(0)
	if writes && m.mode == "write" {
		_, longest, _ = m.evict("")
	}
	for field := range maps.Clone(m.holds) {
		if isWriter(field) == writes {
			delete(m.holds, field)
			delete(m.leases, field)
			freed++
		}
	}
	if freed == 0 {
		return send.Reply{0, 0, 0}
	}
	m.forgetWriters()
	if len(m.holds) == 0 {
		m.free()
		m.pass("")
	} else if writes {
		m.mode, m.ends = "read", longest
	}
	return send.Reply{1, 0, 0}
}

// join gives a wait a place, unless its client has that of a later wait.
func (m *rwModel) join(field string, lease int64) bool {
	at := slices.IndexFunc(m.line, func(f string) bool { return rwClient(f) == rwClient(field) })
	switch {
	case at < 0:
		m.line = append(m.line, field)
	case waitNumber(m.line[at]) > waitNumber(field):
		m.seen["an earlier wait does not join"]++
		return false
	default:
		m.line[at] = field
	}
	m.wishes[field] = lease
	return true
}

// pass grants the lock, which is free, to the first place. It returns its field; if that is of asker, the script
// acquires the lock for it.
func (m *rwModel) pass(asker string) string {
	if len(m.line) == 0 {
		return ""
	}
	field := m.line[0]
	m.line = m.line[1:]
	if rwClient(field) == asker {
		return field
	}
	m.seen["granted"]++
	m.mode, m.holds[field] = "write", 1
	m.ends = m.now + min(m.wishes[field], engine.ProvisionalLease.Milliseconds())
	m.forget(strings.TrimSuffix(field, record.WriteSuffix))
	return field
}

// leave removes the place of a field.
func (m *rwModel) leave(field string) {
	m.line = slices.DeleteFunc(m.line, func(f string) bool { return f == field })
}

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// An rwRun compares the scripts with the model.
type rwRun struct {
	*locktest.Bench
	m           *rwModel
	rng         *rand.Rand
	read, write contract.Record
	name        string
	history     []string
}

// data returns what is in Redis, as the model has it.
func (r *rwRun) data() (all []string) {
	for line := range strings.Lines(dataOf(r.Bench)) {
		key, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		kind, rest, _ := strings.Cut(rest, " ")
		pttl, values, _ := strings.Cut(rest, ": ")
		left, err := strconv.ParseInt(pttl, 10, 64)
		r.Must(err)
		switch {
		case key == record.WritersLineKeys(r.LockName)[1]:
			for _, value := range strings.Split(values, ", ") {
				field, value, _ := strings.Cut(value, "=")
				switch words := strings.Fields(value); {
				case len(field) == 36:
					all = append(all, "place "+words[4])
				case len(field) > 36:
					all = append(all, "over "+field)
				}
			}
			for i, p := range r.PlacesIn(record.WritersLineKeys(r.LockName)) {
				all = append(all, fmt.Sprint("in line ", i, " ", p.Field))
			}
		case key == record.WritersLineKeys(r.LockName)[0]: // see above
		case kind == "string":
			all = append(all, fmt.Sprint(key, " ", left+r.m.now))
		default:
			all = append(all, fmt.Sprint(key, " ", left+r.m.now, " ", values))
		}
	}
	slices.Sort(all)
	return all
}

// wants returns what the model has, as data returns it.
func (r *rwRun) wants() (all []string) {
	lock := r.LockName
	if r.m.mode != "" {
		values := []string{"mode=" + r.m.mode}
		for field, count := range r.m.holds {
			values = append(values, fmt.Sprint(field, "=", count))
		}
		slices.Sort(values)
		all = append(all, fmt.Sprint(lock, " ", r.m.ends, " ", strings.Join(values, ", ")))
	}
	for reader, ends := range r.m.leases {
		all = append(all, fmt.Sprint(record.SuffixName(lock, reader+":rwlock_timeout:1"), " ", ends))
	}
	if len(r.m.writers) > 0 {
		beats := slices.SortedFunc(maps.Keys(r.m.writers), func(a, b string) int {
			if d := r.m.writers[a] - r.m.writers[b]; d != 0 {
				return int(d)
			}
			return strings.Compare(a, b)
		})
		for i, field := range beats {
			beats[i] = fmt.Sprint(field, "=", rwEpoch+r.m.writers[field])
		}
		all = append(all, fmt.Sprint(locktest.WritersKey(lock), " ", r.m.waiting, " ", strings.Join(beats, ", ")))
	}
	for field := range r.m.over {
		all = append(all, "over "+field)
	}
	for i, field := range r.m.line {
		all = append(all, fmt.Sprint("in line ", i, " ", field), "place "+field)
	}
	slices.Sort(all)
	return all
}

const rwEpoch = 1_800_000_000_000 // where the clock of the model begins

// step makes one request, and compares its reply and its effects.
func (r *rwRun) step() {
	op := r.rng.IntN(19)
	reader, field := r.owner(op)
	lease, count := int64(20+r.rng.IntN(100)), 1+r.rng.IntN(4)/3
	if r.rng.IntN(20) == 0 {
		lease = 8000 // longer than that of a grant
	}
	a := contract.Attempt{Field: field, Lease: time.Duration(lease) * time.Millisecond, HoldCount: count,
		Delivery: []string{
			contract.Poll, contract.Poll, contract.Poll, contract.Defer, contract.Barge, contract.Barge,
		}[r.rng.IntN(6)]}
	ofReader := a
	ofReader.Field, ofReader.Counterpart = reader, r.counterpart(field)
	holds := ""
	if r.m.holds[reader] > 0 {
		holds = reader
	}
	left := r.rng.IntN(5) / 4
	var c send.Call
	var want send.Reply
	switch {
	case op < 5:
		c, want = r.read.Acquire(ofReader), r.m.readAcquire(reader, lease, count, ofReader.Counterpart+record.WriteSuffix)
	case op < 9:
		runsLate := r.rng.IntN(10) == 0
		c = r.read.Release(contract.Release{Field: reader, HoldCount: left, Late: runsLate, Share: time.Hour * 1e4})
		want = r.m.readRelease(reader, left, runsLate)
		if op == 8 {
			ofReader.HoldCount, ofReader.Late = left+1, runsLate
			c = r.read.RollBack(ofReader)
		}
	case op < 14:
		beat := int64(60)
		a.Counterpart, a.NoWait = holds, r.rng.IntN(4) == 0
		c = r.write.Acquire(a)
		if a.NoWait {
			beat = 0
		} else {
			c.Args[3] = beat
		}
		want = r.m.writeAcquire(field, holds, lease, count, a.Delivery, beat)
	case op < 18:
		back := op == 17
		a.HoldCount, a.Counterpart, a.Late = left+1, holds, r.rng.IntN(10) == 0
		c = r.write.Release(contract.Release{Field: field, HoldCount: left, Late: a.Late})
		if back {
			c = r.write.RollBack(a)
		} else {
			holds = ""
		}
		c.Args[4] = int64(1e13) // the hand-off window
		want = r.m.writeRelease(field, holds, left, back, a.Late)
	default:
		if writes := r.rng.IntN(2) == 0; r.rng.IntN(3) > 0 {
			break
		} else if c = r.read.Force(); writes {
			c, want = r.write.Force(), r.m.force(true)
		} else {
			want = r.m.force(false)
		}
	}
	if c.Script == nil {
		return
	}
	got, err := locktest.Run(context.Background(), r.Rdb, c)
	r.Must(err)
	if c.Script == record.Script("write_acquire") {
		got[2] %= 4 // how many are ahead
	}
	for name, script := range record.Scripts {
		if script == c.Script {
			r.history = append(r.history, fmt.Sprint(r.m.now, " ", name, " ", c.Args, " ", got))
		}
	}
	what := fmt.Sprintf("%s, after\n%s", r.name, strings.Join(r.history, "\n"))
	require.Equal(r, want, got, what)
	require.Equal(r, r.wants(), r.data(), what)
}

// owner returns the fields of the read and the write hold of an owner. One that holds the lock is more likely, above all
// for requests other than to acquire it.
func (r *rwRun) owner(op int) (reader, writer string) {
	owner := fmt.Sprint(r.rng.IntN(3), locktest.JavaThread[1:36], ":", 1+r.rng.IntN(2), ":")
	holders, acquires := slices.Sorted(maps.Keys(r.m.holds)), op < 5 || op >= 9 && op < 14
	holder := ""
	if len(holders) > 0 && r.rng.IntN(10) < 6 && !(acquires && r.rng.IntN(2) == 0) {
		holder = holders[r.rng.IntN(len(holders))]
		owner = strings.Join(strings.Split(holder, ":")[:2], ":") + ":"
	}
	reader, writer = owner+"1", owner+fmt.Sprint(2+r.rng.IntN(2))
	switch {
	case isWriter(holder):
		writer = strings.TrimSuffix(holder, record.WriteSuffix)
	case holder != "":
		reader = holder
	}
	return reader, writer
}

// counterpart returns the field of the write hold that the owner of field has, without its suffix, or "".
func (r *rwRun) counterpart(field string) string {
	owner := field[:len(field)-1]
	for holder := range r.m.holds {
		if isWriter(holder) && strings.HasPrefix(holder, owner) {
			return strings.TrimSuffix(holder, record.WriteSuffix)
		}
	}
	return ""
}

func TestReadWriteScriptsFollowTheModel(t *testing.T) {
	t.Parallel()
	seen := make(map[string]int)
	rwModels.Play(t, locktest.Full(50, 200), func(q *seeds.Sequence) {
		mini := testredis.StillMini(q.T)
		b := locktest.NewBench(q.T, mini.Addr())
		l := b.Client().NewRWLock(b.LockName)
		r := &rwRun{b, newRWModel(), locktest.NewRand(int(q.Seed)), locktest.RecordOf(l.Read()), locktest.RecordOf(l.Write()), fmt.Sprint("seed ", q.Seed), nil}
		r.m.seen = seen
		for range 100 {
			r.m.tick(int64(r.rng.IntN(30)))
			mini.SetTime(time.UnixMilli(rwEpoch + r.m.now))
			r.step()
		}
		q.Note(strings.ReplaceAll(fmt.Sprint(r.history), b.LockName, "the lock"))
		mini.FlushAll()
	})
	t.Log(seen)
	if rwModels.IsChosen() {
		return
	}
	for _, what := range []string{"granted", "evicted", "a reader waits for a writer", "a writer reads", "a late attempt", "an upgrade is refused", "an upgrader leaves the line",
		"a writer becomes a reader", "an earlier wait does not join"} {
		assert.GreaterOrEqual(t, seen[what], 5, what)
	}
}
