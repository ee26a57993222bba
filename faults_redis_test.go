package relock

// Every lock type under faults of Redis itself: it is gone, paused, slow, out of memory, busy, read-only, forgetful or
// strict. The comment of each test has the rows of docs/reliability.md that it covers.
//
// Rules: a real server is brought into the state, with the commands of an
// operator where there are any. A waiter goes on waiting where the trouble
// passes. A holder learns of each loss. No caller gets a lock that was not confirmed.

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commands returns how often the server of the bench has run a command.
func (b *faultBench) commands(name string) int {
	b.Helper()
	var n int
	stats := b.rdb.InfoMap(context.Background(), "commandstats").Item("Commandstats", "cmdstat_"+name)
	_, _ = fmt.Sscanf(stats, "calls=%d", &n)
	return n
}

// config sets a parameter of the server until the test ends.
func (b *faultBench) config(name, value string) {
	b.Helper()
	b.must(b.rdb.ConfigSet(context.Background(), name, value).Err())
}

// Row 37: a paused Redis.
func TestFaultPausedRedisEndsValidityAndCalls(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = time.Second
		c := b.client(WithWatchdogTimeout(lease))
		l, other := k.one(c, b.name), k.one(c, b.name+"-other")
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.server.Freeze()
		start := time.Now()
		ok, err := other.TryLock(ctx, 100*time.Millisecond, 0)
		assert.False(b, ok, "TryLock")
		assert.Error(b, err, "TryLock")
		assert.LessOrEqual(b, time.Since(start), soon/2, "TryLock")
		deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		b.mustBe(other.Lock(deadline), context.DeadlineExceeded)
		took := time.Since(start)
		assert.LessOrEqual(b, took, soon/2, "time of Lock")
		await(b.bench, "the guard ends", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		start = time.Now()
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		took = time.Since(start)
		assert.LessOrEqual(b, took, send.ConnectTime+soon/2, "time of Unlock")
		b.server.Thaw()
		testredis.Await(b, "everything is free again", 4*soon, func() bool {
			return second(b.rdb.Ping(ctx).Result()) == nil && len(b.records()) == 0
		})
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	})
}

// Rows 15, 16: Redis restarts empty, without records, counters and scripts.
func TestFaultRestartWithoutDataIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.client(WithWatchdogTimeout(3*time.Second)), b.name)
		b.must(l.Lock(ctx))
		token := b.tokenOf(ctx, l)
		guarded, err := l.Guard(ctx)
		b.must(err)
		owner := ContextWithOwner(ctx)
		waiting := k.rival(b.client(WithPollInterval(200*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		b.server.Restart()
		b.must(await(b.bench, "the waiter gets the lock", got))
		if token != 0 {
			assert.Greater(b, b.tokenOf(owner, waiting), token, "the token of the next holder")
		}
		await(b.bench, "the old holder is told", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.must(waiting.Unlock(owner))
	})
}

// Row 38: Redis is down for a while, and a waiter survives it.
func TestFaultWaiterRidesOutAnOutage(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.client(WithPollInterval(200*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		b.server.Kill()
		b.refuses(k.one(b.direct, b.name+"-other"), "refused")
		if !k.red {
			deadline, cancel := context.WithTimeout(ctx, 10*soon)
			defer cancel()
			assert.ErrorContains(b, k.one(b.direct, b.name+"-other").Lock(deadline), "refused", "Lock without Redis")
			assert.NoError(b, deadline.Err(), "Lock without Redis waited")
		}
		stays(b, "the waiter gave up", got, time.Second)
		b.server.Restart()
		b.must(await(b.bench, "the waiter gets the lock", got))
		b.mustBe(held.Unlock(ctx), ErrLockLost)
		b.must(waiting.Unlock(owner))
	})
}

// Row 25: Redis is out of memory. Holds are renewed and released.
func TestFaultHoldsAreRenewedWithoutMemory(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 3 * time.Second
		c := b.client(WithWatchdogTimeout(lease))
		l := k.one(c, b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.config("maxmemory", "1")
		if k.name != "write" { // Redis allows the writes of this one, because the first of them frees memory
			b.refuses(k.one(c, b.name+"-2"), "OOM")
		}
		select {
		case <-guarded.Done():
			assert.Fail(b, "lost", context.Cause(guarded))
		case <-time.After(lease + lease/6): // renewed
		}
		b.must(l.Unlock(ctx))
		b.isLocked(l, false)
		b.config("maxmemory", "0")
	})
}

