package guard

import (
	"maps"
	"slices"

	"github.com/relock-go/relock/internal/each"
)

// Ends are the Ends that a hold keeps for its guards: one End for all parents with the same Done channel. The zero
// value is empty. The owner of Ends guards them with a mutex.
type Ends map[<-chan struct{}]*End

// Keep adds end for the parents with the Done channel done, and returns it. If there is an End for them already, Keep
// returns that one instead.
func (e *Ends) Keep(done <-chan struct{}, end *End) *End {
	if kept := (*e)[done]; kept != nil {
		return kept
	}
	if *e == nil {
		*e = make(Ends)
	}
	(*e)[done] = end
	return end
}

// Forget removes end if it is there.
func (e Ends) Forget(done <-chan struct{}, end *End) {
	if e[done] == end {
		delete(e, done)
	}
}

// Take empties e, and returns what it had.
func (e *Ends) Take() Ends {
	all := *e
	*e = nil
	return all
}

// EndAll cancels the guards of all Ends, also if a context of the user panics meanwhile, or ends the goroutine.
func (e Ends) EndAll(cause error) {
	if len(e) > 0 { // so that the function is not made for Ends without elements
		each.Do(slices.Collect(maps.Values(e)), func(end *End) { end.Now(cause) })
	}
}
