package relock

// Fuzzing of input from outside: answers of Redis, and names and durations of users. The seeds run with the other tests.
// To search for more:
//
//	go test -run '^$' -fuzz '^FuzzNames$' -fuzztime 1m .
//
// Rules: a target asserts rules for every input, and does not repeat the code. A target derives operations and values
// from bytes, so that the fuzzer can produce any of them.
//
// Tests of functions that nothing outside this package reaches follow.

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestQuorumErrorNamesEachNode(t *testing.T) {
	err := error(&QuorumError{Asked: 3, Granted: 1, Needed: 2, Answers: []error{nil, io.EOF, errTaken}})
	err = failed("lock", "x", err)
	var quorum *QuorumError
	require.ErrorAs(t, err, &quorum)
	assert.Len(t, quorum.Unwrap(), 2)
	assert.ErrorIs(t, err, io.EOF)
	assert.EqualError(
		t,
		err,
		`relock: lock "x": granted by 1 of 3 servers, 2 needed; server 2: EOF; server 3: another owner holds it`,
	)
}

// The outcome of a call whose context a Shutdown has canceled matches ErrClosed, and not context.Canceled, if the
// function has returned the error of its context. A loss is told as a loss, also one that matches ErrClosed. The outcome
// of a call that has lost its lock does not match context.Canceled, and tells of the loss once. It keeps all that the
// function has returned, and everything that the release tells of other locks.
func TestOutcomes(t *testing.T) {
	closed := engine.LossError(ErrClosed)
	unlockedClosed := failed("unlock", "x", closed)
	lost := engine.LossError(errors.New("gone"))
	unlocked := failed("unlock", "x", lost)
	ended := errors.New("ended by the caller")
	for name, test := range map[string]struct {
		err, cause, release error
		matches, not        []error
		text                string // "": no error
		several             bool
	}{
		"shutdown, the work is done": {nil, ErrClosed, nil, nil, nil, "", false},
		"shutdown, canceled":         {context.Canceled, ErrClosed, nil, []error{ErrClosed}, []error{context.Canceled}, ErrClosed.Error(), false},
		"shutdown, returns why":      {ErrClosed, ErrClosed, nil, []error{ErrClosed}, nil, ErrClosed.Error(), false},
		"shutdown, wraps it": {errors.Join(context.Canceled, io.EOF), ErrClosed, nil,
			[]error{ErrClosed, io.EOF}, []error{context.Canceled}, "context canceled\nEOF\n" + ErrClosed.Error(), false},
		"shutdown, its own error": {io.EOF, ErrClosed, nil, []error{io.EOF}, []error{ErrClosed}, "EOF", false},
		"shutdown, the deadline of the caller": {context.DeadlineExceeded, ErrClosed, nil,
			[]error{context.DeadlineExceeded}, []error{ErrClosed}, context.DeadlineExceeded.Error(), false},
		"shutdown, not confirmed": {context.Canceled, ErrClosed, io.ErrNoProgress,
			[]error{ErrClosed, io.ErrNoProgress}, []error{context.Canceled},
			ErrClosed.Error() + "\n" + io.ErrNoProgress.Error(), false},
		"shutdown, lost after that": {context.Canceled, ErrClosed, unlockedClosed,
			[]error{ErrClosed, ErrLockLost}, []error{context.Canceled}, ErrClosed.Error() + "\n" + unlockedClosed.Error(), false},
		"shutdown, another lock was lost": {context.Canceled, closed, nil, []error{context.Canceled}, []error{ErrClosed, ErrLockLost},
			"context canceled", false},
		"nothing":                {nil, nil, nil, nil, nil, "", false},
		"canceled by the caller": {context.Canceled, ended, nil, []error{context.Canceled}, nil, "context canceled", false},
		"lost after that": {context.Canceled, ended, unlocked, []error{context.Canceled, ErrLockLost}, nil,
			"context canceled\n" + unlocked.Error(), false},
		"lost":                  {context.Canceled, lost, unlocked, []error{ErrLockLost}, []error{context.Canceled}, unlocked.Error(), false},
		"lost, and returns why": {lost, lost, unlocked, []error{ErrLockLost}, nil, lost.Error(), false},
		"lost, of several":      {lost, lost, unlocked, []error{ErrLockLost}, nil, lost.Error() + "\n" + unlocked.Error(), true},
		"lost, and wraps it": {errors.Join(context.Canceled, io.EOF), lost, unlocked,
			[]error{ErrLockLost, io.EOF}, []error{context.Canceled}, "context canceled\nEOF\n" + unlocked.Error(), false},
		"another lock was lost": {context.Canceled, lost, nil, []error{context.Canceled}, []error{ErrLockLost}, "context canceled", false},
		"lost, and its own error": {io.EOF, lost, unlocked, []error{io.EOF, ErrLockLost}, nil,
			"EOF\n" + unlocked.Error(), false},
		"not confirmed": {io.EOF, nil, io.ErrNoProgress, []error{io.EOF, io.ErrNoProgress}, nil,
			"EOF\n" + io.ErrNoProgress.Error(), false},
	} {
		err := outcome(test.err, test.cause, test.release, test.several)
		for _, target := range test.matches {
			assert.ErrorIs(t, err, target, name)
		}
		for _, target := range test.not {
			assert.NotErrorIs(t, err, target, name)
		}
		if test.text == "" {
			assert.NoError(t, err, name)
		} else {
			assert.EqualError(t, err, test.text, name)
		}
	}
	quorum := &QuorumError{}
	assert.ErrorAs(t, outcome(errors.Join(context.Canceled, quorum), lost, unlocked, false), new(*QuorumError))
}

