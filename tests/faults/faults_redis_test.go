package faults

// Every lock type under faults of Redis itself: it is gone, paused, slow, out of memory, busy, read-only, forgetful or
// strict. The comment of each test has the rows of tests/faults/README.md that it covers.
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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commands returns how often the server of the bench has run a command.
func commands(b *locktest.FaultBench, name string) int {
	b.Helper()
	var n int
	stats := b.Rdb.InfoMap(ctx, "commandstats").Item("Commandstats", "cmdstat_"+name)
	_, _ = fmt.Sscanf(stats, "calls=%d", &n)
	return n
}

// config sets a parameter of the server until the test ends.
func config(b *locktest.FaultBench, name, value string) {
	b.Helper()
	b.Must(b.Rdb.ConfigSet(ctx, name, value).Err())
}

// waits has a waiter for a lock that is held. end checks that it still waits after a while, and gets the lock when that is
// released.
func waits(b *locktest.FaultBench, k locktest.FaultLock, opts ...Option) (end func(after time.Duration)) {
	b.Helper()
	owner := ContextWithOwner(ctx)
	held, waiting := k.Rival(b.Direct, b.LockName), k.One(b.Client(opts...), b.LockName)
	b.Must(held.Lock(ctx))
	got := b.StartWaiter(owner, waiting)
	return func(after time.Duration) {
		b.Helper()
		locktest.Stays(b, "the waiter gave up, or is in", got, after)
		b.Must(held.Unlock(ctx))
		b.Must(locktest.Await(b.Bench, "the waiter gets the lock", got))
		b.Must(waiting.Unlock(owner))
	}
}

// Row 37: a paused Redis.
func TestFaultPausedRedisEndsValidityAndCalls(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = time.Second
		c := b.Client(WithWatchdogTimeout(lease))
		l, other := k.One(c, b.LockName), k.One(c, b.LockName+"-other")
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		b.Server.Freeze()
		start := time.Now()
		ok, err := other.TryLock(ctx, 100*time.Millisecond, 0)
		assert.False(b, ok, "TryLock")
		assert.Error(b, err, "TryLock")
		assert.LessOrEqual(b, time.Since(start), locktest.Soon/2, "TryLock")
		deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		b.MustBe(other.Lock(deadline), context.DeadlineExceeded)
		took := time.Since(start)
		assert.LessOrEqual(b, took, locktest.Soon/2, "time of Lock")
		b.Ends(guarded, ErrLockLost)
		start = time.Now()
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		took = time.Since(start)
		assert.LessOrEqual(b, took, send.ConnectTime+locktest.Soon/2, "time of Unlock")
		b.Server.Thaw()
		testredis.Await(b, "everything is free again", 4*locktest.Soon, func() bool {
			return locktest.Second(b.Rdb.Ping(ctx).Result()) == nil && len(b.Records()) == 0
		})
		b.Must(l.Lock(ctx))
		b.Must(l.Unlock(ctx))
	})
}

// Rows 15, 16: Redis restarts empty, without records, counters and scripts.
func TestFaultRestartWithoutDataIsReported(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		l := k.One(b.Client(WithWatchdogTimeout(3*time.Second)), b.LockName)
		b.Must(l.Lock(ctx))
		token := tokenOf(b, ctx, l)
		guarded := guardOf(b, ctx, l)
		owner := ContextWithOwner(ctx)
		waiting := k.Rival(b.Client(WithPollInterval(200*time.Millisecond)), b.LockName)
		got := b.StartWaiter(owner, waiting)
		b.Server.Restart()
		b.Must(locktest.Await(b.Bench, "the waiter gets the lock", got))
		if token != 0 {
			assert.Greater(b, tokenOf(b, owner, waiting), token, "the token of the next holder")
		}
		b.Ends(guarded, ErrLockLost)
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		b.Must(waiting.Unlock(owner))
	})
}

