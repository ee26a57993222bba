//go:build go1.25

package locks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The user code of a test calls a mutexWatch, which records the mutexes of the library that the caller holds at that
// moment, instead of deadlocking on them.
type mutexWatch struct {
	t *testing.T

	mu      sync.Mutex // guards below
	mutexes map[string]*sync.Mutex
	held    map[string]string // mutex and user code, with the stack of the first call
	calls   map[string]int    // of each kind of user code
	looks   map[callers]int
	tables  []reflect.Value // of the lock states of engines, which have mutexes
}

// callers are the functions that have called user code.
type callers [32]uintptr

func newMutexWatch(t *testing.T) *mutexWatch {
	w := &mutexWatch{
		t:       t,
		mutexes: make(map[string]*sync.Mutex),
		held:    make(map[string]string),
		calls:   make(map[string]int),
		looks:   make(map[callers]int),
	}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for what, stack := range w.held {
			assert.Fail(t, "user code is called with a mutex held", "%s\n%s", what, stack)
		}
	})
	return w
}

// shortWarning is the shortest time of a warning that an option accepts.
const shortWarning = 100 * time.Millisecond

// add adds the mutexes of c to w.
func (w *mutexWatch) add(name string, c *Client) {
	e := reflect.ValueOf(locktest.EngineOf(c)).Elem()
	mutexes := make(map[string]*sync.Mutex)
	mutexesOf("", e, mutexes)
	sender := e.FieldByName("sender").Elem()
	if timed := sender.FieldByName("config").FieldByName("Bounded"); !timed.IsNil() {
		mutexes["limit of bounded calls"] = mutexOf(timed.Elem().Elem().FieldByName("limit"))
	}
	homes := (*sync.Map)(sender.FieldByName("homes").Addr().UnsafePointer())
	homes.Range(func(home, batches any) bool {
		mutexes["batches of "+home.(string)] = mutexOf(reflect.ValueOf(batches).Elem())
		return true
	})
	mutexes["pending"] = inside.Of(c).Votes
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tables = append(w.tables, e.FieldByName("table"))
	for part, mu := range mutexes {
		w.mutexes[name+"."+part] = mu
	}
}

// User code calls look. A mutex that stays locked for a long time is locked by the caller itself. The same callers hold
// the same mutexes, and a few looks at them are enough: errors.Is calls methods of an error again and again.
func (w *mutexWatch) look(what string) {
	var by callers
	runtime.Callers(2, by[:])
	w.mu.Lock()
	w.calls[what]++
	w.looks[by]++
	if len(w.held) == 3 || w.looks[by] > 20 { // each of those held took canLock two seconds
		w.mu.Unlock()
		return
	}
	mutexes := maps.Clone(w.mutexes)
	tables := w.tables
	w.mu.Unlock()
	for _, table := range tables {
		if mu := mutexOf(table); canLock(mu) {
			mu.Lock()
			for all := table.FieldByName("names").MapRange(); all.Next(); {
				mutexes["name "+all.Key().String()] = mutexOf(all.Value().Elem())
			}
			mu.Unlock()
		}
	}
	for name, mu := range mutexes {
		if !canLock(mu) {
			w.mu.Lock()
			if key := name + " in " + what; w.held[key] == "" && len(w.held) < 3 {
				w.held[key] = string(debug.Stack())
			}
			w.mu.Unlock()
			return
		}
	}
}

// mutexOf returns the mutex mu of a struct.
func mutexOf(v reflect.Value) *sync.Mutex {
	return (*sync.Mutex)(v.FieldByName("mu").Addr().UnsafePointer())
}

// mutexesOf adds the mutexes of an engine, and of the parts to which it points, to all.
func mutexesOf(name string, v reflect.Value, all map[string]*sync.Mutex) {
	for i := range v.NumField() {
		f, name := v.Field(i), name+"."+v.Type().Field(i).Name
		switch {
		case v.Type().Field(i).Name == "mu":
			all[name] = mutexOf(v)
		case f.Kind() == reflect.Struct:
			mutexesOf(name, f, all)
		case f.Kind() == reflect.Pointer && (strings.HasSuffix(v.Type().PkgPath(), "/engine") || v.Type() == reflect.TypeFor[send.Sender]()) &&
			strings.Contains(f.Type().Elem().PkgPath(), "/internal/"):
			mutexesOf(name, f.Elem(), all)
		}
	}
}

