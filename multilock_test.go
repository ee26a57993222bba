package relock

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// newMultiLock is a lock of locks of every kind, taken in several steps.
func newMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(
		c.NewRWLock(name+"-r").Read(),
		c.NewLock(name+"-second"),
		c.NewFairLock(name+"-fair"),
		c.NewRWLock(name+"-w").Write(),
		c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-fenced", Fenced())),
	)
}

func TestMultiLock(t *testing.T) { testLocker(t, newMultiLock) }

// The same in one step.
func TestMultiLockInOneStep(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker {
		return c.NewMultiLock(c.NewLock(name+"-b"), c.NewLock(name), c.NewLock(name+"-a"))
	})
}

// Locks of several steps are tried at the same time. Where one is busy, the others are free for everybody while the
// MultiLock waits for the first of them.
func TestMultiLockTriesAllStepsTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := WithOwner(context.Background())
	rdb := testredis.Client(t, b.addr)
	var gaveUp giveUps
	c := b.clientOn(rdb, WithObserver(&gaveUp))
	locks := []Locker{c.NewFairLock(b.name + "-1"), c.NewFairLock(b.name + "-2"), c.NewFairLock(b.name + "-3")}
	l := c.NewMultiLock(locks...)

	var asked atomic.Int64
	var alone atomic.Bool
	all := make(chan struct{})
	rdb.AddHook(processHook(func(request func() error) error {
		if asked.Add(1) == 3 {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(send.ResendTime * 9 / 10): // before one of them is sent again
			alone.Store(true)
		}
		return request()
	}))
	for _, take := range []func() error{
		func() error { return l.Lock(ctx) },
		func() error { return l.LockLease(ctx, time.Minute) },
	} {
		b.must(take())
		assert.False(b, alone.Load(), "a request went out when the others had not")
		for _, one := range locks {
			n, err := one.HoldCount(ctx)
			b.must(err)
			assert.Equal(b, 1, n)
		}
		b.must(l.Unlock(ctx))
		asked.Store(0)
		all = make(chan struct{})
	}
	asked.Store(3)
	close(all)

	other := b.client()
	second := other.NewFairLock(b.name + "-2")
	b.must(second.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	third := other.NewFairLock(b.name + "-3")
	b.tries(third, true)
	b.must(third.Unlock(context.Background()))
	b.must(second.Unlock(ctx))
	b.must(await(b, "Lock", got))
	b.must(l.Unlock(ctx))
	assert.Zero(b, gaveUp.n.Load(), "events that a caller has given up")
}

// giveUps counts the callers that have given up.
type giveUps struct {
	NopObserver
	n atomic.Int64
}

func (o *giveUps) GaveUp(context.Context, GaveUpEvent) { o.n.Add(1) }

// The attempt on all steps waits for no lock. A Redis that answers slowly is no error all the same.
func TestMultiLockOfSeveralStepsWaitsForASlowRedis(t *testing.T) {
	b := newFaultBench(t)
	ctx := WithOwner(context.Background())
	c := b.patientClient()
	l := c.NewMultiLock(c.NewFairLock(b.name+"-1"), c.NewFairLock(b.name+"-2"))
	b.proxy.Latency(send.MinWait)
	b.must(l.Lock(ctx))
	n, err := l.HoldCount(ctx)
	b.must(err)
	assert.Equal(b, 1, n)
	b.must(l.Unlock(ctx))
	b.proxy.Latency(0)
	// The Client goes on to undo the first attempt, which ran after it was given up.
	testredis.Await(b, "nothing is left", soon, func() bool { return len(b.keys()) == 0 })
}

// A stubLocker is a foreign Locker: it wraps a Locker of the package, and overrides some answers.
type stubLocker struct {
	Locker
	tryLock func(ctx context.Context, wait, lease time.Duration) (bool, error)
	unlock  func(ctx context.Context) error
	guard   func(ctx context.Context) (context.Context, error)
}

func (s stubLocker) Guard(ctx context.Context) (context.Context, error) {
	if s.guard != nil {
		return s.guard(ctx)
	}
	return s.Locker.Guard(ctx)
}

func (s stubLocker) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if s.tryLock != nil {
		return s.tryLock(ctx, wait, lease)
	}
	return s.Locker.TryLock(ctx, wait, lease)
}

func (s stubLocker) Unlock(ctx context.Context) error {
	err := s.Locker.Unlock(ctx)
	if s.unlock != nil {
		err = s.unlock(ctx)
	}
	return err
}