// Row 38: Redis is down for a while, and a waiter survives it.
func TestFaultWaiterRidesOutAnOutage(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		held := k.Rival(b.Direct, b.LockName)
		b.Must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.One(b.Client(WithPollInterval(200*time.Millisecond)), b.LockName)
		got := b.StartWaiter(owner, waiting)
		b.Server.Kill()
		refuses(b, k.One(b.Direct, b.LockName+"-other"), "refused")
		if !k.Red {
			deadline, cancel := context.WithTimeout(ctx, 10*locktest.Soon)
			defer cancel()
			assert.ErrorContains(b, k.One(b.Direct, b.LockName+"-other").Lock(deadline), "refused", "Lock without Redis")
			assert.NoError(b, deadline.Err(), "Lock without Redis waited")
		}
		locktest.Stays(b, "the waiter gave up", got, time.Second)
		b.Server.Restart()
		b.Must(locktest.Await(b.Bench, "the waiter gets the lock", got))
		b.MustBe(held.Unlock(ctx), ErrLockLost)
		b.Must(waiting.Unlock(owner))
	})
}

// Row 25: Redis is out of memory. Holds are renewed and released.
func TestFaultHoldsAreRenewedWithoutMemory(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = 3 * time.Second
		c := b.Client(WithWatchdogTimeout(lease))
		l := k.One(c, b.LockName)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		config(b, "maxmemory", "1")
		if k.Name != "write" { // Redis allows the writes of this one, because the first of them frees memory
			refuses(b, k.One(c, b.LockName+"-2"), "OOM")
		}
		staysValid(b, guarded, lease+lease/6)
		b.Must(l.Unlock(ctx))
		b.IsLocked(l, false)
		config(b, "maxmemory", "0")
	})
}

// Row 26: the record is evicted. The holder notices at its next renewal.
func TestFaultEvictedRecordIsReported(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis("--maxmemory-policy", "allkeys-lru"), func(b *locktest.FaultBench, k locktest.FaultLock) {
		l := k.One(b.Client(WithWatchdogTimeout(3*time.Second)), b.LockName)
		b.Must(l.Lock(ctx))
		token := tokenOf(b, ctx, l)
		guarded := guardOf(b, ctx, l)
		config(b, "maxmemory", "1")
		testredis.Await(b, "the record is evicted", locktest.Soon, func() bool { return len(b.Keys()) == 0 })
		config(b, "maxmemory", "0")
		next := k.Rival(b.Direct, b.LockName)
		b.Tries(next, true)
		if token != 0 {
			assert.Greater(b, tokenOf(b, ctx, next), token, "the token of the next holder")
		}
		b.Ends(guarded, ErrLockLost)
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		b.Holds(next, 1)
		b.Must(next.Unlock(ctx))
	})
}

// Row 28: an operator has removed the expiry of the record, and its holder has crashed. A waiter polls, and does not
// sleep until a lease expires that never does.
func TestFaultRecordWithoutLeaseIsPolled(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = time.Second
		l := k.One(b.Shaky(), b.LockName)
		b.Must(l.LockLease(ctx, lease))
		b.Proxy.BlackHole(true)
		for _, key := range b.Keys() {
			b.Must(b.Rdb.Persist(ctx, key).Err())
		}
		if k.Holds != nil {
			for _, id := range b.Rdb.ZRange(ctx, k.Holds(b.LockName), 0, -1).Val() {
				b.Must(b.Rdb.ZAdd(ctx, k.Holds(b.LockName), redis.Z{Score: 922337203685477, Member: id}).Err())
			}
		}
		owner := ContextWithOwner(ctx)
		waiting := k.Rival(b.Client(WithPollInterval(100*time.Millisecond)), b.LockName)
		got := b.StartWaiter(owner, waiting)
		locktest.Stays(b, "the record is still there", got, 2*lease)
		b.Forget() // by the operator; nothing is announced
		b.Must(locktest.Await(b.Bench, "the waiter asks again", got))
		b.Proxy.BlackHole(false)
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		b.Must(waiting.Unlock(owner))
	})
}