// Row 26: the record is evicted. The holder notices at its next renewal.
func TestFaultEvictedRecordIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis("--maxmemory-policy", "allkeys-lru"), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.client(WithWatchdogTimeout(3*time.Second)), b.name)
		b.must(l.Lock(ctx))
		token := b.tokenOf(ctx, l)
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.config("maxmemory", "1")
		testredis.Await(b, "the record is evicted", soon, func() bool { return len(b.keys()) == 0 })
		b.config("maxmemory", "0")
		next := k.rival(b.direct, b.name)
		b.tries(next, true)
		if token != 0 {
			assert.Greater(b, b.tokenOf(ctx, next), token, "the token of the next holder")
		}
		await(b.bench, "the guard ends", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
	})
}

// Row 28: an operator has removed the expiry of the record, and its holder has crashed. A waiter polls, and does not
// sleep until a lease expires that never does.
func TestFaultRecordWithoutLeaseIsPolled(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = time.Second
		l := k.one(b.shaky(), b.name)
		b.must(l.LockLease(ctx, lease))
		b.proxy.BlackHole(true)
		for _, key := range b.keys() {
			b.must(b.rdb.Persist(ctx, key).Err())
		}
		if k.holds != nil {
			for _, id := range b.rdb.ZRange(ctx, k.holds(b.name), 0, -1).Val() {
				b.must(b.rdb.ZAdd(ctx, k.holds(b.name), redis.Z{Score: 922337203685477, Member: id}).Err())
			}
		}
		owner := ContextWithOwner(ctx)
		waiting := k.rival(b.client(WithPollInterval(100*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		stays(b, "the record is still there", got, 2*lease)
		b.forget() // by the operator; nothing is announced
		b.must(await(b.bench, "the waiter asks again", got))
		b.proxy.BlackHole(false)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.must(waiting.Unlock(owner))
	})
}

// Row 35: the clock of the server jumps.
func TestFaultServerClockJumpIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, testredis.StartJumpy, func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 3 * time.Second
		l, next := k.one(b.client(WithWatchdogTimeout(lease)), b.name), k.rival(b.direct, b.name)
		b.must(l.Lock(ctx))
		token := b.tokenOf(ctx, l)
		guarded, err := l.Guard(ctx)
		b.must(err)

		// Ahead: all leases have expired, and the holder learns of the loss at its next renewal.
		b.server.Jump(time.Hour)
		testredis.Await(b, "the lease is over", soon, func() bool {
			ok, err := next.TryLock(ctx, 0, 0)
			return ok && err == nil
		})
		if token != 0 {
			assert.Greater(b, b.tokenOf(ctx, next), token, "the token of the next holder")
		}
		await(b.bench, "the guard ends", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		b.mustBe(l.Unlock(ctx), ErrLockLost)

		// Back: leases last longer, and a release works all the same.
		b.server.Jump(-time.Hour)
		b.holds(next, 1)
		b.tries(l, false)
		b.must(next.Unlock(ctx))
		b.tries(l, true)
		b.must(l.Unlock(ctx))
	})
}