// A tape is the input of a fuzzer, read byte by byte. It is 0 behind its end.
type tape []byte

func (p *tape) next() byte {
	if len(*p) == 0 {
		return 0
	}
	b := (*p)[0]
	*p = (*p)[1:]
	return b
}

func (p *tape) pick(n int) int { return int(p.next()) % n }

func (p *tape) integer() int64 {
	var b [8]byte
	*p = (*p)[copy(b[:], *p):]
	return int64(binary.LittleEndian.Uint64(b[:]))
}

func (p *tape) text() string {
	n := min(p.pick(64), len(*p))
	s := string((*p)[:n])
	*p = (*p)[n:]
	return s
}

// value returns any value that go-redis makes of an answer.
func (p *tape) value(depth int) any {
	switch kind := p.pick(12); {
	case kind < 4:
		return int64(int8(p.next()))
	case kind == 4:
		return p.integer()
	case kind == 5:
		return strings.Repeat(p.text(), 1+p.pick(100))
	case kind == 6:
		return nil
	case kind == 7:
		return p.next() > 0
	case kind == 8:
		return math.Float64frombits(uint64(p.integer()))
	case kind == 9:
		return testredis.AnswerError(p.text())
	case kind == 10 && depth > 0:
		return map[any]any{p.text(): p.value(depth - 1)}
	case kind == 11 && depth > 0:
		list := make([]any, p.pick(8))
		for i := range list {
			list[i] = p.value(depth - 1)
		}
		return list
	}
	return big.NewInt(p.integer())
}

