package relock

// The plain lock on the bad day: a real Redis, and a proxy that loses answers.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// A faultBench has two ways to one Redis: over a proxy that can be told to fail,
// and directly.
type faultBench struct {
	*bench
	server *testredis.Server
	proxy  *testredis.Proxy
	direct *Client // not over the proxy
}

func newFaultBench(t *testing.T, args ...string) *faultBench {
	t.Parallel()
	s := testredis.Start(t, args...)
	b := &faultBench{bench: newBench(t, s.Addr()), server: s, proxy: testredis.NewProxy(t, s.Addr())}
	b.direct = b.client()
	for _, script := range []*luaScript{lockAcquire, lockRelease, renewScript, forceScript, inspectScript} {
		b.must(b.rdb.ScriptLoad(context.Background(), script.source).Err()) // so that a fault hits a run, not a NOSCRIPT
	}
	return b
}

// shaky returns a client over the proxy.
func (b *faultBench) shaky(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }), opts...)
}

// S3: the answer is lost, the request has run.
func TestFaultLostAnswers(t *testing.T) {
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			b := newFaultBench(t)
			ctx := context.Background()
			l := b.shaky().NewLock(b.name, Fenced())
			for _, script := range []*luaScript{lockAcquire, lockRelease, inspectScript} {
				b.proxy.On(testredis.Script(script.digest), fault).Times(2)
			}
			b.must(l.Lock(ctx))
			token, err := l.Token(ctx)
			b.must(err)
			b.holds(l, 1)
			b.proxy.On(testredis.Script(lockAcquire.digest), fault).Times(2)
			b.must(l.Lock(ctx))
			b.holds(l, 2)
			if again, err := l.Token(ctx); again != token || err != nil {
				t.Errorf("a repeated re-entry changed the token: %d, %v", again, err)
			}
			b.must(l.Unlock(ctx))
			b.holds(l, 1)
			b.tries(b.direct.NewLock(b.name), false)
			b.proxy.On(testredis.Script(lockRelease.digest), fault).Times(2)
			b.must(l.Unlock(ctx))
			b.tries(b.direct.NewLock(b.name), true)
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.must(b.direct.NewLock(b.name).Unlock(ctx))
		})
	}
}

// FAULTS 9: ctx ends while the request is under way.
func TestFaultCtxEndsDuringARequest(t *testing.T) {
	b := newFaultBench(t)
	l := b.shaky().NewLock(b.name)
	rule := b.proxy.On(testredis.Script(lockAcquire.digest), testredis.HoldRequest)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	await(b.bench, "the request is under way", rule.Fired())
	start := time.Now()
	cancel()
	b.mustBe(await(b.bench, "Lock comes back", got), context.Canceled)
	if took := time.Since(start); took > 250*time.Millisecond {
		t.Errorf("Lock came back %v after the end of ctx", took)
	}
	rule.Release() // it runs now, and its undo after it or before
	testredis.Await(t, "the lock is free again", 2*soon, func() bool {
		ok, err := b.direct.NewLock(b.name).TryLock(context.Background(), 0, 0)
		return ok && err == nil
	})
	b.must(b.direct.NewLock(b.name).Unlock(context.Background()))
}

// FAULTS 4: the undo overtakes the attempt. What comes too late lapses, is not
// renewed, and is not taken for a later hold.
func TestFaultAttemptRunsAfterItsUndo(t *testing.T) {
	b := newFaultBench(t)
	const lease = 500 * time.Millisecond
	l := b.shaky(WithWatchdogTimeout(lease)).NewLock(b.name)
	rule := b.proxy.On(testredis.Script(lockAcquire.digest), testredis.HoldRequest).Times(testredis.Always)
	undone := b.proxy.On(testredis.Script(lockRelease.digest), testredis.DelayReply(0))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	b.mustBe(l.Lock(ctx), context.DeadlineExceeded)
	await(b.bench, "the undo has run", undone.Fired())
	rule.Release()
	testredis.Await(t, "the late attempt has run", soon, func() bool { return len(b.keys()) == 1 })
	start := time.Now()
	next := b.direct.NewLock(b.name)
	b.must(next.Lock(context.Background()))
	if took := time.Since(start); took > lease+soon {
		t.Errorf("it blocked for %v", took)
	}
	b.mustBe(l.Unlock(context.Background()), ErrNotHeld)
	b.must(next.Unlock(context.Background()))
}

