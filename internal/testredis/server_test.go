package testredis

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

const patience = 10 * time.Second // for what must happen, on a slow machine too

func TestMain(m *testing.M) {
	if os.Getenv("TESTREDIS_ORPHAN") != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(Main(m, "testredis"),
		// go-redis looks once a second whether a server that was killed is back, until a moment after its Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// one makes a client with a single connection and attempt, which gives up soon.
func one(o *redis.Options) {
	o.PoolSize = 1
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.ReadTimeout = 200 * time.Millisecond
}

func TestServer(t *testing.T) {
	ctx := context.Background()
	s := Start(t, "--maxmemory", "64mb")
	c := s.Client(one)
	if got := c.ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != "67108864" {
		t.Errorf("maxmemory is %q", got)
	}
	if err := c.Do(ctx, "DEBUG", "SLEEP", "0").Err(); err != nil {
		t.Errorf("DEBUG: %v", err)
	}
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	first := s.Pid()

	s.Kill()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if s.Pid() == first {
		t.Error("the process is the same after a restart")
	}
	if n, err := s.Client().Exists(ctx, "k").Result(); err != nil || n != 0 {
		t.Errorf("after a restart EXISTS is %d, %v", n, err)
	}
	second := s.Pid()
	s.Restart() // while it runs
	if s.Pid() == second {
		t.Error("the process is the same after a restart")
	}
}

func TestFreeze(t *testing.T) {
	ctx := context.Background()
	s := Start(t)
	c := s.Client(one)
	if err := c.Ping(ctx).Err(); err != nil { // connects
		t.Fatal(err)
	}
	s.Freeze()
	if err := c.Incr(ctx, "k").Err(); err == nil {
		t.Error("a frozen server answers")
	}
	s.Thaw()
	after := s.Client()
	Await(t, "the command that was sent is executed", patience, func() bool { return after.Get(ctx, "k").Val() == "1" })
	s.Freeze() // and stays so: the end of the test must cope
}

func TestKillFrozen(t *testing.T) {
	s := Start(t)
	s.Freeze()
	s.Kill()
	s.Restart()
	if err := s.Client().Ping(context.Background()).Err(); err != nil {
		t.Error(err)
	}
}

func TestPortTaken(t *testing.T) {
	s := Start(t)
	other := &Server{t: t, bin: s.bin, dir: s.dir, port: s.port}
	if err := other.start(); err == nil {
		t.Fatal("two servers on one port")
	}
	if pid, err := whoAnswers(s.Addr()); err != nil || pid != s.Pid() {
		t.Errorf("process %d answers instead of %d, %v", pid, s.Pid(), err)
	}
}

// The server dies with a test process that ends without any cleanup.
func TestNoOrphan(t *testing.T) {
	if path := os.Getenv("TESTREDIS_ORPHAN"); path != "" {
		if err := os.WriteFile(path, []byte(Start(t).Addr()), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can do this")
	}
	Start(t) // or skip
	path := filepath.Join(t.TempDir(), "addr")
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoOrphan$")
	// It cannot clean up its temporary directory either, so that is put into ours.
	cmd.Env = append(os.Environ(), "TESTREDIS_ORPHAN="+path, "TMPDIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	addr, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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

func TestWithoutServer(t *testing.T) {
	t.Setenv("RELOCK_REDIS_SERVER", filepath.Join(t.TempDir(), "redis-server"))
	if Available() {
		t.Error("a file that is not there is available")
	}
	for ci, want := range map[string]string{"": "skip: ", "true": "fatal: "} {
		t.Setenv("CI", ci)
		if how := ended(func(t testing.TB) { Start(t) }); !strings.HasPrefix(how, want) {
			t.Errorf("CI=%s: %s", ci, how)
		}
	}
}

func TestAwait(t *testing.T) {
	n := 0
	Await(t, "the third time", patience, func() bool { n++; return n == 3 })
	how := ended(func(t testing.TB) { Await(t, "pigs fly", 5*time.Millisecond, func() bool { return false }) })
	if !strings.HasPrefix(how, "fatal: ") || !strings.Contains(how, "pigs fly") {
		t.Errorf("ended with %q", how)
	}
}

func TestMini(t *testing.T) {
	ctx := context.Background()
	c := Client(t, Mini(t).Addr())
	if err := c.Set(ctx, "k", "v", 20*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	Await(t, "the key expires", patience, func() bool { return c.Exists(ctx, "k").Val() == 0 })
}
