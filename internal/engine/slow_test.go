//go:build go1.25

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
)

// A slowLog has the reports of slow locks.
type slowLog struct {
	logged
	stuck chan struct{} // a report waits until it is closed; nil: it does not wait

	mu      sync.Mutex // guards below
	began   time.Time
	holds   []slowLine
	waits   []SlowWait
	at      []time.Duration // when each line came
	omitted []int
}

type slowLine struct {
	Subject
	held  time.Duration
	stack []uintptr
}

func newSlowLog() *slowLog {
	return &slowLog{logged: logged{slog.New(slog.DiscardHandler)}, began: time.Now()}
}

func (l *slowLog) add(f func()) {
	if l.stuck != nil {
		<-l.stuck
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Since(l.began))
	f()
}

func (l *slowLog) SlowHold(s Subject, held time.Duration, stack []uintptr) {
	l.add(func() { l.holds = append(l.holds, slowLine{s, held, stack}) })
}
func (l *slowLog) SlowWait(w SlowWait) { l.add(func() { l.waits = append(l.waits, w) }) }
func (l *slowLog) SlowOmitted(n int)   { l.add(func() { l.omitted = append(l.omitted, n) }) }

// lines returns the numbers of lines so far.
func (l *slowLog) lines() (holds, waits, omitted int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.omitted {
		omitted += n
	}
	return len(l.holds), len(l.waits), omitted
}

func (l *slowLog) oldHolds() []slowLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.holds)
}

func (l *slowLog) longWaits() []SlowWait {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.waits)
}

func (l *slowLog) times() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.at)
}

// reporting makes an engine report slow locks to l. With 0 it does not report holds, or waits.
func reporting(l *slowLog, hold, wait time.Duration) with {
	return func(c *Config) { c.Events, c.HoldWarning, c.WaitWarning = l, hold, wait }
}

// inSlowBubble runs f on an engine that reports slow locks.
func inSlowBubble(t *testing.T, hold, wait time.Duration, f func(e *bubbleEngine, l *slowLog), all ...with) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newSlowLog()
		f(joinBubbleEngine(t, fakeredis.New(), "client", append(all, reporting(l, hold, wait))...), l)
	})
}

// pass lets time pass, until all that then happens has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// lockNamed acquires the lock called name.
func (e *bubbleEngine) lockNamed(name string, o Owner) *fakeLock {
	e.t.Helper()
	l := newFakeLock(e.redis, name)
	ok, err := e.acquire(ctx, l, o, Request{Wait: forever})
	require.NoError(e.t, err)
	require.True(e.t, ok)
	return l
}

// lockLater calls lock on another goroutine, and returns when it waits.
func (e *bubbleEngine) lockLater(o Owner) (got <-chan struct{}) {
	done := e.locking(o)
	synctest.Wait()
	return done
}

func TestOldHoldIsReportedWheneverItsAgeDoubles(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, time.Second, 0, func(e *bubbleEngine, l *slowLog) {
		e.lock(1)
		pass(700 * time.Millisecond)
		e.lock(1) // a re-entry does not begin anew
		pass(10*time.Second - 700*time.Millisecond)
		e.unlock(1)
		e.unlock(1)
		pass(time.Minute)
		require.Len(t, l.oldHolds(), 4, "1s, 2s, 4s and 8s")
		for i, line := range l.oldHolds() {
			least := time.Second << i
			assert.Equal(t, Subject{"x", "lock", 1}, line.Subject)
			assert.True(t, least <= line.held && line.held < least+1001*time.Millisecond, "line %d after %v", i, line.held)
			assert.Less(t, l.times()[i]-line.held, 10*time.Millisecond, "the line comes while the lock is held")
		}
	})
}

func TestOldHoldHasTheStackThatAcquiredIt(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, time.Second, 0, func(e *bubbleEngine, l *slowLog) {
		e.lockNamed("x", 1)
		e.lock(1) // not this one
		pass(2 * time.Second)
		inEngine := runtime.CallersFrames(l.oldHolds()[0].stack)
		_, _ = inEngine.Next() // of Engine.Acquire
		first, _ := inEngine.Next()
		assert.Contains(t, first.Function, "bubbleEngine).acquire", "the caller of Engine.Acquire comes next")
		all := ""
		for frames, more := runtime.CallersFrames(l.oldHolds()[0].stack), true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			all += f.Function + "\n"
		}
		assert.Contains(t, all, "lockNamed")
		assert.Contains(t, all, "TestOldHoldHasTheStackThatAcquiredIt")
		e.unlock(1)
		e.unlock(1)
	})
}

