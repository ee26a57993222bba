package testredis

// How many tests run together on a machine that is busy with other work.
//
// The tests of a lock mostly wait, so many of them run together, and a quiet machine has time for all. On a busy one
// they would take it from one another: answers would come after seconds, and leases would end before their renewals. So
// this process measures how late it is, and a test begins only while it is not. A bound of the time that something takes
// is longer by the same measure (Scale).
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
	ticks   []time.Time // when it has looked, since it is ticking
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

// Scale returns most, the longest that something may take which began at start in a test that has begun, for a machine
// that is as slow as this one was since. Until then a process that is in time has looked how late it is once in each
// paceTick. On a machine that is not busy it has, and the result is hardly more than most.
func Scale(start time.Time, most time.Duration) time.Duration {
	return pacer.scale(start, time.Now(), most)
}

func (p *pace) scale(start, end time.Time, most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ticking {
		return most
	}
	if start.Before(p.ticks[0]) {
		start = p.ticks[0]
	}
	first, _ := slices.BinarySearchFunc(p.ticks, start, time.Time.Compare)
	last, _ := slices.BinarySearchFunc(p.ticks, end, time.Time.Compare)
	due := float64(end.Sub(start)) / float64(paceTick)
	return time.Duration(float64(most) * max(1, due/float64(last-first+1)))
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
		p.ticking, p.ticks = true, []time.Time{time.Now()}
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
		p.perTick, p.ticks = 0, append(p.ticks, start.Add(paceTick+late))
		p.beginLocked()
		if p.ticking = len(p.begun)+len(p.waiting) > 0; !p.ticking {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}