// The suite over a MultiLock one of whose locks is not known from inside: it does
// not end at the very moment when the others do.
func TestMultiLockOfForeignLockers(t *testing.T) {
	newLock := func(c *Client, name string) Locker {
		return c.NewMultiLock(stubLocker{Locker: c.NewLock(name + "-b")}, c.NewLock(name))
	}
	suite{newLock: newLock, rival: newLock, without: "LapsedLeaseNeedsNoUnlock"}.run(t)
}

// Where the last lock of it is always over before the others have their lease, that is an error, and
// nothing of it is left: the next Lock would re-enter a lock that outlived it, and no Unlock would follow.
func TestMultiLockThatIsOverAtOnceIsNotReported(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	proxy := testredis.NewProxy(t, b.addr)
	ctx := context.Background()
	c := b.clientOn(proxy.Client())
	l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2")) // in two steps
	b.must(l.LockLease(ctx, time.Second))                                   // its scripts are known
	b.must(l.Unlock(ctx))

	inUse := c.engine.Probe().KeepInUse(b.name + "-1") // so it takes one step after the other
	const latency = 40 * time.Millisecond
	proxy.Latency(latency)
	ok, err := l.TryLock(ctx, soon, 3*latency) // a step takes two thirds of that
	proxy.Latency(0)
	inUse()
	b.mustBe(err, ErrLockLost)
	assert.False(t, ok, "it is held, and over")
	_, err = l.Guard(ctx)
	b.mustBe(err, ErrNotHeld)
	for _, part := range l.locks {
		testredis.Await(b, part.Name()+" is given back", soon, func() bool { return b.rdb.Exists(ctx, part.Name()).Val() == 0 })
	}
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
}

// At least half of an explicit lease is left when LockLease returns, although an answer was late: of an attempt, or of
// the request that lets the leases of all steps begin together.
func TestMultiLockLateAnswerLeavesHalfOfTheLease(t *testing.T) {
	t.Parallel()
	for what, late := range map[string]testredis.Match{"attempt": calls(fairAcquire), "start": calls(renewScript)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const lease = time.Second
			b := newFaultBenchOn(t, testredis.Start(t))
			ctx := WithOwner(context.Background())
			c := b.bench.clientOn(b.proxy.Client())
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2")) // in two steps
			if what == "start" {
				inUse := c.engine.Probe().KeepInUse(b.name + "-1") // so it takes one step after the other
				defer inUse()
			}
			rule := b.proxy.On(late, testredis.DelayReply(870*time.Millisecond))
			b.must(l.LockLease(ctx, lease))
			assert.Positive(t, rule.Count())
			guarded, err := l.Guard(ctx)
			b.must(err)
			stays(b, "hardly anything was left of the lease", guarded.Done(), lease/2-50*time.Millisecond)
			_ = l.Unlock(ctx) // the lease may be over
		})
	}
}

// A TryLock that does not wait gives up soon where Redis stops to answer after the first lock was taken, and gives back
// what it has taken in the background.
func TestMultiLockGivesUpASilentRedisSoon(t *testing.T) {
	t.Parallel()
	for what, silent := range map[string]testredis.Match{"attempt": anyOf(fairAcquire, lockRelease), "start": anyOf(renewScript, lockRelease)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newFaultBenchOn(t, testredis.Start(t))
			ctx := WithOwner(context.Background())
			c := b.patientClient()
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2")) // in two steps
			b.must(l.Do(ctx, func(context.Context) error { return nil }))
			rule := b.proxy.On(silent, testredis.HoldRequest).Times(testredis.Always)
			start := time.Now()
			ok, err := l.TryLock(ctx, 0, time.Minute)
			assert.Less(t, time.Since(start), 2*time.Second+3*send.Slack)
			b.mustBe(err, engine.ErrNoAnswer)
			assert.False(t, ok)
			rule.Release()
			b.freeSoon()
		})
	}
}

// It waits for whichever is busy now.
func TestMultiLockWaitsForWhicheverIsBusy(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(WithMaxWakeDelay(time.Hour)), b.client()
		first, second := other.NewLock(b.name+"-1"), other.NewLock(b.name+"-2")
		local := c.NewLock(b.name + "-1")
		l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewLock(b.name+"-2"))
		owner := WithOwner(ctx)
		for range 3 {
			b.must(first.Lock(ctx))
			got := b.startWaiter(owner, l)
			b.must(second.Lock(ctx))
			b.must(first.Unlock(ctx))
			testredis.Await(b, "it waits for the second one", soon, func() bool {
				return b.hearers("redisson_lock__channel:{"+b.name+"-2}") > 0
			})
			b.must(local.Lock(ctx)) // and in this process
			b.must(second.Unlock(ctx))
			b.must(local.Unlock(ctx))
			b.must(await(b, "both are free", got))
			b.must(l.Unlock(owner))
		}
	})
}

