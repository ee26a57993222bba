package main

// The recipe onceForEachTick beside a Redis that dies: before the job, in it, and after it.

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// outage is how long a replica waits for a Redis that dies.
const outage = 15 * time.Second

// A comeback restarts a Redis that was killed when a call has given up because of that.
type comeback struct {
	relock.NopObserver
	restart func()
}

func (c comeback) GaveUp(context.Context, relock.GaveUpEvent) { c.restart() }

// A fixture is a Redis, and what one replica needs for a tick.
type fixture struct {
	server *testredis.Server
	rdb    *redis.Client
	lock   *relock.Lock
}

// newFixture starts a Redis. If it is killed, and an attempt to acquire the lock has failed, it comes back, once.
func newFixture(t *testing.T) *fixture {
	f := &fixture{server: testredis.Start(t)}
	f.rdb = f.server.Client()
	client, err := relock.New(f.rdb, relock.WithWatchdogTimeout(time.Second),
		relock.WithLogger(slog.New(slog.DiscardHandler)),
		relock.WithObserver(comeback{restart: sync.OnceFunc(f.server.Restart)}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	f.lock = client.NewLock("cron:report")
	return f
}

// do does tick 7, and checks that it was recorded.
func (f *fixture) do(t *testing.T, job func(context.Context) error) {
	ctx := context.Background()
	require.NoError(t, onceForEachTick(ctx, f.rdb, f.lock, "last", 7, outage, job))
	last, err := f.rdb.Get(ctx, "last").Int()
	require.NoError(t, err)
	assert.Equal(t, 7, last)
}

func TestTickIsDoneAfterAnOutageBeforeIt(t *testing.T) {
	t.Parallel()
	f, runs := newFixture(t), 0
	f.server.Kill()
	f.do(t, func(context.Context) error { runs++; return nil })
	assert.Equal(t, 1, runs)
}

// The job is told that its lock is lost, and runs again when Redis is back.
func TestTickIsDoneAfterAnOutageWhileItRuns(t *testing.T) {
	t.Parallel()
	f, runs := newFixture(t), 0
	f.do(t, func(ctx context.Context) error {
		if runs++; runs > 1 {
			return nil
		}
		f.server.Kill()
		<-ctx.Done()
		return ctx.Err()
	})
	assert.Equal(t, 2, runs)
}

// A job that has ended when Redis dies is only recorded when Redis is back.
func TestJobThatHasEndedIsNotRunAgain(t *testing.T) {
	t.Parallel()
	f, runs := newFixture(t), 0
	f.do(t, func(context.Context) error { runs++; f.server.Kill(); return nil })
	assert.Equal(t, 1, runs)
}

func TestJobThatHasFailedRunsAgain(t *testing.T) {
	t.Parallel()
	f, runs := newFixture(t), 0
	f.do(t, func(context.Context) error {
		if runs++; runs == 1 {
			return errors.New("no connection")
		}
		return nil
	})
	assert.Equal(t, 2, runs)
}

// A killer kills its Redis when that has answered a SET.
type killer struct {
	redis.Hook
	server *testredis.Server
}

func (k killer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k killer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (k killer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "set" {
			k.server.Kill()
		}
		return err
	}
}

// A tick that is recorded is done, even if Redis has not confirmed the release of the lock.
func TestTickThatIsRecordedIsDone(t *testing.T) {
	t.Parallel()
	f, runs := newFixture(t), 0
	f.rdb.AddHook(killer{server: f.server})
	require.NoError(t, onceForEachTick(context.Background(), f.rdb, f.lock, "last", 7, outage,
		func(context.Context) error { runs++; return nil }))
	assert.Equal(t, 1, runs)
}

// While Redis is down, a replica tries until its wait has passed.
func TestTickIsGivenUpAtTheEndOfTheWait(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	rdb := server.Client()
	client, err := relock.New(rdb)
	require.NoError(t, err)
	defer client.Close()
	server.Kill()
	err = onceForEachTick(context.Background(), rdb, client.NewLock("cron:report"), "last", 7, 100*time.Millisecond,
		func(context.Context) error { t.Error("the job runs"); return nil })
	require.Error(t, err)
	assert.NotErrorIs(t, err, relock.ErrBusy)
}

func TestTickOfABusyLockIsNotDone(t *testing.T) {
	t.Parallel()
	f, ctx := newFixture(t), context.Background()
	hold, err := f.lock.Acquire(ctx)
	require.NoError(t, err)
	defer hold.Release(ctx)
	require.ErrorIs(t, onceForEachTick(ctx, f.rdb, f.lock, "last", 7, 100*time.Millisecond,
		func(context.Context) error { t.Error("the job runs"); return nil }), relock.ErrBusy)
}
