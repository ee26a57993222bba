package main

// What a list has, and how it looks.

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rivo/uniseg"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// startWaiting has another process wait for the lock called name, and returns a function that ends that.
func startWaiting(t *testing.T, s *testredis.Server, name string) (giveUp func()) {
	t.Helper()
	c := newClient(t, s.Client())
	i, err := c.Inspect(context.Background(), name)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- c.NewLock(name).Lock(ctx) }()
	testredis.Await(t, "one more waits", soon, func() bool { return waiters(t, c, name) == i.Waiting+1 })
	return func() {
		cancel()
		assert.ErrorIs(t, <-got, context.Canceled)
	}
}

func TestListHasThoseWithWaitersFirst(t *testing.T) {
	s := testredis.Start(t)
	ctx, c := context.Background(), newClient(t, s.Client())
	for _, name := range []string{"a", "b", "c", "d"} {
		must(t, c.NewLock(name).Lock(ctx))
	}
	must(t, c.NewLock("e").LockLease(ctx, 5*time.Second))
	defer startWaiting(t, s, "d")()
	time.Sleep(1100 * time.Millisecond) // the time of a wait is stored in seconds
	defer startWaiting(t, s, "b")()
	defer startWaiting(t, s, "b")()
	names := func(args ...string) string {
		t.Helper()
		out, errs, status := ctl(t, s.Addr(), "", append([]string{"list", "--json"}, args...)...)
		assert.Zero(t, status, errs)
		var locks []jsonLock
		must(t, json.Unmarshal([]byte(out), &locks))
		all := ""
		for _, l := range locks {
			all += l.Name
		}
		return all
	}
	assert.Equal(t, "dbace", names())
	assert.Equal(t, "dbace", names("--sort", "waiting"))
	assert.Equal(t, "abcde", names("--sort=name"))
	assert.Equal(t, "e", names("--sort", "lease")[:1])
	assert.Equal(t, "db", names("--waiting"))
	assert.Equal(t, "bd", names("--waiting", "--sort=name"))
	_, errs, status := ctl(t, s.Addr(), "", "list", "--sort", "age")
	assert.Equal(t, statusUsage, status)
	assert.Contains(t, errs, "must be waiting, name or lease")
}

// Of two locks whose waits began in the same second, that with more waiters is first, and then the name decides.
func TestOrderOfAListIsDefined(t *testing.T) {
	at := time.Now()
	lock := func(name string, gone int, waits ...time.Duration) relock.Inspection {
		i := relock.Inspection{Name: name, At: at, Waiting: len(waits) + gone, Gone: gone}
		for _, w := range waits {
			i.Waiters = append(i.Waiters, relock.Waiter{Since: at.Add(-w), Reachable: relock.ReachableYes})
		}
		for range gone {
			i.Waiters = append(i.Waiters, relock.Waiter{Since: at.Add(-time.Hour), Reachable: relock.ReachableNo})
		}
		return i
	}
	unknown := lock("u", 0)
	unknown.QueueUnknown = true
	locks := []relock.Inspection{
		lock("free", 0), lock("gone", 3), unknown, lock("z", 0, 5*time.Second), lock("y", 0, 5100*time.Millisecond),
		lock("two", 0, 5*time.Second, time.Second), lock("long", 1, time.Minute),
	}
	names := func(c choice) (all string) {
		for _, i := range c.apply(append([]relock.Inspection(nil), locks...)) {
			all += " " + i.Name
		}
		return all
	}
	assert.Equal(t, " long two y z free gone u", names(choice{sort: byWaiting}))
	assert.Equal(t, " long two y z u", names(choice{sort: byWaiting, waiting: true}))
	assert.Equal(t, "7 held, 4 with waiters, 1 whose waiters are unknown", total(locks))
}

