package testredis

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/waitgroup"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

const patience = 10 * time.Second // for events that must happen, also on a slow machine

func TestMain(m *testing.M) {
	if os.Getenv("TESTREDIS_ORPHAN") != "" {
		os.Exit(m.Run())
	}
	ManyAtOnce()
	goleak.VerifyTestMain(Main(m, "testredis"),
		// go-redis checks once a second whether a server that was killed is back, until a moment after Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// one makes a client that has a single connection, makes a single attempt, and gives up soon.
func one(o *redis.Options) {
	o.PoolSize = 1
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.ReadTimeout = 200 * time.Millisecond
}

// The server ends with a test process that ends without any cleanup.
func TestServerEndsWithItsTestProcess(t *testing.T) {
	if path := os.Getenv("TESTREDIS_ORPHAN"); path != "" {
		require.NoError(t, os.WriteFile(path, []byte(Start(t).Addr()), 0o600))
		os.Exit(0)
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can do this")
	}
	Start(t) // or skip the test
	path := filepath.Join(t.TempDir(), "addr")
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerEndsWithItsTestProcess$")
	// It cannot delete its temporary directory either, so that is created in ours.
	cmd.Env = append(os.Environ(), "TESTREDIS_ORPHAN="+path, "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	addr, err := os.ReadFile(path)
	require.NoError(t, err)
	Await(t, "the server of the dead process is gone", patience, func() bool {
		_, err := whoAnswers(string(addr))
		return err != nil
	})
}

// A deadTest records how it was ended.
type deadTest struct {
	testing.TB
	how string
}

func (d *deadTest) Helper() {}
func (d *deadTest) Fatalf(format string, args ...any) {
	d.how = "fatal: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (d *deadTest) Skipf(format string, args ...any) {
	d.how = "skip: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func ended(test func(testing.TB)) string {
	d := &deadTest{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(d)
	}()
	<-done
	return d.how
}

func TestWithoutServerIsSkippedAndFailsInCI(t *testing.T) {
	t.Setenv("RELOCK_REDIS_SERVER", filepath.Join(t.TempDir(), "redis-server"))
	assert.False(t, Available(), "a file that is not there is available")
	for ci, want := range map[string]string{"": "skip: ", "true": "fatal: "} {
		t.Setenv("CI", ci)
		how := ended(func(t testing.TB) { Start(t) })
		assert.True(t, strings.HasPrefix(how, want), "CI=%s: %s", ci, how)
	}
}

// A script has the time at which it was sent, also on a miniredis whose ticks are late; and of two scripts the second
// one has no earlier time than the first one.
func TestScriptsHaveTheTimeOfTheServer(t *testing.T) {
	const script = `local now = redis.call('time')
		redis.call('rpush', KEYS[1], now[1] * 1000000 + now[2])
		return now[1] * 1000000 + now[2]`
	for name, addr := range map[string]func(t *testing.T) string{
		"miniredis": func(t *testing.T) string { return Mini(t).Addr() },
		"redis":     func(t *testing.T) string { return Start(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			c := Client(t, addr(t))
			var all sync.WaitGroup
			for range 4 {
				waitgroup.Go(&all, func() {
					for range 50 {
						before := time.Now().UnixMicro()
						at, err := c.Eval(ctx, script, []string{"times"}).Int64()
						if !assert.NoError(t, err) || !assert.GreaterOrEqual(t, at, before, "the clock was late") {
							return
						}
					}
				})
			}
			all.Wait()
			times, err := c.LRange(ctx, "times", 0, -1).Result()
			require.NoError(t, err)
			assert.IsNonDecreasing(t, times, "the clock went back")
		})
	}
}
