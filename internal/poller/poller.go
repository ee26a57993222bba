// Package poller is how waiters in the line of a lock notice a lock that became free without a release.
//
// No script passes on a lock whose lease ends, or whose record is deleted. Its waiters would sleep. So would one whose
// place in the line was deleted, or who does not know that a Java service holds the lock by now. One goroutine looks
// for all of them, with one request for many locks, and wakes the waiters of locks that are free: they ask.
//
// Rules: each lock that a process waits for in a line is looked at once in a poll interval. A process that has more
// than NearHead places in front of it looks more seldom: else more looks would be made the more wait. All looks of a
// process are at most mostLooks requests a second: with many thousands of locks a round takes longer. Whether a record
// was replaced by something that no lock makes, or a waiter is not told of its release, or was granted it by a message
// that was lost, costs more to find out: of many locks a few are looked at closely each time, at random, and all those
// whose waiters listen on a connection that has not answered its last ping. The goroutine ends when no caller waits.
// Where Redis does not answer, or refuses, the waiters are woken: they ask for themselves. How Redis is asked is that
// of the Client: a Poller knows names, and the functions of its Config. None of these but Spawn is called with the
// mutex held.
package poller

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// NearHead is how many first places of a line have clients that look at it each time.
const NearHead = 32

const (
	mostLooks   = 90  // requests a second
	locksOfLook = 200 // in one request
	closeLooks  = 25  // locks a second
)

// A Config says how often a Poller looks, and how.
type Config struct {
	// Every is how often each lock is looked at.
	Every time.Duration
	// Spawn runs a function on a goroutine. It does not block, and does not call the Poller itself.
	Spawn func(func())
	// Sleep sleeps. It returns an error if the Client is closed: then the goroutine of the Poller ends.
	Sleep func(time.Duration) error
	// Group is the group of a name. One request asks for names of one group.
	Group func(name string) string
	// Silence is for how long a connection may leave a ping without an answer before it counts as silent.
	Silence func() time.Duration
	// Look asks Redis which of the locks are free. It looks closely at the first ones, as many as fields has: these are
	// the fields with which the callers of this process wait for each of them.
	Look func(names []string, fields [][]string) (free []string, err error)
}

// A Poller looks after the locks that callers wait for, and wakes the callers.
type Poller struct {
	config Config

	mu      sync.Mutex          // guards below; a leaf
	waiters map[string][]Waiter // by the name of the lock
	running bool
}

// A Waiter is a caller that waits in a line.
type Waiter struct {
	Wake  chan struct{} // has room for one token; it is that of no other Waiter
	Ahead int           // places in front of it, when it last asked
	Field string        // with which it waits
	Hears Connection    // on which it hears of grants; or nil
}

// A Connection is one on which messages of Redis arrive.
type Connection interface {
	// IsSilent reports whether a message may have been missed: the Waiter is not subscribed, or a ping of the
	// connection has had no answer for so long.
	IsSilent(silence time.Duration) bool
}

// New returns a Poller. It has a goroutine only while callers wait.
func New(config Config) *Poller { return &Poller{config: config} }

// Watch has the caller woken when the lock called name is free, until stop is called.
func (p *Poller) Watch(name string, s Waiter) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiters == nil {
		p.waiters = make(map[string][]Waiter)
	}
	p.waiters[name] = append(p.waiters[name], s)
	if !p.running {
		p.running = true
		p.config.Spawn(p.run)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		all := p.waiters[name]
		if at := slices.IndexFunc(all, func(other Waiter) bool { return other.Wake == s.Wake }); at >= 0 {
			all = slices.Delete(all, at, at+1)
		}
		if p.waiters[name] = all; len(all) == 0 {
			delete(p.waiters, name)
		}
	}
}

// run looks until no caller waits, or the Client is closed.
func (p *Poller) run() {
	idle := false
	defer func() {
		if !idle { // the Client is closed, or a hook of the Redis client has ended the goroutine
			p.end()
		}
	}()
	for {
		looks := p.looks()
		if idle = len(looks) == 0 && p.endIfIdle(); idle {
			return
		}
		if len(looks) == 0 {
			looks = [][]string{nil} // none is due
		}
		pause := max(p.config.Every/time.Duration(len(looks)), time.Second/mostLooks)
		for _, names := range looks {
			if p.config.Sleep(pause) != nil {
				return
			}
			if len(names) > 0 {
				p.look(names, int(closeLooks*pause.Seconds()+rand.Float64()))
			}
		}
	}
}

func (p *Poller) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
}

// endIfIdle reports whether no caller waits. Then the next caller starts another goroutine.
func (p *Poller) endIfIdle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = len(p.waiters) > 0
	return !p.running
}

// isDue reports whether to look this time at a lock that these wait for. One of those near the head of a line notices
// that the lock is free; where all of them have died, another one does, later.
func isDue(waiters []Waiter) bool {
	ahead := slices.MinFunc(waiters, func(a, b Waiter) int { return cmp.Compare(a.Ahead, b.Ahead) }).Ahead
	return ahead < NearHead || rand.IntN(ahead/NearHead+1) == 0
}

// looks are the names of the locks to look at this time, as many in each list as one request can look at.
func (p *Poller) looks() (all [][]string) {
	var due []string
	p.mu.Lock()
	for name, waiters := range p.waiters { // in random order
		if !isDue(waiters) {
			for i := range waiters { // those in front may be gone by now
				waiters[i].Ahead -= waiters[i].Ahead / 8
			}
			continue
		}
		due = append(due, name)
	}
	p.mu.Unlock()
	groups := make(map[string][]string)
	for _, name := range due {
		group := p.config.Group(name)
		groups[group] = append(groups[group], name)
	}
	for _, names := range groups {
		all = append(all, slices.Collect(slices.Chunk(names, locksOfLook))...)
	}
	return all
}

// look wakes the waiters of those locks that are free, or, as far as they are looked at closely, no locks any more, or
// released without telling this process, or granted to it by a message that was lost.
func (p *Poller) look(names []string, closely int) {
	names, waiters, doubtful := p.doubtfulFirst(names)
	closely = min(max(closely, doubtful), len(names))
	fields := make([][]string, closely)
	for i, name := range names[:closely] {
		for _, s := range waiters[name] {
			fields[i] = append(fields[i], s.Field)
		}
	}
	free, err := p.config.Look(names, fields)
	if err != nil {
		p.wake(names...)
		return
	}
	p.wake(free...)
}

// doubtfulFirst returns names with those first whose waiters may have missed a message, the number of these, and the
// waiters of all.
func (p *Poller) doubtfulFirst(names []string) (sorted []string, waiters map[string][]Waiter, doubtful int) {
	waiters = make(map[string][]Waiter, len(names))
	p.mu.Lock()
	for _, name := range names {
		waiters[name] = slices.Clone(p.waiters[name])
	}
	p.mu.Unlock()
	silence := p.config.Silence()
	var rest []string
	for _, name := range names {
		if slices.ContainsFunc(waiters[name], func(s Waiter) bool { return s.Hears != nil && s.Hears.IsSilent(silence) }) {
			sorted = append(sorted, name)
		} else {
			rest = append(rest, name)
		}
	}
	return append(sorted, rest...), waiters, len(sorted)
}

func (p *Poller) wake(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		for _, s := range p.waiters[name] {
			select {
			case s.Wake <- struct{}{}:
			default:
			}
		}
	}
}

// Running reports whether p has a goroutine, and for how many locks callers wait. It is for tests.
func (p *Poller) Running() (running bool, locks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running, len(p.waiters)
}
