package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// openTerminal makes a terminal: what is typed into keys, and read from it, and
// the side of the program.
func openTerminal(t *testing.T, columns, rows uint16) (keys, side *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { keys.Close() })
	ioctl := func(request uintptr, arg unsafe.Pointer) {
		t.Helper()
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, keys.Fd(), request, uintptr(arg))
		require.Zero(t, errno)
	}
	var locked, number int32
	ioctl(syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	ioctl(syscall.TIOCGPTN, unsafe.Pointer(&number))
	ioctl(syscall.TIOCSWINSZ, unsafe.Pointer(&[4]uint16{rows, columns}))
	side, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { side.Close() })
	return keys, side
}

// onTerminal runs the program to its end on a terminal, with further variables in its environment, and returns what the
// terminal gets.
func onTerminal(t *testing.T, addr, env string, args ...string) string {
	t.Helper()
	return onTerminalOf(t, 100, addr, env, args...)
}

// onTerminalOf is onTerminal with a number of columns.
func onTerminalOf(t *testing.T, columns uint16, addr, env string, args ...string) string {
	t.Helper()
	keys, side := openTerminal(t, columns, 40)
	cmd := command(addr, args...)
	cmd.Env = append(cmd.Env, "TERM=xterm", "NO_COLOR=", env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = side, side, side
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, cmd.Start())
	side.Close()
	got := make(chan string)
	go func() {
		all, _ := io.ReadAll(keys) // the error is EIO: the program has closed its side
		got <- string(all)
	}()
	_ = cmd.Wait()
	return strings.ReplaceAll(<-got, "\r\n", "\n")
}

// A list has colors and a total on a terminal, and nowhere else.
func TestListIsForPeopleOnATerminal(t *testing.T) {
	s, ctx, c := started(t)
	for _, name := range []string{"a", "b"} {
		must(t, c.NewLock(name).Lock(ctx))
	}
	defer startWaiting(t, s, "b")()
	assert.Regexp(t, `^\x1b\[1mNAME .*\x1b\[0m\n\x1b\[33mb .* 1\x1b\[0m\na .* 0\n\n2 held, 1 with waiters\n$`,
		onTerminal(t, s.Addr(), "", "list"))
	for _, env := range []string{"NO_COLOR=1", "TERM=dumb"} {
		out := onTerminal(t, s.Addr(), env, "list")
		assert.NotContains(t, out, "\x1b", env)
		assert.Contains(t, out, "\n2 held, 1 with waiters\n")
	}
	out, errs, _ := ctl(t, s.Addr(), "", "list")
	assert.NotContains(t, out+errs, "\x1b")
	assert.Equal(t, 3, strings.Count(out, "\n"), out)
	assert.NotContains(t, onTerminal(t, s.Addr(), "", "list", "--json"), "held,")
}