// A reply is three integers for each key; any other answer is an error that is not transient.
func FuzzReplies(f *testing.F) {
	f.Add([]byte{3, 0, 1, 0, 2, 0, 3})
	f.Add([]byte{1, 5, 40, 'x', '\n', 100})
	f.Add([]byte{200, 0, 1})
	f.Add([]byte{3, 0, 1, 0, 2, 6})
	f.Add([]byte{6, 11, 7, 11, 7, 9, 3, 'E', 'R', 'R', 10, 1, 'x', 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := tape(data)
		var answer any
		if n := int(p.next()); n < 250 {
			words := make([]string, n)
			for i := range words {
				words[i] = fmt.Sprint(p.value(3))
			}
			answer = strings.Join(words, " ")
		} else {
			answer = p.value(3)
		}
		var want []int64
		good := true
		switch answer := answer.(type) {
		default:
			good = false
		case int64:
			want = []int64{1, answer, 0}
		case string:
			for word := range strings.SplitSeq(answer, " ") {
				n, err := strconv.ParseInt(word, 10, 64)
				good, want = good && err == nil, append(want, n)
			}
			good = good && len(want)%3 == 0 || answer == ""
		}
		replies, err := send.ParseReplies(answer, nil)
		one, err1 := send.ParseReply(answer, nil)
		require.Equal(t, good, err == nil, "%.200v is read as %v, %v", answer, replies, err)
		require.Equal(t, good && len(want) == 3, err1 == nil, "%.200v is read as %v, %v", answer, one, err1)
		for _, err := range []error{err, err1} {
			testredis.CheckText(t, err)
			if err != nil {
				assert.ErrorIs(t, err, send.ErrReply)
				assert.False(t, transient(err), "%v", err)
			}
		}
		if err1 == nil {
			assert.Equal(t, send.Reply(want), one)
			assert.Equal(t, replies[0], one)
		}
	})
}

// records returns an answer to Inspect: mostly an answer of its script, about hashes, lists and
// zsets with any content; sometimes any value.
func (p *tape) records() any {
	if p.pick(8) == 7 {
		return p.value(3)
	}
	field := func() string {
		const client = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:"
		return []string{client + "7:1", client + "-7:2", client + "42", client + "42:write", client + "7:1:write", "mode",
			client + p.text(), p.text()}[p.pick(8)]
	}
	value := func() string {
		return []string{"1", "2", "read", "write", "0", "1795263771220007", p.text()}[p.pick(7)]
	}
	list := func(tuple func() []any) any {
		all := []any{}
		for range p.pick(4) {
			all = append(all, tuple()...)
		}
		return all
	}
	score := func() []any {
		return []any{field(), []string{"1795263771220", "1.7e12", "inf", "-inf", "nan", "0", p.text()}[p.pick(7)]}
	}
	waiting := func() []any {
		since := []string{"0", "1795263771000", p.text()}[p.pick(3)]
		return append(score(), score()[1], since, int64(p.pick(3)-1))
	}
	answer := []any{
		p.integer() % latestTime, p.integer(),
		list(func() []any { return []any{field(), value(), p.integer()} }),
		[]string{"", "1795263771220007", value()}[p.pick(3)],
		"", []any{},
	}
	for range 3 {
		answer = append(answer, int64(p.pick(4)), list(waiting), list(score))
	}
	if p.pick(4) == 3 { // a semaphore
		answer[4], answer[5] = []string{"0", "7", "-2", value()}[p.pick(4)], list(score)
	}
	if p.pick(8) == 7 {
		answer[p.pick(len(answer))] = p.value(3)
	}
	return answer
}