func canLock(mu *sync.Mutex) bool {
	const longest = 2 * time.Second // longer than any other goroutine keeps a mutex on a busy machine
	for start := time.Now(); !mu.TryLock(); time.Sleep(50 * time.Microsecond) {
		if time.Since(start) > longest {
			return false
		}
	}
	mu.Unlock()
	return true
}

// A watchedContext is a context of the user, and not one of package context.
type watchedContext struct {
	context.Context
	watch *mutexWatch
}

func (c watchedContext) Err() error {
	c.watch.look("ctx.Err")
	return c.Context.Err()
}

func (c watchedContext) Done() <-chan struct{} {
	c.watch.look("ctx.Done")
	return c.Context.Done()
}

func (c watchedContext) Deadline() (time.Time, bool) {
	c.watch.look("ctx.Deadline")
	return c.Context.Deadline()
}

func (c watchedContext) Value(key any) any {
	c.watch.look("ctx.Value")
	return c.Context.Value(key)
}

// A watchedObserver calls the watch for each event.
type watchedObserver struct {
	NopObserver
	watch *mutexWatch
}

func (o watchedObserver) Waiting(context.Context, WaitingEvent) { o.watch.look("observer.Waiting") }

func (o watchedObserver) Acquired(context.Context, AcquiredEvent) { o.watch.look("observer.Acquired") }

func (o watchedObserver) GaveUp(context.Context, GaveUpEvent) { o.watch.look("observer.GaveUp") }

func (o watchedObserver) Renewed(context.Context, RenewedEvent) { o.watch.look("observer.Renewed") }

func (o watchedObserver) RenewalFailed(context.Context, RenewalFailedEvent) {
	o.watch.look("observer.RenewalFailed")
}

func (o watchedObserver) Released(context.Context, ReleasedEvent) { o.watch.look("observer.Released") }

func (o watchedObserver) Expired(context.Context, ExpiredEvent) { o.watch.look("observer.Expired") }

func (o watchedObserver) Lost(context.Context, LostEvent) { o.watch.look("observer.Lost") }

// A watchedHandler is the handler of a logger of the user.
type watchedHandler struct{ watch *mutexWatch }

func (h watchedHandler) Enabled(context.Context, slog.Level) bool {
	h.watch.look("logger.Enabled")
	return true
}

func (h watchedHandler) Handle(context.Context, slog.Record) error {
	h.watch.look("logger.Handle")
	return nil
}

func (h watchedHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h watchedHandler) WithGroup(string) slog.Handler { return h }

// A watchedHook is a hook of the Redis client. It fails requests with an error of its own while fails is set.
type watchedHook struct {
	watch *mutexWatch
	fails *atomic.Bool
}

func (h watchedHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h.watch.look("hook.Dial")
		return next(ctx, network, addr)
	}
}

func (h watchedHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.watch.look("hook.Process")
		if h.fails.Load() {
			cmd.SetErr(watchedError{h.watch})
			return watchedError{h.watch}
		}
		return next(ctx, cmd)
	}
}

func (h watchedHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.watch.look("hook.ProcessPipeline")
		if h.fails.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(watchedError{h.watch})
			}
			return watchedError{h.watch}
		}
		return next(ctx, cmds)
	}
}

// A watchedError is the error of a hook of the user.
type watchedError struct{ watch *mutexWatch }

func (e watchedError) Error() string {
	e.watch.look("error.Error")
	return "the hook says no"
}

func (e watchedError) Is(error) bool {
	e.watch.look("error.Is")
	return false
}

func (e watchedError) Unwrap() error {
	e.watch.look("error.Unwrap")
	return nil
}

// An erringContext ends with an error of its own when done is closed.
type erringContext struct {
	watchedContext
	done chan struct{}
}

