package engine

// Polling: how waiters in the line notice a lock that has become free without a release, for example because a lease
// has expired. internal/poller decides when to look, and this file has the request.
//
// Rules: a waiter with a place in the line sleeps for a long time, and the poller of its Client looks at the lock
// meanwhile. Three things cost Redis more to find out: whether the key holds something that is not a lock, whether the
// waiter will not be told of the release, and whether the lock was granted to the waiter by a message that was lost.
// They are checked only for the locks that the poller looks at closely; for these the request also reads the line.

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// RareAsk is the longest time between two attempts of a waiter with a place in the line. Redis forgets a line that no
// client has joined for five minutes (line_life in internal/lua/forms.lua), so two attempts may be lost.
const RareAsk = 100 * time.Second

// newPoller returns the poller of e.
func (e *Engine) newPoller() *poller.Poller {
	return poller.New(poller.Config{
		Every: e.PollInterval,
		Spawn: e.workers.Spawn,
		Sleep: func(d time.Duration) error { return e.Pause(context.Background(), d) },
		Group: e.Group,
		Look:  e.freeOf,
	})
}

// freeOf asks Redis about the locks called names, and returns those that are free. The first closely locks are looked
// at closely: of these, freeOf also returns those whose waiters have to make an attempt for one of the reasons at the
// top of this file.
func (e *Engine) freeOf(names []string, closely int) (free []string, err error) {
	op := e.waitOptionsFor(context.Background())
	op.NoWait, op.Patient = true, true // after a few refusals, for example while a slot moves, the waiters ask
	answer := e.sender.Do(&op.Wait, send.Request{Call: e.Free(names, closely)}, time.Time{})
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

// awaitInLine returns how long a waiter with a place in the line of the lock called name sleeps at most. Meanwhile the
// poller looks at the lock, until stop is called, which returns what it has found. grants is the channel of the waiter,
// and res is the last answer.
func (e *Engine) awaitInLine(
	name string,
	grants *wake.Listener,
	res Answer,
) (delay time.Duration, stop func() poller.Look) {
	if res.Wait >= 0 && res.Wait < min(e.PollInterval, RareAsk) {
		return e.PollDelay(res.Wait), func() poller.Look { return poller.Look{} }
	}
	isDeaf := func() bool { return grants.IsSilent(max(send.MinWait, 4*e.rtt.Get())) } // longer than an answer takes
	w := poller.Waiter{Wake: grants.Wake, Ahead: res.Standing.Ahead(), IsDeaf: isDeaf}
	return RareAsk - rand.N(RareAsk/5), e.poller.Watch(name, w)
}

// PollDelay returns how long a waiter sleeps if nothing wakes it: until the current holder's lease, which lasts for
// lease from now on, has expired, but no longer than the poll interval. A negative lease means that no lease is known;
// the waiter then sleeps for about the poll interval. The delay is random within bounds, so that the waiters of many
// processes do not ask at the same moment.
func (e *Engine) PollDelay(lease time.Duration) time.Duration {
	if lease < 0 || lease >= e.PollInterval {
		return e.PollInterval - rand.N(e.PollInterval/5+1)
	}
	return min(lease+time.Millisecond+rand.N(10*time.Millisecond), e.PollInterval)
}
