package main

// The program as it is built, against real servers.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

const soon = 10 * time.Second

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "relockctl")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "relockctl")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	testredis.ManyAtOnce()
	status := testredis.Main(m, "relockctl").Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// command is a run of the program, on the Redis at addr.
func command(addr string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "REDIS_URL=redis://"+addr)
	return cmd
}

// ctl runs the program to its end.
func ctl(t *testing.T, addr, input string, args ...string) (out, errs string, status int) {
	t.Helper()
	cmd := command(addr, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// prints runs the program to its end, which must succeed and have nothing to say beside it, and returns what it prints.
func prints(t *testing.T, addr string, args ...string) string {
	t.Helper()
	out, errs, status := ctl(t, addr, "", args...)
	assert.Zero(t, status, args)
	assert.Empty(t, errs, args)
	return out
}

// printed is what prints returns, as the JSON that it is.
func printed[T any](t *testing.T, addr string, args ...string) (v T) {
	t.Helper()
	out := prints(t, addr, args...)
	require.NoError(t, json.Unmarshal([]byte(out), &v), out)
	return v
}

func newClient(t *testing.T, rdb redis.UniversalClient) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb, relock.WithLabel(""), relock.WithPollInterval(time.Hour),
		relock.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// started returns a server, and a Client of it.
func started(t *testing.T) (*testredis.Server, context.Context, *relock.Client) {
	t.Helper()
	s := testredis.Start(t)
	return s, ctx, newClient(t, s.Client())
}

func must(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}

// awaitWaiter waits until a client is in the wait queue of the lock.
func awaitWaiter(t *testing.T, s *testredis.Server, name string) {
	t.Helper()
	c := newClient(t, s.Client())
	testredis.Await(t, "it waits", soon, func() bool { return waiters(t, c, name) == 1 })
}

// waiters returns how many clients are in the wait queue of the lock. The queue may also have tombstones, of attempts
// that were canceled before Redis answered, so it is Inspect that counts.
func waiters(t *testing.T, c *relock.Client, name string) int {
	t.Helper()
	i, err := c.Inspect(ctx, name)
	require.NoError(t, err)
	return i.Waiting
}

func TestListShowsHeldLocks(t *testing.T) {
	s, ctx, c := started(t)
	rdb := s.Client()
	for i := range 3000 { // a scan of many rounds
		must(t, rdb.Set(ctx, fmt.Sprint("other:", i), "x", 0).Err())
	}
	must(t, rdb.HSet(ctx, "user:1", "name", "bob").Err())
	must(t, rdb.HSet(ctx, "visits", "bob", 7).Err())
	must(t, rdb.HSet(ctx, "java", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1).Err())
	out, errs, status := ctl(t, s.Addr(), "", "list", "none:*")
	assert.Empty(t, out)
	assert.Contains(t, errs, "none:*")
	assert.Zero(t, status, errs)
	const odd = "orders:\x1b[31mred\n"
	must(t, c.NewLock("orders:42").Lock(ctx))
	must(t, c.NewLock("orders:42").Lock(ctx))
	must(t, c.NewLock(odd).Lock(ctx))
	rw := c.NewRWLock("prices")
	must(t, rw.Write().Lock(ctx))
	must(t, rw.Read().LockLease(ctx, time.Hour))

	must(t, rdb.ConfigResetStat(ctx).Err())
	out = prints(t, s.Addr())
	assert.False(t, strings.ContainsRune(out, '\x1b'))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	want := []string{
		"NAME TYPE OWNER CLIENT HOLDS LEASE WAITING",
		"java lock thread 42 5a2d7b1e 1 no end 0",
		`"orders:\x1b[31mred\n" lock goroutine`,
		"orders:42 lock goroutine",
		"prices write goroutine",
		"prices read goroutine",
	}
	require.Len(t, lines, len(want), out)
	for i, line := range lines {
		words := strings.Join(strings.Fields(line), " ")
		assert.True(t, strings.HasPrefix(words, want[i]), "%s, want %s", words, want[i])
	}
	stats := rdb.Info(ctx, "commandstats").Val()
	assert.Contains(t, stats, "cmdstat_scan:", "it sends")
	assert.NotContains(t, stats, "cmdstat_keys:", "it sends")
	assert.NotContains(t, stats, "cmdstat_hset:", "it sends")

	locks := printed[[]jsonLock](t, s.Addr(), "list", "--json", "orders*")
	require.Len(t, locks, 2)
	require.Equal(t, odd, locks[0].Name)
	require.Equal(t, "orders:42", locks[1].Name)
	l := locks[1]
	assert.Equal(t, "lock", l.Type)
	assert.True(t, l.Held)
	assert.GreaterOrEqual(t, l.TTL, int64(10_000))
	assert.LessOrEqual(t, l.TTL, int64(30_000))
	require.Len(t, l.Holders, 1)
	assert.Equal(t, c.ID(), l.Holders[0].Client)
	assert.Equal(t, 2, l.Holders[0].HoldCount)
	assert.Equal(t, l.TTL, l.Holders[0].Remaining)
	assert.NotNil(t, l.Waiters)
}

// A semaphore is found by its permits, whatever braces its name has, and freed as a whole. The list has the permits of
// each hold, because its hold count is always 1.
func TestSemaphoresAreListedShownAndFreed(t *testing.T) {
	s, ctx, c := started(t)
	for _, name := range []string{"hosts:a", "{tag}:b", "x{tag}"} {
		semaphore := c.NewSemaphore(name, 5)
		for n := 1; n <= 3; n += 2 {
			_, err := semaphore.AcquireN(ctx, n)
			must(t, err)
		}
		out := prints(t, s.Addr(), "list")
		assert.Equal(t, 3, strings.Count(out, "\n"), out)
		assert.Equal(t, 2, strings.Count(out, name+" "), out)
		assert.Regexp(t, `(?m)^`+name+` +semaphore .* 1 permit  .*$`, out)
		assert.Regexp(t, `(?m)^`+name+` +semaphore .* 3 permits  .*$`, out)
		out = prints(t, s.Addr(), "list", name)
		assert.Equal(t, 3, strings.Count(out, "\n"), out)
		out = prints(t, s.Addr(), "show", name)
		assert.Contains(t, strings.Join(strings.Fields(out), " "), "type semaphore")
		assert.Contains(t, out, "available  1 of 5 permits\n")
		l := printed[jsonLock](t, s.Addr(), "show", name, "--json")
		assert.Equal(t, 1, *l.Available)
		require.Len(t, l.Holders, 2)
		assert.Equal(t, 4, l.Holders[0].Permits+l.Holders[1].Permits)
		prints(t, s.Addr(), "unlock", "--yes", name)
		free, err := semaphore.Available(ctx)
		must(t, err)
		assert.Equal(t, 5, free)
	}
}

// A hold that was detached is shown as such, without the number that attaches it.
func TestDetachedHoldIsShown(t *testing.T) {
	s, ctx, c := started(t)
	hold, err := c.NewLock("import").Acquire(ctx)
	must(t, err)
	ticket, err := hold.Detach(ctx, time.Minute)
	must(t, err)
	assert.Contains(t, prints(t, s.Addr(), "list"), " detached ")
	l := printed[jsonLock](t, s.Addr(), "show", "import", "--json")
	require.Len(t, l.Holders, 1)
	assert.True(t, l.Holders[0].Detached)
	assert.Regexp(t, "^"+c.ID()+":0:[0-9a-f]{4}$", l.Holders[0].Field)
	hold, err = c.Attach(ctx, ticket)
	must(t, err)
	must(t, hold.Release(ctx))
}

// A hash that is no lock may be big, and Redis stands still while a client reads all of it.
func TestListReadsNoData(t *testing.T) {
	s, ctx, c := started(t)
	rdb := s.Client()
	must(t, c.NewLock("orders:42").Lock(ctx))
	for range 3 {
		must(t, newClient(t, rdb).NewRWLock("prices").Read().Lock(ctx))
	}
	must(t, rdb.HSet(ctx, "visits", "bob", 7, "ann", 5).Err())
	must(t, rdb.HSet(ctx, "settings", "mode", "read").Err())
	must(t, rdb.ConfigResetStat(ctx).Err())
	assert.Equal(t, 5, strings.Count(prints(t, s.Addr(), "list"), "\n"))
	stats := rdb.Info(ctx, "commandstats").Val()
	assert.Contains(t, stats, "cmdstat_hrandfield:calls=8,", "it looks at four hashes, and reads more than two") // twice each
	assert.NotContains(t, stats, "hgetall")
}

// One key that the user may not read, or a lock with a key beside it that holds something else, does not hide the other
// locks. The list reports what it leaves out, and the exit status shows that it is incomplete.
func TestListSaysWhatItLeavesOut(t *testing.T) {
	s, ctx, c := started(t)
	rdb := s.Client()
	must(t, rdb.Do(ctx, "acl", "setuser", "clerk", "on", ">pw", "+@all", "~orders*", "~{orders*", "~r*", "&*").Err())
	clerk := "redis://clerk:pw@" + s.Addr()
	must(t, c.NewLock("orders:1").Lock(ctx))
	list := func(args ...string) (out, errs string, names []string, status int) {
		t.Helper()
		out, errs, status = ctl(t, s.Addr(), "", append([]string{"--url", clerk, "list"}, args...)...)
		if slices.Contains(args, "--json") {
			var locks []jsonLock
			must(t, json.Unmarshal([]byte(out), &locks))
			for _, l := range locks {
				names = append(names, l.Name)
			}
		}
		return out, errs, names, status
	}
	_, errs, names, status := list("--json")
	assert.Equal(t, []string{"orders:1"}, names)
	assert.Empty(t, errs)
	assert.Zero(t, status)

	must(t, rdb.HSet(ctx, "salaries\x1b[31m", "bob", 7).Err())
	must(t, c.NewLock("secret").Lock(ctx))
	out, errs, _, status := list()
	assert.Contains(t, out, "orders:1")
	assert.Contains(t, errs, "2 keys")
	assert.Contains(t, errs, "NOPERM")
	assert.Contains(t, errs, "secret")
	assert.NotContains(t, errs, "\x1b")
	assert.Equal(t, statusFailed, status, "exit status")
	out, errs, _, status = list("s*") // nothing is held among those that the user may read
	assert.Empty(t, out)
	assert.Contains(t, errs, "2 keys")
	assert.Equal(t, statusFailed, status, "exit status")
	must(t, rdb.Del(ctx, "salaries\x1b[31m", "secret").Err())

	must(t, c.NewLock("orders:2").Lock(ctx))
	must(t, rdb.Set(ctx, "redisson_lock_queue:{orders:2}", "mine", 0).Err())
	must(t, rdb.HSet(ctx, "orders:data", uuid.NewString()+":1", "x", "other", "y").Err()) // data of another program
	_, errs, names, status = list("--json")
	assert.Equal(t, []string{"orders:1"}, names)
	assert.Contains(t, errs, "1 key ")
	assert.Contains(t, errs, "redisson_lock_queue:{orders:2}")
	assert.NotContains(t, errs, "orders:data")
	assert.Equal(t, statusFailed, status, "exit status")

	must(t, rdb.Do(ctx, "acl", "setuser", "clerk", "-evalsha", "-eval").Err())
	out, errs, _, status = list()
	assert.Empty(t, out)
	assert.Contains(t, errs, "NOPERM")
	assert.Equal(t, statusFailed, status, "exit status")
}

// watch lists what can be read, too, and counts the rest.
func TestWatchCountsWhatItLeavesOut(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	must(t, newClient(t, rdb).NewLock("orders:1").Lock(ctx))
	must(t, rdb.HSet(ctx, "salaries", "bob", 7).Err())
	must(t, rdb.Do(ctx, "acl", "setuser", "clerk", "on", ">pw", "+@all", "~orders*", "~{orders*", "~r*", "&*").Err())
	cmd := command(s.Addr(), "--url", "redis://clerk:pw@"+s.Addr(), "watch", "--every", "100ms")
	out, err := cmd.StdoutPipe()
	must(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	assert.Contains(t, lines.Text(), "1 held, 0 with waiters, 1 key left out")
	require.True(t, lines.Scan())
	require.True(t, lines.Scan())
	assert.Contains(t, lines.Text(), "orders:1")
	must(t, cmd.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, out)
	assert.NoError(t, cmd.Wait(), errs.String())
	assert.Equal(t, 1, strings.Count(errs.String(), "salaries"), "it is named once: %s", errs.String())
}

// JSON goes to terminals too: what could act on one is escaped, and reads back as it was.
func TestJSONCannotActOnATerminal(t *testing.T) {
	const odd = "a\x1b\x7f\u009b31m\u202eb\u2066c\u200f\u061c\ufeff\U000e0041 é鎖😀"
	s := testredis.Start(t)
	must(t, newClient(t, s.Client()).NewLock(odd).Lock(ctx))
	for _, args := range [][]string{{"list", "--json"}, {"show", "--json", odd}, {"unlock", "--yes", "--json", odd}} {
		out := prints(t, s.Addr(), args...)
		assert.True(t, json.Valid([]byte(out)), out)
		for _, r := range strings.TrimSuffix(out, "\n") {
			assert.True(t, unicode.IsPrint(r), "%v prints %U", args, r)
		}
		assert.Contains(t, out, "é鎖😀")
		var all any
		must(t, json.Unmarshal([]byte(out), &all))
		assert.Contains(t, fmt.Sprint(all), odd)
	}
}

func TestShowPrintsHoldersAndWaiters(t *testing.T) {
	s, ctx, c := started(t)
	lock := c.NewFairLock("queue", relock.Fenced())
	must(t, lock.Lock(ctx))
	waiter, got := relock.ContextWithOwner(ctx), make(chan error, 1)
	go func() { got <- lock.Lock(waiter) }()
	testredis.Await(
		t,
		"somebody waits",
		soon,
		func() bool { i, err := c.Inspect(ctx, "queue"); return err == nil && len(i.Waiters) > 0 },
	)

	out := prints(t, s.Addr(), "show", "queue")
	for _, want := range []string{"type       fair", "lease      ", "waiting    1", "token      ", c.ID(), "HOLDER", "WAITER"} {
		assert.Contains(t, out, want)
	}
	l := printed[jsonLock](t, s.Addr(), "show", "queue", "--json")
	assert.Equal(t, "fair", l.Type)
	assert.NotZero(t, l.Token)
	require.Len(t, l.Waiters, 1)
	assert.Equal(t, c.ID(), l.Waiters[0].Client)
	assert.True(t, l.Waiters[0].AliveUntil.After(l.At))
	assert.True(t, l.Waiters[0].Deadline.After(l.At))
	assert.NotContains(t, strings.TrimPrefix(l.Waiters[0].Field, c.ID()+":"), ":", "the number of its acquire operation")
	assert.Equal(t, 1, l.Waiting)
	must(t, lock.Unlock(ctx))
	must(t, <-got)
	must(t, lock.Unlock(waiter))

	for name, want := range map[string]int{"queue": statusFree, "nobody": statusFree, "": statusUsage} {
		_, _, status := ctl(t, s.Addr(), "", "show", name)
		assert.Equal(t, want, status)
	}
	out, _, status := ctl(t, s.Addr(), "", "show", "--json", "--", "-nobody")
	assert.Equal(t, statusFree, status, out)
	assert.Contains(t, out, `"name":"-nobody"`)
	assert.Contains(t, out, `"held":false`)
}

// Processes that have died while they waited are counted apart, and come after those that wait, without a place.
func TestWaitersThatHaveDiedAreShownAsGone(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	const name, dead = "leader", 3
	me := relock.ContextWithOwner(ctx)
	holder := newClient(t, rdb)
	must(t, holder.NewLock(name).Lock(me))
	inspect := func() relock.Inspection {
		i, err := holder.Inspect(ctx, name)
		must(t, err)
		return i
	}
	waits := func(n int) {
		testredis.Await(t, "one more waits", soon, func() bool {
			i := inspect()
			return i.Waiting == n+1 && i.Waiters[n].Reachable == relock.ReachableYes
		})
	}
	var processes []*exec.Cmd
	for n := range dead {
		cmd := command(s.Addr(), "run", name, "--", "true")
		must(t, cmd.Start())
		defer cmd.Process.Kill()
		processes = append(processes, cmd)
		waits(n)
	}
	waiting, giveUp := context.WithCancel(ctx)
	got := make(chan error, 1)
	last := newClient(t, s.Client())
	go func() { got <- last.NewLock(name).Lock(relock.ContextWithOwner(waiting)) }()
	waits(dead)
	for _, cmd := range processes {
		must(t, cmd.Process.Kill())
		assert.Error(t, cmd.Wait())
	}
	testredis.Await(t, "they are gone", soon, func() bool { return inspect().Gone == dead })

	out := prints(t, s.Addr(), "list")
	assert.Regexp(t, `(?m) 1, and 3 gone$`, strings.TrimSpace(out), "WAITING")
	out = prints(t, s.Addr(), "show", name)
	assert.Regexp(t, `(?m)^waiting +1, and 3 gone$`, out)
	assert.Regexp(t, `(?m)^1 +owner \d+ +`+last.ID()+` +.* \d+s +yes$`, out)
	assert.Len(t, regexp.MustCompile(`(?m)^- +owner \d+ +.* gone +no$`).FindAllString(out, -1), dead)
	assert.Less(t, strings.Index(out, last.ID()), strings.Index(out, "gone   "), "those that are gone come last")
	assert.Contains(t, prints(t, s.Addr(), "show", "--json", name), `"waiting":1,"gone":3`)

	giveUp()
	assert.ErrorIs(t, <-got, context.Canceled)
	must(t, holder.NewLock(name).Unlock(me))
}

// Who waits is shown for every lock, in order, and hostile text has no effect.
func TestShowPrintsTheWaitQueue(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	const name, host = "orders:\x1b[31m", "a\nb"
	me := relock.ContextWithOwner(ctx)
	holder := newClient(t, rdb).NewLock(name)
	must(t, holder.Lock(me))
	var got []chan error
	var waiting []*relock.Client
	for n := range 2 {
		c, err := relock.New(s.Client(), relock.WithLabel(fmt.Sprint("orders-", n)),
			relock.WithLogger(slog.New(slog.DiscardHandler)))
		must(t, err)
		defer c.Close()
		waiting, got = append(waiting, c), append(got, make(chan error, 1))
		go func() {
			got[n] <- c.NewLock(name).Do(relock.ContextWithOwner(ctx), func(context.Context) error { return nil })
		}()
		testredis.Await(t, "one more waits, and has a label", soon, func() bool {
			i, err := c.Inspect(ctx, name)
			return err == nil && i.Waiting == n+1 && i.Waiters[n].Label != "" && i.Waiters[n].Reachable == relock.ReachableYes
		})
	}
	must(t, rdb.HSet(ctx, "relock_client:{"+waiting[1].ID()+"}", "label", "\x1b]0;x\a", "host", host).Err())

	out := prints(t, s.Addr(), "list")
	assert.Regexp(t, `(?m) 2$`, strings.TrimSpace(out), "WAITING")
	out = prints(t, s.Addr(), "show", name)
	assert.NotContains(t, out, "\x1b")
	assert.Regexp(t, `(?m)^waiting +2$`, out)
	assert.Regexp(t, `(?m)^1 +owner \d+ +`+waiting[0].ID()+` +orders-0 .* \d+s +yes$`, out)
	assert.Regexp(t, `(?m)^2 +owner \d+ +`+waiting[1].ID()+` +"\\x1b]0;x\\a" +"a\\nb" +\d+s +yes$`, out)

	// asked are the secrets of the waiters: see internal/engine/line.go.
	var asked []string
	for client, place := range rdb.HGetAll(ctx, "relock_line:{"+name+"}:waits").Val() {
		if words := strings.Fields(place); len(client) == 36 && len(words) > 4 {
			asked = append(asked, words[3], words[4])
		}
	}
	require.Len(t, asked, 4)
	text := out
	out = prints(t, s.Addr(), "show", "--json", name)
	for _, secret := range asked {
		assert.NotContains(t, text+out, secret)
	}
	var l jsonLock
	must(t, json.Unmarshal([]byte(out), &l))
	require.Len(t, l.Waiters, 2, out)
	for n, w := range l.Waiters {
		assert.Equal(t, waiting[n].ID(), w.Client)
		assert.Equal(t, "yes", w.Reachable)
		assert.Less(t, l.At.Sub(w.Since), time.Minute)
	}
	assert.Equal(t, 2, l.Waiting)

	must(t, holder.Unlock(me))
	for _, c := range got {
		must(t, <-c)
	}
}

// A waiter for a lock that is freed is woken: these clients do not ask again by themselves.
func TestUnlock(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	testUnlock(t, s.Addr(), rdb)

	_, errs, status := ctl(t, s.Addr(), "", "unlock", "--yes", "nobody")
	assert.Equal(t, statusFree, status, errs)
	assert.Contains(t, errs, "nobody is not held")
	must(t, rdb.HSet(ctx, "visits", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1, "bob\x1b[2J", 7).Err())
	_, errs, status = ctl(t, s.Addr(), "", "unlock", "--yes", "visits")
	assert.Equal(t, statusFailed, status, errs)
	assert.Contains(t, errs, `the key "visits" holds a hash that is not a lock (field `)
	assert.Equal(t, int64(2), rdb.HLen(ctx, "visits").Val())
}

// subscribed reports whether a client is subscribed to a channel with the lock's name in it.
func subscribed(t *testing.T, rdb redis.UniversalClient, name string) bool {
	t.Helper()
	pattern := "*" + name + "*"
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return len(rdb.PubSubChannels(ctx, pattern).Val()) > 0
	}
	var n atomic.Int64
	must(t, cluster.ForEachMaster(ctx, func(ctx context.Context, one *redis.Client) error {
		channels, err := one.PubSubShardChannels(ctx, pattern).Result()
		n.Add(int64(len(channels)))
		return err
	}))
	return n.Load() > 0
}

func testUnlock(t *testing.T, addr string, rdb redis.UniversalClient) {
	holder, other := newClient(t, rdb), newClient(t, rdb)
	for kind, take := range map[string]func(c *relock.Client, name string) []relock.Locker{
		"plain": func(c *relock.Client, name string) []relock.Locker { return []relock.Locker{c.NewLock(name)} },
		"fair":  func(c *relock.Client, name string) []relock.Locker { return []relock.Locker{c.NewFairLock(name)} },
		"write": func(c *relock.Client, name string) []relock.Locker { return []relock.Locker{c.NewRWLock(name).Write()} },
		"read":  func(c *relock.Client, name string) []relock.Locker { return []relock.Locker{c.NewRWLock(name).Read()} },
		"write and read": func(c *relock.Client, name string) []relock.Locker {
			return []relock.Locker{c.NewRWLock(name).Write(), c.NewRWLock(name).Read()}
		},
	} {
		name := "lock of " + kind
		for _, l := range take(holder, name) {
			must(t, l.Lock(ctx))
			must(t, l.Lock(ctx))
		}
		wanted := take(other, name)[0]
		if kind == "read" {
			wanted = other.NewRWLock(name).Write()
		}
		waiter, got := relock.ContextWithOwner(ctx), make(chan error, 1)
		go func() { got <- wanted.Lock(waiter) }()
		testredis.Await(t, "somebody waits", soon, func() bool { return subscribed(t, rdb, name) })
		assert.Equal(t, name+" was released.\n", prints(t, addr, "unlock", "--yes", name))
		select {
		case err := <-got:
			must(t, err)
		case <-time.After(soon):
			require.Fail(t, kind+": the waiter is not woken")
		}
		after, err := other.Inspect(ctx, name)
		require.NoError(t, err, kind)
		require.Len(t, after.Holders, 1, kind)
		assert.Equal(t, other.ID(), after.Holders[0].Client, kind)
		must(t, wanted.Unlock(waiter))
		for _, l := range take(holder, name) {
			held, err := l.IsHeld(ctx)
			assert.NoError(t, err, kind)
			assert.False(t, held, "%s: it is still held", kind)
		}
	}
}

// The question has everything that the answer releases.
func TestUnlockSaysHowMuchItReleases(t *testing.T) {
	s, ctx, c := started(t)
	must(t, c.NewLock("orders").Lock(ctx))
	semaphore := c.NewSemaphore("permits", 9)
	asked := func(name string) string {
		_, errs, status := ctl(t, s.Addr(), "n\n", "unlock", name)
		assert.Equal(t, statusNotFreed, status, errs)
		return errs
	}
	assert.Contains(t, asked("orders"), "This releases the lock. A holder may")
	_, err := semaphore.AcquireN(ctx, 3)
	must(t, err)
	assert.Contains(t, asked("permits"), "releases 3 permits. ")
	_, err = semaphore.AcquireN(ctx, 2)
	must(t, err)
	assert.Contains(t, asked("permits"), "releases 5 permits of 2 holders. ")
	for range 2 {
		must(t, newClient(t, s.Client()).NewRWLock("prices").Read().Lock(ctx))
	}
	assert.Contains(t, asked("prices"), "releases the lock of 2 holders. ")
	i := relock.Inspection{Type: relock.TypeSemaphore, Holders: []relock.Holder{{Permits: 3}}, More: true}
	assert.Equal(t, "releases all permits of all holders, also of those that are not shown", releases(i))
}

func TestUnlockAsksBeforeItFrees(t *testing.T) {
	s, ctx, c := started(t)
	rdb := s.Client()
	lock := c.NewLock("orders")
	must(t, lock.LockLease(ctx, time.Hour))
	for _, answer := range []string{"", "\n", "n\n", "yup\n"} {
		out, errs, status := ctl(t, s.Addr(), answer, "unlock", "orders")
		assert.Empty(t, out)
		assert.Contains(t, errs, c.ID())
		assert.Contains(t, errs, "[y/N]")
		assert.Equal(t, statusNotFreed, status, errs)
	}
	out, _, status := ctl(t, s.Addr(), "Yes\n", "unlock", "orders", "--json")
	var done jsonUnlock
	must(t, json.Unmarshal([]byte(out), &done))
	assert.True(t, done.Unlocked)
	assert.Equal(t, "orders", done.Lock.Name)
	assert.Equal(t, c.ID(), done.Lock.Holders[0].Client)
	assert.Zero(t, status, out)

	_ = lock.Unlock(ctx) // it is lost

	// The lock changes while the program asks.
	for what, c := range map[string]struct {
		then   func()
		status int
	}{
		"it is still held": {func() {}, statusDone},
		"it is released":   {func() { must(t, lock.Unlock(ctx)) }, statusFree},
		"it has changed hands": {func() { must(t, lock.Unlock(ctx)); must(t, lock.LockLease(ctx, time.Hour)) },
			statusNotFreed},
		"the user hits Ctrl-C": {nil, statusNotFreed},
	} {
		must(t, lock.LockLease(ctx, time.Hour))
		cmd := command(s.Addr(), "unlock", "orders")
		in, err := cmd.StdinPipe()
		must(t, err)
		errs, err := cmd.StderrPipe()
		must(t, err)
		must(t, cmd.Start())
		asked, err := bufio.NewReader(errs).ReadString(']')
		must(t, err)
		if c.then == nil {
			must(t, cmd.Process.Signal(syscall.SIGINT))
		} else {
			c.then()
			_, err = io.WriteString(in, "y\n")
			must(t, err)
		}
		_ = cmd.Wait()
		status := cmd.ProcessState.ExitCode()
		assert.Equal(t, c.status, status, "%s: it asked %s", what, asked)
		held := rdb.Exists(ctx, "orders").Val() == 1
		assert.Equal(t, c.status == statusNotFreed, held, "%s: the lock is held", what)
		_, err = lock.ForceUnlock(ctx) // so that this process knows of it too
		must(t, err)
		_ = lock.Unlock(ctx)
	}
}

func TestRelockctlWorksOnACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3, 0)
	c := newClient(t, cluster.Client())
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("lock-%02d", i))
		must(t, c.NewLock(names[i]).Lock(ctx))
	}
	var found []string
	for _, l := range printed[[]jsonLock](t, cluster.Addrs()[1], "list", "--json") {
		found = append(found, l.Name)
	}
	assert.Equal(t, names, found)
	for _, node := range cluster.Nodes() { // also without permission for INFO
		must(t, node.Client().Do(ctx, "acl", "setuser", "looker", "on", "nopass", "~*", "&*", "+@all", "-info").Err())
	}
	again := prints(t, "", "--url", "redis://looker:x@"+cluster.Addrs()[0], "list")
	for _, name := range names {
		assert.Contains(t, again, name)
	}
	testUnlock(t, cluster.Addrs()[2], cluster.Client())
}