// Row 36: Redis is slow. The time of the request does not count as validity, no client sends a request twice meanwhile,
// and a hold is renewed.
func TestFaultTimeOfASlowRequestIsNotValid(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 5 * time.Second
		held := k.one(b.client(WithWatchdogTimeout(lease)), b.name+"-held")
		b.must(held.Lock(ctx))
		guardedHeld, err := held.Guard(ctx)
		b.must(err)

		l := k.one(b.client(), b.name)
		var before int
		var start time.Time
		var took time.Duration
		slow := 700 * time.Millisecond
		for ; ; slow *= 2 {
			before = b.commands("evalsha")
			b.must(b.rdb.Do(ctx, "client", "pause", slow.Milliseconds(), "write").Err())
			start = time.Now()
			b.must(l.LockLease(ctx, lease))
			if took = time.Since(start); took >= slow/2 {
				break
			}
			require.Less(b, slow, lease/4, "Redis was not slow") // or this process was: the pause was nearly over before
			b.must(l.Unlock(ctx))
		}
		guarded, err := l.Guard(ctx)
		b.must(err)
		assert.LessOrEqual(
			b,
			b.commands("evalsha")-before,
			2*k.asks+2*k.parts,
			"requests: one acquire, and a renewal perhaps",
		)
		b.must(b.rdb.Do(ctx, "debug", "sleep", slow.Seconds()).Err())
		time.Sleep(time.Until(start.Add(took - slow/2 + lease))) // the request was sent well before that
		assert.Error(
			b,
			guarded.Err(),
			"trusted %v after the lock was requested, which took %v, for a lease of %v",
			time.Since(start),
			took,
			lease,
		)
		assert.NoError(b, context.Cause(guardedHeld), "the watchdog did not get through")
		b.must(held.Unlock(ctx))
	})
}

// Row 39: the server accepts no more connections.
func TestFaultHoldSurvivesMaxClients(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 5 * time.Second
		l := k.one(b.client(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.config("maxclients", "1")
		other := k.rival(b.client(), b.name)
		b.refuses(other, "")
		select {
		case <-guarded.Done():
			assert.Fail(b, "lost", context.Cause(guarded))
		case <-time.After(lease + lease/6):
		}
		b.config("maxclients", "1000")
		b.must(l.Unlock(ctx))
		ok, err := other.TryLock(ctx, soon, 0)
		assert.NoError(b, err)
		assert.True(b, ok, "there is room again") // go-redis takes a while to notice
		b.must(other.Unlock(ctx))
	})
}

// Rows 21, 23: a server that rejects writes: a replica, one whose replicas are missing, one that cannot save.
func TestFaultRefusedWritesAreReportedOrRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer  string
		passes  bool // an Unlock waits for it
		on, off func(b *faultBench)
	}{
		{"READONLY", true, func(b *faultBench) {
			b.must(b.rdb.Do(context.Background(), "replicaof", "127.0.0.1", "1").Err())
		}, func(b *faultBench) {
			b.must(b.rdb.Do(context.Background(), "replicaof", "no", "one").Err())
		}},
		{"NOREPLICAS", true, func(b *faultBench) {
			b.config("min-replicas-to-write", "1")
		}, func(b *faultBench) {
			b.config("min-replicas-to-write", "0")
		}},
		{"MISCONF", false, func(b *faultBench) {
			b.config("save", "3600 1")
			dir := b.rdb.ConfigGet(context.Background(), "dir").Val()["dir"]
			b.must(os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700)) // blocks the name of the file
			b.must(b.rdb.BgSave(context.Background()).Err())
			testredis.Await(b, "a save has failed", soon, func() bool {
				return b.rdb.InfoMap(context.Background(), "persistence").Item("Persistence", "rdb_last_bgsave_status") == "err"
			})
		}, func(b *faultBench) {
			b.config("save", "")
		}},
	} {
		t.Run(c.answer, func(t *testing.T) {
			t.Parallel()
			onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				l, free := k.one(b.direct, b.name), k.one(b.direct, b.name+"-free")
				b.must(l.Lock(ctx))
				c.on(b)
				b.refuses(free, c.answer)
				b.mustBe(elsewhere(func() error { return l.Unlock(ctx) }), ErrNotHeld) // not the owner
				if !c.passes {
					assert.ErrorContains(b, l.Unlock(ctx), c.answer, "Unlock")
					b.isLocked(l, true)
					c.off(b)
					b.freeSoon() // the release is retried in the background
					return
				}
				unlocked := make(chan struct{})
				var wg sync.WaitGroup
				waitgroup.Go(&wg, func() {
					select {
					case <-unlocked:
					case <-time.After(300 * time.Millisecond):
					}
					c.off(b)
				})
				b.must(l.Unlock(ctx)) // it retries
				close(unlocked)
				wg.Wait()
				b.must(free.Lock(ctx))
				b.must(free.Unlock(ctx))
			})
		})
	}
}