// watched runs watch on a terminal, until it has drawn a few times and gets Ctrl-C, and returns what the terminal gets.
func watched(t *testing.T, columns, rows uint16, addr string, args ...string) string {
	t.Helper()
	keys, side := openTerminal(t, columns, rows)
	cmd := command(addr, append([]string{"watch", "--every", "100ms"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = side, side, side
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, cmd.Start())
	side.Close()

	var mu sync.Mutex // guards screen
	var screen strings.Builder
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		return screen.String()
	}
	var reading sync.WaitGroup
	waitgroup.Go(&reading, func() {
		piece := make([]byte, 4096)
		for {
			n, err := keys.Read(piece)
			mu.Lock()
			screen.Write(piece[:n])
			mu.Unlock()
			if err != nil { // EIO: the program has closed its side
				return
			}
		}
	})
	testredis.Await(t, "it has drawn a few times", soon, func() bool { return strings.Count(seen(), home) >= 3 })
	_, err := io.WriteString(keys, "\x03") // Ctrl-C
	must(t, err)
	must(t, cmd.Wait())
	reading.Wait()
	return seen()
}

func TestWatchRedrawsTheTerminal(t *testing.T) {
	s, ctx, c := started(t)
	for i := range 30 {
		must(t, c.NewLock(fmt.Sprintf("lock-%02d", i)).Lock(ctx))
	}
	all := watched(t, 80, 10, s.Addr())
	assert.True(t, strings.HasPrefix(all, enterScreen), "%q", all)
	require.Contains(t, all, leaveScreen)
	assert.Equal(t, 1, strings.Count(all, enterScreen), "%q", all)
	for frame := range strings.SplitSeq(strings.TrimPrefix(all, enterScreen), home) {
		if frame == "" {
			continue
		}
		assert.LessOrEqual(t, strings.Count(frame, "\n"), 9, "%q", frame)
		assert.Contains(t, frame, "lock-00")
		assert.Contains(t, frame, "more lines")
		assert.Contains(t, frame, "30 held")
	}
	assert.Empty(
		t,
		strings.Trim(all[strings.Index(all, leaveScreen)+len(leaveScreen):], "^C\r\n"),
		"after it has left the screen",
	)
}

// holdLong holds three locks whose table is wider than a terminal of 80 columns: one of them is waited for, one has a
// fencing token, and one has a long name.
func holdLong(t *testing.T, s *testredis.Server) (long string) {
	t.Helper()
	c, err := relock.New(s.Client(), relock.WithLabel("orders-in-the-back-office-7"))
	must(t, err)
	t.Cleanup(func() { c.Close() })
	long = "lock:orders:" + strings.Repeat("x", 60) + ":42"
	must(t, c.NewLock(long).Lock(ctx))
	must(t, c.NewLock("lock:b", relock.Fenced()).Lock(ctx))
	must(t, c.NewLock("lock:c").Lock(ctx))
	t.Cleanup(startWaiting(t, s, "lock:c"))
	testredis.Await(t, "the label is in Redis", soon, func() bool {
		i, err := c.Inspect(ctx, "lock:c")
		return err == nil && len(i.Holders) == 1 && i.Holders[0].Label != ""
	})
	return long
}

// What identifies a lock, and who waits, fits into 80 columns, and what does not fit is named.
func TestListFitsTheTerminal(t *testing.T) {
	s := testredis.Start(t)
	long := holdLong(t, s)
	out := onTerminalOf(t, 80, s.Addr(), "NO_COLOR=1", "list")
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
	assert.Regexp(t, `^NAME +TYPE +LEASE +HAS WAITED +WAITING +LABEL\n`, out)
	assert.Regexp(t, `\nlock:orde\S*…x*:42 +lock +`, out)
	assert.Regexp(t, `\nlock:b +fenced\S* ?\S*… ?\S*ction +`, out)
	assert.Contains(t, out, "\n3 held, 1 with waiters\n"+
		"Not shown for lack of width: HOLDS, OWNER and CLIENT. --wide shows all.\n")

	out = onTerminalOf(t, 250, s.Addr(), "NO_COLOR=1", "list")
	assert.Contains(t, out, long)
	assert.Regexp(t, `^NAME +TYPE +OWNER +CLIENT +HOLDS +LEASE +HAS WAITED +WAITING +LABEL\n`, out)
	assert.NotContains(t, out, "Not shown")
	out = onTerminalOf(t, 80, s.Addr(), "NO_COLOR=1", "list", "--wide")
	assert.Contains(t, out, long)
	assert.NotContains(t, out, "Not shown")
	out, _, _ = ctl(t, s.Addr(), "", "list")
	assert.Contains(t, out, " OWNER ")
	assert.Contains(t, out, "orders-in-the-back-office-7")
}

// With --waiting the total says of how many locks the list has those with waiters.
func TestTotalOfLocksWithWaiters(t *testing.T) {
	s := testredis.Start(t)
	holdLong(t, s)
	out := onTerminal(t, s.Addr(), "", "list", "--waiting")
	assert.Contains(t, out, "\n3 held, 1 with waiters\n")
	assert.Contains(t, watched(t, 100, 10, s.Addr(), "--waiting"), ": 3 held, 1 with waiters ")
}