func TestEmptyListIsASentence(t *testing.T) {
	s := testredis.Start(t)
	at := " at " + s.Addr() + ", db "
	for want, args := range map[string][]string{
		"No lock is held" + at + "0.\n":                                             {"list"},
		"No lock that matches a* is held" + at + "0.\n":                             {"list", "a*"},
		"No lock has waiters" + at + "0.\n":                                         {"list", "--waiting"},
		"No lock that matches a* has waiters" + at + "0.\n":                         {"list", "--waiting", "a*"},
		"No lock is held" + at + "3.\n":                                             {"--addr", s.Addr() + "/3", "list"},
		"No lock that matches lock:a is held" + at + "0. Did you mean 'lock:a*'?\n": {"list", "lock:a"},
	} {
		out, errs, status := ctl(t, s.Addr(), "", args...)
		assert.Zero(t, status)
		assert.Empty(t, out)
		assert.Equal(t, want, errs)
	}
}

// A text is cut between characters as people see them, and is no wider than it may be.
func TestTextsAreCutByTheirWidth(t *testing.T) {
	for _, c := range []struct{ text, short, middle string }{
		{"orders:42", "orders:…", "orde…:42"},
		{"orders:4", "orders:4", "orders:4"},
		{"日本日本日本", "日本日…", "日本…本"},
		{"e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301",
			"e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301…", "e\u0301e\u0301e\u0301e\u0301…e\u0301e\u0301e\u0301"},
		{"👩‍👩‍👧ab👩‍👩‍👧cdef", "👩‍👩‍👧ab👩‍👩‍👧c…", "👩‍👩‍👧ab…def"},
	} {
		assert.Equal(t, c.short, short(c.text, 8))
		assert.Equal(t, c.middle, middle(c.text, 8))
		assert.LessOrEqual(t, uniseg.StringWidth(middle(c.text, 8)), 8)
	}
	long := "lock:orders:" + strings.Repeat("x", 60) + ":42"
	assert.True(t, strings.HasPrefix(middle(long, 48), "lock:orders:"))
	assert.True(t, strings.HasSuffix(middle(long, 48), ":42"))
}

// A word of Hebrew or Arabic is not cut, as long as something is left.
func TestWordsFromRightToLeftAreNotCut(t *testing.T) {
	for text, want := range map[string]string{
		"lock:שלום:orders:42":      "lock:…rs:42",
		"lock:orders:שלום:42":      "lock:ord…:42",
		"lock:orders:x:مرحبا":      "lock:o…مرحبا",
		"lock:orders:x:مرحبامرحبا": "lock:o…مرحبا", // of the end nothing would be left
		"שלוםשלוםשלוםשלום":         "שלוםשל…םשלום",
	} {
		assert.Equal(t, want, cut(text, 12, 5), text)
	}
}

// A column that has no text is not shown, and neither is its head.
func TestColumnsWithoutTextAreNotShown(t *testing.T) {
	table := func(rows ...[]any) string {
		return new(program).tabulate(func(line func(cells ...any)) {
			for _, row := range rows {
				line(row...)
			}
		})
	}
	first, second := []any{"a", none, 1, none}, []any{"b", none, 2, "x"}
	assert.Equal(t, "A  C\na  1\n", table(heads("A", "B", "C", "D"), first))
	assert.Equal(t, "A  C  D\na  1  -\nb  2  x\n", table(heads("A", "B", "C", "D"), first, second))
	assert.Equal(t, "name  -\n", table([]any{"name", none}), "without heads")
}

