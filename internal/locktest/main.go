package locktest

// How the tests of a package begin and end.

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"go.uber.org/goleak"
)

// Main runs the tests of a package that uses locks. None of them may leave a goroutine.
func Main(m *testing.M) {
	testredis.ManyAtOnce()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800) // the collector would take a fifth of the time, for the sake of little memory
	}
	send.Slack = 800 * time.Millisecond // a busy machine, or the race detector on a miniredis, is slow

	goleak.VerifyTestMain(testredis.Main(m, "relock"),
		// go-redis checks once a second whether a server that was killed is back, until shortly after its Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// InRepository makes the root of the repository the working directory, for tests that read its files.
func InRepository() {
	if err := os.Chdir(repository()); err != nil {
		panic(err)
	}
}

// repository returns the path of the repository.
func repository() string {
	dir := "."
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Join(dir, "..")
	}
}
