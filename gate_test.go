package relock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func open(t *ticket) bool {
	select {
	case <-t.turn:
		return true
	default:
		return false
	}
}

func TestGateTurnThatIsGivenUpGoesToTheNext(t *testing.T) {
	var g gate
	if !g.tryEnter() || g.tryEnter() {
		t.Fatal("an open gate lets one through")
	}
	first, second := g.enqueue(nil, 1), g.enqueue(nil, 2)
	g.leave()
	if !open(first) || open(second) || g.tryEnter() {
		t.Fatal("the turn is the first one's, and nobody slips in")
	}
	g.cancel(first) // its ctx ended at the same instant
	if !open(second) {
		t.Fatal("a turn was lost")
	}
	g.cancel(second)
	if !g.tryEnter() {
		t.Fatal("the gate stays shut behind the last one")
	}
}

// Whose turn comes when its patience ends gets in or gives up, and a gate where nobody is left is forgotten.
func TestGateTurnAtTheEndOfPatience(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			wants := func(o owner) []want {
				return []want{{hold: &hold{backend: &fakeLock{e.redis, "x"}, key: holdKey{lockID{name: "x"}, o}}}}
			}
			leave := func(wants []want) {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.leaveAllLocked(wants)
			}
			first, second := wants(1), wants(2)
			if _, err := e.enterGates(&patience{ctx: context.Background()}, first); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Second, func() { leave(first) })
			_, err := e.enterGates(&patience{ctx: context.Background(), deadline: time.Now().Add(time.Second)}, second)
			if err != nil && err != errTimeUp {
				t.Error(err)
			}
			synctest.Wait()
			leave(second)
			if len(e.gates) != 0 {
				t.Errorf("%d gates are left behind who was told %v", len(e.gates), err)
			}
		})
	}
}

// endsWhenSeen is a ctx that ends right after somebody has looked at it for the first time.
type endsWhenSeen struct {
	context.Context
	seen atomic.Bool
}

func (c *endsWhenSeen) Err() error {
	if c.seen.CompareAndSwap(false, true) {
		return nil
	}
	return context.Canceled
}

// Whose ctx, or whose Client, ends just when gates have been kept for long enough is
// told so: that its time is up is for whoever gave a time, and to Lock it is no error.
func TestGateKeptUntilTheEndOfPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		start := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		wants := func(o owner, names ...string) (all []want) {
			for _, name := range names {
				all = append(all, want{hold: &hold{backend: &fakeLock{e.redis, name}, key: holdKey{lockID{name: name}, o}}})
			}
			return all
		}
		through := func(o owner, name string, from, until time.Duration) {
			go func() {
				at(from)
				mine := wants(o, name)
				if _, err := e.enterGates(&patience{ctx: context.Background()}, mine); err != nil {
					t.Error(err)
				}
				at(until)
				e.leaveGates(mine, -1)
			}()
		}
		// Each time it comes through one gate, the other one is taken; the third time it
		// keeps x, at 3s, and waits for y no longer than the reserve.
		through(1, "x", 0, time.Second)
		through(2, "y", 0, 2*time.Second)
		through(3, "x", 700*time.Millisecond, 3*time.Second)
		through(4, "y", 1500*time.Millisecond, 5*time.Second)
		at(500 * time.Millisecond)
		mine := wants(9, "x", "y")
		_, err := e.enterGates(&patience{ctx: &endsWhenSeen{Context: context.Background()}}, mine)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, not that its ctx has ended, after %v", err, time.Since(start))
		}
		if d := time.Since(start); d != 3*time.Second+reserveTime {
			t.Errorf("after %v, not when the reserve is over", d)
		}
		at(6 * time.Second)
	})
}

// Whoever was turned away from a gate does not take away the one that has come in its place since.
func TestGateOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		id := lockID{name: "x"}
		e.mu.Lock()
		defer e.mu.Unlock()
		before := e.gateLocked(id)
		before.tryEnter()
		first := before.enqueue(nil, 1)
		before.enqueue(nil, 2)
		before.turnAway()
		before.leave()
		before.cancel(first)
		e.dropGateLocked(id, before)

		now := e.gateLocked(id)
		now.tryEnter()
		e.dropGateLocked(id, before) // by who was turned away
		if e.gateLocked(id) != now {
			t.Error("there are two gates of one name")
		}
		now.leave()
		e.dropGateLocked(id, now)
	})
}
