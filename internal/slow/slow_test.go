//go:build go1.25

package slow

import (
	"context"
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

	mu          sync.Mutex // guards below
	held, waits []*thing
	holder      func(ctx context.Context) string // nil: it is not known
	asked       int
	stuck       []func() // reports that were not called, while the Logger hangs
	hangs       bool
	lines       []string
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

func (h *host) Held(f func(*thing, time.Duration))    { h.each(&h.held, f) }
func (h *host) Waiting(f func(*thing, time.Duration)) { h.each(&h.waits, f) }
func (*host) Name(x *thing) string                    { return x.name }
func (*host) Owner(x *thing) string                   { return x.owner }

func (h *host) Holder(ctx context.Context, _ *thing) string {
	h.asked++
	if h.holder == nil {
		return ""
	}
	return h.holder(ctx)
}

func (h *host) OldHold(x *thing, held time.Duration) {
	h.locked(func() { h.lines = append(h.lines, x.name+" held by "+x.owner+" for "+held.String()) })
}

// waiting makes these the waits, which the Watch is told of.
func (h *host) waiting(w *Watch[*thing], all ...*thing) {
	h.locked(func() { h.waits = all })
	w.Begins()
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

func TestOldHoldsAreReportedWhileThereAreAny(t *testing.T) {
	t.Parallel()
	inBubble(t, time.Second, 0, func(w *Watch[*thing], h *host) {
		x, y := &thing{name: "x", owner: "one"}, &thing{name: "y", owner: "two", since: -300 * time.Millisecond}
		h.locked(func() { h.held = []*thing{x, y} })
		assert.Zero(t, w.AtWork())
		w.Begins()
		assert.EqualValues(t, 1, w.AtWork())
		pass(2*time.Second - 1)
		assert.Equal(t, []string{"y held by two for 1.3s", "x held by one for 1s"}, h.told(), "each once, the oldest first")
		h.locked(func() { h.held = []*thing{y} })
		pass(time.Minute)
		assert.Len(t, h.told(), 5, "y after 2, 4, 8, 16 and 32 seconds")
		h.locked(func() { h.held = nil })
		pass(time.Second)
		assert.Zero(t, w.AtWork(), "nothing is held")
	})
}

func TestLongWaitsOfANameAreOneLine(t *testing.T) {
	t.Parallel()
	inBubble(t, 0, time.Second, func(w *Watch[*thing], h *host) {
		h.locked(func() {
			h.held = []*thing{{name: "x", owner: "one"}, {name: "x", owner: "two"}, {name: "y", owner: "three"}}
		})
		h.waiting(w, &thing{name: "x"}, &thing{name: "x", since: 100 * time.Millisecond})
		assert.EqualValues(t, 1, w.AtWork())
		pass(3 * time.Second)
		assert.Equal(t, []string{
			"x awaited for 1s, held by one, and 1 more here", "x awaited for 2s, held by one, and 1 more here",
		}, h.told())
		assert.Zero(t, h.asked, "the holders are of this process")
		h.locked(func() { h.waits = nil })
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
		h.waiting(w, &thing{name: "x"})
		pass(time.Second + lookupTime - 1)
		assert.Empty(t, h.told())
		pass(1)
		assert.Equal(t, []string{"x awaited for 1s, held by another process"}, h.told())
		h.locked(func() { h.waits = nil })
		pass(time.Second)
		assert.Zero(t, w.AtWork())
	})
}

// A call that begins to wait when the goroutine is about to end finds that there is one, and it goes on.
func TestNoWaitIsOverlookedAtTheEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, 0, time.Second, func(w *Watch[*thing], h *host) {
		w.walking.Store(true)
		h.waiting(w, &thing{name: "x"})
		assert.False(t, w.stop(), "a call has begun to wait since the last look")
		assert.EqualValues(t, 1, w.AtWork())
		h.locked(func() { h.waits = nil })
		assert.True(t, w.stop())
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
		w.Begins()
		pass(10 * time.Minute)
		for _, line := range h.stuck {
			line()
		}
		told := strings.Join(h.told(), "\n")
		assert.LessOrEqual(t, strings.Count(told, "held by"), report.MostLines)
		assert.LessOrEqual(t, strings.Count(told, "more"), 10, "once for each time that the ages double")
	})
}

// Without the options there is no goroutine.
func TestWatchCostsNothingWithoutLimits(t *testing.T) {
	inBubble(t, 0, 0, func(w *Watch[*thing], _ *host) {
		assert.Zero(t, testing.AllocsPerRun(100, w.Begins))
		assert.Zero(t, w.AtWork())
	})
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
