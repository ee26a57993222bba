//go:build go1.25

package relock

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/wake/waketest"
	"github.com/stretchr/testify/assert"
)

// The servers of a Cluster before Redis 7.0 report that they have no sharded pub/sub. Then any of them can be used.
func TestShardsNoticeServersWithoutShardedPubSub(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"ERR unknown command 'ssubscribe', with args beginning with: 'x'":     true,
		"ERR unknown command `ssubscribe`, with args beginning with: `x`, ":   true,
		"ERR unknown command 'SSUBSCRIBE'":                                    true,
		"ERR unknown command 'subscribe', with args beginning with: 'x'":      false,
		"NOPERM No permissions to access a channel":                           false,
		"NOPERM this user has no permissions to run the 'ssubscribe' command": false,
	} {
		s := &shards{}
		assert.Equal(t, want, s.Refused(answerError(text)), text)
		assert.Equal(t, !want, s.Moves(), "slots move: %s", text)
		assert.Equal(t, !want, s.Counts(), "a server knows all subscribers: %s", text)
	}
}

// Channels that Redis refuses are logged only once.
func TestRefusedChannelsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged lockedBuffer
		r := fakeredis.New()
		r.PubSub.Refuse = func(string) error { return answerError("NOPERM No permissions to access a channel") }
		e := joinBubbleEngine(t, r, "client", WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		for _, name := range []string{"bad1", "bad2"} {
			l := e.Hub().Join(name)
			synctest.Wait()
			select {
			case <-l.Ready:
			default:
				assert.Fail(t, "a refused channel keeps its waiters waiting", name)
			}
		}
		assert.Equal(t, 1, strings.Count(logged.String(), "level=WARN"), "warnings: %s", logged.String())
		assert.Contains(t, logged.String(), "refuses the subscription")
		assert.Contains(t, logged.String(), "channel=bad1")
	})
}

// The warning about subscriptions, which is logged once, names the cause: only a missing permission is granted.
func TestWarningNamesWhyNoSubscriptionWorks(t *testing.T) {
	refuse := func(err error) func(s *waketest.Server) {
		return func(s *waketest.Server) { s.Refuse = func(string) error { return err } }
	}
	for name, test := range map[string]struct {
		server      func(s *waketest.Server)
		says, omits string
	}{
		"no permission": {refuse(answerError("NOPERM No permissions to access a channel")),
			"grant this user access", "command for it"},
		"no command": {refuse(answerError("ERR unknown command 'SUBSCRIBE', with args beginning with: 'x'")),
			"has no command for it", "grant"},
		"another error": {refuse(answerError("ERR only one database")), "only one database", "grant"},
		"closed":        {refuse(io.EOF), "does not answer subscriptions", "grant"},
		"silent":        {func(s *waketest.Server) { s.Silent = true }, "does not answer subscriptions", "grant"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged lockedBuffer
				r := fakeredis.New()
				test.server(&r.PubSub)
				e := joinBubbleEngine(t, r, "client", WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
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