func (c erringContext) Done() <-chan struct{} {
	c.watch.look("ctx.Done")
	return c.done
}

func (c erringContext) Err() error {
	c.watch.look("ctx.Err")
	select {
	case <-c.done:
		return watchedError{c.watch}
	default:
		return nil
	}
}

// C5: no context, hook, error of either, logger or Observer of the user is called with a mutex of the library held.
func TestUserCodeIsNeverCalledWithAMutexHeld(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	watch := newMutexWatch(t)
	var fails atomic.Bool
	client := func(name string) *Client {
		rdb := testredis.Client(t, b.Addr)
		rdb.AddHook(watchedHook{watch, &fails})
		c := b.ClientOn(rdb, WithWatchdogTimeout(time.Second), WithPollInterval(50*time.Millisecond),
			WithLogger(slog.New(watchedHandler{watch})), WithObserver(watchedObserver{watch: watch}),
			WithHoldWarning(shortWarning), WithWaitWarning(shortWarning))
		watch.add(name, c)
		return c
	}
	one, two := client("one"), client("two")
	red := func(name string) Locker {
		var nodes []Locker
		for i := range 3 {
			rdb := testredis.Client(t, testredis.Mini(t).Addr())
			rdb.AddHook(watchedHook{watch, &fails})
			node := b.ClientOn(rdb, WithWatchdogTimeout(time.Second), WithObserver(watchedObserver{watch: watch}))
			watch.add(fmt.Sprint(name, ".node", i), node)
			nodes = append(nodes, node.NewLock(name))
		}
		return one.NewRedLock(nodes...)
	}
	makers := map[string]func(c *Client, name string) Locker{
		"lock": locktest.NewPlainLock, "fenced": locktest.NewFencedLock, "fair": locktest.NewFairLock, "read": locktest.NewReadLock, "write": locktest.NewWriteLock,
		"multi": func(c *Client, name string) Locker {
			return c.NewMultiLock(c.NewLock("a:"+b.LockName), c.NewLock("b:"+b.LockName), c.NewFairLock("c:"+b.LockName))
		},
		"strangers": func(c *Client, name string) Locker { // of two clients
			other := two
			if c == two {
				other = one
			}
			return c.NewMultiLock(c.NewLock("d:"+b.LockName), other.NewLock("e:"+b.LockName))
		},
	}
	redlock := red("red:" + b.LockName)

	user := func(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(parent, limit)
		return watchedContext{ctx, watch}, cancel
	}
	// methods calls each method of l, by itself and under a guard of a lock of another client.
	methods := func(l, outer Locker) {
		ctx, cancel := user(ContextWithOwner(ctx), 2*time.Second)
		defer cancel()
		_ = outer.Do(ctx, func(ctx context.Context) error {
			_ = l.Do(ctx, func(ctx context.Context) error {
				_ = l.Do(ctx, func(context.Context) error { return nil })
				_, _ = l.Guard(ctx)
				_, _ = l.IsHeld(ctx)
				_, _ = l.HoldCount(ctx)
				_, _ = l.TTL(ctx)
				return nil
			})
			if ok, _ := l.TryLock(ctx, 20*time.Millisecond, 50*time.Millisecond); ok { // the lease may expire before
				_, _ = l.IsLocked(ctx)
				_ = l.Unlock(ctx)
			}
			if l.LockLease(ctx, 5*time.Millisecond) == nil {
				guarded, err := l.Guard(ctx)
				if err == nil {
					<-guarded.Done()
				}
				_ = l.Unlock(ctx)
			}
			_ = l.Unlock(ctx) // not held
			return nil
		})
		short, cancel := context.WithTimeout(ctx, 3*time.Millisecond)
		defer cancel()
		if l.Lock(watchedContext{short, watch}) == nil {
			_ = l.Unlock(ctx)
		}
	}
	var all sync.WaitGroup
	work := func(name string) {
		for kind, maker := range makers {
			for i, c := range []*Client{one, two} {
				outer := []*Client{two, one}[i]
				for g := range 2 {
					all.Go(func() {
						methods(maker(c, kind+":"+b.LockName), outer.NewLock(fmt.Sprint("outer:", name, kind, i, g, b.LockName)))
					})
				}
			}
		}
		all.Go(func() { methods(redlock, two.NewLock("outer:red:"+b.LockName)) })
		all.Wait()
	}
	work("calm")

	// These MultiLocks never find all of their locks free. Their context is a guard.
	for i := range 8 {
		all.Go(func() {
			ctx, cancel := user(ContextWithOwner(ctx), 2*time.Second)
			defer cancel()
			name := string(rune('a' + i%2))
			for range 3 {
				_ = one.NewLock(name+":"+b.LockName).Do(ctx, func(context.Context) error {
					time.Sleep(120 * time.Millisecond) // longer than a MultiLock keeps some of its locks
					return nil
				})
			}
		})
		all.Go(func() {
			ctx, cancel := user(ContextWithOwner(ctx), 2*time.Second)
			defer cancel()
			_ = two.NewLock(fmt.Sprint("outer:crowd", i, b.LockName)).Do(ctx, func(ctx context.Context) error {
				return makers["multi"](one, "").Do(ctx, func(context.Context) error { return nil })
			})
		})
	}
	all.Wait()

	// Losses: records that are deleted, locks that are released by force, renewals that fail until the lease expires.
	lost := make(map[string]context.Context)
	owner := ContextWithOwner(ctx)
	for kind, maker := range makers {
		l := maker(one, "lost:"+kind+":"+b.LockName)
		b.Must(l.Lock(owner))
		ctx, cancel := user(owner, 2*locktest.Soon)
		defer cancel()
		guarded, err := l.Guard(ctx)
		b.Must(err)
		lost[kind] = guarded
		if kind == "fair" {
			_, err = maker(two, "lost:"+kind+":"+b.LockName).ForceUnlock(ctx)
			b.Must(err)
		}
	}
	expires := one.NewLock("expires:" + b.LockName)
	for expired := false; !expired; { // on a busy machine the lease may have expired when it is granted
		if expires.LockLease(owner, 100*time.Millisecond) == nil {
			if guarded, err := expires.Guard(owner); err == nil {
				<-guarded.Done()
				expired = true
			}
		}
	}
	testredis.Await(t, "the holds are renewed", locktest.Soon, func() bool {
		watch.mu.Lock()
		defer watch.mu.Unlock()
		return watch.calls["observer.Renewed"] > 0
	})
	fails.Store(true)
	for kind, guarded := range lost {
		select {
		case <-guarded.Done():
			assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, kind)
		case <-time.After(locktest.Soon):
			assert.Fail(t, "a guard does not end", kind)
		}
	}
	work("failing")

	// A caller gives up behind another one, to which an error was the answer. So the error of its context is not the only
	// one that it returns.
	front, cancel := user(ContextWithOwner(ctx), 2*locktest.Soon)
	defer cancel()
	all.Go(func() { _ = redlock.Lock(front) })
	testredis.Await(t, "the nodes have answered the caller in front", locktest.Soon, func() bool { return locktest.Look(redlock).Busy })
	behind := erringContext{watchedContext{ContextWithOwner(ctx), watch}, make(chan struct{})}
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- redlock.Lock(behind) }()
	testredis.Await(t, "another caller is behind", locktest.Soon, func() bool { return locktest.Look(redlock).Waiters == 1 })
	close(behind.done)
	require.ErrorContains(t, locktest.Await(b, "it gives up", gaveUp), "the last attempt")
	cancel()
	all.Wait()

	// An Extend fails, and the hold was lost meanwhile.
	for failed := false; !failed; { // on a busy machine the lease may have expired before
		fails.Store(false)
		if h, ok, _ := one.NewLock("extends:"+b.LockName).TryAcquire(owner, locktest.Soon, 300*time.Millisecond); ok {
			fails.Store(true)
			err := h.Extend(owner, 2*locktest.Soon)
			failed = err != nil && strings.Contains(err.Error(), "the last attempt: the hook says no")
			_ = h.Release(owner)
		}
	}
	fails.Store(false)
	require.NoError(t, one.Close())
	require.NoError(t, two.Close())

	watch.mu.Lock()
	defer watch.mu.Unlock()
	for _, what := range []string{
		"ctx.Err", "ctx.Done", "ctx.Deadline", "ctx.Value", "hook.Dial", "hook.Process", "hook.ProcessPipeline",
		"error.Error", "error.Is", "logger.Enabled", "logger.Handle",
		"observer.Waiting", "observer.Acquired", "observer.GaveUp", "observer.Renewed", "observer.RenewalFailed",
		"observer.Released", "observer.Expired", "observer.Lost",
	} {
		assert.NotZero(t, watch.calls[what], "the test has not called %s", what)
	}
	b.Forget()
}