// Row 35: the clock of the server jumps.
func TestFaultServerClockJumpIsReported(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, testredis.StartJumpy, func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = 3 * time.Second
		l, next := k.One(b.Client(WithWatchdogTimeout(lease)), b.LockName), k.Rival(b.Direct, b.LockName)
		b.Must(l.Lock(ctx))
		token := tokenOf(b, ctx, l)
		guarded := guardOf(b, ctx, l)

		// Ahead: all leases have expired, and the holder learns of the loss at its next renewal.
		b.Server.Jump(time.Hour)
		testredis.Await(b, "the lease is over", locktest.Soon, func() bool {
			ok, err := next.TryLock(ctx, 0, 0)
			return ok && err == nil
		})
		if token != 0 {
			assert.Greater(b, tokenOf(b, ctx, next), token, "the token of the next holder")
		}
		b.Ends(guarded, ErrLockLost)
		b.MustBe(l.Unlock(ctx), ErrLockLost)

		// Back: leases last longer, and a release works all the same.
		b.Server.Jump(-time.Hour)
		b.Holds(next, 1)
		b.Tries(l, false)
		b.Must(next.Unlock(ctx))
		b.Tries(l, true)
		b.Must(l.Unlock(ctx))
	})
}

// Row 36: Redis is slow. The time of the request does not count as validity, no client sends a request twice meanwhile,
// and a hold is renewed.
func TestFaultTimeOfASlowRequestIsNotValid(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = 5 * time.Second
		held := k.One(b.Client(WithWatchdogTimeout(lease)), b.LockName+"-held")
		b.Must(held.Lock(ctx))
		guardedHeld := guardOf(b, ctx, held)

		l := k.One(b.Client(), b.LockName)
		var before int
		var start time.Time
		var took time.Duration
		slow := 700 * time.Millisecond
		for ; ; slow *= 2 {
			before = commands(b, "evalsha")
			b.Must(b.Rdb.Do(ctx, "client", "pause", slow.Milliseconds(), "write").Err())
			start = time.Now()
			b.Must(l.LockLease(ctx, lease))
			if took = time.Since(start); took >= slow/2 {
				break
			}
			require.Less(b, slow, lease/4, "Redis was not slow") // or this process was: the pause was nearly over before
			b.Must(l.Unlock(ctx))
		}
		guarded := guardOf(b, ctx, l)
		assert.LessOrEqual(
			b,
			commands(b, "evalsha")-before,
			2*k.Asks+2*k.Parts,
			"requests: one acquire, and a renewal perhaps",
		)
		b.Must(b.Rdb.Do(ctx, "debug", "sleep", slow.Seconds()).Err())
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
		b.Must(held.Unlock(ctx))
	})
}

// Row 39: the server accepts no more connections.
func TestFaultHoldSurvivesMaxClients(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = 5 * time.Second
		l := k.One(b.Client(WithWatchdogTimeout(lease)), b.LockName)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		config(b, "maxclients", "1")
		other := k.Rival(b.Client(), b.LockName)
		refuses(b, other, "")
		staysValid(b, guarded, lease+lease/6)
		config(b, "maxclients", "1000")
		b.Must(l.Unlock(ctx))
		ok, err := other.TryLock(ctx, locktest.Soon, 0)
		assert.NoError(b, err)
		assert.True(b, ok, "there is room again") // go-redis takes a while to notice
		b.Must(other.Unlock(ctx))
	})
}

