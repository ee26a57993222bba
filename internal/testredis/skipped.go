package testredis

// What a run of the tests leaves out: tests that need a redis-server, if there is none, and the long form of others.
//
// Rules: a package says what it has left out in one line at its end. With a list of packages, go test does not show the
// output of a package whose tests pass. The line is therefore also written to the terminal, if there is one.

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/relock-go/relock/internal/tenancy"
)

var (
	skipped   atomic.Int64 // tests, because there is no redis-server
	leftOut   atomic.Int64 // tests that are for the long form only
	shortened sync.Map     // the callers of Full that have got the plain form
)

// Long reports whether the tests have their long form, which RELOCK_LONG=1 in the environment selects, as "make race"
// and "make valkey" do.
func Long() bool { return os.Getenv("RELOCK_LONG") != "" }

// Full returns how many cases a test tries, or for how long: plain, or long in the long form.
func Full[T int | uint64 | time.Duration](plain, long T) T {
	if Long() {
		return long
	}
	var callers [2]uintptr // some packages have a function for this one
	runtime.Callers(2, callers[:])
	shortened.Store(callers, true)
	return plain
}

// OnlyLong skips t unless the tests have their long form.
func OnlyLong(t testing.TB) {
	t.Helper()
	if !Long() {
		if isTest(t) {
			leftOut.Add(1)
		}
		t.Skip("only in the long form: RELOCK_LONG=1")
	}
}

// NotRaced skips t under the race detector: it would do once more what is tested on another server.
func NotRaced(t testing.TB) {
	t.Helper()
	if raced {
		t.Skip("not under the race detector")
	}
}

// countSkipped counts t, unless it only imitates a test.
func countSkipped(t testing.TB) {
	if isTest(t) {
		skipped.Add(1)
	}
}

// A Runner runs the tests of a package, such as *testing.M.
type Runner interface{ Run() int }

// Main returns a Runner that runs m without the log of go-redis, and then prints what the tests of the package called name have left out.
func Main(m Runner, name string) Runner { return reportingRunner{m, name} }

type reportingRunner struct {
	Runner
	name string
}

func (r reportingRunner) Run() int {
	tenancy.Strict = true
	logging.Disable() // of go-redis, which logs every server that a test kills
	code := r.Runner.Run()
	var left []string
	if n := skipped.Load(); n > 0 {
		left = append(left,
			fmt.Sprintf("%d tests skipped: no redis-server on the PATH, and RELOCK_REDIS_SERVER names none", n))
	}
	shorter := 0
	shortened.Range(func(any, any) bool { shorter++; return true })
	if n := leftOut.Load(); n > 0 || shorter > 0 {
		left = append(left, fmt.Sprintf("%d tests left out and %d shortened: RELOCK_LONG=1 selects the long form", n, shorter))
	}
	if left != nil {
		report(r.name + ": " + strings.Join(left, "; ") + "\n")
	}
	return code
}

func report(line string) {
	_, _ = io.WriteString(os.Stdout, line)
	if testing.Verbose() || isTerminal(os.Stdout) { // the user has seen the line
		return
	}
	if terminal, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		_, _ = io.WriteString(terminal, line)
		_ = terminal.Close()
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
