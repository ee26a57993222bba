package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// served runs serve, and returns the URL that it prints, and a function that ends it and returns its exit status.
func served(t *testing.T, addr string, args ...string) (page string, end func() (status int, errs string)) {
	t.Helper()
	cmd := command(addr, args...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	errs, err := os.CreateTemp(t.TempDir(), "stderr")
	must(t, err)
	t.Cleanup(func() { errs.Close() })
	cmd.Stderr = errs
	must(t, cmd.Start())
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	text, _ := os.ReadFile(errs.Name())
	require.NoError(t, err, string(text))
	return strings.TrimSpace(line), func() (int, string) {
		must(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait()
		ended = true
		text, _ := os.ReadFile(errs.Name())
		return cmd.ProcessState.ExitCode(), string(text)
	}
}

func fetched(t *testing.T, address string) (status int, text string) {
	t.Helper()
	answer, err := http.Get(address)
	must(t, err)
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(all)
}

// The page shows the locks that match the pattern, and ends with Ctrl-C, also while a browser shows it.
func TestServeShowsLocksUntilCtrlC(t *testing.T) {
	s, ctx, c := started(t)
	must(t, c.NewLock("lock:a").Lock(ctx))
	must(t, c.NewLock("unrelated").Lock(ctx))
	page, end := served(t, s.Addr(), "serve", "--every", "100ms", "--addr", "127.0.0.1:0", "lock:*")
	assert.Regexp(t, `^http://127\.0\.0\.1:\d+/$`, page)
	status, text := fetched(t, page)
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, text, "lock:a")
	assert.NotContains(t, text, "unrelated")
	assert.Contains(t, text, "Locks at "+s.Addr())
	status, _ = fetched(t, page+"release?name=lock:a")
	assert.Equal(t, http.StatusNotFound, status)

	stream, err := http.Get(page + "events?q=")
	must(t, err)
	defer stream.Body.Close()
	_, err = bufio.NewReader(stream.Body).ReadString('>')
	must(t, err)
	began := time.Now()
	code, errs := end()
	assert.Zero(t, code, errs)
	assert.Less(t, time.Since(began), soon)
	address, err := url.Parse(page)
	must(t, err)
	_, err = net.Dial("tcp", address.Host)
	assert.Error(t, err, "after the end")
}

func TestServeReleasesByForceIfItMay(t *testing.T) {
	s, ctx, c := started(t)
	h, err := c.NewLock("lock:a").Acquire(ctx)
	must(t, err)
	page, end := served(t, s.Addr(), "serve", "--addr", "127.0.0.1:0", "--allow-unlock", "lock:*")
	status, text := fetched(t, page+"release?name=stock:a")
	assert.Equal(t, http.StatusForbidden, status)
	assert.Contains(t, text, "lock:*")
	_, text = fetched(t, page+"release?name=lock:a")
	form := url.Values{"sure": {"yes"}}
	for _, m := range regexp.MustCompile(`name="(name|token|holder)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Add(m[1], m[2])
	}
	r, err := http.NewRequest(http.MethodPost, page+"release", strings.NewReader(form.Encode()))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", strings.TrimSuffix(page, "/"))
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	answer.Body.Close()
	assert.Equal(t, http.StatusOK, answer.StatusCode)
	assert.ErrorIs(t, h.Release(ctx), relock.ErrLockLost)
	code, errs := end()
	assert.Zero(t, code)
	assert.Contains(t, errs, "a lock was released by force")
}

// An address that other machines can reach needs a flag, and is refused before Redis is asked and a port is open.
func TestServeRefusesOtherAddresses(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:8080"} {
		_, errs, status := ctl(t, "127.0.0.1:1", "", "serve", "--addr", addr)
		assert.Equal(t, statusUsage, status, addr)
		assert.Contains(t, errs, "--expose", addr)
	}
	for _, addr := range []string{"x", "127.0.0.1:x"} {
		_, errs, status := ctl(t, "127.0.0.1:1", "", "serve", "--addr", addr)
		assert.Equal(t, statusUsage, status, addr)
		assert.Contains(t, errs, "--addr", addr)
	}
	_, errs, status := ctl(t, "127.0.0.1:1", "", "serve", "--every", "1ms")
	assert.Equal(t, statusUsage, status, errs)
	_, errs, status = ctl(t, "127.0.0.1:1", "", "serve", "--addr", "127.0.0.1:0")
	assert.Equal(t, statusFailed, status)
	assert.Contains(t, errs, "cannot reach the Redis at 127.0.0.1:1")
}

// The URL that is printed can be used, also if the port is open at all addresses of the host. Who has not named the
// host is told that other machines are refused.
func TestServePrintsAURLThatItAnswers(t *testing.T) {
	s := testredis.Start(t)
	const hint = "--hosts"
	for _, addr := range []string{"0.0.0.0:0", ":0", "127.0.0.1:0"} {
		page, end := served(t, s.Addr(), "serve", "--expose", "--addr", addr)
		status, _ := fetched(t, page)
		assert.Equal(t, http.StatusOK, status, page)
		_, errs := end()
		assert.Equal(t, addr != "127.0.0.1:0", strings.Contains(errs, hint), "%s: %s", addr, errs)
	}
	page, end := served(t, s.Addr(), "serve", "--expose", "--addr", ":0", "--hosts", "[2001:db8::1]")
	assert.Regexp(t, `^http://\[2001:db8::1\]:\d+/$`, page)
	_, errs := end()
	assert.NotContains(t, errs, hint)
}

// In front of serve --addr is the address of Redis, and with --expose the page needs the names under which it is reached.
func TestServeHasItsOwnAddress(t *testing.T) {
	s := testredis.Start(t)
	page, end := served(t, "127.0.0.1:1", "--addr", s.Addr(), "serve", "--addr", "0.0.0.0:0", "--expose", "--hosts",
		"locks.example,admin.example")
	address, err := url.Parse(page)
	must(t, err)
	assert.Equal(t, "locks.example", address.Hostname())
	for host, want := range map[string]int{
		"locks.example": http.StatusOK, "admin.example": http.StatusOK, "localhost": http.StatusOK,
		"evil.example": http.StatusMisdirectedRequest, "0.0.0.0": http.StatusMisdirectedRequest,
	} {
		r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+address.Port()+"/", nil)
		must(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, host)
	}
	code, errs := end()
	assert.Zero(t, code, errs)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	_, errs, status := ctl(t, s.Addr(), "", "serve", "--addr", taken.Addr().String())
	assert.Equal(t, statusFailed, status)
	assert.Contains(t, errs, "address already in use")
}
