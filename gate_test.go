package relock

import (
	"slices"
	"testing"
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
	first, second := g.enqueue(), g.enqueue()
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

// Random use against the simplest model: a list of who waits.
func TestGateRandomly(t *testing.T) {
	for seed := range 200 {
		rng := newRand(seed)
		var g gate
		var inside *ticket // who is through; a ticket of its own for tryEnter
		var waiting []*ticket
		grant := func() {
			inside = nil
			if len(waiting) > 0 {
				inside, waiting = waiting[0], waiting[1:]
			}
		}
		for step := range 300 {
			switch rng.IntN(4) {
			case 0:
				if got, want := g.tryEnter(), inside == nil; got != want {
					t.Fatalf("seed %d step %d: tryEnter says %v", seed, step, got)
				} else if got {
					inside = &ticket{}
				}
			case 1:
				if inside != nil {
					waiting = append(waiting, g.enqueue())
				}
			case 2:
				if inside != nil {
					g.leave()
					grant()
				}
			case 3:
				if n := len(waiting); n > 0 && rng.IntN(3) > 0 {
					i := rng.IntN(n)
					g.cancel(waiting[i])
					waiting = slices.Delete(waiting, i, i+1)
				} else if inside != nil && inside.turn != nil { // granted, and given up
					g.cancel(inside)
					grant()
				}
			}
			if inside != nil && inside.turn != nil && !open(inside) {
				t.Fatalf("seed %d step %d: whose turn it is was not told", seed, step)
			}
			for i, w := range waiting {
				if open(w) {
					t.Fatalf("seed %d step %d: number %d in the queue was let through", seed, step, i+1)
				}
			}
		}
	}
}
