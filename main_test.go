package relock

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	logging.Disable() // of go-redis, which reports every server that a test kills

	goleak.VerifyTestMain(m,
		// go-redis looks once a second whether a server that was killed is back, until a moment after its Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
