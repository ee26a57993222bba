package relocktest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/relock-go/relock/relocktest"
)

const soon = 5 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}

// get reports whether a new owner acquires the lock at once, and releases it.
func get(t *testing.T, l relock.Locker) bool {
	t.Helper()
	ctx := relock.ContextWithOwner(context.Background())
	ok, err := l.TryLock(ctx, 0, 0)
	must(t, err)
	if ok {
		must(t, l.Unlock(ctx))
	}
	return ok
}

func TestNewMakesAWorkingClient(t *testing.T) {
	client := relocktest.New(t)
	n := 0
	var all sync.WaitGroup
	for range 20 {
		waitgroup.Go(&all, func() {
			err := client.NewLock("orders:42").Do(context.Background(), func(context.Context) error { n++; return nil })
			assert.NoError(t, err)
		})
	}
	all.Wait()
	assert.Equal(t, 20, n, "sections")
}

func TestPrintingAServerIsNoRace(t *testing.T) {
	s := relocktest.Start(t)
	var moved sync.WaitGroup
	moved.Add(1)
	go func() {
		defer moved.Done()
		for range 100 {
			s.Advance(time.Millisecond)
		}
	}()
	for _, verb := range []string{"%v", "%+v", "%s", "%#v", "%d"} {
		text := fmt.Sprintf(verb, s)
		if verb != "%#v" && verb != "%d" {
			assert.Equal(t, "Server "+s.Addr(), text)
		}
	}
	moved.Wait()
}

func TestServersShareNothing(t *testing.T) {
	ctx := context.Background()
	a, b := relocktest.New(t), relocktest.New(t)
	must(t, a.NewLock("x").Lock(ctx))
	assert.True(t, get(t, b.NewLock("x")), "one server knows the locks of another")
	locks := make([]relock.Locker, 3)
	for i := range locks {
		locks[i] = relocktest.New(t).NewLock("r")
	}
	red := a.NewRedLock(locks...)
	must(t, red.Lock(ctx))
	must(t, red.Unlock(ctx))
}

// This test is the first example of the package comment.
func TestCrashedHolder(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	crashed, client := server.Client(), server.Client()
	must(t, crashed.NewLock("orders:42").Lock(ctx))
	must(t, crashed.Close())
	server.Advance(25 * time.Second)
	assert.False(t, get(t, client.NewLock("orders:42")), "before the lease is over")
	server.Advance(5 * time.Second)
	assert.True(t, get(t, client.NewLock("orders:42")), "the lease is over")
}

