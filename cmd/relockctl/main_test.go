package main

// The program as it is built, against real servers.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

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
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func newClient(t *testing.T, rdb redis.UniversalClient) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb, relock.WithMaxWakeDelay(time.Hour), relock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestList(t *testing.T) {
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	c := newClient(t, rdb)
	for i := range 3000 { // a scan of many rounds
		must(t, rdb.Set(ctx, fmt.Sprint("other:", i), "x", 0).Err())
	}
	must(t, rdb.HSet(ctx, "user:1", "name", "bob").Err())
	must(t, rdb.HSet(ctx, "visits", "bob", 7).Err())
	must(t, rdb.HSet(ctx, "java", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1).Err())
	const value, thread = "0123456789abcdefABCD+/", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:43" // of Redisson's multi lock of values
	must(t, rdb.HSet(ctx, "values", value, thread, value+":"+thread+":lock_count", 2,
		value+":"+thread+":expire_time", time.Now().Add(time.Hour).UnixMilli()).Err())
	if out, errs, status := ctl(t, s.Addr(), "", "list", "none:*"); out != "" || !strings.Contains(errs, "none:*") || status != 0 {
		t.Errorf("%q, %q, status %d", out, errs, status)
	}
	const odd = "orders:\x1b[31mred\n"
	must(t, c.NewLock("orders:42").Lock(ctx))
	must(t, c.NewLock("orders:42").Lock(ctx))
	must(t, c.NewLock(odd).Lock(ctx))
	rw := c.NewRWLock("prices")
	must(t, rw.Write().Lock(ctx))
	must(t, rw.Read().LockLease(ctx, time.Hour))

	must(t, rdb.ConfigResetStat(ctx).Err())
	out, errs, status := ctl(t, s.Addr(), "")
	if errs != "" || status != 0 || strings.ContainsRune(out, '\x1b') {
		t.Errorf("%q, %q, status %d", out, errs, status)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	want := []string{
		"NAME KIND OWNER CLIENT LEVELS LEASE WAITING",
		"java plain thread 42 5a2d7b1e… 1 no end -",
		`"orders:\x1b[31mred\n" plain goroutine`,
		"orders:42 plain goroutine",
		"prices write goroutine",
		"prices read goroutine",
		"values plain thread 43 5a2d7b1e… 2",
	}
	if len(lines) != len(want) {
		t.Fatalf("%s", out)
	}
	for i, line := range lines {
		if line := strings.Join(strings.Fields(line), " "); !strings.HasPrefix(line, want[i]) {
			t.Errorf("%s, want %s", line, want[i])
		}
	}
	stats := rdb.Info(ctx, "commandstats").Val()
	if !strings.Contains(stats, "cmdstat_scan:") || strings.Contains(stats, "cmdstat_keys:") || strings.Contains(stats, "cmdstat_hset:") {
		t.Errorf("it sends %s", stats)
	}

	out, _, status = ctl(t, s.Addr(), "", "list", "-json", "orders*")
	var locks []jsonLock
	must(t, json.Unmarshal([]byte(out), &locks))
	if status != 0 || len(locks) != 2 || locks[0].Name != odd || locks[1].Name != "orders:42" {
		t.Fatalf("status %d, %s", status, out)
	}
	if l := locks[1]; l.Kind != "plain" || !l.Held || l.TTL < 10_000 || l.TTL > 30_000 || len(l.Holders) != 1 ||
		l.Holders[0].Client != c.ID() || l.Holders[0].Levels != 2 || l.Holders[0].Lease != l.TTL || l.Waiters == nil {
		t.Errorf("%s", out)
	}
}

// A hash that is no lock may be big, and Redis stands still while somebody reads all of it.
func TestListReadsNoData(t *testing.T) {
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	c := newClient(t, rdb)
	must(t, c.NewLock("orders:42").Lock(ctx))
	for range 3 {
		must(t, newClient(t, rdb).NewRWLock("prices").Read().Lock(ctx))
	}
	must(t, rdb.HSet(ctx, "visits", "bob", 7, "ann", 5).Err())
	must(t, rdb.HSet(ctx, "settings", "mode", "read").Err())
	must(t, rdb.ConfigResetStat(ctx).Err())
	out, errs, status := ctl(t, s.Addr(), "", "list")
	if strings.Count(out, "\n") != 5 || errs != "" || status != 0 {
		t.Errorf("%q, %q, status %d", out, errs, status)
	}
	if stats := rdb.Info(ctx, "commandstats").Val(); !strings.Contains(stats, "cmdstat_hgetall:calls=2,") {
		t.Errorf("it reads more than two hashes: %s", stats)
	}
}

func TestShow(t *testing.T) {
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	c := newClient(t, rdb)
	lock := c.NewFairLock("queue", relock.Fenced())
	must(t, lock.Lock(ctx))
	waiter, got := relock.WithOwner(ctx), make(chan error, 1)
	go func() { got <- lock.Lock(waiter) }()
	testredis.Await(t, "somebody waits", soon, func() bool { i, err := c.Inspect(ctx, "queue"); return err == nil && len(i.Waiters) > 0 })

	out, errs, status := ctl(t, s.Addr(), "", "show", "queue")
	if errs != "" || status != 0 {
		t.Errorf("%q, status %d", errs, status)
	}
	for _, want := range []string{"kind   fair", "lease  ", "token  ", c.ID(), "HELD BY", "AWAITED BY"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, _, _ = ctl(t, s.Addr(), "", "show", "queue", "-json")
	var l jsonLock
	must(t, json.Unmarshal([]byte(out), &l))
	if l.Kind != "fair" || l.Token == 0 || len(l.Waiters) != 1 || l.Waiters[0].Client != c.ID() ||
		!l.Waiters[0].Alive.After(l.At) || !l.Waiters[0].Deadline.After(l.At) {
		t.Errorf("%s", out)
	}
	must(t, lock.Unlock(ctx))
	must(t, <-got)
	must(t, lock.Unlock(waiter))

	must(t, rdb.Set(ctx, "text", "x", 0).Err())
	for name, want := range map[string]int{"queue": statusFree, "nobody": statusFree, "text": statusFailed, "": statusFailed} {
		if _, _, status := ctl(t, s.Addr(), "", "show", name); status != want {
			t.Errorf("%q: status %d, want %d", name, status, want)
		}
	}
	if out, _, status := ctl(t, s.Addr(), "", "-json", "show", "--", "-nobody"); status != statusFree || !strings.Contains(out, `"name":"-nobody"`) || !strings.Contains(out, `"held":false`) {
		t.Errorf("%q, status %d", out, status)
	}
	if _, errs, _ := ctl(t, s.Addr(), "", "show", "text"); !strings.Contains(errs, "not a lock") {
		t.Errorf("%q", errs)
	}
}

// Whoever waits for a lock that is freed is woken: these clients do not ask again by themselves.
func TestUnlock(t *testing.T) {
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	testUnlock(t, s.Addr(), rdb)

	if _, errs, status := ctl(t, s.Addr(), "", "unlock", "-yes", "nobody"); status != statusFree || !strings.Contains(errs, "nobody holds nobody") {
		t.Errorf("%q, status %d", errs, status)
	}
	must(t, rdb.HSet(ctx, "visits", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1, "bob\x1b[2J", 7).Err())
	if _, errs, status := ctl(t, s.Addr(), "", "unlock", "-yes", "visits"); status != statusFailed || !strings.Contains(errs, `the key "visits" holds a hash that no lock makes (field `) || rdb.HLen(ctx, "visits").Val() != 2 {
		t.Errorf("%q, status %d", errs, status)
	}
	must(t, rdb.Set(ctx, "text", "x", 0).Err())
	if _, _, status := ctl(t, s.Addr(), "", "unlock", "-yes", "text"); status != statusFailed || rdb.Get(ctx, "text").Val() != "x" {
		t.Errorf("status %d", status)
	}
}

// subscribed says whether somebody is subscribed to what has the lock's name in it.
func subscribed(t *testing.T, rdb redis.UniversalClient, name string) bool {
	t.Helper()
	ctx, pattern := context.Background(), "*"+name+"*"
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
	ctx := context.Background()
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
		var guards []context.Context
		for _, l := range take(holder, name) {
			must(t, l.Lock(ctx))
			must(t, l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			must(t, err)
			guards = append(guards, guarded)
		}
		wanted := take(other, name)[0]
		if kind == "read" {
			wanted = other.NewRWLock(name).Write()
		}
		waiter, got := relock.WithOwner(ctx), make(chan error, 1)
		go func() { got <- wanted.Lock(waiter) }()
		testredis.Await(t, "somebody waits", soon, func() bool { return subscribed(t, rdb, name) })
		messages := rdb.PSubscribe(ctx, "redisson_*{"+name+"}*")
		_, err := messages.Receive(ctx) // it is subscribed
		must(t, err)
		i, err := other.Inspect(ctx, name)
		must(t, err)
		out, errs, status := ctl(t, addr, "", "unlock", "-yes", name)
		if out != name+" is free.\n" || errs != "" || status != 0 {
			t.Errorf("%s: %q, %q, status %d", kind, out, errs, status)
		}
		select {
		case err := <-got:
			must(t, err)
		case <-time.After(soon):
			t.Fatalf("%s: the waiter is not woken", kind)
		}
		if i, err := other.Inspect(ctx, name); err != nil || len(i.Holders) != 1 || i.Holders[0].Client != other.ID() {
			t.Errorf("%s: %+v, %v", kind, i, err)
		}
		channel := "redisson_lock__channel:{" + name + "}"
		switch i.Kind {
		case relock.KindFair: // whose waiters would ask again within a second
			channel += ":" + i.Waiters[0].Field
		case relock.KindReadWrite:
			channel = "redisson_rwlock:{" + name + "}"
		}
		if _, cluster := rdb.(*redis.ClusterClient); !cluster { // there it stays in the shard
			if m, err := messages.ReceiveMessage(ctx); err != nil || m.Channel != channel {
				t.Errorf("%s: it tells %v, %v; want %s", kind, m, err, channel)
			}
		}
		must(t, messages.Close())
		must(t, wanted.Unlock(waiter))
		for _, l := range take(holder, name) {
			if held, err := l.IsHeld(ctx); held || err != nil {
				t.Errorf("%s: it is still held, %v", kind, err)
			}
		}
		for _, guarded := range guards {
			if cause := context.Cause(guarded); !errors.Is(cause, relock.ErrLockLost) {
				t.Errorf("%s: the holder hears %v", kind, cause)
			}
		}
	}
}

func TestUnlockAsks(t *testing.T) {
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	c := newClient(t, rdb)
	lock := c.NewLock("orders")
	must(t, lock.LockLease(ctx, time.Hour))
	for _, answer := range []string{"", "\n", "n\n", "yup\n"} {
		out, errs, status := ctl(t, s.Addr(), answer, "unlock", "orders")
		if out != "" || !strings.Contains(errs, c.ID()) || !strings.Contains(errs, "[y/N]") || status != statusNotFreed {
			t.Errorf("%q: %q, %q, status %d", answer, out, errs, status)
		}
	}
	out, _, status := ctl(t, s.Addr(), "Yes\n", "unlock", "orders", "-json")
	var done jsonUnlock
	must(t, json.Unmarshal([]byte(out), &done))
	if !done.Unlocked || done.Lock.Name != "orders" || done.Lock.Holders[0].Client != c.ID() || status != 0 {
		t.Errorf("%q, status %d", out, status)
	}

	_ = lock.Unlock(ctx) // it is lost

	// What happens while it asks.
	for what, c := range map[string]struct {
		then   func()
		status int
	}{
		"it is still held":     {func() {}, statusDone},
		"it is given back":     {func() { must(t, lock.Unlock(ctx)) }, statusFree},
		"it has changed hands": {func() { must(t, lock.Unlock(ctx)); must(t, lock.LockLease(ctx, time.Hour)) }, statusNotFreed},
		"somebody hits Ctrl-C": {nil, statusNotFreed},
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
		if status := cmd.ProcessState.ExitCode(); status != c.status {
			t.Errorf("%s: status %d, want %d; asked %s", what, status, c.status, asked)
		}
		if held := rdb.Exists(ctx, "orders").Val() == 1; held != (c.status == statusNotFreed) {
			t.Errorf("%s: held: %v", what, held)
		}
		_, err = lock.ForceUnlock(ctx) // so that this process knows of it too
		must(t, err)
		_ = lock.Unlock(ctx)
	}
}

func TestOnACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3, 0)
	c, ctx := newClient(t, cluster.Client()), context.Background()
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("lock-%02d", i))
		must(t, c.NewLock(names[i]).Lock(ctx))
	}
	out, errs, status := ctl(t, cluster.Addrs()[1], "", "list", "-json")
	var locks []jsonLock
	must(t, json.Unmarshal([]byte(out), &locks))
	var found []string
	for _, l := range locks {
		found = append(found, l.Name)
	}
	if !slices.Equal(found, names) || status != 0 {
		t.Errorf("%v, %q, status %d", found, errs, status)
	}
	testUnlock(t, cluster.Addrs()[2], cluster.Client())
}