func TestWatchWithoutATerminalPrintsLists(t *testing.T) {
	s, ctx, c := started(t)
	cmd := command(s.Addr(), "watch", "--every", "100ms", "--json", "ord*")
	out, err := cmd.StdoutPipe()
	must(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must(t, cmd.Start())
	lines := json.NewDecoder(out)
	await := func(n int) {
		t.Helper()
		for range 100 {
			var locks []jsonLock
			must(t, lines.Decode(&locks))
			if len(locks) == n {
				return
			}
		}
		assert.Fail(t, "it does not see all locks", "of %d", n)
	}
	await(0)
	must(t, c.NewLock("orders").Lock(ctx))
	await(1)
	s.Kill()
	s.Restart()
	await(0)
	must(t, cmd.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, out)
	err = cmd.Wait()
	assert.NoError(t, err, errs.String())
}

func TestInvalidCommandLinesAreRefused(t *testing.T) {
	for want, all := range map[string][][]string{
		aboutAll + "\n\nUsage:\n  relockctl [flags]\n":                  {{"-h"}, {"help"}, {"--help"}},
		"not held\n\nUsage:\n  relockctl show NAME [flags]\n":           {{"show", "--help"}, {"help", "show"}, {"show", "-h", "x"}},
		"not found\n\nUsage:\n  relockctl run [flags] NAME -- COMMAND ": {{"run", "-h", "job", "--", "true"}},
	} {
		for _, args := range all {
			out, errs, status := ctl(t, "127.0.0.1:1", "", args...)
			assert.Contains(t, out, want)
			assert.Empty(t, errs)
			assert.Equal(t, statusDone, status, errs)
		}
	}
	for text, args := range map[string][]string{
		"relockctl -h":                                                {"unlok", "x"},
		"*: no such command; see relockctl -h":                        {"orders:*"},
		"accepts 1 arg(s), received 0; see relockctl show -h":         {"show"},
		"received 0; see relockctl unlock -h":                         {"unlock", "--yes"},
		"accepts at most 1 arg(s), received 2; see relockctl list -h": {"list", "a", "b"},
		"accepts 1 arg(s), received 2":                                {"show", "a", "b"},
		"must be at least 100ms":                                      {"watch", "--every", "1ms"},
		"--wait\" flag: time: missing unit":                           {"run", "--wait", "10", "a", "--", "true"},
		"pass a shorter one":                                          {"run", "--lease", "3s", "a", "--", "true"},
		"one of them":                                                 {"--url", "redis://x", "--addr", "y"},
		"for --sentinel-master":                                       {"--addr", "x:1,y:2"},
		"unknown flag: --colour":                                      {"--colour"},
		"redis://user:password@":                                      {"--url", "http://me:secret@x"},
		"host:port/db":                                                {"--url", "redis://me:secret@x/notanumber"},
		"address of the Redis":                                        {"--sentinel-master", "main", "--url", "redis://me:secret@x?colour=red"},
		"did you mean unlock?":                                        {"unlok", "x"},
		"unknown flag: --yse; see relockctl unlock -h":                {"unlock", "--yse", "x"},
		"unknown flag: --wait; see relockctl list -h":                 {"list", "--wait", "5s"},
		"unknown flag: --json; see relockctl -h":                      {"--json", "list"},
		"flag needs an argument: --every; see relockctl watch -h":     {"watch", "--every"},
		"\"tcsh\" for \"relockctl completion":                         {"completion", "tcsh"},
		"command \"1\" for \"relockctl version":                       {"version", "1"},
	} {
		out, errs, status := ctl(t, "127.0.0.1:1", "", args...)
		assert.Empty(t, out)
		assert.Contains(t, errs, text)
		assert.Regexp(t, `; see relockctl( \w+)? -h\n$`, errs)
		assert.NotContains(t, errs, "secret")
		assert.Equal(t, statusUsage, status, errs)
	}
}

func TestRedisThatCannotBeReachedIsReported(t *testing.T) {
	start := time.Now()
	out, errs, status := ctl(t, "me:secret@127.0.0.1:1", "", "list")
	assert.Empty(t, out)
	assert.Contains(t, errs, "cannot reach the Redis at 127.0.0.1:1")
	assert.NotContains(t, errs, "secret")
	assert.Equal(t, 1, strings.Count(errs, "\n"))
	assert.Equal(t, statusFailed, status, errs)
	assert.LessOrEqual(t, time.Since(start), 2*patience)

	s := testredis.Start(t)
	must(t, s.Client().ConfigSet(ctx, "requirepass", "secret").Err())
	_, errs, status = ctl(t, s.Addr(), "", "list")
	assert.Contains(t, errs, "the Redis at "+s.Addr()+" returned an error: NOAUTH")
	assert.Equal(t, statusFailed, status, errs)
}

func TestRelockctlWorksBehindSentinel(t *testing.T) {
	s := testredis.StartSentinel(t, 0)
	sentinels, name := strings.Join(s.Addrs(), ","), s.MasterName()
	_, errs, status := ctl(t, s.Addrs()[0], "", "list")
	assert.Contains(t, errs, "--sentinel-master")
	assert.Equal(t, statusFailed, status, errs)
	c := newClient(t, s.Client())
	must(t, c.NewLock("orders").Lock(ctx))
	for _, args := range [][]string{
		{"--addr", sentinels, "--sentinel-master", name},
		{"--addr", "127.0.0.1:1," + s.Addrs()[0], "--sentinel-master", name}, // one of them is down
		{"--sentinel-master", name},                                          // at REDIS_URL
	} {
		assert.Contains(t, prints(t, s.Addrs()[1], append(args, "list")...), "orders")
	}
	out := prints(t, s.Addrs()[0], "--sentinel-master", name, "unlock", "--yes", "orders")
	assert.Equal(t, "orders was released.\n", out)
	for text, args := range map[string][]string{
		"cannot reach the Redis other of the Sentinel at " + s.Addrs()[0] + ": it knows no master with that name": {
			"--addr", s.Addrs()[0], "--sentinel-master", "other",
		},
		"of the Sentinel at 127.0.0.1:1,127.0.0.1:2": {
			"--addr", "127.0.0.1:1,127.0.0.1:2", "--sentinel-master", name,
		},
		// Which is no Sentinel.
		"cannot reach the Redis main of the Sentinel at " + s.Master().Addr() + ": ": {
			"--addr", s.Master().Addr(), "--sentinel-master", name,
		},
	} {
		out, errs, status := ctl(t, "", "", append(args, "list")...)
		assert.Empty(t, out)
		assert.Contains(t, errs, text)
		assert.Equal(t, 1, strings.Count(errs, "\n"))
		assert.Equal(t, statusFailed, status, errs)
	}
	// A Sentinel has users of its own.
	login := redis.NewClient(&redis.Options{Addr: s.Addrs()[0]})
	t.Cleanup(func() { login.Close() })
	must(t, login.Do(ctx, "acl", "setuser", "default", "resetpass", ">other").Err())
	for query, want := range map[string]int{"": statusFailed, "?sentinel_password=secret": statusFailed,
		"?sentinel_password=other": 0} {
		_, errs, status := ctl(t, s.Addrs()[0]+query, "", "--sentinel-master", name)
		assert.Equal(t, want, status, errs)
		assert.NotContains(t, errs, "secret")
	}
}

func TestNamesAreQuotedForTheTerminal(t *testing.T) {
	for name, want := range map[string]string{
		"orders:42": "orders:42", "Straße 7": "Straße 7", "日本": "日本", "{a}:b": "{a}:b",
		"": `""`, " x": `" x"`, "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "a\xff": `"a\xff"`, `"x"`: `"\"x\""`,
		"a\u202eb": `"a\u202eb"`,
	} {
		assert.Equal(t, want, quote(name), "%q", name)
	}
}

func TestLabelsAndHostsAreShown(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	c, err := relock.New(s.Client(), relock.WithLabel("orders-1"))
	require.NoError(t, err)
	defer c.Close()
	name := "lock:" + strings.Repeat("long", 20)
	must(t, c.NewLock(name).Lock(ctx))
	testredis.Await(
		t,
		"the label is in Redis",
		soon,
		func() bool { return len(rdb.Keys(ctx, "relock_client:*").Val()) == 1 },
	)
	host, err := os.Hostname()
	require.NoError(t, err)

	out := prints(t, s.Addr(), "list")
	assert.Contains(t, out, "orders-1")
	assert.Contains(t, out, "LABEL")
	assert.NotContains(t, out, "HOST")
	assert.Contains(t, out, name)

	out = prints(t, s.Addr(), "list", "--wide")
	for _, text := range []string{name, "orders-1", host, c.ID(), "HOST"} {
		assert.Contains(t, out, text)
	}
	assert.Contains(t, prints(t, s.Addr(), "show", name, "--json"), `"label":"orders-1","host":"`+host+`"`)

	// The terminal gets any label as text.
	must(t, rdb.HSet(ctx, rdb.Keys(ctx, "relock_client:*").Val()[0], "label", "\x1b[31m", "host", "a\nb").Err())
	for _, args := range [][]string{{"list", "--wide"}, {"show", name}} {
		out = prints(t, s.Addr(), args...)
		assert.NotContains(t, out, "\x1b")
		assert.Contains(t, out, `"a\nb"`)
	}
}

func TestVersionNeedsNoRedis(t *testing.T) {
	for _, arg := range []string{"--version", "version"} {
		assert.Regexp(t, `^relockctl \S+.* go1\.`, prints(t, "127.0.0.1:1", arg))
	}
}

func TestPasswordOfTheEnvironment(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	must(t, rdb.Do(ctx, "acl", "setuser", "default", "resetpass", ">secret").Err())
	run := func(url, password string) (string, error) {
		cmd := command(s.Addr(), "list")
		cmd.Env = append(os.Environ(), "REDIS_URL="+url, "REDISCLI_AUTH="+password)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("redis://"+s.Addr(), "secret")
	assert.NoError(t, err, out)
	_, err = run("redis://"+s.Addr(), "wrong")
	assert.Error(t, err)
	out, err = run("redis://:secret@"+s.Addr(), "wrong")
	assert.NoError(t, err, out)
	must(t, rdb.Do(ctx, "acl", "setuser", "default", "nopass").Err())
}
