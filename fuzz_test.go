//go:build go1.25

package relock

// Fuzzing of all input from outside: answers and messages of Redis, and names and durations of users. The seeds run
// with the other tests. To search for more:
//
//	go test -run '^$' -fuzz '^FuzzNames$' -fuzztime 1m .
//
// Rules: a target asserts rules for every input, and does not repeat the code. A target derives operations and values
// from bytes, so that the fuzzer can produce any of them.

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

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
		return answerError(p.text())
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

// checkText asserts that err fits into a line of a log. A MultiLock names itself and each of its locks that failed, and
// a name that cannot be printed takes four bytes for each of its own.
func checkText(t *testing.T, err error) {
	t.Helper()
	s := strings.ReplaceAll(fmt.Sprint(err), "\nrelock: ", " ") // the separator of errors.Join
	assert.LessOrEqual(t, len(s), 1100, "bytes of %.1200q", s)
	assert.False(t, strings.ContainsAny(s, "\r\n\x00"), "%.700q", s)
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
			list := make([]any, n)
			for i := range list {
				list[i] = p.value(3)
			}
			answer = list
		} else {
			answer = p.value(3)
		}
		list, good := answer.([]any)
		for _, n := range list {
			_, integer := n.(int64)
			good = good && integer
		}
		good = good && len(list)%3 == 0
		replies, err := send.ParseReplies(answer, nil)
		one, err1 := send.ParseReply(answer, nil)
		require.Equal(t, good, err == nil, "%.200v is read as %v, %v", answer, replies, err)
		require.Equal(t, good && len(list) == 3, err1 == nil, "%.200v is read as %v, %v", answer, one, err1)
		for _, err := range []error{err, err1} {
			checkText(t, err)
			if err != nil {
				assert.ErrorIs(t, err, errReply)
				assert.False(t, transient(err), "%v", err)
			}
		}
		if err1 == nil {
			assert.Equal(t, reply{list[0].(int64), list[1].(int64), list[2].(int64)}, one)
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
	answer := []any{
		p.integer() % latestTime, p.integer(),
		list(func() []any { return []any{field(), value(), p.integer()} }),
		int64(p.pick(2)),
		list(func() []any {
			return append(score(), score()[1], []string{"", "1795263771", p.text()}[p.pick(3)], int64(p.pick(3)-1))
		}),
		int64(p.pick(4)), int64(p.pick(2)),
		[]string{"", "1795263771220007", value()}[p.pick(3)],
		"", []any{},
	}
	if p.pick(4) == 3 { // a semaphore
		answer[8], answer[9] = []string{"0", "7", "-2", value()}[p.pick(4)], list(score)
	}
	if p.pick(8) == 7 {
		answer[p.pick(10)] = p.value(3)
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
		r, err := parseRecords(answer)
		checkText(t, err)
		if err != nil {
			assert.ErrorIs(t, err, errReply)
			assert.False(t, transient(err), "%v", err)
			return
		}
		fields := len(r.entries)
		if r.free != "" {
			fields = 0
			for _, ends := range r.permits {
				if ends > r.now {
					fields++
				}
			}
		}
		i, err := r.inspection()
		checkText(t, err)
		if err != nil {
			assert.True(t, errors.Is(err, ErrNotALock) || r.free != "" && errors.Is(err, errReply), "%v", err)
			return
		}
		assert.Equal(t, r.free != "", i.Type == TypeSemaphore)
		if i.Mode != "" {
			fields--
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
	for _, key := range rw.write.lock.(*writeLock).keys {
		keys[key] = &rw.write.handle
	}
	fair := c.NewFairLock(name, Fenced())
	for _, key := range fair.lock.(*fairLock).keys {
		keys[key] = &fair.handle
	}
	plain := c.NewLock(name, Fenced())
	for _, key := range plain.lock.(*plainLock).keys {
		keys[key] = &plain.handle
	}
	semaphore := c.NewSemaphore(name, 1)
	for _, key := range semaphore.record.keys[1:] {
		keys[key] = &semaphore.handle
	}
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
		assert.Len(t, keys, 9, "two keys of %q are the same", one)
		for key, lock := range keys {
			checkText(t, lock.bad)
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
			checkText(t, errors.New(s))
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
		ms := milliseconds(d)
		exact := new(big.Int).Sub(new(big.Int).Mul(big.NewInt(ms), big.NewInt(1_000_000)), big.NewInt(n)) // the rounding
		if n > 0 {
			assert.GreaterOrEqual(t, ms, int64(1), "%d ns", n)
			assert.Negative(t, exact.Cmp(big.NewInt(1_000_000)), "%d ns are %d ms", n, ms)
			assert.True(t, exact.Sign() >= 0 || n/1_000_000 >= math.MaxInt64/1_000_000, "%d ns are %d ms", n, ms)
		}
		back := fromMilliseconds(n)
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
		lease, err := leaseRequest(d)
		checkText(t, err)
		assert.Equal(t, err == nil, milliseconds(lease.Lease) > 0, "LockLease(%v): %v", d, err)
		assert.True(t, err == nil || errors.Is(err, ErrInvalid), "LockLease(%v): %v", d, err)
		for _, r := range []struct{ wait, lease time.Duration }{{d, 0}, {0, d}, {d, d}} {
			_, err := tryRequest(r.wait, r.lease)
			bad := r.wait < 0 || r.lease != 0 && r.lease < time.Millisecond
			assert.Equal(t, bad, err != nil, "TryLock(%v, %v): %v", r.wait, r.lease, err)
			assert.Equal(t, bad, errors.Is(err, ErrInvalid), "TryLock(%v, %v): %v", r.wait, r.lease, err)
		}
	})
}

// A Client with any options that it accepts can wait for a lock and acquire it.
func FuzzOptions(f *testing.F) {
	for _, d := range []int64{0, 1, 100_000_000, 1_000_000_000, -1, math.MaxInt64, math.MinInt64} {
		f.Add(d, d, d, d)
	}
	f.Add(int64(30*time.Second), int64(time.Minute), int64(1), int64(1))
	f.Add(int64(time.Minute), int64(time.Minute), int64(0), int64(1))
	f.Add(int64(time.Minute), int64(time.Minute), int64(1), int64(0))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(time.Second), int64(time.Second))
	f.Fuzz(func(t *testing.T, dog, fair, wake, node int64) {
		o, err := newOptions([]Option{
			WithWatchdogTimeout(time.Duration(dog)), WithFairWaitTimeout(time.Duration(fair)),
			WithPollInterval(
				time.Duration(wake),
			), WithRedLockNodeTimeout(time.Duration(node)), WithLogger(slog.New(slog.DiscardHandler)),
		})
		bad := dog < int64(100*time.Millisecond) || fair < int64(time.Second) || wake <= 0 || node <= 0
		checkText(t, err)
		require.Equal(t, bad, err != nil, "%v", err)
		require.Equal(t, bad, errors.Is(err, ErrInvalid), "%v", err)
		if bad {
			return
		}
		o.pollInterval = max(o.pollInterval, 100*time.Microsecond) // not a million attempts
		synctest.Test(t, func(t *testing.T) {
			r := fakeredis.New()
			config := fakeConfig(r, "client", o)
			config.Channel = "" // a subscription asks every second whether it is alive, and this test takes months
			e := engine.New(config, send.Config{Transport: r})
			b := &bubbleEngine{Engine: e, redis: r, t: t}
			b.lock(1)
			got := make(chan error, 1)
			go func() {
				_, err := b.lockWith(context.Background(), 2, engine.Request{Wait: forever, Lease: time.Duration(dog)})
				got <- err
			}()
			time.Sleep(10 * time.Millisecond)
			b.unlock(1)
			assert.NoError(t, <-got)
			time.Sleep(time.Duration(dog) / 1000)
			b.lockWith(context.Background(), 2, engine.Request{Wait: 0})
			assert.NoError(t, e.Close())
		})
	})
}

