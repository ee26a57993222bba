package main

// What a list has, and how it looks.

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// startWaiting has another process wait for the lock called name, and returns a function that ends that.
func startWaiting(t *testing.T, s *testredis.Server, name string) (giveUp func()) {
	t.Helper()
	c := newClient(t, s.Client())
	return startWaitingFor(t, c, c.NewLock(name))
}

// startWaitingFor is startWaiting for a lock of any type, which the waiter may get in the end.
func startWaitingFor(t *testing.T, c *relock.Client, l relock.Locker) (giveUp func()) {
	t.Helper()
	before := waiters(t, c, l.Name())
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	testredis.Await(t, "one more waits", soon, func() bool { return waiters(t, c, l.Name()) == before+1 })
	return func() {
		cancel()
		<-got
	}
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
	locks := []relock.Inspection{
		lock("free", 0), lock("gone", 3), lock("z", 0, 5*time.Second), lock("y", 0, 5*time.Second),
		lock("two", 0, 5*time.Second, time.Second), lock("long", 1, time.Minute),
	}
	ordered(locks)
	names := ""
	for _, i := range locks {
		names += " " + i.Name
	}
	assert.Equal(t, " long two y z free gone", names)
}

func TestEmptyListIsASentence(t *testing.T) {
	s := testredis.Start(t)
	at := " at " + s.Addr() + ", db "
	for want, args := range map[string][]string{
		"No lock that matches * is held" + at + "0.\n":                              {"list"},
		"No lock that matches a* is held" + at + "0.\n":                             {"list", "a*"},
		"No lock that matches * has waiters" + at + "0.\n":                          {"list", "--waiting"},
		"No lock that matches a* has waiters" + at + "0.\n":                         {"list", "--waiting", "a*"},
		"No lock that matches * is held" + at + "3.\n":                              {"--addr", s.Addr() + "/3", "list"},
		"No lock that matches lock:a is held" + at + "0. Did you mean 'lock:a*'?\n": {"list", "lock:a"},
	} {
		out, errs, status := ctl(t, s.Addr(), "", args...)
		assert.Zero(t, status)
		assert.Empty(t, out)
		assert.Equal(t, want, errs)
	}
}

// A list has how long the first of the waiters has waited, if there is one, as show has it for each.
func TestHowLongOthersHaveWaitedIsShown(t *testing.T) {
	s, ctx, c := started(t)
	for _, name := range []string{"a", "b"} {
		must(t, c.NewLock(name).Lock(ctx))
	}
	out := prints(t, s.Addr(), "list")
	assert.NotContains(t, out, "HAS WAITED")
	defer startWaiting(t, s, "b")()
	for _, args := range [][]string{{"list"}, {"list", "--wide"}} {
		out = prints(t, s.Addr(), args...)
		assert.Regexp(t, `NAME .* HAS WAITED  WAITING\n`, out)
		assert.Regexp(t, `(?m)^b .* \d+s +1$`, out)
		assert.Regexp(t, `(?m)^a .* - +0$`, out)
	}
	out = prints(t, s.Addr(), "show", "b")
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

// Candidates of an election wait by design. Redis does not tell an election from another lock with a fencing token.
func TestTypeSaysWhatRedisKnows(t *testing.T) {
	s, ctx, c := started(t)
	must(t, c.NewLock("fenced", relock.Fenced()).Lock(ctx))
	must(t, c.NewLock("free").Lock(ctx))
	must(t, c.NewLock("waited for").Lock(ctx))
	defer startWaiting(t, s, "waited for")()
	must(t, c.NewFairLock("fair", relock.Fenced()).Lock(ctx))
	waiting := newClient(t, s.Client())
	defer startWaitingFor(t, waiting, waiting.NewFairLock("fair"))()
	for name, want := range map[string]string{
		"fenced": "fenced lock or election", "free": "lock",
		"waited for": "lock", "fair": "fair",
	} {
		out := prints(t, s.Addr(), "show", name)
		assert.Regexp(t, `(?m)^type +`+want+`$`, out, name)
		out = prints(t, s.Addr(), "list", name)
		assert.Regexp(t, `(?m)^`+name+`  +`+want+`  +`, out)
	}
	out := prints(t, s.Addr(), "show", "--json", "fenced")
	assert.Contains(t, out, `"type":"lock"`)
}

// All columns begin below each other, in colors, too, and those without any text are left out.
func TestColumnsAreAligned(t *testing.T) {
	heads := []string{"NAME", "HOST", "AS", "N"}
	rows := []row{{red, []string{"a", none, none, "1"}}, {"", []string{"größer", none, "read", "2"}}}
	for _, p := range []*program{{}, {colors: true}} {
		text, width := p.aligned(heads, rows)
		assert.Equal(t, 15, width)
		text = strings.NewReplacer(red, "", bold, "", reset, "").Replace(text)
		assert.Equal(t, "NAME    AS    N\na       -     1\ngrößer  read  2\n", text)
	}
	text, _ := (&program{colors: true}).aligned(heads, rows)
	assert.Contains(t, text, red+"a       -     1"+reset+"\n")
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
	must(t, newClient(t, s.Client()).NewLock("lock:*").Lock(ctx))
	assert.Equal(t, "lock:* was released.\n", prints(t, s.Addr(), "unlock", "--yes", "lock:*"))
}

func TestNamesAreQuotedForTheShell(t *testing.T) {
	for _, name := range []string{
		"lock:orders:42", "a b", "it's", "$HOME", "*", "a\nb", "\x1b[31m'x'", `back\slash`, "日本", `"q"`, "-x", "a\xff",
	} {
		require.NotContains(t, argument(name), "\x1b")
		assert.Equal(t, name, prints(t, testredis.Start(t).Addr(), "run", "j", "--", "bash", "-c",
			"printf %s "+strings.TrimPrefix(argument(name), "-- ")))
	}
}
