package testredis

// The number of tests that were skipped because there is no redis-server.
//
// Rules: with a list of packages, go test does not show the output of a package whose tests pass. The line is
// therefore also written to the terminal, if there is one.

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
)

var skipped atomic.Int64 // tests, because there is no redis-server

// countSkipped counts t, unless it only imitates a test.
func countSkipped(t testing.TB) {
	switch t.(type) {
	case *testing.T, *testing.B, *testing.F:
		skipped.Add(1)
	}
}

// A Runner runs the tests of a package, such as *testing.M.
type Runner interface{ Run() int }

// Main returns a Runner that runs m, and then prints how many tests of the package called name were skipped because
// there is no redis-server.
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