// A lock with any name, wait time and lease rejects them and sends nothing, or works and leaves nothing in Redis.
func FuzzLocker(f *testing.F) {
	kinds := append(slices.Clone(recordLocks), lockKind{name: "multi", one: func(c *Client, name string) Locker {
		return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"2"))
	}})
	for i := range kinds {
		kind := byte(i)
		f.Add(kind, "orders:42", int64(time.Second), int64(0))
		f.Add(kind, "{orders}:42", int64(0), int64(time.Minute))
		f.Add(kind, "", int64(0), int64(0))
		f.Add(kind, "a{}\x00\r\n*", int64(1), int64(time.Millisecond))
		f.Add(kind, "x", int64(-1), int64(math.MaxInt64))
		f.Add(kind, "x", int64(math.MaxInt64), int64(-1))
		f.Add(kind, strings.Repeat("long", 1000), int64(0), int64(math.MaxInt64))
	}
	f.Add(byte(0), strings.Repeat("n", record.LongestName+1), int64(0), int64(0))
	ctx := context.Background()
	f.Fuzz(func(t *testing.T, kind byte, name string, wait, lease int64) {
		// Each input has a server of its own: one that is skipped may leave what still runs or is still rolled back.
		m := testredis.Mini(t)
		rdb := testredis.Client(t, m.Addr())
		c, err := New(rdb, WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		k := kinds[int(kind)%len(kinds)]
		l := k.one(c, name)
		badName := name == "" || len(name) > record.LongestName || k.name == "multi" && len(name) >= record.LongestName
		badLease := lease != 0 && lease < int64(time.Millisecond)
		check := func(what string, ok bool, err error, bad bool) bool {
			t.Helper()
			checkText(t, err)
			if bad {
				require.ErrorIs(t, err, ErrInvalid, what)
				require.False(t, ok, what)
				left := slices.DeleteFunc(m.Keys(), func(key string) bool { return onlyTombstones(rdb, key) })
				require.Empty(t, left, "%s leaves keys", what)
				return false
			}
			require.NotErrorIs(t, err, ErrInvalid, what)
			if errors.Is(err, engine.ErrNoAnswer) {
				t.Skip("the machine stood still for longer than the wait")
			}
			if !errors.Is(err, ErrLockLost) { // a lease may expire at once
				require.NoError(t, err, what)
			}
			return ok
		}
		unlock := func() {
			t.Helper()
			err := l.Unlock(ctx)
			require.True(t, err == nil && !badName || errors.Is(err, ErrNotHeld), "Unlock: %v", err)
			checkText(t, err)
			testredis.Await(t, "nothing is left", soon, func() bool {
				left := m.Keys()
				if k.leaves != nil {
					left = slices.DeleteFunc(left, func(key string) bool { return key == name || key == k.holds(name) })
				}
				left = slices.DeleteFunc(left, func(key string) bool { return onlyTombstones(rdb, key) })
				return len(left) == 0 || k.name == "fenced" && len(left) == 1 && left[0] == record.TokenKey(name)
			})
			m.FlushAll()
		}
		ok, err := l.TryLock(ctx, time.Duration(wait), time.Duration(lease))
		if check("TryLock", ok, err, badName || badLease || wait < 0) {
			unlock()
		}
		err = l.LockLease(ctx, time.Duration(lease))
		if check("LockLease", err == nil, err, badName || badLease || lease == 0) {
			held, err := l.IsHeld(ctx)
			check("IsHeld", held, err, false)
			_, err = l.TTL(ctx)
			check("TTL", true, err, false)
			unlock()
		}
		if badName {
			for what, f := range map[string]func() error{
				"Lock":        func() error { return l.Lock(ctx) },
				"Unlock":      func() error { return l.Unlock(ctx) },
				"Guard":       func() error { return second(l.Guard(ctx)) },
				"Do":          func() error { return l.Do(ctx, func(context.Context) error { return nil }) },
				"IsLocked":    func() error { return second(l.IsLocked(ctx)) },
				"HoldCount":   func() error { return second(l.HoldCount(ctx)) },
				"TTL":         func() error { return second(l.TTL(ctx)) },
				"ForceUnlock": func() error { return second(l.ForceUnlock(ctx)) },
			} {
				check(what, false, f(), true)
			}
		}
	})
}