// The age of a hold is that of its owner, and not that of the record which several owners have handed on.
func TestHandedOffHoldHasAnAgeOfItsOwn(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, time.Second, 0, func(e *bubbleEngine, l *slowLog) {
		e.lock(1)
		second := e.lockLater(2)
		pass(900 * time.Millisecond)
		e.unlock(1)
		<-second
		pass(900 * time.Millisecond)
		assert.Empty(t, l.oldHolds())
		pass(700 * time.Millisecond)
		require.Len(t, l.oldHolds(), 1)
		assert.Equal(t, Owner(2), l.oldHolds()[0].Owner)
		assert.NotEmpty(t, l.oldHolds()[0].stack)
		e.unlock(2)
	}, withWindow(time.Minute))
}

// A hold whose answer came late is as old as the answer: no owner worked under the lock before.
func TestLateAnswerMakesNoOldHold(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, time.Second, 0, func(e *bubbleEngine, l *slowLog) {
		e.redis.Set(func() { e.redis.Latency = 900 * time.Millisecond })
		e.lock(1)
		e.redis.Set(func() { e.redis.Latency = 0 })
		pass(900 * time.Millisecond)
		assert.Empty(t, l.oldHolds())
		holds, _ := e.Slowest()
		assert.Equal(t, map[string]time.Duration{"lock": 900 * time.Millisecond}, holds)
		e.unlock(1)
	})
}

// A term of an election lasts, and its candidates wait: neither is slow.
func TestLocksThatLastAreNotSlow(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, time.Second, time.Second, func(e *bubbleEngine, l *slowLog) {
		term := newFakeLock(e.redis, "term")
		term.traits.Lasting = true
		for o := range Owner(2) {
			go func() { _, _ = e.acquire(ctx, term, o+1, Request{Wait: forever}) }()
			synctest.Wait()
		}
		pass(time.Minute)
		assert.Empty(t, l.times())
		holds, waits := e.Slowest()
		assert.Empty(t, holds)
		assert.Empty(t, waits)
		for o := range Owner(2) {
			e.giveBack(term, o+1)
			synctest.Wait()
		}
	})
}

func TestLongWaitsAreOneLineForEachName(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, 0, time.Second, func(e *bubbleEngine, l *slowLog) {
		e.lock(1)
		var all []<-chan struct{}
		for o := range Owner(20) {
			all = append(all, e.lockLater(o+2))
		}
		pass(10 * time.Second)
		require.Len(t, l.longWaits(), 4, "1s, 2s, 4s and 8s")
		for i, line := range l.longWaits() {
			assert.Equal(t, "x", line.Name)
			assert.Equal(t, 20, line.Waiters)
			assert.Equal(t, "goroutine 1 of this process holds it", line.Holder)
			least := time.Second << i
			assert.True(t, least <= line.Waited && line.Waited < least+1001*time.Millisecond, "line %d after %v", i, line.Waited)
		}
		_, waits := e.Slowest()
		assert.Equal(t, map[string]time.Duration{"lock": 10 * time.Second}, waits)
		for o, done := range all {
			e.unlock(Owner(o + 1))
			<-done
		}
		e.unlock(21)
		_, waits = e.Slowest()
		assert.Empty(t, waits, "calls that have returned")
		pass(time.Minute)
		assert.Len(t, l.longWaits(), 4, "lines after the end")
	})
}

// The holder is looked up by the Watch: a caller neither waits for it nor notices that it hangs.
func TestHolderIsLookedUpWithoutTheWaiter(t *testing.T) {
	t.Parallel()
	asked := 0
	lookup := func(c *Config) {
		c.Holder = func(ctx context.Context, s Subject) string {
			asked++
			<-ctx.Done()
			return "goroutine 7 of elsewhere"
		}
	}
	inSlowBubble(t, 0, time.Second, func(e *bubbleEngine, l *slowLog) {
		other := joinBubbleEngine(e.t, e.redis, "other")
		other.lock(7)
		done := e.lockLater(1)
		pass(1100 * time.Millisecond) // in the middle of the lookup
		synctest.Wait()
		assert.Equal(t, 1, asked)
		start := time.Now()
		other.unlock(7)
		<-done
		assert.Zero(t, time.Since(start), "the waiter waits for the lookup")
		pass(2 * time.Second) // as long as it may take
		require.Len(t, l.longWaits(), 1)
		assert.Equal(t, "goroutine 7 of elsewhere", l.longWaits()[0].Holder)
		e.unlock(1)
	}, lookup)
}