// Rows 21, 23: a server that rejects writes: a replica, one whose replicas are missing, one that cannot save.
func TestFaultRefusedWritesAreReportedOrRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer  string
		passes  bool // an Unlock waits for it
		on, off func(b *locktest.FaultBench)
	}{
		{"READONLY", true, func(b *locktest.FaultBench) {
			b.Must(b.Rdb.Do(ctx, "replicaof", "127.0.0.1", "1").Err())
		}, func(b *locktest.FaultBench) {
			b.Must(b.Rdb.Do(ctx, "replicaof", "no", "one").Err())
		}},
		{"NOREPLICAS", true, func(b *locktest.FaultBench) {
			config(b, "min-replicas-to-write", "1")
		}, func(b *locktest.FaultBench) {
			config(b, "min-replicas-to-write", "0")
		}},
		{"MISCONF", false, func(b *locktest.FaultBench) {
			config(b, "save", "3600 1")
			dir := b.Rdb.ConfigGet(ctx, "dir").Val()["dir"]
			b.Must(os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700)) // blocks the name of the file
			b.Must(b.Rdb.BgSave(ctx).Err())
			testredis.Await(b, "a save has failed", locktest.Soon, func() bool {
				return b.Rdb.InfoMap(ctx, "persistence").Item("Persistence", "rdb_last_bgsave_status") == "err"
			})
		}, func(b *locktest.FaultBench) {
			config(b, "save", "")
		}},
	} {
		t.Run(c.answer, func(t *testing.T) {
			t.Parallel()
			locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
				l, free := k.One(b.Direct, b.LockName), k.One(b.Direct, b.LockName+"-free")
				b.Must(l.Lock(ctx))
				c.on(b)
				refuses(b, free, c.answer)
				b.MustBe(locktest.Elsewhere(func() error { return l.Unlock(ctx) }), ErrNotHeld) // not the owner
				if !c.passes {
					assert.ErrorContains(b, l.Unlock(ctx), c.answer, "Unlock")
					b.IsLocked(l, true)
					c.off(b)
					b.FreeSoon() // the release is retried in the background
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
				b.Must(l.Unlock(ctx)) // it retries
				close(unlocked)
				wg.Wait()
				b.Must(free.Lock(ctx))
				b.Must(free.Unlock(ctx))
			})
		})
	}
}

// Row 22: Redis loads its data, for seconds.
func TestFaultWaiterRidesOutLoading(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis("--loading-process-events-interval-bytes", "1024"), func(b *locktest.FaultBench, k locktest.FaultLock) {
		end := waits(b, k, WithPollInterval(50*time.Millisecond))
		b.Must(
			b.Rdb.Eval(ctx, "for i = 1, 1500 do redis.call('set', 'filler' .. i, string.rep('x', 100)) end return 1", nil).Err(),
		)
		config(b, "key-load-delay", "1000") // microseconds
		patient := func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }
		loader, once := b.Server.Client(patient), b.Server.Client(patient)
		var wg sync.WaitGroup
		waitgroup.Go(&wg, func() {
			assert.NoError(b, loader.Do(ctx, "debug", "reload").Err())
		})
		testredis.Await(b, "Redis loads", locktest.Soon, func() bool {
			return redis.HasErrorPrefix(once.Ping(ctx).Err(), "LOADING")
		})
		refuses(b, k.One(b.Direct, b.LockName+"-other"), "LOADING")
		wg.Wait()
		end(100 * time.Millisecond)
	})
}

