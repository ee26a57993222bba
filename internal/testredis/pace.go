package testredis

// How many tests run together on a machine that is busy with other work.
//
// The tests of a lock mostly wait, so many of them run together, and a quiet machine has time for all. On a busy one
// they would take it from one another: answers would come after seconds, and leases would end before their renewals. So
// this process measures how late it is, and a test begins only while it is not.
//
// Rules: a test that has begun does not wait here again, but its subtests do. A few tests always run together. A test
// that waits for its subtests takes no time, and does not count. No test waits for long: those that have begun may wait
// for a subtest that has not come here yet.

import (
	"flag"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	fewest     = 4                     // tests that always run together
	paceTick   = 10 * time.Millisecond // how often this process looks how late it is
	perTick    = 4                     // tests that begin until it has looked again
	onTime     = 15 * time.Millisecond // a process that is less late has time for another test
	paceMemory = 16                    // ticks in which a lateness is forgotten for the most part
	longest    = 15 * time.Second      // for which a test waits
)

var pacer = pace{begun: map[string]bool{}, ahead: map[string]int{}}

// A pace lets tests begin.
type pace struct {
	mu      sync.Mutex // guards below
	begun   map[string]bool
	ahead   map[string]int // how many subtests of a test, at all depths, have begun or wait
	waiting []waitingTest
	late    time.Duration // how late this process was, lately
	perTick int           // tests that have begun since the last tick
	ticking bool
}

type waitingTest struct {
	name  string
	since time.Time
	begin chan struct{} // closed when it has begun
}

// Enter returns when the machine has time for t. Start, Mini and what builds on them call it; a test whose subtests
// share a server calls it in each of them.
func Enter(t testing.TB) {
	if isTest(t) && pacer.enter(t.Name()) {
		t.Cleanup(func() { pacer.leave(t.Name()) })
	}
}

// ManyAtOnce makes many parallel tests run at the same time, however few processors there are, because they mostly
// wait. The TestMain of a package with such tests calls it. The flag -parallel takes precedence.
func ManyAtOnce() {
	flag.Parse()
	if !IsSet("test.parallel") {
		_ = flag.Set("test.parallel", testsAtOnce)
	}
}

// IsSet reports whether the command line has the flag called name.
func IsSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// isTest reports whether t is one, and does not only imitate it.
func isTest(t testing.TB) bool {
	switch t.(type) {
	case *testing.T, *testing.B, *testing.F:
		return true
	}
	return false
}

// enter returns when the test called name has begun. It returns false if it has before.
func (p *pace) enter(name string) bool {
	p.mu.Lock()
	if p.begun[name] {
		p.mu.Unlock()
		return false
	}
	for parent := range parents(name) {
		p.ahead[parent]++
	}
	w := waitingTest{name, time.Now(), make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.beginLocked()
	if !p.ticking {
		p.ticking = true
		go p.tick()
	}
	p.mu.Unlock()
	<-w.begin
	return true
}

func (p *pace) leave(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.begun, name)
	for parent := range parents(name) {
		if p.ahead[parent]--; p.ahead[parent] == 0 {
			delete(p.ahead, parent)
		}
	}
	p.beginLocked()
}

// parents yields the names of the tests that the test called name is a subtest of.
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range name {
			if c == '/' && !yield(name[:i]) {
				return
			}
		}
	}
}

// beginLocked lets tests begin for which there is time.
func (p *pace) beginLocked() {
	for len(p.waiting) > 0 {
		working := 0
		for name := range p.begun {
			if p.ahead[name] == 0 {
				working++
			}
		}
		if working >= fewest && (p.late > onTime || p.perTick >= perTick) &&
			time.Since(p.waiting[0].since) < longest {
			return
		}
		// Subtests come first, because others wait for them.
		next := max(0, slices.IndexFunc(p.waiting, func(w waitingTest) bool {
			root, _, sub := strings.Cut(w.name, "/")
			return sub && p.begun[root]
		}))
		w := p.waiting[next]
		p.waiting = slices.Delete(p.waiting, next, next+1)
		p.begun[w.name] = true
		p.perTick++
		close(w.begin)
	}
}

// tick measures how late this process is, until no test is left.
func (p *pace) tick() {
	for {
		start := time.Now()
		time.Sleep(paceTick)
		late := time.Since(start) - paceTick
		p.mu.Lock()
		p.late = max(late, p.late-p.late/paceMemory)
		p.perTick = 0
		p.beginLocked()
		if p.ticking = len(p.begun)+len(p.waiting) > 0; !p.ticking {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}
