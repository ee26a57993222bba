package testredis

// A redis-server whose clock a test can move.
//
// Rules: only the wall clock jumps, as when an operator sets it. Times that Redis measures with the monotonic clock
// are not affected. The shim is inserted between the server and libc, so it needs Linux and a C compiler. Without
// them the test is skipped.

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

const jumpySource = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *ahead; /* seconds, in a file that the test writes */

__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("JUMPY_CLOCK"), O_RDONLY);
    if (fd < 0) abort();
    ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
    if (ahead == MAP_FAILED) abort();
}

int gettimeofday(struct timeval *tv, void *tz) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int r = real(tv, tz);
    if (tv && ahead) tv->tv_sec += *ahead;
    return r;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, ts);
    if (ts && ahead && id == CLOCK_REALTIME) ts->tv_sec += *ahead;
    return r;
}
`

// StartJumpy is like Start, for a server with a clock that Jump moves.
func StartJumpy(t testing.TB) *Server {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("moving the clock of a server needs Linux and a C compiler")
	}
	dir := t.TempDir()
	source, shim, clock := filepath.Join(dir, "jumpy.c"), filepath.Join(dir, "jumpy.so"), filepath.Join(dir, "clock")
	for name, content := range map[string][]byte{source: []byte(jumpySource), clock: make([]byte, 8)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("the shim is not compiled: %v\n%s", err, out)
	}
	s := startWith(t, []string{"LD_PRELOAD=" + shim, "JUMPY_CLOCK=" + clock}, func(int) []string { return nil })
	s.clock = clock
	return s
}

// Jump moves the clock of a server that StartJumpy has started, by whole seconds.
func (s *Server) Jump(by time.Duration) {
	s.t.Helper()
	s.ahead += by
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(int64(s.ahead/time.Second)))
	f, err := os.OpenFile(s.clock, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(b[:], 0)
		_ = f.Close()
	}
	if err != nil {
		s.t.Fatalf("move the clock: %v", err)
	}
}
