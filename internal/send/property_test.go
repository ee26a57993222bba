//go:build go1.25

package send

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A moody server answers late, loses answers, and runs requests late. It is a Transport and a Bounder.
type moody struct {
	calm bool // it only answers late

	mu   sync.Mutex // guards below
	rand *rand.Rand
	runs map[string][]time.Time // when the requests with a key have run
}

func (m *moody) n(below int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rand.IntN(below)
}

func (m *moody) ms(below int) time.Duration { return time.Duration(m.n(below)) * time.Millisecond }

// runsAfter runs a request after d, without an answer.
func (m *moody) runsAfter(d time.Duration, key string) { time.AfterFunc(d, func() { m.ran(key) }) }

func (m *moody) ran(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[key] = append(m.runs[key], time.Now())
}

// try returns the outcome of one try, which takes most at most; 0: there is no limit.
func (m *moody) try(key string, most time.Duration) (any, error) {
	delay := m.ms(3)
	if m.n(4) == 0 {
		delay = m.ms(2500)
	}
	if most > 0 && delay > most {
		if m.n(2) == 0 {
			m.runsAfter(delay, key)
		}
		time.Sleep(most)
		return nil, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	}
	time.Sleep(delay / 2)
	kind := 0
	if !m.calm {
		kind = m.n(12)
	}
	switch kind {
	case 1:
		return nil, refusal("LOADING Redis is loading")
	case 2:
		return nil, refusal("NOPERM x")
	case 3:
		return nil, &net.OpError{Op: "dial", Err: io.EOF}
	case 4:
		m.ran(key)
		return nil, io.EOF
	case 5:
		m.runsAfter(m.ms(5000), key)
		return nil, io.EOF
	case 6: // a connection that hangs
		m.runsAfter(m.ms(8000), key)
		time.Sleep(ConnectTime)
		return nil, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	}
	m.ran(key)
	time.Sleep(delay / 2)
	return []any{key}, nil
}

func (m *moody) Run(_ context.Context, c Call, _ bool) (any, error) { return m.try(c.Keys[0], 0) }

func (m *moody) RunAll(_ context.Context, calls []Call, _ bool) []Outcome {
	outcomes := make([]Outcome, len(calls))
	var all sync.WaitGroup
	for i, c := range calls {
		all.Go(func() { outcomes[i].Answer, outcomes[i].Err = m.try(c.Keys[0], 0) })
	}
	all.Wait()
	return outcomes
}

func (m *moody) Bound() time.Duration { return MinWait }

func (m *moody) Probe(string) {}

func (m *moody) RunBounded(_ context.Context, _ time.Time, c Call) (any, error, bool) {
	if m.n(10) == 0 {
		return nil, nil, false
	}
	answer, err := m.try(c.Keys[0], MinWait)
	return answer, err, true
}

// Whatever becomes of the tries of a request, its Answer does not hide one: those that run after the caller has left
// are Orphans, whose outcomes are handed in, or Lost. A success has run since Sent, and all that may have run beside it
// is Unknown. A failure that has run nevertheless is Unknown or Abandoned.
func TestAnswerTellsOfAllTries(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			m := &moody{rand: rand.New(rand.NewPCG(seed, 1)), runs: make(map[string][]time.Time)}
			m.calm = m.n(2) == 0
			b := newBench(t, func(c *Config) {
				c.Transport, c.Batch, c.Idle = m, m.n(2) == 0, func(string) int { return 1 }
				if m.n(2) == 0 {
					c.Bounded = m
				}
			})
			b.isFast()
			if m.n(2) == 0 {
				b.BatchAll()
			}
			var all sync.WaitGroup
			for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
				all.Go(func() { b.asksMoody(m, key) })
			}
			all.Wait()
			b.idle()
		})
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// asksMoody sends one request, and checks its Answer when all of its tries have ended.
func (b *bench) asksMoody(m *moody, key string) {
	time.Sleep(m.ms(5))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := b.wait(ctx)
	w.OnCaller, w.NoWait = m.n(2) == 0, m.n(4) == 0
	switch m.n(4) {
	case 0:
		time.AfterFunc(m.ms(3000), cancel)
	case 1:
		w.Deadline = time.Now().Add(m.ms(3000))
	}
	late, began := new(orphans), time.Now()
	r := request(key)
	r.OnOrphan = late
	var a Answer
	if m.n(4) == 0 {
		a = b.Once(w, r)
	} else {
		a = b.Do(w, r, time.Time{})
	}
	ended := time.Now()
	time.Sleep(time.Minute)

	m.mu.Lock()
	defer m.mu.Unlock()
	var before, after, since int // runs
	for _, at := range m.runs[key] {
		switch {
		case at.After(ended):
			after++
		case !at.Before(a.Sent):
			since++
			fallthrough
		default:
			before++
		}
	}
	assert.Len(b.t, late.all(), a.Orphans, "orphans: %+v", a)
	assert.LessOrEqual(b.t, after, a.Orphans+a.Lost, "runs after the caller has left: %+v", a)
	switch {
	case a.Err == nil:
		assert.False(b.t, a.Sent.Before(began) || a.Abandoned, "%+v", a)
		assert.Positive(b.t, since, "runs since the try was sent: %+v", a)
		assert.LessOrEqual(b.t, before+after-1, a.Unknown, "runs beside the answer: %+v", a)
	case before+after > 0:
		assert.True(b.t, a.Unknown > 0 || a.Abandoned, "it has run: %+v", a)
	}
}