func TestWatchWithoutATerminal(t *testing.T) {
	s := testredis.Start(t)
	ctx := context.Background()
	c := newClient(t, s.Client())
	cmd := command(s.Addr(), "watch", "-every", "100ms", "-json", "ord*")
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
		t.Errorf("it does not see %d locks", n)
	}
	await(0)
	must(t, c.NewLock("orders").Lock(ctx))
	await(1)
	s.Kill()
	s.Restart()
	await(0)
	must(t, cmd.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"help"}, {"show", "-help"}} {
		if out, errs, status := ctl(t, "127.0.0.1:1", "", args...); out != usage || errs != "" || status != statusDone {
			t.Errorf("%v: %q, %q, status %d", args, out, errs, status)
		}
	}
	for text, args := range map[string][]string{
		"relockctl -h":           {"unlok", "x"},
		"no such command":        {"orders:*"},
		"which lock":             {"show"},
		"unlock: which":          {"unlock", "-yes"},
		"more than one word":     {"list", "a", "b"},
		"at least 100ms":         {"watch", "-every", "1ms"},
		"one of them":            {"-url", "redis://x", "-addr", "y"},
		"for -sentinel-master":   {"-addr", "x:1,y:2"},
		"-colour":                {"-colour"},
		"redis://user:password@": {"-url", "http://me:secret@x"},
		"host:port/db":           {"-url", "redis://me:secret@x/notanumber"},
		"address of the Redis":   {"-sentinel-master", "main", "-url", "redis://me:secret@x?colour=red"},
	} {
		out, errs, status := ctl(t, "127.0.0.1:1", "", args...)
		if out != "" || !strings.Contains(errs, text) || strings.Contains(errs, "secret") || status != statusUsage {
			t.Errorf("%v: %q, %q, status %d", args, out, errs, status)
		}
	}
}

