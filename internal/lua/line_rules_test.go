package lua_test

// Rules of the line that hold after every request, in whatever order requests come. They are checked in sequences of the
// test of the short cuts, in which all commands are allowed, and no other program writes to the line.
//
//   - Each client in the order has a place, and no other one has.
//   - The client that waits first beside a free lock knows that it is free.
//   - No wait loses its place without knowing it.
//
//	go test -run '^TestLineFollowsItsRules$' -line.seed=7 ./internal/lua   # one sequence once more

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/stretchr/testify/require"
)

var lineRules = seeds.New("line")

func TestLineFollowsItsRules(t *testing.T) {
	t.Parallel()
	b := newTwinBench(t)
	b.ruled = true
	lineRules.Play(t, locktest.Full(50, 600), b.play)
}

// A seenLine is a line between two requests.
type seenLine struct {
	keys    []string
	waiting []locktest.KeptPlace // in order
	fields  []string             // of the waits
}

func (b *twinBench) seesLine(keys []string) seenLine {
	w := b.twins[0]
	fields, err := w.Rdb.HKeys(b.Context(), keys[1]).Result()
	w.Must(err)
	return seenLine{keys, w.PlacesIn(keys), fields}
}

// has reports whether the line has a place for a field.
func (s seenLine) has(field string) bool {
	return slices.ContainsFunc(s.waiting, func(p locktest.KeptPlace) bool { return p.Field == field })
}

// seesLines returns the lines of plain locks and of write locks.
func (b *twinBench) seesLines() []seenLine {
	return []seenLine{b.seesLine(record.LineKeys(lockName)), b.seesLine(record.WritersLineKeys(lockName))}
}

// followsTheRules checks a line after a request. before is what it was.
func (b *twinBench) followsTheRules(c send.Call, name string, before seenLine, e effect) {
	after := b.seesLine(before.keys)
	if !b.messed {
		isTombstone := func(field string) bool { return len(field) != 36 }
		require.Len(b, slices.DeleteFunc(slices.Clone(after.fields), isTombstone), len(after.waiting), b)
		require.EqualValues(b, len(after.waiting), b.twins[0].Rdb.ZCard(b.Context(), before.keys[0]).Val(), b)
	}
	for _, p := range before.waiting {
		require.True(b, after.has(p.Field) || b.mayLeave(p, c, e), "%+v has no place any more; told %s: %s", p, e.told, b)
	}
	b.firstKnows(c, name, after, e)
}

// mayLeave reports whether a place may leave the line at a request.
func (b *twinBench) mayLeave(p locktest.KeptPlace, c send.Call, e effect) bool {
	own, _, _ := strings.Cut(strings.TrimSuffix(p.Field, record.WriteSuffix), "+")
	for _, arg := range c.Args { // the request ends this wait, or is one of a later wait
		field, _, _ := strings.Cut(fmt.Sprint(arg), "+")
		if client, _, _ := strings.Cut(field, ":"); client == p.Client && waitNumber(field) >= waitNumber(own) {
			return true
		}
	}
	return !b.hearsGrants(p) || strings.Contains(b.record(), own+"=") ||
		strings.Contains(b.record(), p.Field+"=") || strings.Contains(e.told, p.Client+" free") ||
		strings.Contains(e.told, " grant "+p.Field)
}

// record returns all data but the line.
func (b *twinBench) record() string {
	isLine := func(row string) bool { return strings.HasPrefix(row, "relock_line:") }
	return strings.Join(slices.DeleteFunc(strings.Split(b.data, "\n"), isLine), "\n")
}

// hearsGrants reports whether the client of a place learns of a grant.
func (b *twinBench) hearsGrants(p locktest.KeptPlace) bool {
	channel := announced(lockName)[0]
	switch {
	case b.permits:
		channel = announced(lockName)[2]
	case isWriter(p.Field):
		channel = announced(lockName)[1]
	}
	return p.Delivery == contract.Poll || b.heard["subscribe"+channel+":"+p.Client]
}

// firstKnows checks that the client of the first place has been told that the lock is free.
func (b *twinBench) firstKnows(c send.Call, name string, line seenLine, e effect) {
	if !b.looksAtLine(c, name, line, e) {
		return
	}
	at := slices.IndexFunc(line.waiting, func(p locktest.KeptPlace) bool { return b.hearsGrants(p) })
	if at < 0 || !b.isFreeFor(line.waiting[at]) {
		maps.DeleteFunc(b.told, func(of string, _ bool) bool { return strings.HasPrefix(of, line.keys[0]) })
		return
	}
	for _, client := range b.clients {
		if strings.Contains(e.told, ":"+client.ID()+" ") {
			b.told[line.keys[0]+client.ID()] = true
		}
	}
	first := line.waiting[at]
	require.True(b, first.Delivery == contract.Poll || b.told[line.keys[0]+first.Client], "%+v waits beside a free lock; told %s: %s",
		first, e.told, b)
}

// isFreeFor reports whether a place could be granted what it waits for.
func (b *twinBench) isFreeFor(p locktest.KeptPlace) bool {
	rdb := b.twins[0].Rdb
	if !b.permits {
		return rdb.Exists(b.Context(), lockName).Val() == 0
	}
	free, _ := rdb.Get(b.Context(), lockName).Int()
	return free >= len(permitsOf(p.Field))
}

// looksAtLine reports whether a script that finds the lock free has to look at the line. Some have nothing to do with it:
// one that changes a hold count, a request that has a tombstone, one for permits that are held already or the last ones,
// the end of a read hold that is not there, and a forced release of a lock that is not held. Readers have no places, and
// fair locks have a queue of their own.
func (b *twinBench) looksAtLine(c send.Call, name string, line seenLine, e effect) bool {
	verb := name[strings.LastIndex(name, "_")+1:]
	done := e.reply[0] == int64(1)
	switch {
	case !slices.Contains(c.Keys, line.keys[0]), e.reply[0] == "error", strings.HasPrefix(name, "fair"):
		return false
	case name == "read_acquire", name == "semaphore_acquire" && done && e.reply[1] == int64(0):
		return false
	case verb == "acquire":
		return done || e.reply[0] == int64(0) && !slices.ContainsFunc(line.fields, func(f string) bool { return strings.TrimSuffix(f, record.WriteSuffix) == fmt.Sprint(c.Args[0]) })
	case verb == "release":
		left := map[string]int{"lock_release": 4, "semaphore_release": 4, "read_release": 5, "write_release": 5}[name]
		return (len(c.Args) <= left || fmt.Sprint(c.Args[left]) == "0") && (done || name != "read_release")
	}
	return verb == "force" && done
}

// waitNumber returns the number of the wait that a field belongs to.
func waitNumber(field string) int {
	n, _ := strconv.Atoi(strings.Split(field, ":")[2])
	return n
}

func isWriter(field string) bool { return strings.HasSuffix(field, record.WriteSuffix) }