// S3: a release that runs late frees nobody else.
func TestFaultLateReleaseFreesNobodyElse(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	l := b.shaky().NewLock(b.name)
	b.must(l.Lock(ctx))
	rule := b.proxy.On(testredis.Script(lockRelease.digest), testredis.HoldRequest)
	b.must(l.Unlock(ctx)) // the second try does it
	next := b.direct.NewLock(b.name)
	b.must(next.Lock(ctx))
	again := l
	rule.Release()
	time.Sleep(50 * time.Millisecond) // for the server to run it, if it wants to
	b.holds(next, 1)
	b.must(next.Unlock(ctx))
	b.must(again.Lock(ctx))
	b.must(again.Unlock(ctx))
}

// S2: Redis cannot be reached, and the holder is told by its own clock.
func TestFaultBlackHole(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	const lease = time.Second
	l := b.shaky(WithWatchdogTimeout(lease)).NewLock(b.name)
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.proxy.BlackHole(true)
	start := time.Now()
	await(b.bench, "the guard ends", guarded.Done())
	if took := time.Since(start); took > lease+lease/2 {
		t.Errorf("the guard ended %v after the last possible renewal", took)
	}
	b.mustBe(context.Cause(guarded), ErrLockLost)
	next := b.direct.NewLock(b.name)
	b.must(next.Lock(ctx))
	b.proxy.BlackHole(false)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.holds(next, 1)
	b.must(next.Unlock(ctx))
}

// L4: a short outage is ridden out.
func TestFaultRenewalsAreRepeated(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	const lease = time.Second
	l := b.shaky(WithWatchdogTimeout(lease)).NewLock(b.name)
	for _, fault := range []testredis.Fault{testredis.LoseReply, testredis.StallReply, testredis.DropRequest} {
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		rule := b.proxy.On(testredis.Script(renewScript.digest), fault)
		await(b.bench, "a renewal fails", rule.Fired())
		select {
		case <-guarded.Done():
			t.Errorf("one failed renewal lost the lock: %v", context.Cause(guarded))
		case <-time.After(2 * lease):
		}
		b.must(l.Unlock(ctx))
	}
}