// untilForced returns how long it takes until a holder notices that another Client has released its lock by force.
func untilForced(t *testing.T, holder, other *relock.Client) time.Duration {
	t.Helper()
	start := time.Now()
	err := holder.NewLock("lock:report").Do(t.Context(), func(ctx context.Context) error {
		_, err := other.NewLock("lock:report").ForceUnlock(ctx)
		must(t, err)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	assert.ErrorIs(t, err, relock.ErrLockLost)
	return time.Since(start)
}

// A holder notices a forced release by another Client long before its next renewal, which is due after 10s.
func TestForcedReleaseReachesEveryClient(t *testing.T) {
	server := relocktest.Start(t)
	assert.Less(t, untilForced(t, server.Client(), server.Client()), 8*time.Second)
}

func TestHolderNoticesALossWhenItAsks(t *testing.T) {
	server := relocktest.Start(t)
	client, other := server.Client(), server.Client()
	for name, c := range map[string]struct {
		take          func(relock.Locker, context.Context) error
		ask           func(relock.Locker, context.Context) error
		cause, unlock error
	}{
		"IsHeld": {relock.Locker.Lock, func(l relock.Locker, ctx context.Context) error {
			held, err := l.IsHeld(ctx)
			assert.NoError(t, err)
			assert.False(t, held)
			return relock.ErrLockLost
		}, relock.ErrLockLost, relock.ErrLockLost},
		"Lock":   {relock.Locker.Lock, relock.Locker.Lock, relock.ErrLockLost, relock.ErrNotHeld},
		"Unlock": {relock.Locker.Lock, relock.Locker.Unlock, context.Canceled, relock.ErrNotHeld},
		"explicit lease": {func(l relock.Locker, ctx context.Context) error { return l.LockLease(ctx, 30*time.Second) },
			relock.Locker.Unlock, context.Canceled, relock.ErrNotHeld},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := relock.ContextWithOwner(context.Background())
			lock := client.NewLock(name, relock.Fenced())
			must(t, c.take(lock, ctx))
			guarded, err := lock.Guard(ctx)
			must(t, err)
			first, err := lock.Token(ctx)
			must(t, err)
			server.Advance(30 * time.Second)

			// Now there are two.
			theirs := other.NewLock(name, relock.Fenced())
			must(t, theirs.Lock(ctx))
			assert.NoError(t, guarded.Err(), "the guard ended before the holder sent a request")
			_, err = lock.Guard(ctx)
			assert.NoError(t, err)
			token, err := lock.Token(ctx)
			must(t, err)
			second, err := theirs.Token(ctx)
			assert.NoError(t, err)
			assert.Equal(t, first, token, "the token of the holder")
			assert.Greater(t, second, first, "the token of the other holder")

			assert.ErrorIs(t, c.ask(lock, ctx), relock.ErrLockLost)
			<-guarded.Done()
			assert.ErrorIs(t, context.Cause(guarded), c.cause)
			assert.ErrorIs(t, lock.Unlock(ctx), c.unlock)
			must(t, theirs.Unlock(ctx))
		})
	}
}

// This test is the last example of the package comment.
func TestLossIsNoticedAtARenewal(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	lock := server.Client(relock.WithWatchdogTimeout(300 * time.Millisecond)).NewLock("orders:42")
	must(t, lock.Lock(ctx))
	guarded, err := lock.Guard(ctx)
	must(t, err)
	server.Advance(300 * time.Millisecond)
	select {
	case <-guarded.Done():
	case <-time.After(soon):
		require.Fail(t, "the loss is not noticed")
	}
	assert.ErrorIs(t, context.Cause(guarded), relock.ErrLockLost)
}

func TestLessThanALeaseLosesNothing(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	client := server.Client(relock.WithWatchdogTimeout(3 * time.Second))
	lock := client.NewLock("orders:42")
	must(t, lock.Lock(ctx))
	server.Advance(time.Second)
	ttl, err := lock.TTL(ctx)
	assert.NoError(t, err)
	assert.LessOrEqual(t, ttl, 2*time.Second)
	testredis.Await(
		t,
		"it is renewed",
		soon,
		func() bool { ttl, err := lock.TTL(ctx); return err == nil && ttl > 2*time.Second },
	)
	held, err := lock.IsHeld(ctx)
	assert.NoError(t, err)
	assert.True(t, held)
	must(t, lock.Unlock(ctx))
}

func TestAdvanceMovesTheClock(t *testing.T) {
	server := relocktest.Start(t)
	client, ctx := server.Client(), context.Background()
	server.Advance(time.Hour)
	i, err := client.Inspect(ctx, "x")
	must(t, err)
	ahead := time.Until(i.At)
	assert.GreaterOrEqual(t, ahead, 59*time.Minute, "ahead")
	assert.LessOrEqual(t, ahead, time.Hour, "ahead")
	testredis.Await(
		t,
		"the clock runs",
		soon,
		func() bool { now, err := client.Inspect(ctx, "x"); return err == nil && now.At.After(i.At) },
	)
	defer func() {
		r, _ := recover().(string)
		assert.Contains(t, r, "-1s")
	}()
	server.Advance(-time.Second)
}