// Row 22: Redis loads its data, for seconds.
func TestFaultWaiterRidesOutLoading(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis("--loading-process-events-interval-bytes", "1024"), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.client(WithPollInterval(50*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		b.must(
			b.rdb.Eval(ctx, "for i = 1, 1500 do redis.call('set', 'filler' .. i, string.rep('x', 100)) end return 1", nil).Err(),
		)
		b.config("key-load-delay", "1000") // microseconds
		patient := func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }
		loader, once := b.server.Client(patient), b.server.Client(patient)
		var wg sync.WaitGroup
		waitgroup.Go(&wg, func() {
			assert.NoError(b, loader.Do(ctx, "debug", "reload").Err())
		})
		testredis.Await(b, "Redis loads", soon, func() bool {
			return redis.HasErrorPrefix(once.Ping(ctx).Err(), "LOADING")
		})
		b.refuses(k.one(b.direct, b.name+"-other"), "LOADING")
		wg.Wait()
		stays(b, "the waiter gave up, or in", got, 100*time.Millisecond)
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter gets the lock", got))
		b.must(waiting.Unlock(owner))
	})
}

// Rows 21 to 25, 51, 54, 56: the errors of Redis, and whether a waiter continues after each of them.
func TestFaultWaiterRidesOutPassingErrorsOnly(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for n, k := range faultLocks {
		waitgroup.Go(&all, func() {
			t.Run(k.name, func(t *testing.T) {
				for i, c := range []struct {
					answer string
					passes bool // a waiter continues
				}{
					{"LOADING Redis is loading the dataset in memory", true},
					{"MASTERDOWN Link with MASTER is down", true},
					{"CLUSTERDOWN The cluster is down", true},
					{"TRYAGAIN Multiple keys request during rehashing of slot", true},
					{"BUSY Redis is busy running a script", true},
					{"NOREPLICAS Not enough good replicas to write.", true},
					{"READONLY You can't write against a read only replica.", true},
					{"ERR Unable to execute command 'exists' in script because undeclared keys were accessed during rehashing of " +
						"the slot", true},
					{"ERR Script attempted to execute a command while the cluster is down", true},
					{"OOM command not allowed when used memory > 'maxmemory'.", false},
					{"MISCONF Errors writing to the AOF file", false},
					{"NOAUTH Authentication required.", false},
					{"NOPERM this user has no permissions to run the 'evalsha' command", false},
					{"ERR unknown command 'evalsha'", false},
				} {
					if (i+n)%len(faultLocks) >= full(2, len(faultLocks)) {
						continue // two lock types get each answer in the plain form
					}
					prefix, _, _ := strings.Cut(c.answer, " ")
					t.Run(prefix, func(t *testing.T) { testServerAnswer(t, k, c.answer, c.passes) })
				}
			})
		})
	}
	all.Wait()
}

func testServerAnswer(t *testing.T, k faultLock, answer string, passes bool) {
	mini := testredis.Mini(t)
	b := &faultBench{bench: newBench(t, mini.Addr())}
	ctx := context.Background()
	patience := WithWatchdogTimeout(time.Second) // a caller retries for this time
	if k.red {
		patience = WithRedLockNodeTimeout(soon)
	}
	l := k.one(b.client(patience), b.name)
	b.must(b.rdb.Ping(ctx).Err())
	mini.SetError(answer)
	b.refuses(l, answer)
	if !k.red || !passes {
		start := time.Now()
		assert.ErrorContains(b, l.Lock(ctx), answer, "Lock")
		assert.LessOrEqual(b, time.Since(start), 2*soon, "Lock")
	}
	mini.SetError("")

	held := k.rival(b.client(), b.name)
	b.must(held.Lock(ctx))
	owner := ContextWithOwner(ctx)
	waiting := k.one(b.client(WithPollInterval(20*time.Millisecond)), b.name)
	got := b.startWaiter(owner, waiting)
	mini.SetError(answer)
	if !passes {
		prefix, _, _ := strings.Cut(answer, " ") // for a script that is running Redis adds words of its own
		assert.ErrorContains(b, await(b.bench, "the waiter is told", got), prefix, "waiter")
		mini.SetError("")
		b.must(held.Unlock(ctx))
		b.forget() // an entry in a queue that could not be removed
		return
	}
	stays(b, "the waiter gave up", got, 200*time.Millisecond)
	mini.SetError("")
	b.must(held.Unlock(ctx))
	b.must(await(b.bench, "the waiter gets the lock", got))
	b.must(waiting.Unlock(owner))
}

