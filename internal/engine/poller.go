package engine

// How waiters in the line notice a lock that became free without a release: what internal/poller asks Redis for them.
//
// Rules: a waiter in the line sleeps for long, and the poller of its Client looks meanwhile. Whether a record
// was replaced by something that no lock makes, or a waiter is not told of its release, or was granted it by a message
// that was lost, costs more to find out: these locks are looked at closely, in the line too.

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// rareAsk is how often a waiter asks that stands in a line. The line forgets a client after three of these.
const rareAsk = 100 * time.Second

// looking is what the poller asks of an engine, and a waiter of the poller.
type looking struct{ *Engine }

// newPoller makes the poller of e, which looks by requests of e.
func (e looking) newPoller() *poller.Poller {
	return poller.New(poller.Config{
		Every:   e.PollInterval,
		Spawn:   e.workers.Spawn,
		Sleep:   func(d time.Duration) error { return e.Pause(context.Background(), d) },
		Group:   e.Group,
		Silence: func() time.Duration { return max(send.MinWait, 4*e.rtt.Get()) }, // longer than an answer takes
		Look:    e.freeOf,
	})
}

// freeOf returns those of names whose locks are free, or, as far as fields has the fields of their waiters, no locks
// any more, or released without telling this process, or granted to it by a message that was lost.
func (e looking) freeOf(names []string, fields [][]string) (free []string, err error) {
	answer := e.sender.Do(&e.waitOptionsFor(context.Background()).Wait, send.Request{Call: e.Free(names, fields)}, time.Time{})
	found, err := answer.Replies()
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		if n := int(r[1]); n >= 1 && n <= len(names) {
			free = append(free, names[n-1])
		}
	}
	return free, nil
}

// awaitInLine is how long a waiter in the line of the lock sleeps at most, and has it looked after meanwhile, until
// stop is called. field is that with which it waits, hears its channel of grants, and g the last answer.
func (e looking) awaitInLine(name, field string, hears *wake.Listener, g Answer) (delay time.Duration, stop func()) {
	if g.Wait >= 0 && g.Wait < e.PollInterval {
		return e.PollDelay(g.Wait), func() {}
	}
	w := poller.Waiter{Wake: hears.Wake, Ahead: g.Standing.ahead(), Field: field, Hears: hears}
	return rareAsk - rand.N(rareAsk/5), e.poller.Watch(name, w)
}
