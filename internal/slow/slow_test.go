//go:build go1.25

package slow

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/report"
)

// A thing is a hold, or what a call that waits is to get.
type thing struct {
	name, owner string
	since       time.Duration
}

// A host is a Host in virtual time.
type host struct {
	began time.Time
	life  context.Context

	mu           sync.Mutex // guards below
	held, queued []*thing
	holder       func(ctx context.Context) string // nil: it is not known
	asked        int
	stuck        []func() // reports that were not called, while the Logger hangs
	hangs        bool
	lines        []string
	stacks       [][]uintptr
}

func (h *host) locked(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *host) each(of *[]*thing, f func(*thing, time.Duration)) {
	h.locked(func() {
		for _, x := range *of {
			f(x, x.since)
		}
	})
}

func (h *host) Held(f func(*thing, time.Duration))   { h.each(&h.held, f) }
func (h *host) Queued(f func(*thing, time.Duration)) { h.each(&h.queued, f) }
func (*host) Name(x *thing) string                   { return x.name }
func (*host) Owner(x *thing) string                  { return x.owner }

func (h *host) Holder(ctx context.Context, _ *thing) string {
	h.asked++
	if h.holder == nil {
		return ""
	}
	return h.holder(ctx)
}

func (h *host) OldHold(x *thing, held time.Duration, stack []uintptr) {
	h.locked(func() {
		h.lines = append(h.lines, x.name+" held by "+x.owner+" for "+held.String())
		h.stacks = append(h.stacks, stack)
	})
}

func (h *host) LongWait(w LongWait[*thing]) {
	h.locked(func() {
		h.lines = append(h.lines, w.First.name+" awaited for "+w.Waited.String()+", held by "+w.Holder)
	})
}

func (h *host) Omitted(int) { h.locked(func() { h.lines = append(h.lines, "more") }) }

// told returns the lines since the last call.
func (h *host) told() (lines []string) {
	h.locked(func() { lines, h.lines = h.lines, nil })
	return lines
}

func (h *host) Later(line func()) {
	if h.hangs {
		h.stuck = append(h.stuck, line)
		return
	}
	line()
}

func (h *host) now() time.Duration { return time.Since(h.began) }

func (h *host) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

// inBubble calls f with a Watch in virtual time, which is closed afterwards.
func inBubble(t *testing.T, hold, wait time.Duration, f func(w *Watch[*thing], h *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		h := &host{began: time.Now(), life: ctx}
		f(New(Config{
			Hold: hold, Wait: wait, Life: ctx, Now: h.now, Pause: h.pause, Later: h.Later,
			Spawn: func(job func()) { go job() },
		}, h), h)
	})
}

// pass lets time pass, until all that then happens has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestOldHoldIsReportedWithItsStack(t *testing.T) {
	t.Parallel()
	inBubble(t, time.Second, 0, func(w *Watch[*thing], h *host) {
		x, y := &thing{name: "x", owner: "one"}, &thing{name: "y", owner: "two", since: 300 * time.Millisecond}
		h.locked(func() { h.held = []*thing{y, x} })
		w.Note(x, []uintptr{1})
		w.Note(x, []uintptr{2}) // of a re-entry
		pass(2*time.Second - 1)
		assert.Equal(t, []string{"x held by one for 1s", "y held by two for 1.2s"}, h.told(), "each once")
		assert.Equal(t, [][]uintptr{{1}, nil}, h.stacks)
		w.Forget(x)
		stacks, waits := w.Kept()
		assert.Zero(t, stacks)
		assert.Zero(t, waits)
		h.locked(func() { h.held = []*thing{y} })
		pass(time.Minute)
		assert.Len(t, h.told(), 5, "y after 2, 4, 8, 16 and 32 seconds")
	})
}

func TestLongWaitsOfANameAreOneLine(t *testing.T) {
	t.Parallel()
	inBubble(t, 0, time.Second, func(w *Watch[*thing], h *host) {
		x := &thing{name: "x"}
		var wait Wait[*thing]
		w.List(&wait, x, 0)
		h.locked(func() {
			h.queued = []*thing{{name: "x", since: 100 * time.Millisecond}, {name: "x", since: 200 * time.Millisecond}}
			h.held = []*thing{{name: "x", owner: "one"}, {name: "x", owner: "two"}, {name: "y", owner: "three"}}
		})
		assert.Zero(t, w.AtWork())
		w.Begins()
		assert.EqualValues(t, 1, w.AtWork())
		pass(3 * time.Second)
		assert.Equal(t, []string{
			"x awaited for 1s, held by one, and 1 more here", "x awaited for 2s, held by one, and 1 more here",
		}, h.told())
		assert.Zero(t, h.asked, "the holders are of this process")
		w.Strike(&wait)
		w.Strike(&wait)
		h.locked(func() { h.queued, h.held = nil, nil })
		pass(time.Second)
		assert.Zero(t, w.AtWork(), "nobody waits")
		assert.Empty(t, h.told())
	})
}