// One deadline counts for all locks, and the locks that were taken are given back.
func TestMultiLockHasOneDeadlineForAll(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	kinds := func(c *Client) []Locker {
		return []Locker{c.NewLock(b.name + "-1"), c.NewFairLock(b.name + "-2"), newWriteLock(c, b.name+"-3")}
	}
	l := c.NewMultiLock(kinds(c)...)
	const wait = time.Second
	for _, busy := range kinds(other) {
		b.must(busy.Lock(ctx))
		start := time.Now()
		ok, err := l.TryLock(ctx, wait, 0)
		took := time.Since(start)
		require.NoError(t, err)
		assert.False(t, ok)
		assert.GreaterOrEqual(t, took, wait)
		assert.LessOrEqual(t, took, wait+soon)
		deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		b.mustBe(l.Lock(deadline), context.DeadlineExceeded)
		cancel()
		b.tries(l, false)
		for _, free := range kinds(other) {
			if free.Name() == busy.Name() {
				continue
			}
			b.triesFor(ctx, free, soon, true) // it was given back
			b.must(free.Unlock(ctx))
		}
		b.must(busy.Unlock(ctx))
	}
}

// Unlock releases every lock, and says which it could not.
func TestMultiLockUnlocksAll(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(), b.client()
		failing := stubLocker{Locker: c.NewLock(b.name + "-stub"), unlock: func(context.Context) error { return io.ErrNoProgress }}
		l := c.NewMultiLock(failing, c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2"), c.NewLock(b.name+"-3"))
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.must(b.rdb.Del(ctx, b.name+"-2").Err())
		err = l.Unlock(ctx)
		b.mustBe(err, ErrLockLost)
		b.mustBe(err, io.ErrNoProgress)
		assert.ErrorContains(t, err, b.name+`-2"`)
		assert.NotContains(t, err.Error(), b.name+`-1"`)
		assert.Error(t, guarded.Err(), "the guard goes on")
		for _, name := range []string{"-stub", "-1", "-2", "-3"} {
			b.tries(other.NewLock(b.name+name), true)
			b.must(other.NewLock(b.name + name).Unlock(ctx))
		}
	})
}

// The locks that were taken are given back when another lock fails, and both errors are returned.
func TestMultiLockJoinsErrors(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	refuses := stubLocker{Locker: c.NewLock(b.name + "-a"), tryLock: func(context.Context, time.Duration, time.Duration) (bool, error) {
		return false, io.ErrClosedPipe
	}}
	first := stubLocker{Locker: c.NewLock(b.name + "-A"), unlock: func(context.Context) error { return io.ErrNoProgress }}
	_, err := c.NewMultiLock(refuses, c.NewLock(b.name), first).TryLock(ctx, time.Second, 0)
	b.mustBe(err, io.ErrClosedPipe)
	b.mustBe(err, io.ErrNoProgress)
	for _, name := range []string{"", "-a", "-A"} {
		b.isLocked(c.NewLock(b.name+name), false)
	}
}

// The loss of any of them ends the guard, and says which.
func TestMultiLockLossOfOneEndsTheGuard(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, name := range []string{"-1", "-2", "-3"} {
			b := newBench(t, addr)
			ctx := context.Background()
			c := b.client(WithWatchdogTimeout(1500 * time.Millisecond))
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2"), c.NewLock(b.name+"-3"))
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.must(b.rdb.Del(ctx, b.name+name).Err())
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			assert.ErrorContains(t, context.Cause(guarded), b.name+name)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
		}
	})
}

// A MultiLock that loses its first lock while it waits for the last one starts over.
func TestMultiLockStartsOverWhenAnEarlierLockIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b *bench){
		"it lapses":        func(*bench) { time.Sleep(600 * time.Millisecond) },
		"it is taken away": func(b *bench) { b.must(b.rdb.Del(context.Background(), b.name+"-1").Err()) },
		"a rival takes it": func(b *bench) { b.must(b.rdb.Del(context.Background(), b.name+"-1").Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			ctx := context.Background()
			c, other := b.client(WithWatchdogTimeout(300*time.Millisecond)), b.client()
			first, last := other.NewLock(b.name+"-1"), other.NewLock(b.name+"-last")
			b.must(last.Lock(ctx))
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), stubLocker{Locker: c.NewLock(b.name + "-last")})
			owner := WithOwner(ctx)
			got := make(chan error)
			go func() { got <- l.LockLease(owner, time.Minute) }()
			testredis.Await(b, "the first is taken", soon, func() bool {
				locked, err := first.IsLocked(ctx)
				return locked && err == nil
			})
			lose(b)
			if name == "a rival takes it" {
				b.tries(first, true)
			}
			b.must(last.Unlock(ctx))
			if name == "a rival takes it" {
				select {
				case err := <-got:
					require.Fail(t, "it says that it has what a rival has", "%v", err)
				case <-time.After(300 * time.Millisecond):
				}
				b.must(first.Unlock(ctx))
			}
			b.must(await(b, "all are free", got))
			n, err := l.HoldCount(owner)
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			ttl, err := first.TTL(ctx)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, ttl, 50*time.Second)
			b.must(l.Unlock(owner))
		})
	}
}

