package faults

// Which test covers which fault, and what the tests of faults share. The faults are the rows of tests/faults/README.md.
//
// Rules: every row names tests that exist, or the reason why it cannot be tested on one machine; the page and the table
// agree. All lock types are tried side by side, because such tests mostly wait.

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ownRedis is for faults of Redis itself: each lock type has a server.
func ownRedis(args ...string) func(testing.TB) *testredis.Server {
	return func(t testing.TB) *testredis.Server { return testredis.Start(t, args...) }
}

// refuses checks that l soon cannot be acquired, with that answer, and that nothing is left of it.
func refuses(b *locktest.FaultBench, l Locker, answer string) {
	b.Helper()
	start := time.Now()
	ok, err := locktest.UntilAnswered(func() (bool, error) { return l.TryLock(ctx, 0, 0) })
	assert.False(b, ok, "TryLock")
	assert.ErrorContains(b, err, answer, "TryLock")
	assert.LessOrEqual(b, time.Since(start), 2*locktest.Soon, "TryLock")
	assert.NotErrorIs(b, err, redis.Nil, "redis.Nil leaves the package")
	b.MustBe(l.Unlock(ctx), ErrNotHeld)
}

// tokenOf returns the fencing token of l, or 0 if it has none.
func tokenOf(b *locktest.FaultBench, ctx context.Context, l Locker) int64 {
	b.Helper()
	f, ok := l.(*Lock)
	if !ok || !locktest.LockOf(f).Traits().Fenced {
		return 0
	}
	token, err := f.Token(ctx)
	b.Must(err)
	return token
}

// gaveUp makes a call whose context is canceled as soon as rule has hit its request, and returns where its error arrives.
func gaveUp(b *locktest.FaultBench, rule *testredis.Rule, call func(context.Context) error) <-chan error {
	b.Helper()
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan error, 1)
	go func() { got <- call(ctx) }()
	locktest.Await(b.Bench, "the request is under way", rule.Fired())
	cancel()
	return got
}

// guardOf returns the guarded context of a hold.
func guardOf(t testing.TB, ctx context.Context, l Locker) context.Context {
	t.Helper()
	guarded, err := l.Guard(ctx)
	require.NoError(t, err)
	return guarded
}

// staysValid checks that a hold is not lost for so long.
func staysValid(t testing.TB, guarded context.Context, d time.Duration) {
	t.Helper()
	select {
	case <-guarded.Done():
		assert.Fail(t, "lost", context.Cause(guarded))
	case <-time.After(d):
	}
}

const suiteTests = "TestLock TestFencedLock TestFairLock TestSemaphore TestReadLock TestWriteLock TestMultiLock " +
	"TestRedLock"

// cannotBeTried is the row without a test; the page has the reason.
const cannotBeTried = 33

const faultRowCount = 75

// The page has each row once, and the tests that it names exist.
func TestFaultRowsAreCovered(t *testing.T) {
	exists := locktest.TestFunctions(t)
	page, err := os.ReadFile("tests/faults/README.md")
	require.NoError(t, err)
	for n := 1; n <= faultRowCount; n++ {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*$`, n)).FindAllString(string(page), -1)
		if !assert.Len(t, line, 1, "lines of row %d on the page", n) {
			continue
		}
		tests := 0
		for _, found := range regexp.MustCompile("`(Test[\\w/]+)`|\\*(suite)\\*").FindAllStringSubmatch(line[0], -1) {
			tests++
			for _, test := range strings.Fields(strings.ReplaceAll(found[1]+found[2], "suite", suiteTests)) {
				assert.True(t, exists[test], "row %d: there is no %s", n, test)
			}
		}
		assert.Equal(t, n == cannotBeTried, tests == 0, "row %d has %d tests", n, tests)
	}
	_, rules, _ := strings.Cut(string(page), "## Rules and their tests")
	for _, test := range regexp.MustCompile("`(Test[\\w/]+)`").FindAllStringSubmatch(rules, -1) {
		assert.True(t, exists[test[1]], "a rule: there is no %s", test[1])
	}
}

// Row 34: no decision about a lock depends on the wall clock of the client.
func TestNoWallClock(t *testing.T) {
	decidesNothing := []string{"inspection.go", "internal/send/errors.go"} // times of Redis; rounding in a text
	wall := regexp.MustCompile(
		`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local|AddDate|Round|Truncate|Format)\(|time\.(Date|Parse|Unix)\w*\(`,
	)
	for _, file := range locktest.LibraryFiles(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") || slices.Contains(decidesNothing, file) {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Empty(t, wall.FindAllString(string(source), -1), file)
	}
}