// C5, S2: a slow logger and a slow Observer delay no guard: a guard ends when its validity ends.
func TestSlowReportsDelayNoGuard(t *testing.T) {
	t.Parallel()
	const holds, line = 200, 20 * time.Millisecond
	var logged, omitted, observed atomic.Int64
	log := func(r slog.Record) error {
		time.Sleep(line)
		if r.Message == "relock: a lock was lost" {
			logged.Add(1)
			return nil
		}
		r.Attrs(func(a slog.Attr) bool { omitted.Add(a.Value.Int64()); return true })
		return nil
	}
	observe := func(event string) {
		if event == "lost" {
			time.Sleep(line)
			observed.Add(1)
		}
	}
	locktest.InReportedBubble(t, log, observe, func(e *locktest.BubbleEngine) {
		type end struct{ late time.Duration }
		ends := make(chan end, holds)
		for i := range holds {
			name := fmt.Sprint("name", i)
			e.LockName(name, 1)
			guarded, err := e.Guard(ctx, locktest.NewFakeLock(e.Redis, name), 1)
			require.NoError(e.T, err)
			go func() {
				<-guarded.Done()
				ends <- end{time.Since(e.Probe().Look(locktest.NewFakeLock(e.Redis, name), 1).LeaseEnds)}
			}()
		}
		e.Redis.Set(func() {
			e.Redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: locktest.ErrOff} }
		})
		var latest time.Duration
		for range holds {
			latest = max(latest, (<-ends).late)
		}
		e.T.Logf("the last of %d guards ended %v after its trust", holds, latest)
		assert.Less(e.T, latest, line)
		time.Sleep(2*holds*line + time.Second)
		assert.EqualValues(e.T, holds, logged.Load()+omitted.Load(), "losses that were logged or counted")
		assert.EqualValues(e.T, holds, observed.Load(), "losses that were observed")
		e.Redis.Set(func() { e.Redis.Fault = nil })
		for i := range holds {
			assert.ErrorIs(e.T, e.Release(ctx, locktest.NewFakeLock(e.Redis, fmt.Sprint("name", i)), 1), ErrLockLost)
		}
	})
}