// A script has the time at which it was sent, and not that of the last tick.
func TestScriptsHaveTheTimeOfTheServer(t *testing.T) {
	server, ctx := relocktest.Start(t), context.Background()
	rdb := server.Redis()
	server.Advance(time.Hour)
	for range 20 {
		before := time.Now().Add(time.Hour).UnixMicro()
		n, err := rdb.Eval(ctx, `local now = redis.call('time') return now[1] * 1000000 + now[2]`, nil).Int64()
		must(t, err)
		assert.GreaterOrEqual(t, n, before, "the clock was late")
	}
}

func TestAdvanceWakesWaiters(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	crashed, client := server.Client(), server.Client()
	must(t, crashed.NewLock("plain").Lock(ctx))
	must(t, crashed.NewFairLock("fair").Lock(ctx))
	must(t, crashed.Close())
	order := make(chan string, 3)
	var released sync.WaitGroup
	defer released.Wait()
	wait := func(l relock.Locker, who string) {
		waitgroup.Go(&released, func() {
			ctx := relock.ContextWithOwner(ctx)
			assert.NoError(t, l.Lock(ctx))
			order <- who
			assert.NoError(t, l.Unlock(ctx))
		})
	}
	fair := client.NewFairLock("fair")
	for n, who := range []string{"first", "second"} {
		wait(fair, who)
		testredis.Await(
			t,
			"it waits",
			soon,
			func() bool { i, err := client.Inspect(ctx, "fair"); return err == nil && len(i.Waiters) == n+1 },
		)
	}
	server.Advance(29 * time.Second)
	i, err := client.Inspect(ctx, "fair")
	assert.NoError(t, err)
	assert.Len(t, i.Waiters, 2)
	server.Advance(time.Second)
	for _, want := range []string{"first", "second"} {
		assert.Equal(t, want, <-order, "the next holder")
	}
	must(t, server.Client().NewLock("plain").Lock(ctx)) // it was lost, too
}

// Holds and waiters that are left at the end of a test end with it: TestMain checks their goroutines.
func TestStartLeavesNothingBehind(t *testing.T) {
	server := relocktest.Start(t)
	client := server.Client()
	ctx := context.Background()
	must(t, client.NewLock("lost").Lock(ctx))
	must(t, client.NewLock("held").Lock(ctx))
	must(t, server.Client().NewRWLock("read").Read().Lock(ctx))
	for _, l := range []relock.Locker{client.NewLock("held"), client.NewRWLock("read").Write()} {
		go func() {
			if err := l.Lock(relock.ContextWithOwner(ctx)); !errors.Is(err, relock.ErrClosed) {
				panic(err)
			}
		}()
	}
	testredis.Await(
		t,
		"one waits",
		soon,
		func() bool { i, err := client.Inspect(ctx, "read"); return err == nil && len(i.Waiters) == 1 },
	)
	must(t, server.Redis().Del(ctx, "lost").Err())
	assert.ErrorIs(t, client.NewLock("lost").Unlock(ctx), relock.ErrLockLost)
}

// failing is a test that keeps what it failed with.
type failing struct {
	testing.TB
	said     string
	cleanups []func()
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.said += fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) }

func (f *failing) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }

func (f *failing) end() {
	for _, c := range slices.Backward(f.cleanups) {
		c()
	}
}

func TestReportHeldNamesTheLocksThatATestLeaves(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		does  func(c *relock.Client)
		wants string
	}{
		"left":     {func(c *relock.Client) { must(t, c.NewLock("lock:orders:42").Lock(ctx)) }, "lock:orders:42"},
		"released": {func(c *relock.Client) { assert.True(t, get(t, c.NewLock("x"))) }, ""},
		"crashed": {func(c *relock.Client) {
			must(t, c.NewLock("x").Lock(ctx))
			must(t, c.Close())
		}, ""},
	} {
		f := &failing{TB: t}
		client := relocktest.New(f)
		relocktest.ReportHeld(f, client)
		c.does(client)
		f.end()
		if c.wants == "" {
			assert.Empty(t, f.said, name)
		} else {
			assert.Contains(t, f.said, c.wants, name)
		}
	}
}