// FAULTS 11: the subscription connection is killed, and the message lost with it.
func TestFaultSubscriptionKilled(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewLock(b.name)
	waiting := b.client(WithMaxWakeDelay(time.Hour)).NewLock(b.name)
	for range 5 {
		owner := WithOwner(ctx)
		b.must(held.Lock(ctx))
		got := b.startWaiter(owner, waiting)
		b.must(b.rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter notices", got))
		b.must(waiting.Unlock(owner))
	}
}

// FAULTS 12: the subscription connection goes silent.
func TestFaultSubscriptionSilent(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewLock(b.name)
	b.must(held.Lock(ctx))
	owner := WithOwner(ctx)
	waiting := b.shaky(WithMaxWakeDelay(time.Hour)).NewLock(b.name)
	got := b.startWaiter(owner, waiting)
	b.proxy.BlackHole(true)
	b.must(held.Unlock(ctx))
	time.Sleep(100 * time.Millisecond)
	b.proxy.BlackHole(false)
	b.proxy.CutAll() // whatever was on its way is gone
	select {
	case err := <-got:
		b.must(err)
	case <-time.After(4 * soon):
		t.Fatal("the waiter sleeps while the lock is free")
	}
	b.must(waiting.Unlock(owner))
}

// A subscription that is never confirmed keeps nobody from asking.
func TestFaultSubscriptionNeverConfirmed(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewLock(b.name)
	b.must(held.Lock(ctx))
	rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
	got := make(chan error, 1)
	owner := WithOwner(ctx)
	waiting := b.shaky(WithMaxWakeDelay(100 * time.Millisecond)).NewLock(b.name)
	go func() { got <- waiting.Lock(owner) }()
	await(b.bench, "the subscription is not answered", rule.Fired())
	b.must(held.Unlock(ctx))
	b.must(await(b.bench, "the waiter notices by itself", got))
	b.must(waiting.Unlock(owner))
	rule.Release()
}

// FAULTS 37: a frozen Redis.
func TestFaultFrozenRedis(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	const lease = time.Second
	c := b.client(WithWatchdogTimeout(lease))
	l, other := c.NewLock(b.name), c.NewLock(b.name+"-other")
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.server.Freeze()
	start := time.Now()
	ok, err := other.TryLock(ctx, 100*time.Millisecond, 0)
	if took := time.Since(start); ok || err == nil || took > soon/2 {
		t.Errorf("TryLock: %v, %v after %v", ok, err, took)
	}
	deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	start = time.Now()
	b.mustBe(other.Lock(deadline), context.DeadlineExceeded)
	if took := time.Since(start); took > soon/2 {
		t.Errorf("Lock came back after %v", took)
	}
	await(b.bench, "the guard ends", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrLockLost)
	start = time.Now()
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	if took := time.Since(start); took > unlockTime+soon/2 {
		t.Errorf("Unlock took %v", took)
	}
	b.server.Thaw()
	testredis.Await(t, "everything is free again", 4*soon, func() bool {
		return second(b.rdb.Ping(ctx).Result()) == nil && len(b.keys()) == 0
	})
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
}

// FAULTS 15: Redis comes back empty.
func TestFaultRestartEmpty(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	l := b.client(WithWatchdogTimeout(3*time.Second)).NewLock(b.name, Fenced())
	b.must(l.Lock(ctx))
	token, err := l.Token(ctx)
	b.must(err)
	guarded, err := l.Guard(ctx)
	b.must(err)
	owner := WithOwner(ctx)
	waiting := b.client(WithMaxWakeDelay(200*time.Millisecond)).NewLock(b.name, Fenced())
	got := b.startWaiter(owner, waiting)
	b.server.Restart()
	b.must(await(b.bench, "the waiter gets the lock", got))
	if next, err := waiting.Token(owner); next <= token || err != nil {
		t.Errorf("token %d, %v after %d", next, err, token)
	}
	await(b.bench, "the old holder is told", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrLockLost)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.must(waiting.Unlock(owner))
}

// FAULTS 38: Redis is down for a while; a waiter rides it out, and does not burn the CPU.
func TestFaultOutage(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewLock(b.name)
	b.must(held.Lock(ctx))
	owner := WithOwner(ctx)
	waiting := b.client(WithMaxWakeDelay(200 * time.Millisecond)).NewLock(b.name)
	got := b.startWaiter(owner, waiting)
	b.server.Kill()
	deadline, cancel := context.WithTimeout(ctx, 10*soon)
	defer cancel()
	start := time.Now()
	err := b.direct.NewLock(b.name + "-other").Lock(deadline)
	if err == nil || !strings.Contains(err.Error(), "refused") || deadline.Err() != nil {
		t.Errorf("Lock without Redis: %v after %v", err, time.Since(start))
	}
	select {
	case err := <-got:
		t.Errorf("the waiter gave up: %v", err)
	case <-time.After(time.Second):
	}
	b.server.Restart()
	b.must(await(b.bench, "the waiter gets the lock", got))
	b.mustBe(held.Unlock(ctx), ErrLockLost)
	b.must(waiting.Unlock(owner))
}

// FAULTS 16 and 25: the scripts are forgotten, and memory is short.
func TestFaultOutOfMemory(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	const lease = time.Second
	c := b.client(WithWatchdogTimeout(lease))
	l := c.NewLock(b.name)
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.must(b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, lock := range []*Lock{c.NewLock(b.name + "-2"), c.NewLock(b.name+"-3", Fenced())} {
		err := lock.Lock(ctx)
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("Lock: %v", err)
		}
		b.mustBe(lock.Unlock(ctx), ErrNotHeld)
	}
	select {
	case <-guarded.Done():
		t.Errorf("lost: %v", context.Cause(guarded))
	case <-time.After(2 * lease): // renewed
	}
	b.must(l.Unlock(ctx))
	b.must(b.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
}

// FAULTS 21: a server that became a replica.
func TestFaultReadOnly(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	l, free := b.direct.NewLock(b.name), b.direct.NewLock(b.name+"-free")
	b.must(l.Lock(ctx))
	b.must(b.rdb.Do(ctx, "replicaof", "127.0.0.1", "1").Err())
	start := time.Now()
	err := free.Lock(ctx)
	if err == nil || !strings.Contains(err.Error(), "READONLY") || time.Since(start) > soon {
		t.Errorf("Lock: %v after %v", err, time.Since(start))
	}
	b.mustBe(free.Unlock(ctx), ErrNotHeld)
	got := make(chan error, 1)
	owner := WithOwner(ctx)
	go func() { got <- l.Unlock(context.WithoutCancel(ctx)) }() // not the owner
	b.mustBe(await(b.bench, "unlock by somebody else", got), ErrNotHeld)
	go func() {
		time.Sleep(300 * time.Millisecond)
		b.rdb.Do(ctx, "replicaof", "no", "one")
	}()
	b.must(l.Unlock(ctx)) // goes on trying
	b.must(free.Lock(owner))
	b.must(free.Unlock(owner))
}

// FAULTS 22 to 24: answers of a server that is busy with itself.
func TestFaultServerAnswers(t *testing.T) {
	for _, c := range []struct {
		answer string
		passes bool // a waiter goes on waiting
	}{
		{"LOADING Redis is loading the dataset in memory", true},
		{"MASTERDOWN Link with MASTER is down", true},
		{"CLUSTERDOWN The cluster is down", true},
		{"TRYAGAIN Multiple keys request during rehashing of slot", true},
		{"BUSY Redis is busy running a script", true},
		{"NOREPLICAS Not enough good replicas to write.", true},
		{"READONLY You can't write against a read only replica.", true},
		{"OOM command not allowed when used memory > 'maxmemory'.", false},
		{"MISCONF Errors writing to the AOF file", false},
		{"NOAUTH Authentication required.", false},
		{"NOPERM this user has no permissions to run the 'evalsha' command", false},
		{"ERR unknown command 'evalsha'", false},
	} {
		prefix, _, _ := strings.Cut(c.answer, " ")
		t.Run(prefix, func(t *testing.T) {
			mini := testredis.Mini(t)
			b := newBench(t, mini.Addr())
			ctx := context.Background()
			l := b.client().NewLock(b.name)
			b.must(b.rdb.Ping(ctx).Err())
			mini.SetError(c.answer)
			start := time.Now()
			err := l.Lock(ctx)
			if err == nil || !strings.Contains(err.Error(), c.answer) || time.Since(start) > soon {
				t.Errorf("Lock: %v after %v", err, time.Since(start))
			}
			if ok, err := l.TryLock(ctx, 0, 0); ok || err == nil || errors.Is(err, redis.Nil) {
				t.Errorf("TryLock: %v, %v", ok, err)
			}
			mini.SetError("")
			b.mustBe(l.Unlock(ctx), ErrNotHeld)

			held := b.client().NewLock(b.name)
			b.must(held.Lock(ctx))
			owner := WithOwner(ctx)
			waiting := b.client(WithMaxWakeDelay(20 * time.Millisecond)).NewLock(b.name)
			got := b.startWaiter(owner, waiting)
			mini.SetError(c.answer)
			if !c.passes {
				if err := await(b, "the waiter is told", got); err == nil || !strings.Contains(err.Error(), c.answer) {
					t.Errorf("waiter: %v", err)
				}
				mini.SetError("")
				b.must(held.Unlock(ctx))
				return
			}
			select {
			case err := <-got:
				t.Errorf("the waiter gave up: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			mini.SetError("")
			b.must(held.Unlock(ctx))
			b.must(await(b, "the waiter gets the lock", got))
			b.must(waiting.Unlock(owner))
		})
	}
}

// FAULTS 24, on a real Redis.
func TestFaultBusyScript(t *testing.T) {
	b := newFaultBench(t, "--busy-reply-threshold", "50")
	ctx := context.Background()
	held := b.direct.NewLock(b.name)
	b.must(held.Lock(ctx))
	owner := WithOwner(ctx)
	waiting := b.client(WithMaxWakeDelay(20 * time.Millisecond)).NewLock(b.name)
	got := b.startWaiter(owner, waiting)
	stuck := b.server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
	var wg sync.WaitGroup
	wg.Go(func() { stuck.Eval(ctx, "while true do end", nil) })
	testredis.Await(t, "the script blocks Redis", soon, func() bool {
		return redis.HasErrorPrefix(b.rdb.Ping(ctx).Err(), "BUSY")
	})
	select {
	case err := <-got:
		t.Errorf("the waiter gave up: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	b.must(b.rdb.ScriptKill(ctx).Err())
	wg.Wait()
	b.must(held.Unlock(ctx))
	b.must(await(b.bench, "the waiter gets the lock", got))
	b.must(waiting.Unlock(owner))
}

// FAULTS 54 and 55: a user who may not run scripts, subscribe, or publish.
func TestFaultPermissions(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	as := func(rules ...any) *redis.Client {
		user := fmt.Sprintf("user%d", benches.Add(1))
		b.must(b.rdb.Do(ctx, append([]any{"acl", "setuser", user, "on", ">pw", "~*"}, rules...)...).Err())
		return b.server.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" })
	}

	t.Run("no scripts", func(t *testing.T) {
		l := b.clientOn(as("+@all", "-@scripting", "&*")).NewLock(b.name)
		start := time.Now()
		err := l.Lock(ctx)
		if err == nil || !strings.Contains(err.Error(), "NOPERM") || time.Since(start) > soon {
			t.Errorf("Lock: %v after %v", err, time.Since(start))
		}
		_, err = l.TryLock(ctx, time.Hour, 0)
		if err == nil || !strings.Contains(err.Error(), "NOPERM") || time.Since(start) > soon {
			t.Errorf("TryLock: %v", err)
		}
	})

	t.Run("no channels", func(t *testing.T) {
		var logged lockedBuffer
		c := b.clientOn(as("+@all", "resetchannels"), WithMaxWakeDelay(50*time.Millisecond),
			WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		l := c.NewLock(b.name)
		for range 3 {
			held := b.direct.NewLock(b.name)
			b.must(held.Lock(ctx))
			got := make(chan error, 1)
			owner := WithOwner(ctx)
			go func() { got <- l.Lock(owner) }()
			testredis.Await(t, "the warning", soon, func() bool { return logged.String() != "" })
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the waiter polls", got))
			b.must(l.Unlock(owner)) // although it may not publish
			b.isLocked(held, false)
		}
		if s := logged.String(); strings.Count(s, "level=") != 1 || !strings.Contains(s, "level=WARN") {
			t.Errorf("logged: %s", s)
		}
	})

	// The smallest set of rights.
	t.Run("enough", func(t *testing.T) {
		var logged lockedBuffer
		rights := []any{"+evalsha", "+eval", "+subscribe", "+unsubscribe", "+ping", "+hello",
			"+hset", "+hget", "+hexists", "+hlen", "+pttl", "+pexpire", "+del", "+exists", "+set", "+incr", "+time", "+publish",
			"resetkeys", "~" + b.name, "~redisson_lock_token:{" + b.name + "}", "resetchannels", "&redisson_lock__channel:{" + b.name + "}"}
		c := b.clientOn(as(rights...), WithMaxWakeDelay(time.Hour), WithWatchdogTimeout(time.Second),
			WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		l := c.NewLock(b.name, Fenced())
		held := b.direct.NewLock(b.name)
		b.must(held.Lock(ctx))
		owner := WithOwner(ctx)
		got := b.startWaiter(owner, l)
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter is woken", got))
		time.Sleep(2 * time.Second) // it is renewed
		if held, err := l.IsHeld(owner); !held || err != nil {
			t.Errorf("%v, %v", held, err)
		}
		b.must(l.Unlock(owner))
		b.must(l.Lock(owner))
		if freed, err := l.ForceUnlock(ctx); !freed || err != nil {
			t.Errorf("%v, %v", freed, err)
		}
		if logged.String() != "" {
			t.Errorf("logged: %s", logged.String())
		}
	})
}

// FAULTS 39: no connection is to be had.
func TestFaultPoolExhausted(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	rdb := b.server.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Minute })
	const lease = time.Second
	l := b.clientOn(rdb, WithWatchdogTimeout(lease)).NewLock(b.name)
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	conn := rdb.Conn()
	b.must(conn.Ping(ctx).Err())
	deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err = b.clientOn(rdb).NewLock(b.name + "-other").Lock(deadline)
	b.mustBe(err, context.DeadlineExceeded)
	if took := time.Since(start); took > soon {
		t.Errorf("took %v", took)
	}
	select {
	case <-guarded.Done():
		t.Errorf("the watchdog starved: %v", context.Cause(guarded))
	case <-time.After(2 * lease):
	}
	b.must(conn.Close())
	b.must(l.Unlock(ctx))
}

// FAULTS 50: the Redis client is closed before us.
func TestFaultRedisClientClosed(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	rdb := b.server.Client()
	c := b.clientOn(rdb)
	l := c.NewLock(b.name)
	b.must(l.LockLease(ctx, time.Second))
	b.must(rdb.Close())
	if err := c.NewLock(b.name + "-2").Lock(ctx); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("Lock: %v", err)
	}
	start := time.Now()
	if err := l.Unlock(ctx); !errors.Is(err, redis.ErrClosed) || time.Since(start) > soon/2 {
		t.Errorf("Unlock: %v after %v", err, time.Since(start))
	}
	b.must(c.Close())
}

// A script that Redis stops half way leaves no lock behind.
func TestFaultHalfDone(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	tokens := "redisson_lock_token:{" + b.name + "}"
	b.must(b.rdb.HSet(ctx, tokens, "not", "a counter").Err())
	for _, l := range []Locker{
		b.direct.NewLock(b.name, Fenced()), b.direct.NewFairLock(b.name, Fenced()), b.direct.NewRWLock(b.name, Fenced()).Write(),
	} {
		if err := l.Lock(ctx); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("%v", err)
		}
		testredis.Await(t, "nothing is left", soon, func() bool { return len(b.keys()) == 1 })
	}
	b.must(b.rdb.Del(ctx, tokens).Err())

	b.must(b.rdb.Do(ctx, "acl", "setuser", "careful", "on", ">pw", "~*", "&*", "+@all", "-pexpire").Err())
	l := b.clientOn(b.server.Client(func(o *redis.Options) { o.Username, o.Password = "careful", "pw" })).NewLock(b.name)
	if err := l.Lock(ctx); err == nil || !strings.Contains(err.Error(), "user") {
		t.Errorf("%v", err)
	}
	testredis.Await(t, "no lock without a lease is left", soon, func() bool { return len(b.keys()) == 0 })
}

// A host that is gone takes no connection and refuses none: no call takes longer than it says.
func TestFaultUnreachableHost(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	h := newHole(t)
	server := testredis.Start(t)
	c := b.clientOn(server.Client(func(o *redis.Options) { o.Dialer = h.dialer }))
	l := c.NewLock(b.name)
	ctx := context.Background()
	b.must(l.Lock(ctx))
	h.addr.Store(server.Addr())
	server.Kill()
	start := time.Now()
	if err := l.Unlock(ctx); err == nil {
		t.Error("Unlock was confirmed")
	}
	if took := time.Since(start); took > unlockTime+2*time.Second {
		t.Errorf("Unlock took %v", took)
	}
	start = time.Now()
	if ok, err := l.TryLock(ctx, 0, 0); ok || err == nil {
		t.Errorf("TryLock: %v, %v", ok, err)
	}
	if took := time.Since(start); took > unlockTime+2*time.Second {
		t.Errorf("TryLock took %v", took)
	}
}
