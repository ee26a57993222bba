package lua

// What the scripts do while Redis has no memory left.

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lua/luatest"
)

// Who waits goes on waiting, and a caller that finds a lock free behind a place whose process has died acquires nothing,
// although the script removes this place.
func TestScriptsWithoutMemory(t *testing.T) {
	t.Parallel()
	p := newTeller(t)
	do := func(command string, words ...string) any {
		keys, args := p.call(command, words)
		answer, err := p.rdb.Eval(p.Context(), Source(command), keys, args...).Result()
		if redis.HasErrorPrefix(err, "OOM") {
			return "OOM"
		}
		require.NoError(p, err)
		return luatest.Reply(answer)[0]
	}
	memory := func(limit string) { require.NoError(p, p.rdb.ConfigSet(p.Context(), "maxmemory", limit).Err()) }

	// B waits for both permits.
	do("semaphore_acquire", "A", "permits=2")
	do("semaphore_acquire", "field=B:1:1+2", "permits=2", "delivery=poll")
	memory("1")
	assert.EqualValues(t, 0, do("semaphore_acquire", "field=B:1:1+2", "permits=2", "delivery=poll", "asked=2"))
	assert.EqualValues(t, 0, do("semaphore_acquire", "C", "permits=2", "delivery=defer"))
	memory("0")
	require.NoError(t, p.rdb.FlushAll(p.Context()).Err())

	// B is not subscribed any more.
	channel := p.value("redisson_lock__channel:{lock}:B")
	p.listen("subscribe", p.ears.Subscribe, channel)
	do("lock_acquire", "A")
	do("lock_acquire", "B")
	p.listen("unsubscribe", p.ears.Unsubscribe, channel)
	require.NoError(t, p.rdb.Del(p.Context(), "lock").Err())
	memory("1")
	for _, delivery := range []string{"poll", "defer"} {
		assert.Equal(t, "OOM", do("lock_acquire", "C", "delivery="+delivery), delivery)
	}
}
