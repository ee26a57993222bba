//go:build go1.25

package engine

// Properties of the wait queue: random use, compared with models that are simpler than the code.
//
// Rules: a test draws its steps first, and plays them in a bubble of synctest afterwards, so that rapid can shrink a
// failure. It records what happens at which time, and checks that in the end.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var properties = seeds.New("engine")

// inBubbleOf plays f in a bubble, and fails rt with the error of f.
func inBubbleOf(t *testing.T, rt *rapid.T, f func(t *testing.T) error) {
	var wrong error
	synctest.Test(t, func(t *testing.T) { wrong = f(t) })
	require.NoError(rt, wrong)
}

// A visitor is an owner that enters some wait queues together.
type visitor struct {
	queues   []int // in order
	after    time.Duration
	stay     time.Duration
	patience time.Duration // 0: it waits for as long as it takes
}

// An owner can enter several wait queues together. One that is admitted is alone behind each of them. Every visitor
// without a deadline is admitted, even if other owners enter one of the queues again and again without a pause. A
// visitor with a deadline gives up in time. Visitors of a single queue are admitted in the order in which they came. A
// visitor that waits in one queue keeps another queue only for a moment, which is twice as long each time. Nothing is
// left in the end.
func TestQueuesOfSeveralNamesAreEnteredTogether(t *testing.T) {
	const most = 3 // the number of queues
	stays := []time.Duration{0, 5 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond}
	visitors := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) visitor {
		var v visitor
		for g := range most {
			if rapid.Bool().Draw(rt, "queue") {
				v.queues = append(v.queues, g)
			}
		}
		if len(v.queues) == 0 {
			v.queues = []int{0}
		}
		v.after = time.Duration(rapid.IntRange(0, 300).Draw(rt, "after")) * time.Millisecond
		v.stay = rapid.SampledFrom(stays).Draw(rt, "stay")
		if rapid.IntRange(0, 2).Draw(rt, "impatient") == 0 {
			v.patience = time.Duration(rapid.IntRange(1, 30).Draw(rt, "patience")) * 37 * time.Millisecond
		}
		return v
	}), 1, 10)
	properties.Play(t, 1, func(q *seeds.Sequence) {
		q.SetRapid()
		rapid.Check(q.T, func(rt *rapid.T) {
			regulars := rapid.SampledFrom([]int{2, 0, 1}).Draw(rt, "regulars at each queue")
			stay := rapid.SampledFrom(stays[1:]).Draw(rt, "their stay")
			all := visitors.Draw(rt, "visitors")
			inline := rapid.SampledFrom([]time.Duration{0, send.ResendTime}).Draw(rt, "inline")
			q.Note(regulars, stay, all, inline)
			inBubbleOf(q.T, rt, func(t *testing.T) error {
				r := fakeredis.New()
				h := &house{
					bubbleEngine: joinSending(t, r, "client", send.Config{Transport: r, OnCallerTime: inline}),
					inside:       map[int]int{},
					passed:       map[int][]int{},
				}
				return h.receive(all, most, regulars, stay)
			})
		})
	})
}

// A house records which owners are behind the wait queues.
type house struct {
	*bubbleEngine

	mu     sync.Mutex    // guards below
	inside map[int]int   // by queue: the number of owners
	passed map[int][]int // by queue: the visitors of that queue alone, in the order in which they were admitted
	wrong  error
}

func (h *house) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wrong == nil {
		h.wrong = fmt.Errorf(format, args...)
	}
}

// A guest is a visitor that waits. It is a context, so that it notices when a wait begins.
type guest struct {
	context.Context
	house *house
	wants []target
	since time.Time // when the present series of waits with a kept queue began; zero: the last wait was without one
	kept  int       // the number of such series
	waits int       // the number of waits without a kept queue
}

// names returns the lock states of its targets, in order.
func (g *guest) names() (all lockStates) {
	for _, t := range g.wants {
		all = append(all, t.hold.lockState)
	}
	return all
}

func (g *guest) Done() <-chan struct{} {
	g.look()
	all := g.names()
	all.Lock()
	defer all.Unlock()
	switch {
	case !slices.ContainsFunc(g.wants, func(t target) bool { return t.hold.queue != nil }):
		g.since = time.Time{}
		g.waits++
	case g.since.IsZero():
		g.since = time.Now()
		if g.kept++; g.waits < 2*g.kept {
			g.house.fail("after %d waits a visitor keeps a queue for the %d. time", g.waits, g.kept)
		}
	}
	return g.Context.Done()
}

// look fails if a wait queue is kept for too long.
func (g *guest) look() {
	if g.since.IsZero() {
		return
	}
	if d := time.Since(g.since); d > reserveTime<<(g.kept-1) {
		g.house.fail("a visitor keeps a queue for %v, the %d. time", d, g.kept)
	}
}

// visit makes v enter, stay and leave. It returns an error if v was not admitted.
func (h *house) visit(ctx context.Context, number int, v visitor) error {
	g := &guest{Context: ctx, house: h}
	for _, at := range v.queues {
		g.wants = append(g.wants, h.wantsOf(Owner(number), fmt.Sprint(at))...)
	}
	defer func() {
		all := g.names()
		all.Lock()
		defer all.Unlock()
		leaveQueuesLocked(g.wants)
	}()
	op := waitsFor(g, time.Time{})
	if v.patience > 0 {
		op.Deadline = time.Now().Add(v.patience)
	}
	err := h.enterQueues(op, g.wants)
	g.look()
	if err != nil {
		return err
	}
	h.count(v, 1)
	if len(v.queues) == 1 {
		h.mu.Lock()
		h.passed[v.queues[0]] = append(h.passed[v.queues[0]], number)
		h.mu.Unlock()
	}
	time.Sleep(v.stay)
	h.count(v, -1)
	return nil
}

// count adds n to the number of owners behind each wait queue of v.
func (h *house) count(v visitor, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range v.queues {
		if h.inside[at] += n; h.inside[at] > 1 {
			h.wrong = fmt.Errorf("two owners are behind queue %d", at)
		}
	}
}

// receive makes all visit, while regulars enter again as soon as they have left.
func (h *house) receive(all []visitor, queues, regulars int, stay time.Duration) error {
	open, shut := context.WithCancel(context.Background())
	var visits, routine sync.WaitGroup
	for i := range queues * regulars {
		routine.Go(func() {
			for open.Err() == nil {
				_ = h.visit(
					context.Background(),
					len(all)+i,
					visitor{queues: []int{i % queues}, stay: stay + time.Duration(i)*time.Microsecond},
				)
			}
		})
	}
	for i, v := range all {
		visits.Go(func() {
			time.Sleep(v.after + time.Duration(i)*time.Nanosecond) // one after the other
			arrived := time.Now()
			ctx, enough := context.WithTimeout(context.Background(), 2*time.Minute)
			defer enough()
			err := h.visit(ctx, i, v)
			waited := time.Since(arrived)
			if err != nil && (err != errBypassQueue || v.patience == 0 || waited != v.patience) { // no owner was seen
				h.fail("visitor %d gave up after %v: %v", i, waited, err)
			}
		})
	}
	visits.Wait()
	shut()
	routine.Wait()
	for at, order := range h.passed {
		order = slices.DeleteFunc(order, func(i int) bool { return i >= len(all) })
		if !slices.IsSortedFunc(order, func(a, b int) int { return int(all[a].after - all[b].after) }) {
			h.fail("queue %d was passed in the order %v", at, order)
		}
	}
	if h.waitQueues() != 0 {
		h.fail("%d wait queues are left", h.waitQueues())
	}
	return h.wrong
}
