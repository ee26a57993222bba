package relock

import "testing"

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
