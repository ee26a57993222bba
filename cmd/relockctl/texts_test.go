package main

// What operators are told when something is not as they expect.

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A key with other data is named with its type, without the advice of relock to programmers.
func TestOtherDataIsNamedWithItsType(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	must(t, rdb.Set(ctx, "text", "x", 0).Err())
	must(t, rdb.HSet(ctx, "a\nb", "name", "bob").Err())
	must(t, newClient(t, rdb).NewLock("orders").Lock(ctx))
	must(t, rdb.Set(ctx, "redisson_lock_queue:{orders}", "mine", 0).Err())
	_, err := newClient(t, rdb).NewSemaphore("hosts", 3).AcquireN(ctx, 1)
	must(t, err)
	for _, c := range []struct {
		args, name, want string
		status           int
	}{
		{"show", "text", `the key "text" holds a string`, statusFailed},
		{"show", "a\nb", `the key "a\nb" holds a hash`, statusFailed},
		{"show", "orders", `the key "redisson_lock_queue:{orders}" holds a string`, statusFailed},
		{"list", "orders", `the key "redisson_lock_queue:{orders}" holds a string`, statusFailed},
		{"unlock --yes", "text", `the key "text" holds a string`, statusFailed},
		{"run", "hosts", `the key "hosts" holds a string`, statusNotAcquired},
		{"run --semaphore 3", "orders", `the key "orders" holds a hash`, statusNotAcquired},
	} {
		args := append(strings.Fields(c.args), c.name)
		if strings.HasPrefix(c.args, "run") {
			args = append(args, "--", "true")
		}
		_, errs, status := ctl(t, s.Addr(), "", args...)
		assert.Contains(t, errs, c.want)
		assert.Contains(t, errs, "; it was left unchanged\n")
		assert.Equal(t, c.status, status)
	}
	assert.Equal(t, "x", rdb.Get(ctx, "text").Val())
}

// Each message names what to do next, and a flag of all commands leads to the help that has it.
func TestMistakesAreAnswered(t *testing.T) {
	s := testredis.Start(t)
	must(t, newClient(t, s.Client()).NewLock("lock:invoices:1").Lock(ctx))
	for _, c := range []struct {
		args   []string
		want   string
		status int
	}{
		{[]string{"list", "lock:invoices:1", "--waiting"}, ", db 0.\n", statusDone}, // it is held
		{[]string{"list", "redis://:secret@x:1"}, ": " + useURL + "; see relockctl list -h\n", statusUsage},
		{[]string{"rediss://:secret@x:1"}, ": the argument is an address: use --url; see", statusUsage},
		{[]string{"watch", "--every"}, "flag needs an argument: --every; see relockctl watch -h\n", statusUsage},
		{[]string{"release", "x"}, "release: no such command (did you mean unlock?)", statusUsage},
		{[]string{"show", "lock:…:1"}, "; the name was shortened: list --wide shows it whole\n", statusFree},
		{[]string{"show", ""}, "the name is empty; see relockctl show -h\n", statusUsage},
		{[]string{"unlock", "--yes", ""}, "the name is empty; see relockctl unlock -h\n", statusUsage},
		{[]string{"unlock", "lock:invoices:1"}, "\nrelockctl: not released: no answer: pass --yes in a script\n",
			statusNotFreed},
	} {
		_, errs, status := ctl(t, s.Addr(), "", c.args...)
		assert.Contains(t, errs, c.want, c.args)
		assert.NotContains(t, errs, "secret")
		assert.Equal(t, c.status, status, "%v: %s", c.args, errs)
	}
	_, errs, status := ctl(t, s.Addr(), "no\n", "unlock", "lock:invoices:1")
	assert.True(t, strings.HasSuffix(errs, "relockctl: not released\n"), errs)
	assert.Equal(t, statusNotFreed, status)
}

// Who has named no address is told which one is the default, and how to name another one.
func TestDefaultAddressIsExplained(t *testing.T) {
	if c, err := net.Dial("tcp", "localhost:6379"); err == nil {
		c.Close()
		t.Skip("there is a server at the default address")
	}
	const hint = " (the default: set $REDIS_URL, or pass --url or --addr): "
	for want, args := range map[string][]string{
		"the Redis at localhost:6379" + hint:                 {"list"},
		" main of the Sentinel at localhost:26379" + hint:    {"--sentinel-master", "main", "list"},
		"cannot reach the Redis at localhost:6379: dial tcp": {"--addr", "localhost:6379", "list"},
	} {
		cmd := command("", args...)
		cmd.Env = append(os.Environ(), "REDIS_URL=")
		errs, err := cmd.CombinedOutput()
		assert.Error(t, err)
		assert.Contains(t, string(errs), want)
		assert.Equal(t, statusFailed, cmd.ProcessState.ExitCode())
	}
}

func TestRedisThatDoesNotAnswerIsReported(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	start := time.Now()
	_, errs, status := ctl(t, silent.Addr().String(), "", "list")
	assert.Equal(t, "relockctl: cannot reach the Redis at "+silent.Addr().String()+": no answer within 5s; perhaps only one side uses TLS\n", errs)
	assert.Equal(t, statusFailed, status)
	assert.Less(t, time.Since(start), 2*patience)
	_, errs, _ = ctl(t, silent.Addr().String(), "", "--sentinel-master", "main", "list")
	assert.Contains(t, errs, "no answer within 5s")
}

// The first message of serve tells whether the page can release locks.
func TestServeSaysWhetherItReleases(t *testing.T) {
	s := testredis.Start(t)
	shows := "The page shows the locks at " + s.Addr() + ", db 0, and "
	for want, args := range map[string][]string{
		shows + "cannot release them: --allow-unlock allows it. Ctrl-C ends.\n": {},
		shows + "can release them by force. Ctrl-C ends.\n":                     {"--allow-unlock"},
	} {
		_, end := served(t, s.Addr(), append([]string{"serve", "--addr", "127.0.0.1:0"}, args...)...)
		_, errs := end()
		assert.Contains(t, errs, want)
	}
}