// For any answer of Redis, Inspect returns a consistent inspection, or an error with the reason.
func FuzzInspect(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{7, 10, 1, 'x', 8})
	// A writer that also reads, in mode write.
	f.Add(append(make([]byte, 17), 3, 5, 3, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0))
	// A time of the server that no calendar has.
	f.Add(append(make([]byte, 26), 7, 0, 4, 255, 255, 255, 255, 255, 255, 255, 127))
	// A waiter that waits since a time before the calendar.
	since := "-99999999999999"
	f.Add(slices.Concat(make([]byte, 19), []byte{1}, make([]byte, 10), []byte{byte(len(since))}, []byte(since), []byte{2}))
	// A detached hold, and a waiter with a field like that of one.
	detached := []byte{3, '0', ':', '1', 0, 6}
	f.Add(slices.Concat(make([]byte, 17), []byte{1}, detached))
	f.Add(slices.Concat(make([]byte, 19), []byte{1}, detached))
	// Permits of a semaphore that belong to one hold.
	f.Add(slices.Concat(make([]byte, 25), []byte{3, 0, 0, 0, 2}, []byte{0, 0, 2, 0, 1}, []byte{0, 0, 3, 0, 1}))
	// Holders, a queue and its scores, with fields of relock, of Redisson and of neither.
	f.Add(
		append(
			make([]byte, 17),
			1,
			6,
			4,
			'a',
			'\n',
			0x1b,
			'[',
			0,
			0,
			0,
			0,
			0,
			0,
			0,
			0,
			0,
			3,
			0,
			2,
			7,
			1,
			'x',
			2,
			0,
			0,
			2,
			2,
			2,
			2,
			1,
			4,
		),
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		p := tape(data)
		answer := p.records()
		i, err := readInspection("x", answer)
		testredis.CheckText(t, err)
		if err != nil {
			assert.True(t, errors.Is(err, ErrNotALock) || errors.Is(err, send.ErrReply), "%v", err)
			assert.False(t, transient(err), "%v", err)
			return
		}
		parts, r := answer.([]any), new(reader)
		assert.Equal(t, parts[4] != "", i.Type == TypeSemaphore)
		fields := 0
		for e := range r.tuples(parts[2], 3) {
			if r.text(e[0]) != "mode" {
				fields++
			}
		}
		if i.Type == TypeSemaphore {
			fields = 0
			for e := range r.tuples(parts[5], 2) {
				if r.score(e[1]) > i.At.UnixMilli() {
					fields++
				}
			}
		}
		shown := len(i.Holders)
		if i.Type == TypeSemaphore { // a hold may have several permits
			shown = 0
			for _, h := range i.Holders {
				shown += h.Permits
			}
		}
		assert.Equal(t, fields, shown, "%+v", i)
		assert.True(t, i.Mode == "" || i.Type == TypeReadWrite, "%+v", i)
		if i.Type == TypeNone {
			assert.Empty(t, i.Holders)
			assert.Empty(t, i.Waiters)
		}
		checkContender := func(c Contender) {
			who, number, _ := strings.Cut(c.Owner, " ")
			_, err := strconv.ParseInt(number, 10, 64)
			known := (c.Owner == "detached" || err == nil && (who == "goroutine" || who == "owner" || who == "thread")) &&
				strings.HasPrefix(c.Field, c.Client+":")
			assert.True(t, c.Client == "" || known, "%+v", c)
			unknown := c.Owner == c.Field || i.Type == TypeSemaphore && c.Owner == "permit "+c.Field
			assert.True(t, c.Client != "" || unknown, "%+v", c)
		}
		for _, h := range i.Holders {
			checkContender(h.Contender)
			assert.Positive(t, h.HoldCount, "%+v of %+v", h, i)
			assert.True(t, !h.Write || i.Type == TypeReadWrite, "%+v of %+v", h, i)
		}
		for _, w := range i.Waiters {
			checkContender(w.Contender)
			assert.Contains(t, []Reachability{ReachableYes, ReachableNo, ReachableUnknown}, w.Reachable, "%+v of %+v", w, i)
			assert.False(t, w.usesRelock() && strings.Count(w.Field, ":") > 1, "the number of %+v is shown", w)
		}
		_, err = json.Marshal(i)
		assert.NoError(t, err, "%+v", i)
	})
}

// hashTag returns the part of a key that Redis Cluster hashes, according to its specification.
func hashTag(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	shut := strings.IndexByte(key[open+1:], '}')
	if shut <= 0 {
		return key
	}
	return key[open+1 : open+1+shut]
}

// dataKeys returns all keys that the locks of a name can have, each with its lock.
func dataKeys(c *Client, name string) map[string]*handle {
	rw := c.NewRWLock(name, Fenced())
	keys := map[string]*handle{record.SuffixName(name, "") + "field:rwlock_timeout:1": &rw.read.handle}
	semaphore := c.NewSemaphore(name, 1)
	for _, h := range []*handle{&rw.write.handle, &c.NewFairLock(name, Fenced()).handle, &c.NewLock(name, Fenced()).handle, &semaphore.handle} {
		for _, key := range h.lock.(keyed).Keys() {
			keys[key] = h
		}
	}
	keys[name] = &rw.write.handle
	return keys
}