// C5: an Observer that takes longer than a lease does not make holds expire.
func TestSlowObserverLosesNoHold(t *testing.T) {
	t.Parallel()
	observe := func(event string) {
		if event == "renewed" {
			time.Sleep(40 * time.Second)
		}
	}
	locktest.InReportedBubble(
		t,
		func(r slog.Record) error { assert.Fail(t, "logged", r.Message); return nil },
		observe,
		func(e *locktest.BubbleEngine) {
			for i := range 10 {
				e.LockName(fmt.Sprint("name", i), 1)
			}
			time.Sleep(10 * time.Minute)
			for i := range 10 {
				assert.NoError(e.T, e.Release(ctx, locktest.NewFakeLock(e.Redis, fmt.Sprint("name", i)), 1))
			}
			time.Sleep(12 * time.Hour) // until everything is reported, so that Close drops no report
		},
	)
}

// Close waits for a Logger or an Observer that does not return as long as for a request, and returns an error then. It
// does not matter who called them: the goroutine of the reporter, or a caller of the lock.
func TestCloseNamesAnObserverThatHangs(t *testing.T) {
	t.Parallel()
	const name = "the Logger or the Observer has not returned"
	for _, hangs := range []string{"lost", "acquired", "logger"} {
		t.Run(hangs, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				hangIf := func(what string) {
					if what == hangs {
						<-hang
					}
				}
				redis := fakeredis.New()
				log := locktest.HandlerFunc(func(slog.Record) error { hangIf("logger"); return nil })
				e := locktest.AbandonedBubbleEngine(t, redis, WithLogger(slog.New(log)), WithObserver(locktest.ObserverFunc{Call: hangIf}))
				go e.Lock(1)
				synctest.Wait()
				if hangs != "acquired" {
					e.Redis.Set(func() { clear(e.Redis.Records) })
					time.Sleep(e.WatchdogTimeout)
				}
				start := time.Now()
				assert.ErrorContains(t, e.Close(), name)
				assert.Equal(t, 7*time.Second, time.Since(start), "time of Close")
				close(hang)
				synctest.Wait()
			})
		})
	}
}