func TestNoRedis(t *testing.T) {
	start := time.Now()
	out, errs, status := ctl(t, "me:secret@127.0.0.1:1", "", "list")
	if out != "" || !strings.Contains(errs, "no Redis at 127.0.0.1:1") || strings.Contains(errs, "secret") || strings.Count(errs, "\n") != 1 || status != statusFailed {
		t.Errorf("%q, %q, status %d", out, errs, status)
	}
	if took := time.Since(start); took > 2*patience {
		t.Errorf("it took %v", took)
	}

	s := testredis.Start(t)
	must(t, s.Client().ConfigSet(context.Background(), "requirepass", "secret").Err())
	if _, errs, status := ctl(t, s.Addr(), "", "list"); !strings.Contains(errs, "the Redis at "+s.Addr()+" refuses: NOAUTH") || status != statusFailed {
		t.Errorf("%q, status %d", errs, status)
	}
}

func TestSentinel(t *testing.T) {
	s := testredis.StartSentinel(t, 0)
	ctx := context.Background()
	sentinels, name := strings.Join(s.Addrs(), ","), s.MasterName()
	if _, errs, status := ctl(t, s.Addrs()[0], "", "list"); !strings.Contains(errs, "-sentinel-master") || status != statusFailed {
		t.Errorf("%q, status %d", errs, status)
	}
	c := newClient(t, s.Client())
	must(t, c.NewLock("orders").Lock(ctx))
	for _, args := range [][]string{
		{"-addr", sentinels, "-sentinel-master", name},
		{"-addr", "127.0.0.1:1," + s.Addrs()[0], "-sentinel-master", name}, // one of them is down
		{"-sentinel-master", name},                                         // at REDIS_URL
	} {
		if out, errs, status := ctl(t, s.Addrs()[1], "", append(args, "list")...); !strings.Contains(out, "orders") || errs != "" || status != 0 {
			t.Errorf("%v: %q, %q, status %d", args, out, errs, status)
		}
	}
	if out, errs, status := ctl(t, s.Addrs()[0], "", "-sentinel-master", name, "unlock", "-yes", "orders"); out != "orders is free.\n" || status != 0 {
		t.Errorf("%q, %q, status %d", out, errs, status)
	}
	for text, args := range map[string][]string{
		"no Redis other of the Sentinel at " + s.Addrs()[0] + ": it knows no master of that name": {"-addr", s.Addrs()[0], "-sentinel-master", "other"},
		"of the Sentinel at 127.0.0.1:1,127.0.0.1:2":                                              {"-addr", "127.0.0.1:1,127.0.0.1:2", "-sentinel-master", name},
		"no Redis main of the Sentinel at " + s.Master().Addr() + ": ":                            {"-addr", s.Master().Addr(), "-sentinel-master", name}, // which is no Sentinel
	} {
		if out, errs, status := ctl(t, "", "", append(args, "list")...); out != "" || !strings.Contains(errs, text) || strings.Count(errs, "\n") != 1 || status != statusFailed {
			t.Errorf("%v: %q, %q, status %d", args, out, errs, status)
		}
	}
	// Whoever logs in at a Sentinel has a user of its own there.
	login := redis.NewClient(&redis.Options{Addr: s.Addrs()[0]})
	t.Cleanup(func() { login.Close() })
	must(t, login.Do(ctx, "acl", "setuser", "default", "resetpass", ">other").Err())
	for query, want := range map[string]int{"": statusFailed, "?sentinel_password=secret": statusFailed, "?sentinel_password=other": 0} {
		if _, errs, status := ctl(t, s.Addrs()[0]+query, "", "-sentinel-master", name); status != want || strings.Contains(errs, "secret") {
			t.Errorf("%q: %q, status %d", query, errs, status)
		}
	}
}

func TestQuote(t *testing.T) {
	for name, want := range map[string]string{
		"orders:42": "orders:42", "Straße 7": "Straße 7", "日本": "日本", "{a}:b": "{a}:b",
		"": `""`, " x": `" x"`, "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "a\xff": `"a\xff"`, `"x"`: `"\"x\""`, "a\u202eb": `"a\u202eb"`,
	} {
		if got := quote(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