// Rows 21 to 25, 51, 54, 56: the errors of Redis, and whether a waiter continues after each of them.
func TestFaultWaiterRidesOutPassingErrorsOnly(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for n, k := range locktest.FaultLocks {
		waitgroup.Go(&all, func() {
			t.Run(k.Name, func(t *testing.T) {
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
					{"NOAUTH Authentication required.", !k.Red},
					{"NOPERM this user has no permissions to run the 'evalsha' command", !k.Red},
					{"ERR unknown command 'evalsha'", false},
				} {
					if (i+n)%len(locktest.FaultLocks) >= locktest.Full(2, len(locktest.FaultLocks)) {
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

func testServerAnswer(t *testing.T, k locktest.FaultLock, answer string, passes bool) {
	mini := testredis.Mini(t)
	b := &locktest.FaultBench{Bench: locktest.NewBench(t, mini.Addr())}
	patience := WithWatchdogTimeout(time.Second) // a caller retries for this time
	if k.Red {
		patience = WithRedLockNodeTimeout(locktest.Soon)
	}
	l := k.One(b.Client(patience), b.LockName)
	b.Must(b.Rdb.Ping(ctx).Err())
	mini.SetError(answer)
	refuses(b, l, answer)
	if !k.Red || !passes {
		start := time.Now()
		assert.ErrorContains(b, l.Lock(ctx), answer, "Lock")
		assert.LessOrEqual(b, time.Since(start), 2*locktest.Soon, "Lock")
	}
	mini.SetError("")

	held := k.Rival(b.Client(), b.LockName)
	b.Must(held.Lock(ctx))
	owner := ContextWithOwner(ctx)
	waiting := k.One(b.Client(WithPollInterval(20*time.Millisecond)), b.LockName)
	got := b.StartWaiter(owner, waiting)
	mini.SetError(answer)
	if !passes {
		prefix, _, _ := strings.Cut(answer, " ") // for a script that is running Redis adds words of its own
		assert.ErrorContains(b, locktest.Await(b.Bench, "the waiter is told", got), prefix, "waiter")
		mini.SetError("")
		b.Must(held.Unlock(ctx))
		b.Forget() // an entry in a queue that could not be removed
		return
	}
	locktest.Stays(b, "the waiter gave up", got, 200*time.Millisecond)
	mini.SetError("")
	b.Must(held.Unlock(ctx))
	b.Must(locktest.Await(b.Bench, "the waiter gets the lock", got))
	b.Must(waiting.Unlock(owner))
}

// busyScript has a script of another program block Redis, until end is called.
func busyScript(b *locktest.FaultBench) (end func()) {
	stuck := b.Server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
	var wg sync.WaitGroup
	waitgroup.Go(&wg, func() { stuck.Eval(ctx, "while true do end", nil) })
	testredis.Await(b, "the script blocks Redis", locktest.Soon, func() bool {
		return redis.HasErrorPrefix(b.Rdb.Ping(ctx).Err(), "BUSY")
	})
	return func() {
		b.Must(b.Rdb.ScriptKill(ctx).Err())
		wg.Wait()
	}
}

// Row 24: a script of another program blocks Redis.
func TestFaultWaiterRidesOutABusyScript(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis("--busy-reply-threshold", "50"), func(b *locktest.FaultBench, k locktest.FaultLock) {
		end := waits(b, k, WithPollInterval(20*time.Millisecond))
		kill := busyScript(b)
		refuses(b, k.One(b.Direct, b.LockName+"-other"), "BUSY")
		time.Sleep(200 * time.Millisecond)
		kill()
		end(0)
	})
}

// Row 56: the password is changed, and connections with the old one are cut.
func TestFaultChangedPasswordIsReported(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = 4 * time.Second
		l := k.One(b.Client(WithWatchdogTimeout(lease)), b.LockName)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		admin := b.Server.Client(func(o *redis.Options) { o.Username, o.Password = "admin", "pw" })
		b.Must(b.Rdb.Do(ctx, "acl", "setuser", "admin", "on", ">pw", "+@all", "~*", "&*").Err())
		b.Must(admin.Ping(ctx).Err())
		b.Must(admin.ConfigSet(ctx, "requirepass", "new").Err())
		b.Must(admin.Do(ctx, "client", "kill", "user", "default").Err())
		start := time.Now()
		refusal := regexp.MustCompile("NOAUTH")
		ok, err := k.One(b.Client(), b.LockName+"-2").TryLock(ctx, 0, 0)
		assert.False(b, ok, "TryLock")
		if assert.Error(b, err, "TryLock") {
			assert.Regexp(b, refusal, err.Error(), "TryLock")
		}
		locktest.Await(b.Bench, "the guard ends", guarded.Done())
		assert.GreaterOrEqual(b, time.Since(start), lease/3, "the guard ended while there was time for a renewal")
		b.MustBe(context.Cause(guarded), ErrLockLost)
		if !k.Red {
			assert.Regexp(b, refusal, context.Cause(guarded).Error(), "cause of the loss")
		}
		b.Must(admin.ConfigSet(ctx, "requirepass", "").Err())
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		b.Must(l.Lock(ctx))
		b.Must(l.Unlock(ctx))
	})
}

// Rows 54, 55: a user that may not run scripts, or not subscribe and publish. Of users with exactly the permissions that
// are needed: TestSmallestPermissionsAreEnoughAndNeeded.
func TestFaultMissingPermissionsFailAtOnce(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		as := func(rules ...any) *redis.Client {
			user := fmt.Sprintf("user%d", locktest.Benches.Add(1))
			b.Must(b.Rdb.Do(ctx, append([]any{"acl", "setuser", user, "on", ">pw"}, rules...)...).Err())
			return b.Server.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" })
		}

		b.Run("no scripts", func(t *testing.T) {
			l := k.One(b.ClientOn(as("+@all", "-@scripting", "~*", "&*")), b.LockName)
			start := time.Now()
			for _, err := range []error{l.Lock(ctx), locktest.Second(l.TryLock(ctx, time.Hour, 0))} {
				assert.ErrorContains(t, err, "NOPERM")
				assert.LessOrEqual(t, time.Since(start), locktest.Soon)
			}
		})

		b.Run("no channels", func(t *testing.T) {
			var logged locktest.LockedBuffer
			l := k.One(b.ClientOn(as("+@all", "~*", "resetchannels"), WithPollInterval(50*time.Millisecond),
				WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), b.LockName)
			for range 3 {
				held := k.Rival(b.Direct, b.LockName)
				b.Must(held.Lock(ctx))
				got := make(chan error, 1)
				owner := ContextWithOwner(ctx)
				go func() { got <- l.Lock(owner) }()
				testredis.Await(t, "the warning", locktest.Soon, func() bool { return logged.String() != "" })
				b.Must(held.Unlock(ctx))
				b.Must(locktest.Await(b.Bench, "the waiter polls", got))
				b.Must(l.Unlock(owner)) // although it may not publish
				b.IsLocked(held, false)
			}
			// There is one for each Client.
			s := logged.String()
			assert.LessOrEqual(t, strings.Count(s, "level="), k.Asks, "logged")
			assert.Equal(t, strings.Count(s, "level=WARN"), strings.Count(s, "level="), "logged")
		})
	})
}

// Row 29: a script that Redis stops half way leaves no lock behind. The story counter has scripts that fail at the token.
func TestFaultScriptThatFailsHalfWayLeavesNothing(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Must(b.Rdb.Do(ctx, "acl", "setuser", "careful", "on", ">pw", "~*", "&*", "+@all", "-pexpire").Err())
	c := b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.Username, o.Password = "careful", "pw" }))
	l := c.NewLock(b.LockName)
	err := l.Lock(ctx)
	require.Error(t, err)
	assert.Contains(t, strings.ToLower(err.Error()), "user") // Valkey writes "User"
	testredis.Await(t, "no lock without a lease is left", locktest.Soon, func() bool { return len(b.Keys()) == 0 })

	// A script that fails after its caller has left leaves no lock behind either.
	held, before := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.HoldRequest), commands(b, "evalsha")
	b.MustBe(locktest.Await(b.Bench, "Lock comes back", gaveUp(b, held, l.Lock)), context.Canceled)
	held.Release()
	testredis.Await(t, "it has run", locktest.Soon, func() bool { return commands(b, "evalsha") > before })
	testredis.Await(t, "it is rolled back", locktest.Soon, func() bool { return locktest.EngineOf(c).Probe().Stats().AtWork == 0 })
	b.Must(b.Rdb.Del(ctx, b.WaitsKey()).Err()) // tombstones, which get no expiry without this permission
	testredis.Await(t, "no lock without a lease is left", locktest.Soon, func() bool { return len(b.Keys()) == 0 })
}