const mostNamed = 16 // number of locks that Close names

// Close logs the locks that are held, which helps to find a goroutine that has exited without Unlock.
func TestCloseLogsLocksThatAreHeld(t *testing.T) {
	t.Parallel()
	for _, held := range []int{0, 1, 3 * mostNamed} {
		synctest.Test(t, func(t *testing.T) {
			logged := &locktest.LockedBuffer{}
			redis := fakeredis.New()
			e := locktest.AbandonedBubbleEngine(
				t,
				redis,
				WithLogger(slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))),
			)
			for i := range held {
				e.LockName(fmt.Sprint("name", i), 7)
			}
			e.LockName("released", 8)
			require.NoError(t, e.Release(ctx, locktest.NewFakeLock(redis, "released"), 8))
			require.NoError(t, e.Close())
			if held == 0 {
				assert.Empty(t, logged.String())
				return
			}
			assert.Contains(
				t,
				logged.String(),
				fmt.Sprintf(
					"level=DEBUG msg=\"relock: closed while locks are held; they expire with their leases\" count=%d",
					held,
				),
			)
			assert.Equal(t, min(held, mostNamed), strings.Count(logged.String(), " by goroutine 7"))
		})
	}
}

// Names appear in the log unchanged; only the handler of the logger quotes them.
func TestLogQuotesNamesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logged := &locktest.LockedBuffer{}
		redis := fakeredis.New()
		e := locktest.JoinBubbleEngine(t, redis, "client", WithLogger(slog.New(slog.NewTextHandler(logged, nil))))
		long := strings.Repeat("é", 100)
		for _, name := range []string{"plain", "with \"quotes\"", long} {
			e.LockName(name, 1)
		}
		e.Redis.Set(func() { clear(e.Redis.Records) })
		time.Sleep(e.WatchdogTimeout)
		assert.Contains(t, logged.String(), " lock=plain ")
		assert.Contains(t, logged.String(), ` lock="with \"quotes\"" `)
		assert.Contains(t, logged.String(), ` lock="`+long[:64]+"… (200 bytes)\" ")
	})
}

// Close returns after its log lines were written, even if the handler is slow.
func TestCloseReturnsAfterItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := false
		handler := locktest.HandlerFunc(func(slog.Record) error {
			time.Sleep(report.CloseTime / 2)
			logged = true
			return nil
		})
		e := locktest.AbandonedBubbleEngine(t, fakeredis.New(), WithLogger(slog.New(handler)))
		e.Lock(1)
		require.NoError(t, e.Close())
		assert.True(t, logged, "the lock that is held, before Close returned")
	})
}

