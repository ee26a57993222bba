package testredis

// The count of tests that were skipped for lack of a redis-server.
//
// Rules: go test shows nothing of what a package prints whose tests pass, when it is given a list of
// packages. So the line also goes to the terminal, if there is one.

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
)

var skipped atomic.Int64 // tests, for lack of a redis-server

// countSkipped counts a test, except for those who only play one.
func countSkipped(t testing.TB) {
	switch t.(type) {
	case *testing.T, *testing.B, *testing.F:
		skipped.Add(1)
	}
}

// A Runner runs the tests of a package. *testing.M is one.
type Runner interface{ Run() int }

// Main is m, which says after the tests of the package called name how many of them were
// skipped for lack of a redis-server.
func Main(m Runner, name string) Runner { return reportingRunner{m, name} }

type reportingRunner struct {
	Runner
	name string
}

func (r reportingRunner) Run() int {
	code := r.Runner.Run()
	if n := skipped.Load(); n > 0 {
		report(n, r.name)
	}
	return code
}

func report(n int64, name string) {
	line := fmt.Sprintf("%s: %d tests skipped: no redis-server on the PATH, and RELOCK_REDIS_SERVER names none\n", name, n)
	_, _ = io.WriteString(os.Stdout, line)
	if testing.Verbose() || isTerminal(os.Stdout) { // it was seen
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