// A rotation takes away what a user needs, and gives it back.
type rotation struct {
	takes, gives []any // rules of ACL SETUSER
	answer       string
}

var rotations = map[string]rotation{
	"password": {[]any{"resetpass", ">new"}, []any{">pw"}, "WRONGPASS"},
	"user":     {[]any{"off"}, []any{"on"}, "WRONGPASS"},
	"commands": {[]any{"-evalsha", "-eval"}, []any{"+@all"}, "NOPERM"},
	"keys":     {[]any{"resetkeys"}, []any{"~*"}, "NOPERM"},
}

// A rotatedUser is a user of Redis whose credentials are being rotated.
type rotatedUser struct {
	*locktest.FaultBench
	rotation
	name string
}

// onRotations runs test for every lock type and rotation.
func onRotations(t *testing.T, test func(u rotatedUser, k locktest.FaultLock)) {
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		for what, r := range rotations {
			b.Run(what, func(t *testing.T) {
				t.Parallel()
				u := rotatedUser{locktest.NewFaultBenchOn(t, b.Server), r, fmt.Sprintf("user%d", locktest.Benches.Add(1))}
				u.set("on", ">pw", "+@all", "~*", "&*")
				test(u, k)
			})
		}
	})
}

func (u rotatedUser) set(rules ...any) {
	u.Helper()
	u.Must(u.Rdb.Do(ctx, append([]any{"acl", "setuser", u.name}, rules...)...).Err())
}