// Row 24: a script of another program blocks Redis.
func TestFaultWaiterRidesOutABusyScript(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis("--busy-reply-threshold", "50"), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.client(WithPollInterval(20*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		stuck := b.server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
		var wg sync.WaitGroup
		waitgroup.Go(&wg, func() { stuck.Eval(ctx, "while true do end", nil) })
		testredis.Await(b, "the script blocks Redis", soon, func() bool {
			return redis.HasErrorPrefix(b.rdb.Ping(ctx).Err(), "BUSY")
		})
		b.refuses(k.one(b.direct, b.name+"-other"), "BUSY")
		stays(b, "the waiter gave up", got, 200*time.Millisecond)
		b.must(b.rdb.ScriptKill(ctx).Err())
		wg.Wait()
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter gets the lock", got))
		b.must(waiting.Unlock(owner))
	})
}

// A channel that is subscribed while a script blocks Redis does not count as refused: it is subscribed afterwards.
func TestSubscriptionRidesOutABusyScript(t *testing.T) {
	b := newFaultBench(t, "--busy-reply-threshold", "50")
	ctx := context.Background()
	hub := b.client().engine.Hub()
	before := hub.Join(b.name + "before")
	defer before.Leave()
	testredis.Await(b, "the connection works", soon, before.Confirmed)
	stuck := b.server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
	var wg sync.WaitGroup
	waitgroup.Go(&wg, func() { stuck.Eval(ctx, "while true do end", nil) })
	testredis.Await(b, "the script blocks Redis", soon, func() bool {
		return redis.HasErrorPrefix(b.rdb.Ping(ctx).Err(), "BUSY")
	})
	l := hub.Join(b.name + "meanwhile")
	defer l.Leave()
	stays(b, "it is refused", l.Ready, 300*time.Millisecond)
	b.must(b.rdb.ScriptKill(ctx).Err())
	wg.Wait()
	testredis.Await(b, "it is subscribed", soon, l.Confirmed)
	assert.False(b, l.Refused())
}

// Row 56: a request of more than ten words without a password is refused with a text about its form. The error names
// the cause, and still contains the answer of Redis.
func TestForgottenPasswordIsNamed(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		b.must(b.rdb.Do(ctx, "acl", "setuser", "admin", "on", ">pw", "+@all", "~*", "&*").Err())
		admin := b.server.Client(func(o *redis.Options) { o.Username, o.Password = "admin", "pw" })
		b.must(admin.ConfigSet(ctx, "requirepass", "secret").Err())
		defer func() { b.must(admin.ConfigSet(ctx, "requirepass", "").Err()) }()
		l := k.one(b.client(), b.name)
		for what, err := range map[string]error{
			"Lock": l.Lock(ctx), "TryLock": second(l.TryLock(ctx, time.Hour, 0)),
			"Inspect":  second(b.client().Inspect(ctx, b.name)),
			"IsLocked": second(l.IsLocked(ctx)),
		} {
			if assert.Error(b, err, what) {
				assert.ErrorContains(b, err, "NOAUTH", what)
				assert.NotErrorIs(b, err, ErrNotALock, what)
			}
			var answer redis.Error
			if !k.red {
				assert.ErrorAs(b, err, &answer, "%s: the answer of Redis", what)
			}
		}
	})
}

