package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
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
	keys, side := openTerminal(t, 100, 40)
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
	s := testredis.Start(t)
	c, ctx := newClient(t, s.Client()), context.Background()
	for _, name := range []string{"a", "b"} {
		must(t, c.NewLock(name).Lock(ctx))
	}
	defer startWaiting(t, s, "b")()
	assert.Regexp(t, `^\x1b\[1mNAME\x1b\[0m .*\nb .* \x1b\[33m1\x1b\[0m\na .* 0\n\n2 held, 1 with waiters\n$`,
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

// People need no flag to learn whether a lease grows.
func TestShowLooksOnATerminal(t *testing.T) {
	s := testredis.Start(t)
	c, err := relock.New(s.Client(), relock.WithLabel(""), relock.WithWatchdogTimeout(3*time.Second))
	must(t, err)
	defer c.Close()
	must(t, c.NewLock("a").Lock(context.Background()))
	assert.Contains(t, onTerminal(t, s.Addr(), "", "show", "a"), "\r\x1b[K\x1b[32mThe lease grows:\x1b[0m ")
	assert.NotContains(t, onTerminal(t, s.Addr(), "", "show", "--for", "0s", "a"), "Looking")
	assert.NotContains(t, onTerminal(t, s.Addr(), "", "show", "--json", "a"), "Looking")
}

func TestWatchRedrawsTheTerminal(t *testing.T) {
	s := testredis.Start(t)
	c, ctx := newClient(t, s.Client()), context.Background()
	for i := range 30 {
		must(t, c.NewLock(fmt.Sprintf("lock-%02d", i)).Lock(ctx))
	}
	keys, side := openTerminal(t, 80, 10)
	cmd := command(s.Addr(), "watch", "-every", "100ms")
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

	all := seen()
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