// A narrow table loses its expendable columns before its names are shorter than twice their least width, and as few of
// them as possible.
func TestTablesAreFitted(t *testing.T) {
	fitted := func(columns int) (string, []string) {
		var g grid
		g.add(heads("NAME", "ONE", "TWO", "END")...)
		g.add(elastic{strings.Repeat("n", 20), 5}, "1234", "1234", "!")
		g.add(elastic{"日本日本日本", 5}, "1", "1", "!")
		missing := g.fit(columns, "TWO", "ONE", "NO")
		return g.text(new(program)), missing
	}
	for columns, missing := range map[int][]string{
		100: nil, 37: nil, 36: nil, 27: nil, 26: {"TWO"}, 21: {"TWO"}, 20: {"TWO", "ONE"}, 10: {"TWO", "ONE"},
		9: {"TWO", "ONE"}, 1: {"TWO", "ONE"},
	} {
		text, got := fitted(columns)
		assert.Equal(t, missing, got, columns)
		for line := range strings.Lines(text) {
			assert.LessOrEqual(t, uniseg.StringWidth(strings.TrimSpace(line)), max(columns, 10), "%d: %s", columns, line)
			assert.Contains(t, "!D", line[len(line)-2:len(line)-1], "the last column is there")
		}
	}
	text, _ := fitted(37)
	assert.Contains(t, text, strings.Repeat("n", 20))

	// The widest column is shortened first, and none below its least width.
	for columns, want := range map[int]string{
		18: "abcdefghij  123456\n", 14: "abc…ij  123456\n", 12: "ab…ij  12…56\n", 9: "a…j  12…6\n", 5: "a…j  12…6\n",
	} {
		var g grid
		g.add(elastic{"abcdefghij", 3}, elastic{"123456", 4})
		g.fit(columns)
		assert.Equal(t, want, g.text(new(program)), columns)
	}
}

// A list has how long the first of the waiters has waited, if there is one, as show has it for each.
func TestHowLongOthersHaveWaitedIsShown(t *testing.T) {
	s := testredis.Start(t)
	ctx, c := context.Background(), newClient(t, s.Client())
	for _, name := range []string{"a", "b"} {
		must(t, c.NewLock(name).Lock(ctx))
	}
	out, _, _ := ctl(t, s.Addr(), "", "list")
	assert.NotContains(t, out, "HAS WAITED")
	defer startWaiting(t, s, "b")()
	for _, args := range [][]string{{"list"}, {"list", "--wide"}, {"watch"}} {
		if args[0] == "watch" {
			out = watchedOnce(t, s.Addr())
		} else {
			out, _, _ = ctl(t, s.Addr(), "", args...)
		}
		assert.Regexp(t, `NAME .* HAS WAITED  WAITING\n`, out)
		assert.Regexp(t, `(?m)^b .* \d+s +1$`, out)
		assert.Regexp(t, `(?m)^a .* - +0$`, out)
	}
	out, _, _ = ctl(t, s.Addr(), "", "show", "b")
	assert.Regexp(t, `WAITER .* HAS WAITED  REACHABLE\n`, out)
	for _, head := range []string{" AS ", "ALIVE FOR", "JAVA DEADLINE"} {
		assert.NotContains(t, out, head, "nothing is below it")
	}

	at := time.Now()
	i := relock.Inspection{At: at, Waiting: 2, Gone: 1, Waiters: []relock.Waiter{
		{Since: at.Add(-time.Hour), Reachable: relock.ReachableNo}, {Reachable: relock.ReachableUnknown},
	}}
	assert.Equal(t, "unknown", haveWaited(i))
	i.Waiters[1].Since = at.Add(-90500 * time.Millisecond)
	assert.Equal(t, "1m30s", haveWaited(i))
	i.Waiters[1].Since = at.Add(time.Minute)
	assert.Equal(t, "0s", haveWaited(i), "the clock of Redis was set back")
	i.Waiting, i.Waiters = 1, i.Waiters[:1]
	assert.Equal(t, none, haveWaited(i))
}

// watchedOnce returns the first list of watch.
func watchedOnce(t *testing.T, addr string) string {
	t.Helper()
	cmd := command(addr, "watch")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	text, lines := "", bufio.NewReader(out)
	for !strings.HasSuffix(text, "\n\n") {
		line, err := lines.ReadString('\n')
		must(t, err)
		text += line
	}
	return text
}

