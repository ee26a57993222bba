package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

func TestLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name) })
}

func TestFencedLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) })
}

// A plain and a fenced lock of one name are the same lock.
func TestLockAndFencedLockExclude(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		b.must(b.client().NewLock(b.name).Lock(context.Background()))
		fenced := b.client().NewLock(b.name, Fenced())
		b.tries(fenced, false)
		if freed, err := fenced.ForceUnlock(context.Background()); !freed || err != nil {
			t.Fatal(freed, err)
		}
	})
}

// WIRE.md 1.1: the record, its lease, and the message.
func TestRecordIsRedissons(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewLock(b.name)
		messages := b.rdb.Subscribe(ctx, "redisson_lock__channel:{"+b.name+"}")
		defer messages.Close()
		_, err := messages.Receive(ctx)
		b.must(err)

		b.must(l.Lock(ctx))
		b.must(l.Lock(ctx))
		record, err := b.rdb.HGetAll(ctx, b.name).Result()
		b.must(err)
		field := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+:\d+$`)
		for f, levels := range record {
			if len(record) != 1 || !field.MatchString(f) || levels != "2" {
				t.Errorf("record %v", record)
			}
		}
		if ttl := b.rdb.PTTL(ctx, b.name).Val(); ttl > 30*time.Second || ttl < 25*time.Second {
			t.Errorf("PTTL %v", ttl)
		}
		if keys := b.keys(); len(keys) != 1 {
			t.Errorf("keys %v", keys)
		}
		b.must(l.Unlock(ctx))
		b.must(l.Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if err != nil || m.Payload != "0" {
			t.Errorf("message %v, %v", m, err)
		}
		if n := b.rdb.Exists(ctx, b.name).Val(); n != 0 {
			t.Error("the record is still there")
		}
		b.must(l.Lock(ctx)) // of the two unlocks only the last one was announced
		if _, err := l.ForceUnlock(ctx); err != nil {
			t.Fatal(err)
		}
		m, err = messages.ReceiveMessage(ctx)
		if err != nil || m.Payload != "0" {
			t.Errorf("message %v, %v", m, err)
		}
	})
}

// A record of Redisson's keeps us out and is not touched.
func TestRecordOfAJavaClientIsRespected(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client(WithMaxWakeDelay(time.Hour)).NewLock(b.name)
		const java = "6f1c0e8e-6d5b-4d0a-9a8d-0a8e5a5cbb10:37"
		b.must(b.rdb.HSet(ctx, b.name, java, 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.tries(l, false)
		b.isLocked(l, true)
		b.mustBe(l.Unlock(ctx), ErrNotHeld)
		owner := WithOwner(ctx)
		got := b.startWaiter(owner, l)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.must(b.rdb.Publish(ctx, "redisson_lock__channel:{"+b.name+"}", "0").Err())
		b.must(await(b, "woken by Java's message", got))
		b.must(l.Unlock(owner))

		// One without a lease is asked for again and again, not waited for.
		b.must(b.rdb.HSet(ctx, b.name, java, 1).Err())
		quick := b.client(WithMaxWakeDelay(10 * time.Millisecond)).NewLock(b.name)
		if ttl, err := quick.TTL(ctx); ttl >= 0 || err != nil {
			t.Errorf("TTL %v, %v", ttl, err)
		}
		got = b.startWaiter(owner, quick)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.must(await(b, "noticed without a message", got))
		b.must(quick.Unlock(owner))
	})
}

// S6: tokens only grow, over handovers, clients, and the loss of the counter.
func TestTokensOnlyGrow(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		var mu sync.Mutex // guards tokens
		var tokens []int64
		var wg sync.WaitGroup
		for range 3 {
			l := b.client().NewLock(b.name, Fenced())
			for range 3 {
				wg.Go(func() {
					for range 10 {
						if err := l.Lock(ctx); err != nil {
							t.Error(err)
							return
						}
						token, err := l.Token(ctx)
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						tokens = append(tokens, token)
						mu.Unlock()
						if err := l.Unlock(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		last := int64(0)
		for _, token := range tokens {
			if token <= last {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
		}
		if n, err := b.rdb.Get(ctx, "redisson_lock_token:{"+b.name+"}").Int64(); n != last || err != nil {
			t.Errorf("the counter is %d, %v; the last token %d", n, err, last)
		}
		time.Sleep(5 * time.Millisecond) // it takes longer to lose everything
		b.must(b.rdb.FlushAll(ctx).Err())
		l := b.client().NewLock(b.name, Fenced())
		b.must(l.Lock(ctx))
		if token, err := l.Token(ctx); token <= last || err != nil {
			t.Errorf("token %d, %v after Redis has lost everything; it was %d", token, err, last)
		}
		b.must(l.Unlock(ctx))
	})
}

func TestToken(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		plain, fenced := c.NewLock(b.name), c.NewLock(b.name, Fenced())
		_, err := plain.Token(ctx)
		b.mustBe(err, ErrInvalid)
		_, err = fenced.Token(ctx)
		b.mustBe(err, ErrNotHeld)

		b.must(b.rdb.Set(ctx, "redisson_lock_token:{"+b.name+"}", ahead, 0).Err()) // by Redisson
		b.must(fenced.Lock(ctx))
		first, err := fenced.Token(ctx)
		if first != ahead+1 || err != nil {
			t.Errorf("token %d, %v", first, err)
		}
		b.must(fenced.Lock(ctx))
		if again, err := fenced.Token(ctx); again != first || err != nil {
			t.Errorf("a re-entry has token %d, %v", again, err)
		}
		if n := b.rdb.Get(ctx, "redisson_lock_token:{"+b.name+"}").Val(); n != fmt.Sprint(ahead+1) {
			t.Errorf("a re-entry moved the counter to %s", n)
		}
		err = elsewhere(func() error { return second(fenced.Token(ctx)) })
		b.mustBe(err, ErrNotHeld)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.mustBe(fenced.Lock(ctx), ErrLockLost)
		_, err = fenced.Token(ctx)
		b.mustBe(err, ErrLockLost)
		b.mustBe(fenced.Unlock(ctx), ErrLockLost)
		b.mustBe(fenced.Unlock(ctx), ErrLockLost)

		b.must(plain.Lock(ctx))
		_, err = fenced.Token(ctx)
		b.mustBe(err, ErrInvalid)
		b.must(plain.Unlock(ctx))
	})
}

// C1: one request to lock, one to unlock; no subscription; and none at all to be
// refused by a neighbour.
func TestUncontendedCost(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		rdb := testredis.Client(t, addr)
		sent := new(counter)
		l := b.clientOn(rdb).NewLock(b.name)
		b.must(l.Lock(ctx)) // the scripts are known from here on
		b.must(l.Unlock(ctx))
		rdb.AddHook(sent)
		b.must(l.Lock(ctx))
		if ok, err := elsewhere(func() pair[bool] { return pairOf(l.TryLock(ctx, 0, 0)) }).get(); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		b.must(l.Unlock(ctx))
		if n := sent.n.Load(); n != 2 {
			t.Errorf("%d requests", n)
		}
		if n := b.rdb.PubSubNumPat(ctx).Val(); n != 0 {
			t.Errorf("%d patterns", n)
		}
		if ch := b.rdb.PubSubChannels(ctx, "*"+b.name+"*").Val(); len(ch) != 0 {
			t.Errorf("channels %v", ch)
		}
	})
}

// C2: one pub/sub connection, however many wait for however many names.
func TestOneSubscriptionConnection(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	ctx := context.Background()
	const many = 300
	holder, waiter := b.client(), b.client()
	name := func(i int) string { return fmt.Sprint(b.name, "-", i) }
	var wg sync.WaitGroup
	owner := WithOwner(ctx)
	for i := range many {
		b.must(holder.NewLock(name(i)).Lock(owner))
		wg.Go(func() {
			l := waiter.NewLock(name(i))
			if err := l.Lock(ctx); err != nil {
				t.Error(err)
			} else if err := l.Unlock(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	testredis.Await(t, "all wait", 4*soon, func() bool {
		return len(b.rdb.PubSubChannels(ctx, "*"+b.name+"-*").Val()) == many
	})
	list, err := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
	b.must(err)
	if n := strings.Count(list, "\n"); n != 1 {
		t.Errorf("%d subscription connections", n)
	}
	for i := range many {
		b.must(holder.NewLock(name(i)).Unlock(owner))
	}
	wg.Wait()
}

// Renewals go out in pipelines.
func TestRenewalsArePipelined(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		rdb := testredis.Client(t, addr)
		pipes := &pipeCounter{}
		rdb.AddHook(pipes)
		c := b.clientOn(rdb, WithWatchdogTimeout(5*time.Second))
		const many = 100
		for i := range many {
			b.must(c.NewLock(fmt.Sprint(b.name, "-", i)).Lock(ctx))
		}
		testredis.Await(t, "everything is renewed twice", 4*soon, func() bool { return pipes.calls() >= 2*many })
		if n, calls := pipes.count(), pipes.calls(); calls < 4*n {
			t.Errorf("%d renewals in %d pipelines", calls, n)
		}
		b.must(b.rdb.ScriptFlush(ctx).Err())
		before := pipes.calls()
		testredis.Await(t, "everything is renewed after a flush", 4*soon, func() bool { return pipes.calls() >= before+2*many })
		for i := range many {
			b.must(c.NewLock(fmt.Sprint(b.name, "-", i)).Unlock(ctx))
		}
	})
}

type pipeCounter struct {
	counter
	mu    sync.Mutex // guards pipes
	pipes []int
}

func (c *pipeCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.mu.Lock()
		c.pipes = append(c.pipes, len(cmds))
		c.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (c *pipeCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pipes)
}

func (c *pipeCounter) calls() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pipes {
		n += p
	}
	return n
}

func TestErrorTexts(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewLock(b.name)
		b.must(l.Lock(ctx))
		err := elsewhere(func() error { return l.Unlock(ctx) })
		want := regexp.MustCompile(`^relock: unlock "` + b.name + `": not held by the caller: goroutine \d+ asked, goroutine \d+ holds it here$`)
		if !want.MatchString(err.Error()) {
			t.Errorf("%v", err)
		}
		b.must(l.Unlock(ctx))
		secret := strings.Repeat("s", 100) + "secret"
		err = b.client().NewLock(secret).Unlock(ctx)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
	})
}

// One warning with name and cause when a lock is lost, none otherwise.
func TestLossIsLoggedOnce(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		var logged lockedBuffer
		c := b.client(WithWatchdogTimeout(200*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		l := c.NewLock(b.name)
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
		b.must(l.LockLease(ctx, 50*time.Millisecond))
		testredis.Await(t, "the lease ends", soon, func() bool { held, _ := l.IsHeld(ctx); return !held })
		if logged.String() != "" {
			t.Errorf("in a healthy run: %s", logged.String())
		}
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.must(b.rdb.Del(ctx, b.name).Err())
		await(b, "the guard ends", guarded.Done())
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		testredis.Await(t, "the warning", soon, func() bool { return logged.String() != "" })
		if s := logged.String(); strings.Count(s, "level=") != 1 || !strings.Contains(s, "level=WARN") || !strings.Contains(s, b.name) || !strings.Contains(s, "type=lock ") || !strings.Contains(s, "gone") {
			t.Errorf("logged: %s", s)
		}
	})
}

func TestUnlockInTheWrongOrderOfContexts(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		l := b.client().NewLock(b.name)
		ctx, cancel := context.WithCancel(context.Background())
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		cancel()
		if guarded.Err() == nil {
			t.Error("the guard outlives its parent")
		}
		b.must(l.Unlock(guarded))
		b.isLocked(l, false)
	})
}

var errStop = errors.New("stop")

// A nested section may be guarded by the ctx of the outer one.
func TestNestedDo(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		l := b.client().NewLock(b.name)
		var levels []int
		count := func() { n, _ := l.HoldCount(context.Background()); levels = append(levels, n) }
		err := l.Do(context.Background(), func(outer context.Context) error {
			count()
			err := l.Do(outer, func(inner context.Context) error {
				count()
				return errStop
			})
			count()
			if outer.Err() != nil {
				t.Error("the inner section ended the outer one")
			}
			return err
		})
		count()
		if !errors.Is(err, errStop) || !slices.Equal(levels, []int{1, 2, 1, 0}) {
			t.Errorf("%v, levels %v", err, levels)
		}
	})
}

// A guard does not vouch for a hold that somebody has found lost and is about to
// end the guards of: whoever that is may be kept from it for as long as it takes.
func TestGuardOfAHoldThatWasJustLost(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	l := c.NewLock(b.name)
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)

	e := c.engine
	h := e.find(l.lock.id(), ownerOf(ctx))
	e.mu.Lock() // as far as lose has come when it lets go of the mutex
	h.state, h.loss = lost, lossError(errLapsed)
	guards := h.takeGuardsLocked()
	e.mu.Unlock()
	if guarded.Err() == nil {
		t.Error("it is lost, and the guard says that all is well")
	}
	b.mustBe(context.Cause(guarded), ErrLockLost)
	endGuards(guards, nil)
	e.dog.remove(&h.tenure.lease)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.forget()
}

// Levels in the record inform those who look: no memory is needed to give one back.
func TestUnlockNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := newBench(t, s.Addr())
	c, other := b.client(), b.client()
	full := func(yes bool) {
		limit := "0"
		if yes {
			limit = "1"
		}
		b.must(b.rdb.ConfigSet(ctx, "maxmemory", limit).Err())
	}
	b.must(b.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	for kind, newLock := range lockKinds {
		l := newLock(c, b.name)
		for range 3 {
			require.NoError(t, l.Lock(ctx), kind)
		}
		full(true)
		require.NoError(t, l.Unlock(ctx), kind)
		require.ErrorContains(t, b.rdb.Set(ctx, b.name+"-full", 1, 0).Err(), "OOM", kind)
		levels, err := l.HoldCount(ctx)
		require.NoError(t, err, kind)
		require.Equal(t, 2, levels, kind)
		full(false)
		require.NoError(t, l.Lock(ctx), kind)
		full(true)
		for left := 2; left >= 0; left-- {
			require.NoError(t, l.Unlock(ctx), kind)
			levels, err := l.HoldCount(ctx)
			require.NoError(t, err, kind)
			require.Equal(t, left, levels, kind)
		}
		full(false)
		b.tries(newLock(other, b.name), true)
		require.NoError(t, newLock(other, b.name).Unlock(ctx), kind)
		testredis.Await(t, "nothing is left of "+kind, soon, func() bool {
			return !slices.ContainsFunc(b.keys(), func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") })
		})
	}

	// A writer keeps its read lock.
	rw := c.NewRWLock(b.name)
	for range 2 {
		b.must(rw.Write().Lock(ctx))
		b.must(rw.Read().Lock(ctx))
	}
	full(true)
	for _, l := range []Locker{rw.Write(), rw.Read(), rw.Write(), rw.Read()} {
		require.NoError(t, l.Unlock(ctx))
	}
	full(false)
}

// A waiter that gives up a fair lock leaves the queue, also where Redis has no memory left.
func TestLeavingAQueueNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := newBench(t, s.Addr())
	held := b.client().NewFairLock(b.name)
	b.must(held.Lock(ctx))
	var waiters []<-chan error
	giving, giveUp := context.WithCancel(ctx)
	b.must(b.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	for n, ctx := range []context.Context{giving, ctx} {
		got := make(chan error, 1)
		l, me := b.client().NewFairLock(b.name), WithOwner(ctx)
		go func() {
			err := l.Lock(me)
			if err == nil {
				err = l.Unlock(me)
			}
			got <- err
		}()
		waiters = append(waiters, got)
		b.awaitQueue(n + 1)
	}
	first := b.queue()[0]
	b.must(b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	giveUp()
	require.ErrorIs(t, await(b, "the first one gives up", waiters[0]), context.Canceled)
	start := time.Now()
	testredis.Await(t, "it has left", soon, func() bool { return !slices.Contains(b.queue(), first) })
	b.must(b.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	assert.Less(t, time.Since(start), fairLife/2, "it was buried, and had not left")
	b.must(held.Unlock(ctx))
	err := await(b, "the second one", waiters[1])
	if err != nil { // it asked while Redis was full
		assert.Contains(t, err.Error(), "OOM")
	}
}
