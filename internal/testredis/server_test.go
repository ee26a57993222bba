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

func TestServerStartsEmptyAndRestartsEmpty(t *testing.T) {
	ctx := context.Background()
	s := Start(t, "--maxmemory", "64mb")
	c := s.Client(one)
	assert.Equal(t, "67108864", c.ConfigGet(ctx, "maxmemory").Val()["maxmemory"], "maxmemory")
	assert.NoError(t, c.Do(ctx, "DEBUG", "SLEEP", "0").Err(), "DEBUG")
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	first := s.Pid()

	s.Kill()
	assert.Error(t, c.Ping(ctx).Err(), "a killed server answers")
	s.Restart()
	assert.NotEqual(t, first, s.Pid(), "the process is the same after a restart")
	n, err := s.Client().Exists(ctx, "k").Result()
	assert.NoError(t, err)
	assert.Zero(t, n, "keys after a restart")
	second := s.Pid()
	s.Restart() // while it is running
	assert.NotEqual(t, second, s.Pid(), "the process is the same after a restart")
}

func TestPausedServerAnswersOnceThawed(t *testing.T) {
	ctx := context.Background()
	s := Start(t)
	c := s.Client(one)
	require.NoError(t, c.Ping(ctx).Err()) // opens a connection
	s.Freeze()
	assert.Error(t, c.Incr(ctx, "k").Err(), "a frozen server answers")
	s.Thaw()
	after := s.Client()
	Await(t, "the command that was sent is executed", patience, func() bool { return after.Get(ctx, "k").Val() == "1" })
	s.Freeze() // it stays paused, and the end of the test must handle that
}

func TestPausedServerCanBeKilled(t *testing.T) {
	s := Start(t)
	s.Freeze()
	s.Kill()
	s.Restart()
	assert.NoError(t, s.Client().Ping(context.Background()).Err())
}

func TestStartRefusesATakenPort(t *testing.T) {
	s := Start(t)
	other := &Server{t: t, bin: s.bin, dir: s.dir, port: s.port}
	require.Error(t, other.start(), "two servers on one port")
	pid, err := whoAnswers(s.Addr())
	assert.NoError(t, err)
	assert.Equal(t, s.Pid(), pid, "the process that answers")
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

func TestAwaitFailsAfterItsTime(t *testing.T) {
	n := 0
	Await(t, "the third time", patience, func() bool { n++; return n == 3 })
	how := ended(func(t testing.TB) { Await(t, "pigs fly", 5*time.Millisecond, func() bool { return false }) })
	assert.True(t, strings.HasPrefix(how, "fatal: "), "ended with %q", how)
	assert.Contains(t, how, "pigs fly")
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
			ctx := context.Background()
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