// A lookup in which a hook ends the goroutine ends no other warning.
func TestLookupThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	asked := 0
	inSlowBubble(t, 0, time.Second, func(e *bubbleEngine, l *slowLog) {
		other := joinBubbleEngine(e.t, e.redis, "other")
		other.lock(7)
		done := e.lockLater(1)
		pass(4100 * time.Millisecond)
		assert.Equal(e.t, 3, asked)
		assert.Len(e.t, l.longWaits(), 2, "after 2 and 4 seconds")
		other.unlock(7)
		<-done
		pass(1001 * time.Millisecond)
		assert.Zero(e.t, e.slowWalkers())
		e.unlock(1)
	}, func(c *Config) {
		c.Holder = func(context.Context, Subject) string {
			if asked++; asked == 1 {
				runtime.Goexit()
			}
			return "goroutine 7 of elsewhere"
		}
	})
}

// The last calls that wait for a lock get it while its holder is looked up. Calls that wait for it an hour later are
// reported like the first ones.
func TestLaterWaitsAreReportedLikeTheFirst(t *testing.T) {
	t.Parallel()
	var lookup atomic.Pointer[func()]
	inSlowBubble(t, 0, time.Second, func(e *bubbleEngine, l *slowLog) {
		other := joinBubbleEngine(e.t, e.redis, "other")
		for range 2 {
			before := len(l.longWaits())
			other.lock(7)
			done := e.lockLater(1)
			pass(15 * time.Second)
			assert.Len(e.t, l.longWaits(), before+4, "after 1, 2, 4 and 8 seconds")
			ends := func() {
				other.unlock(7)
				<-done
			}
			lookup.Store(&ends)
			pass(2 * time.Second)
			<-done
			e.unlock(1)
			pass(time.Hour)
			assert.Len(e.t, l.longWaits(), before+5, "after 16 seconds")
			assert.Zero(e.t, e.slowWalkers())
		}
	}, func(c *Config) {
		c.Holder = func(context.Context, Subject) string {
			if ends := lookup.Swap(nil); ends != nil {
				(*ends)()
			}
			return ""
		}
	})
}

// A lookup that hangs does not delay Close.
func TestCloseEndsALookup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newSlowLog()
		e := abandonedBubbleEngine(t, fakeredis.New(), reporting(l, 0, time.Second), func(c *Config) {
			c.Holder = func(ctx context.Context, _ Subject) string { <-ctx.Done(); return "" }
		})
		other := joinBubbleEngine(e.t, e.redis, "other")
		other.lock(7)
		e.lockNamed("kept", 3)
		go func() { _, _ = e.lockWith(ctx, 1, Request{Wait: forever}) }()
		pass(1100 * time.Millisecond)
		start := time.Now()
		assert.NoError(t, e.Close())
		assert.Zero(t, time.Since(start))
		holds, waits := e.Slowest()
		assert.Empty(t, holds, "after Close")
		assert.Empty(t, waits, "after Close")
		other.unlock(7)
	})
}

// Only while a call waits is there a goroutine that looks for long waits, and every call that waits is seen by one.
func TestLongWaitsAreWatchedWhileCallersWait(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, 0, time.Second, func(e *bubbleEngine, l *slowLog) {
		other := joinBubbleEngine(e.t, e.redis, "other")
		for range 2 {
			for _, holder := range []*bubbleEngine{e, other} { // the caller waits in the local queue, or for Redis
				holder.lock(7)
				_, before, _ := l.lines()
				done := e.lockLater(1)
				assert.EqualValues(e.t, 1, e.slowWalkers())
				pass(1501 * time.Millisecond)
				_, after, _ := l.lines()
				assert.Equal(e.t, before+1, after)
				holder.unlock(7)
				<-done
				_, waits := e.Slowest()
				assert.Empty(e.t, waits, "it holds the lock")
				e.unlock(1)
				pass(1001 * time.Millisecond)
				assert.Zero(e.t, e.slowWalkers())
				assert.Zero(e.t, e.atWork()-holder.atWork(), "goroutines")
			}
		}
	})
}

// A panic of a hook, which ends the call, leaves no wait behind.
func TestPanicEndsTheWait(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, 0, time.Second, func(e *bubbleEngine, l *slowLog) {
		other := joinBubbleEngine(e.t, e.redis, "other")
		other.lock(7)
		asked := 0
		e.fail(func(verb string) fakeredis.Fault {
			if verb == "acquire" {
				asked++
			}
			return fakeredis.Fault{Panics: asked == 5}
		})
		_, err := e.lockWith(ctx, 1, Request{Wait: forever})
		assert.NotNil(t, send.PanicOf(err))
		e.heal()
		assert.NotEmpty(t, l.longWaits(), "it has waited")
		_, waits := e.Slowest()
		assert.Empty(t, waits)
		other.unlock(7)
	})
}