// The keys of a lock differ, are in the slot of its name, and are no keys of a lock with another name. A long name
// is shortened in texts.
func FuzzNames(f *testing.F) {
	for _, pair := range [][2]string{
		{"x", "y"}, {"x", "x}"}, {"x", "{x}"}, {"{x}", "a{x}"}, {"x}", "x{"}, {"{}", "{}x"}, {"", "{"}, {"a{b}c", "a{b}{c}"},
		{"x:{y}", "y"}, {"redisson_lock_token:{x}", "x"}, {"{{x}}", "{x}"}, {"\x00\xff", "é"}, {"a,b", "a"},
		{strings.Repeat(`\`, 65), strings.Repeat(`\`, 64)},
		{strings.Repeat("n", 1<<20), strings.Repeat("n", 1<<20+1)},
	} {
		f.Add(pair[0], pair[1])
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	f.Cleanup(func() { _ = cluster.Close() })
	c, err := New(cluster)
	require.NoError(f, err)
	f.Cleanup(func() { _ = c.Close() })
	f.Fuzz(func(t *testing.T, one, two string) {
		keys := dataKeys(c, one)
		assert.Len(t, keys, 12, "two keys of %q are the same", one)
		for key, lock := range keys {
			testredis.CheckText(t, lock.bad)
			if lock.bad != nil {
				assert.ErrorIs(t, lock.bad, ErrInvalid)
				continue
			}
			assert.NotEmpty(t, one, "no name is refused")
			assert.LessOrEqual(t, len(one), record.LongestName, "a long name is refused")
			assert.Equal(t, hashTag(one), hashTag(key), "%q and %q are in different slots", key, one)
		}
		for _, name := range []string{one, two} {
			s := shortName(name)
			testredis.CheckText(t, errors.New(s))
			long := len(name) > 64
			assert.Equal(t, long, strings.HasSuffix(s, fmt.Sprintf("\"… (%d bytes)", len(name))), "not short: %s", s)
		}
		assert.True(t, len(one) > 64 || one == two || shortName(one) != shortName(two), "%q and %q look the same", one, two)

		// No lock has a key of a lock with another name. The exceptions are braces, which have no meaning for Redisson,
		// and names like the keys of Redisson.
		if one == two || one == "{"+two+"}" || two == "{"+one+"}" {
			return
		}
		for key := range dataKeys(c, two) {
			ours := strings.HasPrefix(one, "redisson_lock_") || strings.HasPrefix(one, "relock_") ||
				strings.HasPrefix(two, "redisson_lock_") || strings.HasPrefix(two, "relock_") ||
				strings.Contains(one+two, ":field:rwlock_timeout:1")
			assert.True(t, keys[key] == nil || ours, "%q and %q share the key %q", one, two, key)
		}
	})
}

// Conversions of durations never overflow, validity is shorter than its lease, and a request is rejected or makes
// sense.
func FuzzDurations(f *testing.F) {
	for _, d := range []int64{0, 1, 999_999, 1_000_000, 1_000_001, -1, math.MaxInt64, math.MinInt64, 1 << 62, -1 << 62,
		math.MaxInt64 / 1_000_000} {
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		ms := send.Milliseconds(d)
		exact := new(big.Int).Sub(new(big.Int).Mul(big.NewInt(ms), big.NewInt(1_000_000)), big.NewInt(n)) // the rounding
		if n > 0 {
			assert.GreaterOrEqual(t, ms, int64(1), "%d ns", n)
			assert.Negative(t, exact.Cmp(big.NewInt(1_000_000)), "%d ns are %d ms", n, ms)
			assert.True(t, exact.Sign() >= 0 || n/1_000_000 >= math.MaxInt64/1_000_000, "%d ns are %d ms", n, ms)
		}
		back := send.FromMilliseconds(n)
		want := new(big.Int).Mul(big.NewInt(n), big.NewInt(1_000_000))
		switch {
		case want.IsInt64():
			assert.Equal(t, want.Int64(), int64(back), "%d ms", n)
		case n > 0:
			assert.EqualValues(t, math.MaxInt64, back, "%d ms", n)
		default:
			assert.Negative(t, back, "%d ms", n)
		}
		if d > 0 {
			got := lease.Validity(d)
			assert.Less(t, got, d, "trust of a lease")
			assert.LessOrEqual(t, got, 100*365*24*time.Hour, "trust of a lease of %v", d)
		}
		err := (&handle{bad: io.EOF}).LockLease(context.Background(), d)
		testredis.CheckText(t, err)
		assert.Equal(t, d >= time.Millisecond, errors.Is(err, io.EOF), "LockLease(%v): %v", d, err)
		assert.Equal(t, d < time.Millisecond, errors.Is(err, ErrInvalid), "LockLease(%v): %v", d, err)
		for _, r := range []struct{ wait, lease time.Duration }{{d, 0}, {0, d}, {d, d}} {
			_, err := tryRequest(r.wait, r.lease)
			bad := r.wait < 0 || r.lease != 0 && r.lease < time.Millisecond
			assert.Equal(t, bad, err != nil, "TryLock(%v, %v): %v", r.wait, r.lease, err)
			assert.Equal(t, bad, errors.Is(err, ErrInvalid), "TryLock(%v, %v): %v", r.wait, r.lease, err)
		}
	})
}

// On a Cluster all keys of a lock must be in one slot.
func TestClusterKeysOfALockShareASlot(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	c, err := New(rdb)
	require.NoError(t, err)
	defer c.Close()
	for name, good := range map[string]bool{
		"x": true, "{x}": true, "a{x}b": true, "a:b": true, "x}": false, "x{": false, "{}x": false, "}x": false,
		"{x}{y}": true,
	} {
		bad := c.NewLock(name, Fenced()).bad
		assert.Equal(t, good, bad == nil, "%s fenced: %v", name, bad)
		bad = c.NewLock(name).bad // of one key, and a channel
		assert.Equal(t, good, bad == nil, "%s: %v", name, bad)
	}
}

func TestParseRecordsRefusesBadReplies(t *testing.T) {
	list := func(all ...any) []any { return all }
	none := []any{int64(0), list(), list()}
	queue := list(
		int64(3),
		list("f", "", "0", "0", int64(-1), "g", "", "9e15", "99999999999999999", int64(2)),
		list("f", "1.5e3", "g", "-inf"),
	)
	good := slices.Concat(list(int64(1), int64(2), list("5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:7:1", "1", int64(2)), "", "", list("f", "1.5e3")), queue, none, none)
	i, err := readInspection("x", good)
	require.NoError(t, err)
	assert.Len(t, i.Holders, 1)
	require.Len(t, i.Waiters, 2)
	f, g := i.Waiters[0], i.Waiters[1]
	assert.EqualValues(t, 1500, f.Deadline.UnixMilli())
	assert.True(t, f.AliveUntil.IsZero())
	assert.True(t, f.Since.IsZero())
	assert.Equal(t, ReachableUnknown, f.Reachable)
	assert.EqualValues(t, 1, g.Deadline.UnixMilli())
	assert.Equal(t, 9999, g.AliveUntil.UTC().Year())
	assert.Equal(t, 9999, g.Since.UTC().Year())
	assert.Equal(t, ReachableYes, g.Reachable)
	for _, bad := range []any{nil, int64(1), "", list(), good[:14]} {
		_, err := readInspection("x", bad)
		assert.ErrorIs(t, err, send.ErrReply, "%v", bad)
	}
	for i := range 9 { // those of a fair lock
		for _, part := range []any{nil, true, list("f"), list("f", "many"), list("f", "nan"), list(int64(1), "1", int64(2)),
			list(list())} {
			bad := slices.Clone(good)
			bad[i] = part
			if i == 5 {
				bad[4] = "1"
			}
			_, err := readInspection("x", bad)
			assert.ErrorIs(t, err, send.ErrReply, "part %d: %v", i, part)
		}
	}
}

func TestContenderReadsAnyField(t *testing.T) {
	const client = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10"
	for field, want := range map[string]Contender{
		client + ":7:1":    {Client: client, Owner: "goroutine 7"},
		client + ":-7:12":  {Client: client, Owner: "owner 7"},
		client + ":-7:1+2": {Client: client, Owner: "owner 7"},
		client + ":42":     {Client: client, Owner: "thread 42"},
		client + ":42:tx9": {Client: client, Owner: "thread 42"},
		client:             {Owner: client},
		client + ":":       {Owner: client + ":"},
		client + ":x":      {Owner: client + ":x"},
		client + "7:7":     {Owner: client + "7:7"},
		"{" + client + "}": {Owner: "{" + client + "}"},
		"somebody":         {Owner: "somebody"},
		"":                 {},
	} {
		want.Field = field
		assert.Equal(t, want, contender(field), field)
	}
}

// A server is known by its address, unless a Sentinel or a Dialer of the user decides where the connections lead.
func TestAddressesTellServersApart(t *testing.T) {
	t.Parallel()
	dialer := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("not dialed") }
	for name, c := range map[string]struct {
		opts redis.UniversalOptions
		told bool
	}{
		"a server":            {redis.UniversalOptions{Addrs: []string{"a:6379"}}, true},
		"the default address": {redis.UniversalOptions{}, true},
		"a Dialer":            {redis.UniversalOptions{Dialer: dialer}, false},
		"a Cluster":           {redis.UniversalOptions{IsClusterMode: true, Addrs: []string{"a:6379"}}, true},
		"a Cluster, a Dialer": {redis.UniversalOptions{IsClusterMode: true, Addrs: []string{"a:6379"}, Dialer: dialer}, false},
		"a Sentinel":          {redis.UniversalOptions{MasterName: "m", Addrs: []string{"a:26379"}}, false},
		"a Sentinel, routed":  {redis.UniversalOptions{MasterName: "m", Addrs: []string{"a:26379"}, RouteByLatency: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var locks []Locker
			for range 2 {
				rdb := redis.NewUniversalClient(&c.opts)
				for _, rdb := range []redis.UniversalClient{rdb, struct{ redis.UniversalClient }{rdb}} {
					client, err := New(rdb)
					require.NoError(t, err)
					t.Cleanup(func() { assert.NoError(t, client.Close()) })
					locks = append(locks, client.NewLock(fmt.Sprint("l", len(locks))))
				}
				t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
			}
			members, err := membersOf(new(Client), locks)
			require.NoError(t, err)
			for i := range 2 { // as they are, and embedded
				assert.Equal(t, c.told, members[i].server != "")
				assert.Equal(t, members[i].server, members[2+i].server)
			}
		})
	}
}

// A losing is an Observer that has the lock lost as soon as it is acquired, some times.
type losing struct {
	NopObserver
	client *Client
	times  int
}

func (l *losing) Acquired(ctx context.Context, _ AcquiredEvent) {
	if l.times--; l.times >= 0 {
		time.Sleep(time.Millisecond)
		_, _ = l.client.NewLock("l").ForceUnlock(ctx)
	}
}

// A lock that was lost before the function was called has protected nothing, so that it is acquired again: the loss is
// not returned.
func TestDoAcquiresAgainWhatWasLostBeforeItsFunction(t *testing.T) {
	o := &losing{times: 2}
	c, err := New(testredis.Client(t, testredis.Mini(t).Addr()), WithObserver(o))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	o.client = c
	ctx := context.Background()
	l := c.NewLock("l")
	called := 0
	fn := func(guarded context.Context) error {
		called++
		return guarded.Err()
	}
	require.NoError(t, l.Do(ctx, fn))
	assert.Equal(t, 1, called)

	o.times = engine.MostAsked
	ran, err := l.TryDo(ctx, 15*time.Second, fn)
	assert.False(t, ran)
	require.ErrorIs(t, err, ErrLockLost)
	assert.Equal(t, 1, called)
	locked, err := l.IsLocked(ctx)
	require.NoError(t, err)
	assert.False(t, locked)
}
