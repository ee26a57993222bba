// Package poller finds out, for waiters in the wait queue of a lock in Redis (the line), that the lock has become
// free without a release.
//
// When a lease expires or a record is deleted, no script runs that could hand the lock off to the first waiter, so
// its waiters would sleep on. So would a waiter whose position in the line was deleted, or one that does not know
// that a Java service holds the lock by now. One goroutine polls for all of them, with one request for many locks,
// and wakes the waiters of the locks that are free. The waiters then make an attempt themselves.
//
// Rules:
//   - Each lock for which a process waits in a line is polled once in each poll interval. A process that has more
//     than NearHead positions ahead of it polls less often, because otherwise the number of requests would grow with
//     the number of waiters.
//   - All polls of a process are at most mostLooks requests per second. With many thousands of locks, or
//     with many hundreds in a Cluster, where each slot is a request, a round takes longer than a poll interval.
//     Otherwise one begins in each interval, and has all locks for which callers wait then.
//   - It costs more to find out that a record was replaced by a value that is not a lock, that the release would not
//     be announced to a waiter, or that the lock was granted to a waiter with a message that was lost. These closer
//     checks are made for a few locks each time, which are chosen at random, and for all locks whose waiters listen
//     on a connection that has not answered its last ping.
//   - A request without an answer delays no other one: the locks of a Cluster are on several servers, and one of them
//     may be down. A lock is in one request at a time.
//   - The goroutine ends when no caller waits.
//   - If Redis does not answer, or refuses the request, the waiters are woken and ask for themselves.
//   - Nothing is asked after the Client was closed.
//   - The Client decides how Redis is asked: a Poller knows only the names of locks and the functions of its Config.
//     Of these, only Spawn is called with the mutex held.
package poller

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// NearHead is the number of positions at the head of a line whose clients poll the lock each time.
const NearHead = 32

const (
	mostLooks   = 90  // requests per second
	locksOfLook = 200 // in one request
	closeLooks  = 25  // locks per second
)

// A Config describes how, and how often, a Poller asks Redis.
type Config struct {
	// Every is the poll interval: how often each lock is polled.
	Every time.Duration
	// Spawn runs a function on a goroutine. It must not block, and must not call the Poller itself.
	Spawn func(func())
	// Sleep sleeps. It returns an error if the Client is closed, and the goroutine of the Poller then ends.
	Sleep func(time.Duration) error
	// Group returns the group of a name. One request contains only names of one group.
	Group func(name string) string
	// Look asks Redis which of the locks are free. It checks the first closely locks more closely.
	Look func(names []string, closely int) (free []string, err error)
}

// A Poller polls the locks that callers wait for, and wakes the callers.
type Poller struct {
	config Config

	mu      sync.Mutex         // guards below; a leaf
	locks   map[string]*polled // that callers wait for, by their names
	running bool
}

// A polled is a lock that callers wait for.
type polled struct {
	waiters []Waiter
	latest  Look
	asked   bool // a request about it is under way
}

// A Look is what a Poller has found out of a lock since a caller waits for it.
type Look struct {
	Held  bool      // the last answer says that the lock is held
	Asked time.Time // since when the request has been without an answer, or has failed; zero: the last one was answered
}

// InDoubt reports whether the request has been without an answer for longer than patience, or failed longer ago.
func (l Look) InDoubt(now time.Time, patience time.Duration) bool {
	return !l.Asked.IsZero() && now.Sub(l.Asked) > patience
}

// A Waiter is a caller that waits in a line.
type Waiter struct {
	Wake  chan struct{} // must have room for one wake-up, and must belong to no other Waiter
	Ahead int           // the number of positions ahead of it at its last attempt
	// IsDeaf reports whether the Waiter may have missed a grant: it is not subscribed, or a ping of its connection has been
	// without an answer for long. It is called without the mutex held.
	IsDeaf func() bool
}

// New returns a Poller. It has a goroutine only while callers wait.
func New(config Config) *Poller { return &Poller{config: config, locks: make(map[string]*polled)} }

// Update replaces l by later, unless later is zero.
func (l *Look) Update(later Look) {
	if later != (Look{}) {
		*l = later
	}
}

// Watch arranges for the caller to be woken when the lock called name is free, until stop is called, which returns the
// last Look.
func (p *Poller) Watch(name string, s Waiter) (stop func() Look) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.locks[name]
	if of == nil {
		of = new(polled)
		p.locks[name] = of
	}
	of.waiters = append(of.waiters, s)
	if !p.running {
		p.running = true
		p.config.Spawn(p.run)
	}
	return func() Look {
		p.mu.Lock()
		defer p.mu.Unlock()
		of.waiters = slices.DeleteFunc(of.waiters, func(other Waiter) bool { return other.Wake == s.Wake })
		if len(of.waiters) == 0 && p.locks[name] == of {
			delete(p.locks, name)
		}
		return of.latest
	}
}

