package route

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

// L7: a request is sent on the goroutine of its caller only if the read timeout of the Redis client ends the wait for
// an answer in time to send it again.
func TestShortReadTimeoutNeedsNoGoroutine(t *testing.T) {
	for readTimeout, want := range map[time.Duration]time.Duration{0: 0, time.Second: time.Second,
		1001 * time.Millisecond: 0, -1: 0} {
		o := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: readTimeout}
		for _, rdb := range []redis.UniversalClient{redis.NewClient(o.Simple()), redis.NewClusterClient(o.Cluster())} {
			assert.Equal(t, want, New(rdb).Sending(rdb, send.Synced{}).OnCallerTime, "%T with a read timeout of %v", rdb, readTimeout)
			assert.NoError(t, rdb.Close())
		}
	}
}

// The servers of a Cluster before Redis 7.0 report that they have no sharded pub/sub. Then any of them can be used.
func TestShardsNoticeServersWithoutShardedPubSub(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { assert.NoError(t, cluster.Close()) })
	for text, want := range map[string]bool{
		"ERR unknown command 'ssubscribe', with args beginning with: 'x'":     true,
		"ERR unknown command `ssubscribe`, with args beginning with: `x`, ":   true,
		"ERR unknown command 'SSUBSCRIBE'":                                    true,
		"ERR unknown command 'subscribe', with args beginning with: 'x'":      false,
		"NOPERM No permissions to access a channel":                           false,
		"NOPERM this user has no permissions to run the 'ssubscribe' command": false,
	} {
		s := New(cluster)
		assert.Equal(t, want, s.Refused(testredis.AnswerError(text)), text)
		assert.Equal(t, !want, s.Counts(), "a server knows all subscribers: %s", text)
	}
}

// The slot of a key is that of the specification of Redis Cluster.
func TestSlotOf(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{
		"123456789": 0x31C3, "": 0, "{123456789}x": 0x31C3, "x{123456789}{y}": 0x31C3,
		"somekey": 11058, "foo{hash_tag}": 2515,
	} {
		assert.Equal(t, want, slotOf(key), key)
	}
}
