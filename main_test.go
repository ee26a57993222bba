package relock

import (
	"os"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) {
	testredis.ManyAtOnce()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800) // the collector would take a fifth of the time, for the sake of little memory
	}
	send.Slack = 800 * time.Millisecond // a busy machine, or the race detector on a miniredis, is slow

	goleak.VerifyTestMain(testredis.Main(m, "relock"),
		// go-redis checks once a second whether a server that was killed is back, until shortly after its Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
