package main

// The recipe cached: beside another caller that fills the cache, and beside a Redis that dies.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// old and empty are caches with a stale entry, and without one.
func old(context.Context) (string, bool, bool)   { return "old", true, false }
func empty(context.Context) (string, bool, bool) { return "", false, false }

// While another caller refreshes the entry, or has crashed in the middle, the old one is served at once.
func TestOldEntryIsServedWhileItIsRefreshed(t *testing.T) {
	t.Parallel()
	client, err := relock.New(testredis.Client(t, testredis.Mini(t).Addr()))
	require.NoError(t, err)
	defer client.Close()
	lock, ctx := client.NewLock("lock:list"), context.Background()
	hold, err := lock.Acquire(ctx)
	require.NoError(t, err)
	defer hold.Release(ctx)
	fill := func(context.Context) (string, error) { t.Error("both refresh it"); return "new", nil }

	v, err := cached(ctx, lock, old, fill)
	require.NoError(t, err)
	assert.Equal(t, "old", v)

	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = cached(short, lock, empty, fill)
	require.ErrorIs(t, err, relock.ErrBusy, "there is no old one")
}

// An entry that was computed is returned although Redis dies meanwhile; and without Redis, the old one is.
func TestEntryIsServedAlthoughRedisDies(t *testing.T) {
	t.Parallel()
	server, ctx := testredis.Start(t), context.Background()
	client, err := relock.New(server.Client(), relock.WithWatchdogTimeout(time.Second)) // so it is lost soon
	require.NoError(t, err)
	defer client.Close()
	lock := client.NewLock("lock:list")
	v, err := cached(ctx, lock, empty, func(context.Context) (string, error) { server.Kill(); return "new", nil })
	require.NoError(t, err)
	assert.Equal(t, "new", v)

	fails := func(context.Context) (string, error) { return "", errors.New("no connection") }
	v, err = cached(ctx, lock, old, fails)
	require.NoError(t, err)
	assert.Equal(t, "old", v)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = cached(short, lock, empty, fails)
	require.Error(t, err)
	assert.NotErrorIs(t, err, relock.ErrBusy)
}