// Last returns the last Look at the lock called name, if callers wait for it.
func (p *Poller) Last(name string) (last Look) {
	p.each([]string{name}, func(_ string, of *polled) { last = of.latest })
	return last
}

// each calls f, with the mutex, for those of names that callers wait for.
func (p *Poller) each(names []string, f func(name string, of *polled)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if of := p.locks[name]; of != nil {
			f(name, of)
		}
	}
}

// run polls until no caller waits, or the Client is closed.
func (p *Poller) run() {
	ended := false
	defer func() {
		if !ended { // a hook of the Redis client has ended the goroutine
			p.config.Spawn(p.run)
		}
	}()
	const pause = time.Second / mostLooks
	for rest := p.config.Every; ; {
		if ended = p.config.Sleep(max(rest, pause)) != nil; ended {
			return
		}
		looks := p.looks() // after the sleep: of all locks for which callers wait now
		if ended = len(looks) == 0 && p.endIfIdle(); ended {
			return
		}
		rest = p.config.Every
		closely := closeLooks * max(rest.Seconds()/float64(len(looks)), pause.Seconds()) // a round may last longer than Every
		for _, names := range looks {
			if waiters := p.asks(names); len(waiters) > 0 {
				p.config.Spawn(func() { p.look(waiters, int(closely+rand.Float64())) })
			}
			if ended = p.config.Sleep(pause) != nil; ended {
				return
			}
			rest -= pause
		}
	}
}

// endIfIdle reports whether no caller waits. If so, the next caller starts another goroutine.
func (p *Poller) endIfIdle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = len(p.locks) > 0
	return !p.running
}

// isDue reports whether to poll a lock with these waiters this time. A waiter near the head of the line is enough to
// notice that the lock is free. If all of those have died, another waiter notices it later.
func isDue(waiters []Waiter) bool {
	return slices.ContainsFunc(waiters, func(w Waiter) bool { return rand.IntN(w.Ahead/NearHead+1) == 0 })
}

// looks returns the names of the locks to poll this time, in lists that each fit into one request.
func (p *Poller) looks() (all [][]string) {
	var due []string
	p.mu.Lock()
	for name, of := range p.locks { // in random order
		if isDue(of.waiters) {
			due = append(due, name)
			continue
		}
		for i := range of.waiters { // waiters ahead may have left since
			of.waiters[i].Ahead -= of.waiters[i].Ahead / 8
		}
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

// look wakes the waiters of those locks that are free. The first closely locks are checked for more: their waiters are
// also woken if the lock is no lock any more, would be released without a message to this process, or was granted to
// this process with a message that was lost.
func (p *Poller) look(waiters map[string][]Waiter, closely int) {
	names, doubtful := doubtfulFirst(waiters)
	defer p.each(names, func(_ string, of *polled) { of.asked = false }) // also when a hook of the Redis client ends the goroutine
	free, err := p.config.Look(names, min(max(closely, doubtful), len(names)))
	if err != nil {
		p.wake(names...)
		return
	}
	p.each(names, func(name string, of *polled) { of.latest = Look{Held: !slices.Contains(free, name)} })
	p.wake(free...)
}

// asks notes that Redis is about to be asked about names, except those in requests that are under way, and returns the
// waiters of these.
func (p *Poller) asks(names []string) (waiters map[string][]Waiter) {
	waiters = make(map[string][]Waiter, len(names))
	p.each(names, func(name string, of *polled) {
		if of.asked {
			return
		}
		waiters[name], of.asked = slices.Clone(of.waiters), true
		if of.latest.Asked.IsZero() {
			of.latest.Asked = time.Now()
		}
	})
	return waiters
}

// doubtfulFirst returns the names of locks with these waiters, those first whose waiters may have missed a message, and
// the number of these.
func doubtfulFirst(waiters map[string][]Waiter) (names []string, doubtful int) {
	for name, all := range waiters {
		names = append(names, name)
		if slices.ContainsFunc(all, func(s Waiter) bool { return s.IsDeaf() }) {
			names[doubtful], names[len(names)-1] = name, names[doubtful]
			doubtful++
		}
	}
	return names, doubtful
}

func (p *Poller) wake(names ...string) {
	p.each(names, func(_ string, of *polled) {
		for _, s := range of.waiters {
			select {
			case s.Wake <- struct{}{}:
			default:
			}
		}
	})
}

// Running reports whether p has a goroutine, and the number of locks that callers wait for. It is for tests.
func (p *Poller) Running() (running bool, locks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running, len(p.locks)
}