// Candidates of an election wait by design. Redis does not tell an election from another lock with a fencing token, and
// a lock without waiters not from a fair one.
func TestTypeSaysWhatRedisKnows(t *testing.T) {
	s := testredis.Start(t)
	ctx, c := context.Background(), newClient(t, s.Client())
	must(t, c.NewLock("fenced", relock.Fenced()).Lock(ctx))
	must(t, c.NewLock("free").Lock(ctx))
	must(t, c.NewLock("waited for").Lock(ctx))
	defer startWaiting(t, s, "waited for")()
	must(t, c.NewFairLock("fair", relock.Fenced()).Lock(ctx))
	defer startWaitingFairly(t, s, "fair")()
	for name, want := range map[string]string{
		"fenced": "fenced lock or election", "free": "lock, or a fair lock without waiters, which looks the same",
		"waited for": "lock", "fair": "fair",
	} {
		out, _, _ := ctl(t, s.Addr(), "", "show", name)
		assert.Regexp(t, `(?m)^type +`+want+`$`, out, name)
		listed, _, _ := strings.Cut(want, ",")
		out, _, _ = ctl(t, s.Addr(), "", "list", name)
		assert.Regexp(t, `(?m)^`+name+`  +`+listed+`  +`, out)
	}
	out, _, _ := ctl(t, s.Addr(), "", "show", "--json", "fenced")
	assert.Contains(t, out, `"type":"lock"`)
}

// startWaitingFairly is startWaiting for a fair lock.
func startWaitingFairly(t *testing.T, s *testredis.Server, name string) (giveUp func()) {
	t.Helper()
	c := newClient(t, s.Client())
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- c.NewFairLock(name).Lock(ctx) }()
	awaitWaiter(t, s, name)
	return func() {
		cancel()
		assert.ErrorIs(t, <-got, context.Canceled)
	}
}

// All columns begin below each other, whatever is in front of them.
func TestColumnsAreAligned(t *testing.T) {
	for _, p := range []*program{{}, {colors: true}} {
		text := p.tabulate(func(line func(cells ...any)) {
			for _, name := range []string{"NAME", "日本", "e\u0301e\u0301", "👩‍👩‍👧", "", "한국어"} {
				line(cell{name, red}, "|", 1)
			}
		})
		for row := range strings.Lines(text) {
			row = strings.NewReplacer(red, "", reset, "").Replace(row)
			assert.Equal(t, 8, uniseg.StringWidth(row[:strings.Index(row, "|")]), row)
			assert.True(t, strings.HasSuffix(row, "|  1\n"), row)
		}
	}
}

// Who gives a pattern to a command that takes a name is told so. A name may look like a pattern.
func TestPatternIsNotAName(t *testing.T) {
	s := testredis.Start(t)
	for _, command := range []string{"unlock", "show"} {
		_, errs, status := ctl(t, s.Addr(), "", command, "lock:*")
		assert.Equal(t, statusFree, status)
		assert.Contains(t, errs, "lock:* is not held at "+s.Addr()+", db 0; "+command+" takes the name of one lock, and not a pattern: "+
			"relockctl list 'lock:*' lists")
	}
	must(t, newClient(t, s.Client()).NewLock("lock:*").Lock(context.Background()))
	out, errs, status := ctl(t, s.Addr(), "", "unlock", "--yes", "lock:*")
	assert.Zero(t, status, errs)
	assert.Equal(t, "lock:* was released.\n", out)
}

func TestNamesAreQuotedForTheShell(t *testing.T) {
	for _, name := range []string{
		"lock:orders:42", "a b", "it's", "$HOME", "*", "a\nb", "\x1b[31m'x'", `back\slash`, "日本", `"q"`, "-x", "a\xff",
	} {
		require.NotContains(t, argument(name), "\x1b")
		out, errs, status := ctl(t, testredis.Start(t).Addr(), "", "run", "j", "--", "bash", "-c",
			"printf %s "+strings.TrimPrefix(argument(name), "-- "))
		require.Zero(t, status, errs)
		assert.Equal(t, name, out)
	}
}
