package main

// What a list has, and how it looks.

import (
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
	for want, args := range map[string][]string{
		"No lock is held.\n":                     {"list"},
		"No lock that matches a* is held.\n":     {"list", "a*"},
		"No lock has waiters.\n":                 {"list", "--waiting"},
		"No lock that matches a* has waiters.\n": {"list", "--waiting", "a*"},
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
		assert.Contains(t, errs, "lock:* is not held; "+command+" takes the name of one lock, and not a pattern: "+
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
