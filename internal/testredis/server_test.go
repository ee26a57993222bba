package testredis

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ManyAtOnce()
	goleak.VerifyTestMain(Main(m, "testredis"),
		// go-redis checks once a second whether a server that was killed is back, until a moment after Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
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