// A slow hold is logged with the stack that acquired it, and a slow wait with the holder, whatever process it is in.
func TestSlowLocksAreLogged(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for name, lock := range map[string]func(c *Client, name string) Locker{
			"lock": locktest.NewPlainLock, "fair": locktest.NewFairLock, "write": locktest.NewWriteLock,
			"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 1) },
		} {
			t.Run(name, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				var held, waited locktest.LockedBuffer
				logTo := func(w *locktest.LockedBuffer) Option { return WithLogger(slog.New(slog.NewTextHandler(w, nil))) }
				holder := b.Client(WithHoldWarning(shortWarning), logTo(&held))
				waiter := b.Client(WithWaitWarning(shortWarning), logTo(&waited))
				owner := ContextWithOwner(ctx)
				b.Must(lock(holder, b.LockName).Lock(owner))
				got := make(chan error, 2)
				owners := []context.Context{ContextWithOwner(owner), ContextWithOwner(owner)}
				for _, o := range owners {
					go func() { got <- lock(waiter, b.LockName).Lock(o) }()
				}
				testredis.Await(b, "both are logged", locktest.Soon, func() bool {
					return strings.Count(held.String(), "\n") >= 2 && strings.Contains(waited.String(), "waiters=2")
				})
				assert.Equal(t, map[LockType]time.Duration{LockType(name): 0}, ignoreTimes(t, holder.Slowest().Hold))
				assert.Equal(t, map[LockType]time.Duration{LockType(name): 0}, ignoreTimes(t, waiter.Slowest().Wait))
				assert.Empty(t, waiter.Slowest().Hold)
				b.Must(lock(holder, b.LockName).Unlock(owner))
				for range owners {
					b.Must(<-got)
					for _, o := range owners {
						_ = lock(waiter, b.LockName).Unlock(o)
					}
				}

				lines := held.String()
				for _, text := range []string{"level=WARN", "type=" + name, b.LockName, "TestSlowLocksAreLogged", "report_test.go",
					"Lock"} {
					assert.Contains(t, lines, text)
				}
				assert.NotContains(t, lines, "internal/engine.", "frames that tell nothing")
				lines = waited.String()
				for _, text := range []string{"level=WARN", "type=" + name, b.LockName, "waited=", "client " + holder.ID()[:8]} {
					assert.Contains(t, lines, text)
				}
				assert.NotContains(t, lines, "unknown")
				assert.NotContains(t, lines, holder.ID(), "part of a holder ID")
			})
		}
	})
}

// ignoreTimes checks that all times are positive, and returns them as 0.
func ignoreTimes(t *testing.T, all map[LockType]time.Duration) map[LockType]time.Duration {
	for kind, d := range all {
		assert.Positive(t, d, kind)
		all[kind] = 0
	}
	return all
}

// A hook that panics while a Client looks for the holder of a lock is no panic of the program, which could not recover
// it: no goroutine of the user looks. The wait is logged without a holder.
func TestPanicOfAHookInALookupIsRecovered(t *testing.T) {
	t.Parallel()
	addr := testredis.Mini(t).Addr()
	b := locktest.NewBench(t, addr)
	var log locktest.LockedBuffer
	rdb := testredis.Client(t, addr)
	rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == any(record.Script("any_inspect").Digest()) {
			panic("a hook")
		}
	}))
	c := b.ClientOn(rdb, WithWaitWarning(shortWarning), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	holder, ctx := b.Client().NewLock(b.LockName), ContextWithOwner(ctx)
	b.Must(holder.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- c.NewLock(b.LockName).Lock(ctx) }()
	testredis.Await(b, "the wait is logged", locktest.Soon, func() bool { return strings.Contains(log.String(), "waiters=1") })
	assert.Contains(t, log.String(), "a hook of the Redis client panicked")
	b.Must(holder.Unlock(ctx))
	b.Must(<-got)
	b.Must(c.NewLock(b.LockName).Unlock(ctx))
}

// A term is meant to last: that is what an election is for. What that changes is in internal/engine/slow_test.go.
func TestElectionsAreNotSlow(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c, none := b.Client(), Slowest{Hold: map[LockType]time.Duration{}, Wait: map[LockType]time.Duration{}}
	term := campaign(b, c.NewElection(b.LockName))
	assert.Equal(t, none, c.Slowest())
	assert.Equal(t, none, (*Client)(nil).Slowest())
	b.Must(term.Resign(ctx))
}