// The attack: ten thousand holds become old at the same moment, again and again.
func TestTenThousandOldHoldsAreTenLinesASecond(t *testing.T) {
	t.Parallel()
	const holds = 10_000
	inSlowBubble(t, time.Second, 0, func(e *bubbleEngine, l *slowLog) {
		var all []*fakeLock
		pass(100 * time.Millisecond) // so that one look finds all of them
		for i := range holds {
			all = append(all, e.lockNamed(fmt.Sprint("lock", i), 1))
			if i == 3 {
				pass(100 * time.Millisecond)
			}
		}
		pass(9 * time.Second) // 1s, 2s, 4s, 8s
		lines, _, omitted := l.lines()
		assert.Equal(t, 4*holds, lines+omitted, "every hold is reported or counted, four times")
		times := l.times()
		for i := report.MostLines; i < len(times); i++ {
			assert.GreaterOrEqual(t, times[i]-times[i-report.MostLines], time.Second, "lines %d to %d", i-report.MostLines, i)
		}
		assert.Greater(t, lines, 20, "lines about holds")
		for i, line := range l.oldHolds()[:4] {
			assert.Contains(t, []string{"lock0", "lock1", "lock2", "lock3"}, line.Name, "line %d: the oldest come first", i)
		}
		for _, lock := range all {
			e.giveBack(lock, 1)
		}
	})
}

// A Logger that hangs makes the engine count lines, and not collect them.
func TestLoggerThatHangsCollectsNoLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newSlowLog()
		l.stuck = make(chan struct{})
		e := joinBubbleEngine(t, fakeredis.New(), "client", reporting(l, time.Second, 0))
		for i := range 100 {
			e.lockNamed(fmt.Sprint("lock", i), 1)
		}
		pass(10 * time.Minute)
		close(l.stuck)
		pass(time.Second)
		lines, _, _ := l.lines()
		assert.LessOrEqual(t, lines, report.MostLines+2)
		for i := range 100 {
			e.giveBack(newFakeLock(e.redis, fmt.Sprint("lock", i)), 1)
		}
	})
}

// Without the options there is nothing that could cost anything.
func TestSlowLocksCostNothingWithoutTheOptions(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(hold{}), uintptr(416), "the size class of a hold")
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client")
		assert.Zero(t, e.atWork(), "goroutines")
		e.lock(1)
		done := e.lockLater(2)
		assert.Zero(t, e.slowWalkers())
		e.unlock(1)
		<-done
		e.unlock(2)
	})
	e, lock := &Engine{Config: Config{}}, newFakeLock(nil, "x")
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		e.noteStack(nil)
		startSpan(e, ctx, lock, 1).finish(nil, nil)
	}))
}

// A call has waited since it first had to wait, wherever it has waited since: for another goroutine of its owner, in the
// local queue, or for Redis.
func TestWaitIsAsOldAsItsFirstPart(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]Owner{"another owner": 2, "another goroutine of the owner": 1} {
		t.Run(name, func(t *testing.T) {
			inSlowBubble(t, 0, time.Hour, func(e *bubbleEngine, _ *slowLog) {
				other := joinBubbleEngine(e.t, e.redis, "other")
				other.lock(7)
				ctx, cancel := context.WithCancel(ctx)
				gaveUp := begin(func() {
					_, err := e.lockWith(ctx, first, Request{Wait: forever})
					assert.ErrorIs(e.t, err, context.Canceled)
				})
				synctest.Wait()
				done := e.lockLater(1)
				pass(time.Minute)
				cancel()
				<-gaveUp
				pass(time.Minute)
				_, waits := e.Slowest()
				for _, waited := range waits {
					assert.Equal(e.t, 2*time.Minute, waited)
				}
				assert.Len(e.t, waits, 1)
				other.unlock(7)
				<-done
				e.unlock(1)
			})
		})
	}
}

// A call that begins to wait when the goroutine is about to end finds that there is one, and another one follows.
func TestNoWaitIsOverlookedAtTheEnd(t *testing.T) {
	t.Parallel()
	inSlowBubble(t, 0, time.Hour, func(e *bubbleEngine, _ *slowLog) {
		w := slowWatch{Engine: e.Engine}
		e.lock(1)
		e.slowWalks.Store(true)
		got := e.lockLater(2)
		w.run()
		assert.EqualValues(t, 1, e.slowWalkers())
		e.unlock(1)
		<-got
		pass(2 * slowPause)
		assert.Zero(t, e.slowWalkers())
		e.unlock(2)
	})
}
