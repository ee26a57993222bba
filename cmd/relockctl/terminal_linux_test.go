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
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