// Row 56: the password is changed, and connections with the old one are cut.
func TestFaultChangedPasswordIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 4 * time.Second
		l := k.one(b.client(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		admin := b.server.Client(func(o *redis.Options) { o.Username, o.Password = "admin", "pw" })
		b.must(b.rdb.Do(ctx, "acl", "setuser", "admin", "on", ">pw", "+@all", "~*", "&*").Err())
		b.must(admin.Ping(ctx).Err())
		b.must(admin.ConfigSet(ctx, "requirepass", "new").Err())
		b.must(admin.Do(ctx, "client", "kill", "user", "default").Err())
		start := time.Now()
		refusal := regexp.MustCompile("NOAUTH")
		ok, err := k.one(b.client(), b.name+"-2").TryLock(ctx, 0, 0)
		assert.False(b, ok, "TryLock")
		if assert.Error(b, err, "TryLock") {
			assert.Regexp(b, refusal, err.Error(), "TryLock")
		}
		await(b.bench, "the guard ends", guarded.Done())
		assert.GreaterOrEqual(b, time.Since(start), lease/3, "the guard ended while there was time for a renewal")
		b.mustBe(context.Cause(guarded), ErrLockLost)
		if !k.red {
			assert.Regexp(b, refusal, context.Cause(guarded).Error(), "cause of the loss")
		}
		b.must(admin.ConfigSet(ctx, "requirepass", "").Err())
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	})
}

// Rows 54, 55: a user that may not run scripts, or not subscribe and publish; and one that has exactly the permissions
// that the README lists.
func TestFaultMissingPermissionsFailAtOnce(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		as := func(rules ...any) *redis.Client {
			user := fmt.Sprintf("user%d", benches.Add(1))
			b.must(b.rdb.Do(ctx, append([]any{"acl", "setuser", user, "on", ">pw"}, rules...)...).Err())
			return b.server.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" })
		}

		b.Run("no scripts", func(t *testing.T) {
			l := k.one(b.clientOn(as("+@all", "-@scripting", "~*", "&*")), b.name)
			start := time.Now()
			for _, err := range []error{l.Lock(ctx), second(l.TryLock(ctx, time.Hour, 0))} {
				assert.ErrorContains(t, err, "NOPERM")
				assert.LessOrEqual(t, time.Since(start), soon)
			}
		})

		b.Run("no channels", func(t *testing.T) {
			var logged lockedBuffer
			l := k.one(b.clientOn(as("+@all", "~*", "resetchannels"), WithPollInterval(50*time.Millisecond),
				WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), b.name)
			for range 3 {
				held := k.rival(b.direct, b.name)
				b.must(held.Lock(ctx))
				got := make(chan error, 1)
				owner := ContextWithOwner(ctx)
				go func() { got <- l.Lock(owner) }()
				testredis.Await(t, "the warning", soon, func() bool { return logged.String() != "" })
				b.must(held.Unlock(ctx))
				b.must(await(b.bench, "the waiter polls", got))
				b.must(l.Unlock(owner)) // although it may not publish
				b.isLocked(held, false)
			}
			// There is one for each Client.
			s := logged.String()
			assert.LessOrEqual(t, strings.Count(s, "level="), k.asks, "logged")
			assert.Equal(t, strings.Count(s, "level=WARN"), strings.Count(s, "level="), "logged")
		})

		if k.parts > 1 {
			return // it consists of locks that the others cover
		}
		b.Run("enough", func(t *testing.T) {
			rights := []any{"+evalsha", "+eval", "+subscribe", "+unsubscribe", "+ping", "+hello", "resetchannels",
				"&redisson_lock__channel:{" + b.name + "}*", "&redisson_rwlock:{" + b.name + "}*", "&redisson_sc:{" + b.name + "}*"}
			for _, command := range luaCommands(t) {
				rights = append(rights, "+"+command)
			}
			for _, key := range []string{b.name, "relock_line:{" + b.name + "}", "redisson_lock_token:{" + b.name + "}",
				"redisson_lock_queue:{" + b.name + "}",
				"redisson_lock_timeout:{" + b.name + "}", "relock_lock_alive:{" + b.name + "}",
				"{" + b.name + "}:*:rwlock_timeout:*", "{" + b.name + "}:timeout", "relock_rwlock_writers:{" + b.name + "}"} {
				rights = append(rights, "~"+key)
			}
			var logged lockedBuffer
			var seen recorder
			l := k.one(b.clientOn(as(rights...), WithPollInterval(time.Hour), WithWatchdogTimeout(soon/2), WithObserver(&seen),
				WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), b.name)
			held := k.rival(b.direct, b.name)
			b.must(held.Lock(ctx))
			owner := ContextWithOwner(ctx)
			got := b.startWaiter(owner, l)
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the waiter is woken", got))
			testredis.Await(t, "a renewal", soon, func() bool {
				return slices.ContainsFunc(seen.take(), func(event any) bool { _, ok := event.(RenewedEvent); return ok })
			})
			isHeld, err := l.IsHeld(owner)
			assert.NoError(t, err)
			assert.True(t, isHeld)
			b.must(l.Unlock(owner))
			b.must(l.Lock(owner))
			freed, err := l.ForceUnlock(ctx)
			assert.NoError(t, err)
			assert.True(t, freed)
			assert.Empty(t, logged.String(), "logged")
		})
	})
}

