package relock

import (
	"context"
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
	first, second := g.enqueue(nil), g.enqueue(nil)
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