// A caller that waits for a lock of another Client gets ErrClosed when the Client of the MultiLock is closed.
func TestMultiLockCloseWakesWaitersElsewhere(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	home, other := b.client(), b.client()
	held := b.client().NewLock(b.name)
	l := home.NewMultiLock(other.NewLock(b.name), other.NewFairLock(b.name+"-fair"))
	mine := home.NewMultiLock(other.NewLock(b.name + "-mine"))
	b.must(mine.Lock(ctx))
	guarded, err := mine.Guard(ctx)
	b.must(err)
	b.must(held.Lock(ctx))
	got := b.startWaiter(WithOwner(ctx), l)
	b.must(home.Close())
	b.mustBe(await(b, "the waiter hears of it", got), ErrClosed)
	await(b, "the guard ends", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrClosed)
	b.must(mine.Unlock(ctx))
	b.must(held.Unlock(ctx))
}

func (s *section) enter(b *bench) {
	assert.EqualValues(b, 1, s.alone.Add(1), "holders")
}

// A MultiLock gets its locks together although each of them always has waiters in this process.
func TestMultiLockIsNotStarvedHere(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := b.client()
	var all sync.WaitGroup
	names := []string{b.name + "-a", b.name + "-b"}
	for i := range 6 {
		l := c.NewLock(names[i%2])
		waitgroup.Go(&all, func() {
			for ctx.Err() == nil {
				assert.NoError(b, l.Lock(context.Background()))
				time.Sleep(5 * time.Millisecond)
				assert.NoError(b, l.Unlock(context.Background()))
			}
		})
	}
	l := c.NewMultiLock(c.NewLock(names[0]), c.NewLock(names[1]))
	for range 5 {
		b.triesFor(context.Background(), l, soon, true)
		b.must(l.Unlock(context.Background()))
	}
	stop()
	all.Wait()
}

// A guardless is a foreign Locker that grants everything and guards nothing.
type guardless struct {
	Locker
	tries int
}

func (g *guardless) TryLock(context.Context, time.Duration, time.Duration) (bool, error) {
	g.tries++
	return true, nil
}
func (g *guardless) Lock(context.Context) error   { g.tries++; return nil }
func (g *guardless) Unlock(context.Context) error { return nil }
func (g *guardless) Guard(context.Context) (context.Context, error) {
	return nil, io.ErrNoProgress
}

// Foreign Lockers may fail in ways of their own.
func TestMultiLockOfForeignLockersThatFail(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	last := stubLocker{Locker: c.NewLock(b.name + "-z")}
	strange := &guardless{Locker: c.NewLock(b.name + "-A")}
	b.mustBe(c.NewMultiLock(strange, last).Lock(ctx), io.ErrNoProgress)

	lost := &guardless{Locker: c.NewLock(b.name + "-B")} // always
	deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	b.mustBe(c.NewMultiLock(neverHeld{lost}, last).Lock(deadline), context.DeadlineExceeded)
	assert.LessOrEqual(t, lost.tries, 30, "tries in 100ms")

	panics := stubLocker{Locker: c.NewLock(b.name + "-C"), tryLock: func(context.Context, time.Duration, time.Duration) (bool, error) { panic("mine") }}
	assert.PanicsWithValue(t, "mine", func() {
		_, _ = c.NewMultiLock(panics, c.NewLock(b.name+"-D")).TryLock(ctx, time.Second, 0)
	})
	b.isLocked(c.NewLock(b.name+"-D"), false)
}

type neverHeld struct{ *guardless }

func (neverHeld) Guard(context.Context) (context.Context, error) { return nil, ErrLockLost }

// A re-entry of locks that were lost while Redis could not be reached says so, once.
func TestMultiLockReentryOfLostLocksSaysSoOnce(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	c := b.client(WithWatchdogTimeout(300 * time.Millisecond))
	l := c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.server.Freeze()
	await(b.bench, "the guard ends", guarded.Done())
	b.server.Thaw()
	b.mustBe(context.Cause(guarded), ErrLockLost)
	assert.ErrorIs(t, l.Lock(ctx), ErrLockLost, "a re-entry of what is lost")
	_ = l.Unlock(ctx)
	_ = l.Unlock(ctx)
}
