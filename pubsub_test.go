//go:build go1.25

package relock

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/relock-go/relock/internal/fakeredis"
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
