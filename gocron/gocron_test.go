package gocron_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	scheduler "github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/gocron"
	"github.com/relock-go/relock/relocktest"
)

const soon = 15 * time.Second

var (
	_ scheduler.Locker  = (*gocron.Locker)(nil)
	_ scheduler.Elector = (*gocron.Elector)(nil)
)

func TestLockerRefusesASecondReplica(t *testing.T) {
	server := relocktest.Start(t)
	ctx := context.Background()
	one, two := gocron.NewLocker(server.Client(), relock.MinHold(time.Millisecond)), gocron.NewLocker(server.Client())
	lock, err := one.Lock(ctx, "job")
	require.NoError(t, err)
	_, err = two.Lock(ctx, "job")
	require.ErrorIs(t, err, gocron.ErrTaken)
	assert.ErrorContains(t, err, "job")
	_, err = one.Lock(ctx, "job") // another run of the same scheduler, on the same goroutine
	require.ErrorIs(t, err, gocron.ErrTaken)
	other, err := two.Lock(ctx, "other")
	require.NoError(t, err)
	require.NoError(t, other.Unlock(ctx))

	ended, cancel := context.WithCancel(ctx)
	cancel() // as after the Shutdown of a scheduler
	require.NoError(t, lock.Unlock(ended))
	server.Advance(time.Millisecond)
	lock, err = two.Lock(ctx, "job")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(ctx))
}

// A short run keeps its lock until the clocks of the other replicas have reached it.
func TestLockerKeepsTheLockOfAShortRun(t *testing.T) {
	server := relocktest.Start(t)
	ctx := context.Background()
	one, two := gocron.NewLocker(server.Client(), relock.MinHold(time.Minute)), gocron.NewLocker(server.Client())
	lock, err := one.Lock(ctx, "job")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(ctx))
	_, err = two.Lock(ctx, "job")
	require.ErrorIs(t, err, gocron.ErrTaken)
	server.Advance(time.Minute)
	lock, err = two.Lock(ctx, "job")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(ctx))
}

func TestUnlockTellsOfALoss(t *testing.T) {
	server := relocktest.Start(t)
	ctx := context.Background()
	lock, err := gocron.NewLocker(server.Client()).Lock(ctx, "job")
	require.NoError(t, err)
	require.NoError(t, server.Redis().FlushAll(ctx).Err())
	assert.ErrorIs(t, lock.Unlock(ctx), relock.ErrLockLost)

	_, err = gocron.NewLocker(nil).Lock(ctx, "job")
	assert.ErrorIs(t, err, relock.ErrInvalid)
	closed := server.Client()
	require.NoError(t, closed.Close())
	_, err = gocron.NewLocker(closed).Lock(ctx, "job")
	assert.ErrorIs(t, err, relock.ErrClosed)
}

// A tally counts the runs of a job by the second in which they were due.
type tally struct {
	mu   sync.Mutex // guards runs
	runs map[int64]int
}

func (r *tally) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = make(map[int64]int)
	}
	r.runs[time.Now().Unix()]++
}

// atMost returns the most runs of one second, and how many seconds have runs.
func (r *tally) atMost() (most, seconds int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.runs {
		most = max(most, n)
	}
	return most, len(r.runs)
}

// everySecond starts a scheduler that counts a run in each second.
func everySecond(t *testing.T, r *tally, option scheduler.SchedulerOption) scheduler.Scheduler {
	t.Helper()
	s, err := scheduler.NewScheduler(option)
	require.NoError(t, err)
	_, err = s.NewJob(scheduler.CronJob("* * * * * *", true), scheduler.NewTask(r.count), scheduler.WithName("tally"))
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { assert.NoError(t, s.Shutdown()) })
	return s
}

func TestThreeReplicasDoEachRunOnce(t *testing.T) {
	t.Parallel()
	server := relocktest.Start(t)
	var r tally
	for range 3 {
		everySecond(t, &r, scheduler.WithDistributedLocker(gocron.NewLocker(server.Client())))
	}
	require.Eventually(t, func() bool { _, seconds := r.atMost(); return seconds >= 4 }, soon, 50*time.Millisecond)
	most, _ := r.atMost()
	assert.Equal(t, 1, most, "runs in one second")
}

func TestTheLeaderDoesAllRuns(t *testing.T) {
	t.Parallel()
	server := relocktest.Start(t)
	var r tally
	var all []*gocron.Elector
	for range 3 {
		e := gocron.NewElector(server.Client(), "election:jobs")
		t.Cleanup(e.Close) // after the Shutdown of its scheduler
		everySecond(t, &r, scheduler.WithDistributedElector(e))
		all = append(all, e)
	}
	require.Eventually(t, func() bool { _, seconds := r.atMost(); return seconds >= 3 }, soon, 50*time.Millisecond)
	most, _ := r.atMost()
	assert.Equal(t, 1, most, "runs in one second")
	leaders := 0
	for _, e := range all {
		if e.IsLeader(context.Background()) == nil {
			leaders++
		}
	}
	assert.Equal(t, 1, leaders, "leaders")
}

func TestElectorFollowsTheElection(t *testing.T) {
	t.Parallel()
	server := relocktest.Start(t)
	ctx := context.Background()
	const name = "election:jobs"
	first := gocron.NewElector(server.Client(relock.WithWatchdogTimeout(300*time.Millisecond)), name)
	leads := func(e *gocron.Elector) bool { return e.IsLeader(ctx) == nil }
	require.Eventually(t, func() bool { return leads(first) }, soon, time.Millisecond)
	second := gocron.NewElector(server.Client(), name)
	defer second.Close()
	assert.ErrorIs(t, second.IsLeader(ctx), gocron.ErrNotLeader)
	assert.ErrorIs(t, context.Cause(second.Context()), gocron.ErrNotLeader)

	within := first.Context()
	require.NoError(t, within.Err())
	require.NoError(t, server.Redis().FlushAll(ctx).Err())
	<-within.Done() // the leadership is lost
	require.Eventually(t, func() bool { return leads(first) != leads(second) }, soon, time.Millisecond)

	first.Close()
	first.Close()
	assert.False(t, leads(first), "leads after Close")
	require.Eventually(t, func() bool { return leads(second) }, soon, time.Millisecond)
}

// A campaign that failed is repeated.
func TestElectorCampaignsAgain(t *testing.T) {
	t.Parallel()
	server := relocktest.Start(t)
	ctx := context.Background()
	require.NoError(t, server.Redis().Set(ctx, "election:jobs", "somebody else's", 0).Err())
	e := gocron.NewElector(server.Client(), "election:jobs")
	defer e.Close()
	require.Eventually(t, func() bool { return errors.Is(e.IsLeader(ctx), relock.ErrNotALock) }, soon, time.Millisecond)
	require.NoError(t, server.Redis().FlushAll(ctx).Err())
	require.Eventually(t, func() bool { return e.IsLeader(ctx) == nil }, soon, time.Millisecond)
}

func TestElectorEndsWithItsClient(t *testing.T) {
	client := relocktest.New(t)
	e := gocron.NewElector(client, "election:jobs")
	require.Eventually(t, func() bool { return e.IsLeader(context.Background()) == nil }, soon, time.Millisecond)
	require.NoError(t, client.Close())
	require.ErrorIs(t, e.IsLeader(context.Background()), gocron.ErrNotLeader)
	e.Close()
	bad := gocron.NewElector(nil, "election:jobs")
	require.Eventually(
		t,
		func() bool { return errors.Is(bad.IsLeader(context.Background()), relock.ErrInvalid) },
		soon,
		time.Millisecond,
	)
	bad.Close()
}
