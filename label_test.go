package relock

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// labelled waits until Redis has the label of c.
func (b *bench) labelled(c *Client) {
	b.Helper()
	testredis.Await(b, "the label is in Redis", soon, func() bool {
		return b.rdb.HGet(context.Background(), labelKey(c.ID()), "label").Val() != ""
	})
}

func TestLabelNamesHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	host, err := os.Hostname()
	require.NoError(t, err)
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		first, second, none := b.client(WithLabel("orders-1")), b.client(WithLabel("orders-2")), b.client()
		assert.Empty(t, b.rdb.Keys(ctx, "relock_client:*").Val(), "before the first lock")
		for _, holder := range []*Client{first, none} {
			held := holder.NewFairLock(b.name)
			require.NoError(t, held.Lock(ctx))
			waiting, stop := context.WithCancel(WithOwner(ctx))
			done := make(chan error, 1)
			go func() { done <- second.NewFairLock(b.name).Lock(waiting) }()
			b.labelled(second)
			if holder == first {
				b.labelled(first)
			}
			testredis.Await(b, "one waits", soon, func() bool {
				i, err := none.Inspect(ctx, b.name)
				require.NoError(t, err)
				return len(i.Waiters) == 1
			})
			i, err := none.Inspect(ctx, b.name)
			require.NoError(t, err)
			assert.Equal(t, "orders-2", i.Waiters[0].Label)
			assert.Equal(t, host, i.Waiters[0].Host)
			if holder == first {
				assert.Equal(t, "orders-1", i.Holders[0].Label)
				assert.Equal(t, host, i.Holders[0].Host)
			} else {
				assert.Empty(t, i.Holders[0].Label+i.Holders[0].Host)
			}
			stop()
			assert.ErrorIs(t, <-done, context.Canceled)
			require.NoError(t, held.Unlock(ctx))
		}
		hash := b.rdb.HGetAll(ctx, labelKey(first.ID())).Val()
		assert.NotEmpty(t, hash["pid"])
		since, err := strconv.ParseInt(hash["since"], 10, 64)
		require.NoError(t, err)
		assert.InDelta(t, b.rdb.Time(ctx).Val().Unix(), since, 60, "since when, by the clock of Redis")
		left := b.rdb.PTTL(ctx, labelKey(first.ID())).Val()
		assert.True(t, left > 0 && left <= labelLife, "the expiry is %v", left)
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
		assert.Empty(t, b.rdb.Keys(ctx, "relock_client:*").Val(), "after Close")
	})
}

func TestLabelIsInErrorsAboutThisProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	l := b.client(WithLabel("orders-1")).NewLock(b.name)
	require.NoError(t, l.Lock(context.Background()))
	ctx, cancel := context.WithTimeout(WithOwner(context.Background()), time.Second)
	defer cancel()
	assert.ErrorContains(t, l.Lock(ctx), "of this process (orders-1) holds it")
	require.NoError(t, l.Unlock(context.Background()))
}

// Without the right to its key a process has no label; locks and Inspect work.
func TestLabelWithoutRights(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	require.NoError(t, b.rdb.Do(ctx, "acl", "setuser", "some", "on", ">secret", "+@all", "~lock-*", "~*{lock-*", "&*").Err())
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "some", Password: "secret"})
	defer rdb.Close()
	var log lockedBuffer
	c := b.clientOn(rdb, WithLabel("orders-1"), WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	l := c.NewLock(b.name)
	require.NoError(t, l.Lock(ctx))
	for range 3 {
		i, err := c.Inspect(ctx, b.name)
		require.NoError(t, err)
		require.Len(t, i.Holders, 1)
		assert.Empty(t, i.Holders[0].Label)
	}
	require.NoError(t, l.Unlock(ctx))
	testredis.Await(b, "the log has it", soon, func() bool { return strings.Count(log.String(), "relock_client") == 2 })
	require.NoError(t, c.Close())
	assert.Equal(t, 2, strings.Count(log.String(), "level=DEBUG"), "one line for the label, one for those of others")
}

// A Client without a label writes nothing of itself to Redis.
func TestLabelIsNotKeptWithoutTheOption(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client()
	require.NoError(t, c.NewLock(b.name).Do(ctx, func(context.Context) error { return nil }))
	assert.Empty(t, b.rdb.Keys(ctx, "relock_client:*").Val())
	assert.Nil(t, c.engine.FirstUse)
}

func TestLabelsThatAreNoTextAreRefused(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, s := range []string{"a\x1b[31m", "a\nb", "\xff", strings.Repeat("x", 257)} {
		_, err := New(rdb, WithLabel(s))
		assert.ErrorIs(t, err, ErrInvalid, "%q", s)
		assert.ErrorContains(t, err, "WithLabel")
	}
}
