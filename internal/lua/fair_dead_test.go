package lua

// Waiters of a fair lock that have died, many at a time, and those behind them, on a clock of the test.

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lua/luatest"
)

// do makes a request without a look at the data, and returns its answer and its messages.
func (p *teller) do(command string, words ...string) luatest.Effect {
	keys, args := p.call(command, words)
	e, err := luatest.Run(p.Context(), p.rdb, luatest.NewQuiet(Source(command)), p.now, keys, args...)
	require.NoError(p, err)
	return e
}

const grants = "redisson_lock__channel:{lock}:client:"

// sleeper is a living waiter that asks when nextPoll says.
type sleeper struct {
	field string
	next  time.Time
	asked int
	got   bool
}

func (p *teller) ask(s *sleeper) {
	s.asked++
	e := p.do("fair_acquire", s.field, fmt.Sprintf("asked=%d", s.asked))
	if e.Reply[0] == int64(1) {
		s.got = true
		return
	}
	wait, standing := e.Reply[1].(int64), e.Reply[2].(int64)
	delay := 1005 * time.Millisecond
	if wait >= 0 && wait < 1000 {
		delay = time.Duration(wait+6) * time.Millisecond
	}
	s.next = p.now.Add(delay * time.Duration(1+standing/4/32))
}

// live plays living waiters for at most d, or until all have had the lock. Each releases it at once.
func (p *teller) live(d time.Duration, all ...*sleeper) (took time.Duration) {
	start := p.now
	for p.now.Sub(start) < d {
		var first *sleeper
		for _, s := range all {
			if !s.got && (first == nil || s.next.Before(first.next)) {
				first = s
			}
		}
		if first == nil {
			break
		}
		if first.next.After(p.now) {
			p.now = first.next
		}
		p.ask(first)
		if first.got {
			e := p.do("fair_release", first.field)
			for _, m := range e.Messages { // a grant that a living one hears
				for _, s := range all {
					if strings.Contains(m, p.value(s.field)) && strings.Contains(m, " grant ") {
						s.got = true
						p.do("fair_release", s.field)
					}
				}
			}
		}
	}
	return p.now.Sub(start)
}

// A process with many waiters dies at once. Redis knows that its connection is closed (or not: closed is false). A few
// living waiters are behind them.
func (p *teller) deadInFront(dead, living int, closed bool) time.Duration {
	p.do("fair_acquire", "A", "lease=20s")
	p.listen("subscribe", p.ears.Subscribe, grants+"D")
	for i := range dead {
		p.do("fair_acquire", fmt.Sprintf("D:1:%d", i+1))
	}
	var all []*sleeper
	for i := range living {
		letter := string(rune('L' + i))
		p.listen("subscribe", p.ears.Subscribe, grants+letter)
		s := &sleeper{field: letter + ":1:1"}
		p.now = p.now.Add(time.Duration(5000/living) * time.Millisecond)
		p.ask(s)
		all = append(all, s)
	}
	if closed {
		p.listen("unsubscribe", p.ears.Unsubscribe, grants+"D")
	}
	return p.live(30*time.Minute, all...)
}

// Those that live acquire the lock, however few they are and however rarely they ask.
func TestFairLivingWaitersBehindManyDead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dead, living int
		closed       bool
	}{{1010, 1, true}, {1010, 4, true}, {3000, 10, true}, {60, 1, false}, {200, 4, false}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			p := newTeller(t)
			assert.Less(t, p.deadInFront(c.dead, c.living, c.closed), 90*time.Second)
		})
	}
}
