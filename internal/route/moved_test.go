package route

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake"
)

// A Redis client that does not tell which server has a key opens a connection to the server that it takes for that of the
// first channel. While it does not know yet that the slot has moved, that is the wrong one, which is not kept.
func TestConnectionToTheWrongServerIsReplaced(t *testing.T) {
	ctx := context.Background()
	cluster := testredis.StartCluster(t, 3, 0)
	rdb, admin := cluster.Client(), cluster.Client()
	pipeliner, err := rdb.AutoPipeline()
	require.NoError(t, err)
	h := wake.New(New(pipeliner), slog.New(slog.DiscardHandler), func(string, error) {})
	defer h.Close()
	h.PingEvery(time.Second, time.Second, "quiet")
	var names []string // one on each server
	for _, s := range cluster.Nodes() {
		name := "a"
		for cluster.MasterOf(name) != s {
			name += "a"
		}
		require.NoError(t, pipeliner.Exists(ctx, name).Err())
		names = append(names, name)
	}
	confirmed := func(l *wake.Listener) {
		t.Helper()
		testredis.Await(t, "a subscription", 10*time.Second, func() bool {
			_ = pipeliner.Exists(ctx, l.Name()).Err() // as a waiter asks Redis from time to time
			return l.Confirmed()
		})
	}
	first, moves := h.Join(names[0]), h.Join(names[1])
	confirmed(first)
	confirmed(moves)
	cluster.MigrateSlot(names[1], cluster.Nodes()[2]) // to which there is no connection
	time.Sleep(500 * time.Millisecond)                // meanwhile the Redis client is not asked
	confirmed(moves)
	require.NoError(t, admin.SPublish(ctx, names[1], "message").Err())
	testredis.Await(t, "a message", 10*time.Second, func() bool { return moves.Message() == "message" })
	assert.True(t, first.Confirmed())
}
