//go:build go1.25

package locks

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake/waketest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The warning about subscriptions, which is logged once, names the cause: only a missing permission is granted.
func TestWarningNamesWhyNoSubscriptionWorks(t *testing.T) {
	refuse := func(err error) func(s *waketest.Server) {
		return func(s *waketest.Server) { s.Refuse = func(string) error { return err } }
	}
	for name, test := range map[string]struct {
		server      func(s *waketest.Server)
		says, omits string
	}{
		"no permission": {refuse(testredis.AnswerError("NOPERM No permissions to access a channel")),
			"grant this user access", "does not answer"},
		"another error": {refuse(testredis.AnswerError("ERR only one database")), "only one database", "grant"},
		"closed":        {refuse(io.EOF), "does not answer subscriptions", "grant"},
		"silent":        {func(s *waketest.Server) { s.Silent = true }, "does not answer subscriptions", "grant"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged locktest.LockedBuffer
				r := fakeredis.New()
				test.server(&r.PubSub)
				e := locktest.JoinBubbleEngine(t, r, "client", WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
				for _, channel := range []string{"one", "two"} {
					l := e.Hub().Join(channel)
					time.Sleep(10 * time.Second)
					l.Leave()
				}
				assert.Equal(t, 1, strings.Count(logged.String(), "level=WARN"), "warnings: %s", logged.String())
				assert.Contains(t, logged.String(), test.says)
				assert.NotContains(t, logged.String(), test.omits)
				assert.Contains(t, logged.String(), "waiters poll at the poll interval instead")
				assert.Contains(t, logged.String(), "channel=one")
			})
		})
	}
}

// A waiter asks again as soon as its subscription is in force, because a message before that does not reach it. Each wait
// has a test of that. A file that subscribes and is not in this list needs one, or waits in the engine.
func TestEveryWaitIsTestedToAskAgainOnceItIsSubscribed(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"internal/engine/subscription.go": "TestEngineAsksAgainOnceItIsSubscribed",
		"redvote.go":                      "TestRedLockAsksAgainOnceItIsSubscribed", // the engine waits
		"internal/hints/hints.go":         "",                                       // no call waits for a hint
		"internal/engine/probe.go":        "",                                       // for tests
		"internal/wake/hub.go":            "",                                       // where Join is
	}
	subscribes := regexp.MustCompile(`\.Join(For|Confirmed)?\(`)
	ofTexts := regexp.MustCompile(`\b(strings|filepath|errors)\.Join\(`)
	all := locktest.TestFunctions(t)
	for _, file := range locktest.LibraryFiles(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		test, listed := tests[filepath.ToSlash(file)]
		assert.Equal(t, listed, subscribes.Match(ofTexts.ReplaceAll(source, nil)), "%s subscribes", file)
		assert.True(t, test == "" || all[test], "%s: there is no test %s", file, test)
	}
}
