package relock

// The lookout: how waiters in the line notice a lock that became free without a release.
//
// No script passes on a lock whose lease ends, or whose record is deleted. Its waiters would sleep. So would one whose place
// in the line was deleted, or who does not know that a Java service holds the lock by now. One goroutine looks for all of
// them, with one request for many locks, and wakes the waiters of locks that are free: they ask.
//
// Rules: each lock that a process waits for in a line is looked at once in a max wake delay. A process that has more
// than nearHead places in front of it looks more seldom: else more looks would be made the more wait. All looks of a
// process are at most mostLooks requests a second: with many thousands of locks a round takes longer. Whether a record
// was replaced by something that no lock makes, or a waiter is not told of its release, or was granted it by a message
// that was lost, costs more to find out: of many locks a few are looked at closely each time, at random, and all those
// whose waiters listen on a connection that has not answered its last ping. The goroutine ends when no caller waits.
// Where Redis does not answer, or refuses, the waiters are woken: they ask for themselves.

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

const (
	mostLooks   = 90  // requests a second
	nearHead    = 32  // places of a line whose clients look at it each time
	locksOfLook = 200 // in one request
	closeLooks  = 25  // locks a second

	// rareAsk is how often a waiter asks that stands in a line. The line forgets a client after three of these.
	rareAsk = 100 * time.Second
)

var freeInspect = script("free_inspect")

type lookout struct {
	engine *engine

	mu      sync.Mutex           // guards below; a leaf
	waiters map[string][]sleeper // by the name of the lock
	running bool
}

// A sleeper is a waiter in a line.
type sleeper struct {
	wake  chan struct{}
	ahead int            // places in front of it, when it last asked
	field string         // with which it waits
	hears *wake.Listener // of the channel of grants
}

// watch has the caller woken when the lock called name is free, until stop is called.
func (l *lookout) watch(name string, s sleeper) (stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiters == nil {
		l.waiters = make(map[string][]sleeper)
	}
	l.waiters[name] = append(l.waiters[name], s)
	if !l.running {
		l.running = true
		l.engine.workers.Spawn(l.run)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		all := l.waiters[name]
		if at := slices.IndexFunc(all, func(other sleeper) bool { return other.wake == s.wake }); at >= 0 {
			all = slices.Delete(all, at, at+1)
		}
		if l.waiters[name] = all; len(all) == 0 {
			delete(l.waiters, name)
		}
	}
}

// run looks until no caller waits, or the Client is closed.
func (l *lookout) run() {
	idle := false
	defer func() {
		if !idle { // the Client is closed, or a hook of the Redis client has ended the goroutine
			l.end()
		}
	}()
	for {
		looks := l.looks()
		if idle = len(looks) == 0 && l.endIfIdle(); idle {
			return
		}
		if len(looks) == 0 {
			looks = [][]string{nil} // none is due
		}
		pause := max(l.engine.maxWakeDelay/time.Duration(len(looks)), time.Second/mostLooks)
		for _, names := range looks {
			if l.engine.waitOptionsFor(context.Background()).sleep(nil, nil, pause) != nil {
				return
			}
			if len(names) > 0 {
				l.look(names, int(closeLooks*pause.Seconds()+rand.Float64()))
			}
		}
	}
}

func (l *lookout) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
}

// endIfIdle says whether no caller waits. Then the next caller starts another goroutine.
func (l *lookout) endIfIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = len(l.waiters) > 0
	return !l.running
}

// isDue says whether to look this time at a lock that these wait for. One of those near the head of a line notices that the
// lock is free; where all of them have died, another one does, later.
func isDue(waiters []sleeper) bool {
	ahead := slices.MinFunc(waiters, func(a, b sleeper) int { return cmp.Compare(a.ahead, b.ahead) }).ahead
	return ahead < nearHead || rand.IntN(ahead/nearHead+1) == 0
}

// looks are the names of the locks to look at this time, as many in each list as one request can look at.
func (l *lookout) looks() (all [][]string) {
	slots := l.engine.servers.Moves()
	groups := make(map[string][]string) // by slot
	l.mu.Lock()
	for name, waiters := range l.waiters { // in random order
		if !isDue(waiters) {
			for i := range waiters { // those in front may be gone by now
				waiters[i].ahead -= waiters[i].ahead / 8
			}
			continue
		}
		slot := ""
		if slots {
			slot = slotPart(name)
		}
		groups[slot] = append(groups[slot], name)
	}
	l.mu.Unlock()
	for _, names := range groups {
		all = append(all, slices.Collect(slices.Chunk(names, locksOfLook))...)
	}
	return all
}

// look wakes the waiters of those locks that are free, or, as far as they are looked at closely, no locks any more, or
// released without telling this process, or granted to it by a message that was lost.
func (l *lookout) look(names []string, closely int) {
	names, waiters, doubtful := l.doubtfulFirst(names)
	closely = min(max(closely, doubtful), len(names))
	keys, spare, args := slices.Clone(names), make([]send.Spare, closely), []any{closely, l.engine.id}
	for i, name := range names[:closely] {
		spare[i].Key = len(keys)
		keys = append(keys, lineKey(name))
		fields := " "
		for _, s := range waiters[name] {
			fields += s.field + " "
		}
		args = append(args, fields)
	}
	answer := l.engine.sender.Do(&l.engine.waitOptionsFor(context.Background()).Wait,
		send.Request{Call: call{Script: freeInspect, Keys: keys, Spare: spare, Args: args}}, time.Time{})
	found, err := answer.Replies()
	if err != nil {
		l.wake(names...)
		return
	}
	for _, r := range found {
		if n := int(r[1]); n >= 1 && n <= len(names) {
			l.wake(names[n-1])
		}
	}
}

// doubtfulFirst returns names with those first whose waiters may have missed a message, the number of these, and the
// waiters of all.
func (l *lookout) doubtfulFirst(names []string) (sorted []string, waiters map[string][]sleeper, doubtful int) {
	waiters = make(map[string][]sleeper, len(names))
	l.mu.Lock()
	for _, name := range names {
		waiters[name] = slices.Clone(l.waiters[name])
	}
	l.mu.Unlock()
	silence := max(send.MinWait, 4*l.engine.rtt.Get()) // longer than an answer takes
	var rest []string
	for _, name := range names {
		if slices.ContainsFunc(waiters[name], func(s sleeper) bool { return s.hears != nil && s.hears.IsSilent(silence) }) {
			sorted = append(sorted, name)
		} else {
			rest = append(rest, name)
		}
	}
	return append(sorted, rest...), waiters, len(sorted)
}

func (l *lookout) wake(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		for _, s := range l.waiters[name] {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
}

// awaits is how long a waiter in the line of the lock sleeps at most, and has it looked after meanwhile, until stop is
// called. field is that with which it waits, hears its channel of grants, and g the last answer.
func (l *lookout) awaits(name, field string, hears *wake.Listener, g result) (delay time.Duration, stop func()) {
	e := l.engine
	if g.wait >= 0 && g.wait < e.maxWakeDelay {
		return e.pollDelay(g.wait), func() {}
	}
	return rareAsk - rand.N(rareAsk/5), l.watch(name, sleeper{hears.Wake, g.ahead, field, hears})
}
