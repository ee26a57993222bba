package guard

import (
	"maps"
	"slices"
)

// Ends are what a hold keeps of its guards: an End for all parents that end together, by their Done channel. The zero
// value is empty. Who has Ends guards them with a mutex.
type Ends map[<-chan struct{}]*End

// Keep adds end for parents which end with done, and returns it; or the one that is there.
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

// Forget removes end, if it is there.
func (e Ends) Forget(done <-chan struct{}, end *End) {
	if e[done] == end {
		delete(e, done)
	}
}

// Take removes all.
func (e *Ends) Take() []*End {
	if len(*e) == 0 {
		return nil
	}
	all := slices.Collect(maps.Values(*e))
	*e = nil
	return all
}
