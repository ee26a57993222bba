package guard

import (
	"maps"
	"slices"
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

// Take removes and returns all Ends.
func (e *Ends) Take() []*End {
	if len(*e) == 0 {
		return nil
	}
	all := slices.Collect(maps.Values(*e))
	*e = nil
	return all
}