// begins begins the rotation: connections are cut, and the next ones are refused.
func (u rotatedUser) begins() {
	u.Helper()
	u.set(u.takes...)
	u.Must(u.Rdb.Do(ctx, "client", "kill", "user", u.name).Err())
}

func (u rotatedUser) ends() {
	u.Helper()
	u.set(u.gives...)
}

// client returns a Client of the user, whose callers ask often.
func (u rotatedUser) client(watchdogTimeout time.Duration) *Client {
	u.Helper()
	return u.ClientOn(u.Server.Client(func(o *redis.Options) { o.Username, o.Password = u.name, "pw" }),
		WithWatchdogTimeout(watchdogTimeout), WithPollInterval(20*time.Millisecond))
}

// Rows 54, 56: while credentials are being rotated, a waiter waits on, and a hold stays valid. Other callers are told at
// once, and a release goes on in the background.
func TestFaultRotationOfCredentialsIsRiddenOut(t *testing.T) {
	t.Parallel()
	onRotations(t, func(u rotatedUser, k locktest.FaultLock) {
		owner := ContextWithOwner(ctx)
		const lease = 12 * time.Second
		c := u.client(lease)
		rival, released, kept := k.Rival(u.Direct, u.LockName), k.One(c, u.LockName+"-released"), k.One(c, u.LockName+"-kept")
		waiting := k.One(c, u.LockName)
		for _, l := range []Locker{rival, released, kept} {
			u.Must(l.Lock(ctx))
		}
		guarded := guardOf(u, ctx, kept)
		got := u.StartWaiter(owner, waiting)
		u.begins()
		start := time.Now()
		if !k.Red {
			assert.ErrorContains(u, k.One(c, u.LockName+"-other").Lock(ctx), u.answer, "a first request")
			assert.LessOrEqual(u, time.Since(start), locktest.Soon, "a first request")
			locktest.Stays(u, "the waiter gave up", got, 0)
		}
		refuses(u.FaultBench, k.One(c, u.LockName+"-other"), u.answer)
		assert.ErrorContains(u, released.Unlock(ctx), u.answer, "a release")
		staysValid(u, guarded, lease/3+time.Second-time.Since(start)) // a renewal is refused
		if k.Red {
			assert.ErrorContains(u, locktest.Await(u.Bench, "the waiter is told", got), u.answer)
		} else {
			locktest.Stays(u, "the waiter gave up", got, 0)
		}
		u.ends()
		u.Must(rival.Unlock(ctx))
		if !k.Red {
			u.Must(locktest.Await(u.Bench, "the waiter gets the lock", got))
			u.Must(waiting.Unlock(owner))
		}
		staysValid(u, guarded, lease+time.Second-time.Since(start))
		u.Must(kept.Unlock(ctx))
		testredis.Await(u, "the release went on", locktest.Soon, func() bool { return len(u.Records()) == 0 })
	})
}