// The holder is asked for while the call waits, for a limited time, and by the goroutine of the Watch.
func TestHolderIsLookedUpForAMoment(t *testing.T) {
	t.Parallel()
	inBubble(t, 0, time.Second, func(w *Watch[*thing], h *host) {
		h.holder = func(ctx context.Context) string { <-ctx.Done(); return "another process" }
		var wait Wait[*thing]
		w.List(&wait, &thing{name: "x"}, 0)
		w.Begins()
		pass(time.Second + lookupTime - 1)
		assert.Empty(t, h.told())
		pass(1)
		assert.Equal(t, []string{"x awaited for 1s, held by another process"}, h.told())
		w.Strike(&wait)
		pass(time.Second)
		assert.Zero(t, w.AtWork())
	})
}

// A call that begins to wait when the goroutine is about to end finds that there is one, and it goes on.
func TestNoWaitIsOverlookedAtTheEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, 0, time.Second, func(w *Watch[*thing], h *host) {
		w.walking.Store(true)
		var wait Wait[*thing]
		w.List(&wait, &thing{name: "x"}, 0)
		assert.False(t, w.walk.stop(), "a call has begun to wait since the last walk")
		assert.EqualValues(t, 1, w.AtWork())
		w.Strike(&wait)
		assert.True(t, w.walk.stop())
		assert.Zero(t, w.AtWork())
	})
}

// A Logger that hangs makes the Watch count lines, and not collect them.
func TestLoggerThatHangsGetsFewLines(t *testing.T) {
	t.Parallel()
	inBubble(t, time.Second, 0, func(w *Watch[*thing], h *host) {
		h.hangs = true
		h.locked(func() {
			for range 100 {
				h.held = append(h.held, &thing{name: "x", owner: "one"})
			}
		})
		pass(10 * time.Minute)
		for _, line := range h.stuck {
			line()
		}
		told := strings.Join(h.told(), "\n")
		assert.LessOrEqual(t, strings.Count(told, "held by"), report.MostLines)
		assert.LessOrEqual(t, strings.Count(told, "more"), 10, "once for each time that the ages double")
	})
}

// Without the options there is neither a goroutine nor memory.
func TestWatchCostsNothingWithoutLimits(t *testing.T) {
	inBubble(t, 0, 0, func(w *Watch[*thing], h *host) {
		w.Begins()
		w.Forget(&thing{})
		assert.Zero(t, w.AtWork())
		assert.Nil(t, w.stacks)
		assert.Nil(t, w.waits)
		x := &thing{name: "x"}
		var wait Wait[*thing]
		w.List(&wait, x, 0) // Client.Slowest looks at it
		w.Strike(&wait)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			w.List(&wait, x, 0)
			w.Begins()
			w.Strike(&wait)
			w.Forget(x)
		}))
	})
}

// A call that ends its wait takes no other one off the list, whatever the order.
func TestStrikeLeavesTheOtherWaits(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		w := New(Config{}, new(host))
		var waits [3]Wait[*thing]
		left := map[*thing]bool{}
		for i := range waits {
			x := &thing{name: "x"}
			left[x] = true
			w.List(&waits[i], x, 0)
		}
		for _, i := range order {
			delete(left, waits[i].of)
			w.Strike(&waits[i])
			got := map[*thing]bool{}
			for _, wait := range w.listed() {
				got[wait.of] = true
			}
			assert.Equal(t, left, got, "%v after %d", order, i)
		}
	}
}

// Calls that wait for Redis begin and end their waits at the same time, in any order: each is in the list while it
// waits.
func TestWaitsForRedisAreListedWhileTheyLast(t *testing.T) {
	t.Parallel()
	w := New(Config{}, new(host))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var wait Wait[*thing]
			for since := range 2000 * time.Nanosecond {
				x := new(thing)
				w.List(&wait, x, since)
				if since%3 == 0 {
					w.List(&wait, x, since)
				}
				if since%5 == 0 {
					w.Strike(&wait)
					continue
				}
				assert.True(t, slices.ContainsFunc(w.listed(), func(l Wait[*thing]) bool { return l.of == x && l.since == since }))
				w.Strike(&wait)
				w.Strike(&wait)
			}
		})
	}
	all.Wait()
	assert.Empty(t, w.listed())
}

func TestCrossed(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, c := range []struct {
		before, after time.Duration
		want          bool
	}{
		{0, s - 1, false}, {s - 1, s, true}, {s, s + 1, false}, {s, 2*s - 1, false}, {s, 2 * s, true},
		{2 * s, 4*s - 1, false}, {3 * s, 5 * s, true}, {0, 100 * s, true}, {64 * s, 100 * s, false}, {-s, s, true},
		{1<<63 - 2, 1<<63 - 1, false}, {0, 1<<63 - 1, true},
	} {
		assert.Equal(t, c.want, crossed(s, c.before, c.after), "from %v to %v", c.before, c.after)
	}
	assert.False(t, crossed(1<<62, 0, 1<<62-1))
	assert.True(t, crossed(1<<62, 0, 1<<62), "no overflow")
}
