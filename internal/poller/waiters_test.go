//go:build go1.25

package poller

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pollerBench has a Poller whose Redis finds no lock free, unless the test says otherwise.
type pollerBench struct {
	*Poller
	mu      sync.Mutex // guards below
	names   [][]string // of each request
	closely []int      // of each request
	free    []string
	err     error // of each request
	closed  error // of each Sleep
}

func newPollerBench() *pollerBench {
	b := new(pollerBench)
	b.Poller = New(Config{
		Every: time.Second,
		Spawn: func(f func()) { go f() },
		Sleep: func(d time.Duration) error {
			time.Sleep(d)
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.closed
		},
		Group: func(string) string { return "" },
		Look: func(names []string, closely int) ([]string, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.names, b.closely = append(b.names, names), append(b.closely, closely)
			return b.free, b.err
		},
	})
	return b
}

// set calls f while the goroutine of the Poller does nothing.
func (b *pollerBench) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// close ends the goroutine of the Poller.
func (b *pollerBench) close() {
	b.set(func() { b.closed = errors.New("closed") })
	rounds(2)
}

// polls returns the names of the requests since the last call, and how many were looked at closely.
func (b *pollerBench) polls() (names [][]string, closely []int) {
	b.set(func() {
		names, closely = b.names, b.closely
		b.names, b.closely = nil, nil
	})
	return names, closely
}

// rounds lasts for n poll intervals, and a moment more.
func rounds(n int) {
	time.Sleep(time.Duration(n)*time.Second + time.Millisecond)
	synctest.Wait()
}

func waiter() Waiter {
	return Waiter{Wake: make(chan struct{}, 1), IsDeaf: func() bool { return false }}
}

// woken reports whether w has a wake-up, and takes it.
func woken(w Waiter) bool {
	select {
	case <-w.Wake:
		return true
	default:
		return false
	}
}

// All waiters of a lock that is free are woken, and no others. If Redis does not answer, all are.
func TestPollerWakesTheWaitersOfFreeLocksOrAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		one, two, other := waiter(), waiter(), waiter()
		defer b.Watch("x", one)()
		defer b.Watch("x", two)()
		defer b.Watch("y", other)()
		rounds(2)
		all := func() []bool { return []bool{woken(one), woken(two), woken(other)} }
		assert.Equal(t, []bool{false, false, false}, all(), "no lock is free")
		b.set(func() { b.free = []string{"x"} })
		rounds(2)
		assert.Equal(t, []bool{true, true, false}, all(), "x is free")
		b.set(func() { b.free, b.err = nil, errors.New("refused") })
		rounds(2)
		assert.Equal(t, []bool{true, true, true}, all(), "Redis does not answer")
		b.close()
	})
}

// A lock is polled within a poll interval, also if the Poller is at work for another one.
func TestPollerPollsASecondLockInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		defer b.Watch("x", waiter())()
		rounds(1)
		defer b.Watch("y", waiter())()
		rounds(1)
		polls, _ := b.polls()
		assert.Contains(t, slices.Concat(polls...), "y")
		b.close()
	})
}

// The goroutine ends when no caller waits. The next caller that waits starts another one.
func TestPollerBeginsAgainAfterItsGoroutineHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		for range 2 {
			stop := b.Watch("x", waiter())
			rounds(3)
			polls, _ := b.polls()
			require.GreaterOrEqual(t, len(polls), 3, "polls")
			stop()
			rounds(3)
			running, locks := b.Running()
			assert.False(t, running, "no caller waits")
			assert.Zero(t, locks)
			b.polls()
		}
	})
}

// The waiters are polled for although a hook of the Redis client has ended the goroutine.
func TestPollerGoesOnAfterAHookHasEndedItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		look, looks := b.config.Look, 0
		b.config.Look = func(names []string, closely int) ([]string, error) {
			if looks++; looks <= 2 {
				runtime.Goexit()
			}
			return look(names, closely)
		}
		w := waiter()
		defer b.Watch("x", w)()
		b.set(func() { b.free = []string{"x"} })
		rounds(4)
		assert.GreaterOrEqual(t, looks, 3)
		assert.LessOrEqual(t, looks, 4, "looks in four rounds")
		assert.Len(t, w.Wake, 1, "the waiter is woken")
		b.close()
	})
}

// A server that does not answer delays no poll of a lock on another one, and is asked about each of its locks once.
func TestPollerDoesNotWaitForAServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		look, hung, answer := b.config.Look, 0, make(chan struct{})
		b.config.Group = func(name string) string { return name }
		b.config.Look = func(names []string, closely int) ([]string, error) {
			if names[0] != "x" {
				b.set(func() { hung++ })
				<-answer
				return nil, errors.New("no answer")
			}
			return look(names, closely)
		}
		w, other := waiter(), waiter()
		for _, name := range []string{"a", "b", "c"} {
			defer b.Watch(name, other)()
			other = waiter()
		}
		defer b.Watch("x", w)()
		rounds(5)
		polls, _ := b.polls()
		assert.GreaterOrEqual(t, len(polls), 4, "polls of x in five rounds")
		b.set(func() { b.free = []string{"x"} })
		rounds(1)
		time.Sleep(3 * time.Second / mostLooks) // the requests of a round come one after the other
		assert.True(t, woken(w))
		b.set(func() { assert.Equal(t, 3, hung) })
		close(answer)
		rounds(2)
		b.set(func() { assert.Greater(t, hung, 3, "they are asked about again") })
		b.close()
	})
}

// Locks with a waiter that may have missed a message are all looked at closely each time.
func TestPollerLooksCloselyWhereAMessageMayBeMissed(t *testing.T) {
	const doubtful = 3 * closeLooks
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		for i := range 2 * doubtful {
			w := waiter()
			w.IsDeaf = func() bool { return i < doubtful }
			defer b.Watch(fmt.Sprint(i), waiter())()
			defer b.Watch(fmt.Sprint(i), w)()
		}
		rounds(2)
		b.polls() // the first poll may have begun before all waited
		rounds(5)
		polls, closely := b.polls()
		require.NotEmpty(t, polls)
		for i, names := range polls {
			for n := range doubtful {
				require.Contains(t, names[:closely[i]], fmt.Sprint(n), "look %d", i)
			}
		}
		b.close()
	})
}

// A waiter that was far back polls as often as one near the head after a while, because those ahead may have left.
func TestPollerOfAWaiterThatWasFarBackIsNotRareForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollerBench()
		w := waiter()
		w.Ahead = 1000 * NearHead
		defer b.Watch("x", w)()
		rounds(500)
		b.polls()
		rounds(20)
		polls, _ := b.polls()
		assert.GreaterOrEqual(t, len(polls), 20, "polls")
		b.close()
	})
}