// Rows 54, 56: credentials that stay away for longer than a watchdog timeout end a wait, and leave nothing in the way of
// others when they come back.
func TestFaultLostCredentialsEndAWait(t *testing.T) {
	t.Parallel()
	onRotations(t, func(u rotatedUser, k locktest.FaultLock) {
		if k.Red {
			return // told at once: see above
		}
		const patience = 2 * time.Second
		rival, waiting := k.Rival(u.Direct, u.LockName), k.One(u.client(patience), u.LockName)
		u.Must(rival.Lock(ctx))
		records := len(u.Records())
		got := u.StartWaiter(ctx, waiting)
		limited, giveUp := context.WithCancel(ctx)
		defer giveUp()
		other := locktest.NewFaultBenchOn(u.T, u.Server)
		u.Must(k.Rival(other.Direct, other.LockName).LockLease(ctx, time.Minute))
		gotLimited := other.StartWaiter(limited, k.One(u.client(time.Minute), other.LockName))
		start := time.Now() // not later than the first request that is refused
		u.begins()
		time.AfterFunc(patience/2, giveUp)
		u.MustBe(locktest.Await(u.Bench, "the caller gives up", gotLimited), context.Canceled)
		other.Forget()
		assert.ErrorContains(u, locktest.AwaitFor(u.Bench, "the waiter is told", got, patience+locktest.Soon), u.answer)
		assert.GreaterOrEqual(u, time.Since(start), patience)
		u.ends()
		testredis.Await(u, "it leaves the queue", locktest.Soon, func() bool { return len(u.Records()) == records })
		u.Must(rival.Unlock(ctx))
		next := k.One(u.Direct, u.LockName)
		u.Tries(next, true)
		u.Must(next.Unlock(ctx))
	})
}

// Row 54: a waiter whose script may not do its work is told at once, and leaves nothing in the way of others.
func TestFaultWaiterThatMayNotDoItsWorkIsToldAtOnce(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		u := rotatedUser{b, rotation{}, fmt.Sprintf("user%d", locktest.Benches.Add(1))}
		u.set("on", ">pw", "+@all", "~*", "&*")
		rival, waiting := k.Rival(b.Direct, b.LockName), k.One(u.client(time.Minute), b.LockName)
		b.Must(rival.Lock(ctx))
		records := len(b.Records())
		got := b.StartWaiter(ctx, waiting)
		u.takes = []any{"-hset", "-pttl", "-zrangebyscore"}
		u.begins() // it asks when it is subscribed on another connection
		assert.ErrorContains(b, locktest.Await(b.Bench, "the waiter is told", got), "script")
		testredis.Await(b, "it leaves the queue", locktest.Soon, func() bool { return len(b.Records()) == records })
		b.Must(rival.Unlock(ctx))
		next := k.One(b.Direct, b.LockName)
		b.Tries(next, true)
		b.Must(next.Unlock(ctx))
	})
}

// Row 56: a subscription that Redis answers with NOAUTH does not count as refused for good.
func TestSubscriptionRidesOutARequiredPassword(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Must(b.Rdb.Do(ctx, "acl", "setuser", "admin", "on", ">pw", "+@all", "~*", "&*").Err())
	admin := b.Server.Client(func(o *redis.Options) { o.Username, o.Password = "admin", "pw" })
	hub := locktest.EngineOf(b.Client()).Hub()
	b.Must(admin.ConfigSet(ctx, "requirepass", "secret").Err())
	l := hub.Join(b.LockName)
	defer l.Leave()
	testredis.Await(b, "it is refused", locktest.Soon, func() bool {
		return admin.InfoMap(ctx, "errorstats").Item("Errorstats", "errorstat_NOAUTH") != ""
	})
	locktest.Stays(b, "it is refused for good", l.Ready, 100*time.Millisecond)
	b.Must(admin.ConfigSet(ctx, "requirepass", "").Err())
	testredis.Await(b, "it is subscribed", 2*locktest.Soon, l.Confirmed)
	assert.False(b, l.Refused())
}