// luaCommands are the commands that the scripts run.
func luaCommands(t *testing.T) (all []string) {
	files, err := filepath.Glob("internal/lua/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`redis\.p?call\('(\w+)'`).FindAllSubmatch(source, -1) {
			all = append(all, string(found[1]))
		}
	}
	return all
}

// Row 29: a script that Redis stops half way leaves no lock behind.
func TestFaultScriptThatFailsHalfWayLeavesNothing(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	tokens := "redisson_lock_token:{" + b.name + "}"
	b.must(b.rdb.HSet(ctx, tokens, "not", "a counter").Err())
	for _, l := range []Locker{
		b.direct.NewLock(b.name, Fenced()), b.direct.NewFairLock(b.name, Fenced()),
		b.direct.NewRWLock(b.name, Fenced()).Write(),
	} {
		assert.ErrorIs(t, l.Lock(ctx), ErrNotALock)
		testredis.Await(t, "nothing is left", soon, func() bool { return len(b.keys()) == 1 })
	}
	b.must(b.rdb.Del(ctx, tokens).Err())

	b.must(b.rdb.Do(ctx, "acl", "setuser", "careful", "on", ">pw", "~*", "&*", "+@all", "-pexpire").Err())
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.Username, o.Password = "careful", "pw" }))
	l := c.NewLock(b.name)
	err := l.Lock(ctx)
	require.Error(t, err)
	assert.Contains(t, strings.ToLower(err.Error()), "user") // Valkey writes "User"
	testredis.Await(t, "no lock without a lease is left", soon, func() bool { return len(b.keys()) == 0 })

	// A script that fails after its caller has left leaves no lock behind either.
	held, before := b.proxy.On(calls(lockAcquire), testredis.HoldRequest), b.commands("evalsha")
	ending, end := context.WithCancel(ctx)
	go func() {
		<-held.Fired()
		end()
	}()
	b.mustBe(l.Lock(ending), context.Canceled)
	held.Release()
	testredis.Await(t, "it has run", soon, func() bool { return b.commands("evalsha") > before })
	testredis.Await(t, "it is rolled back", soon, func() bool { return c.engine.Probe().Stats().AtWork == 0 })
	b.must(b.rdb.Del(ctx, b.lineKey()).Err()) // tombstones, which get no expiry without this permission
	testredis.Await(t, "no lock without a lease is left", soon, func() bool { return len(b.keys()) == 0 })
}

// Row 37: a Redis that was paused for three seconds does not get the same renewals again and again.
func TestPausedRedisRunsFewRenewals(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	const many, length = 50, 15 * time.Second
	c := b.client(WithWatchdogTimeout(length))
	ctx := context.Background()
	var locks []*Lock
	for i := range many {
		l := c.NewLock(fmt.Sprint(b.name, "-", i))
		b.must(l.Lock(ctx))
		locks = append(locks, l)
	}
	guarded, err := locks[0].Guard(ctx)
	b.must(err)
	before := b.scriptRuns()
	time.Sleep(length/3 - 500*time.Millisecond) // the renewals are due while it is paused
	server.Freeze()
	time.Sleep(3 * time.Second) // long enough to repeat them several times
	server.Thaw()
	time.Sleep(100 * time.Millisecond) // all requests that were sent meanwhile run now; their number is not known
	runs := float64(b.scriptRuns()-before) / many
	t.Logf("%.1f renewals for each lease", runs)
	// Its subscription may have been replaced, too: then all holds are checked once more.
	assert.LessOrEqual(t, runs, lease.MostRenewals+1.5, "renewals for each lease")
	b.must(guarded.Err())
	for _, l := range locks {
		b.must(l.Unlock(ctx))
	}
}
