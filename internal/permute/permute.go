// Package permute enumerates orders of events, for tests that look at all of them.
package permute

// All calls f with each permutation of 0 to n-1. f must not keep or change the slice.
func All(n int, f func([]int)) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	from(order, 0, f)
}

// from calls f with each permutation of the elements from at on.
func from(order []int, at int, f func([]int)) {
	if at == len(order) {
		f(order)
		return
	}
	for i := at; i < len(order); i++ {
		order[at], order[i] = order[i], order[at]
		from(order, at+1, f)
		order[at], order[i] = order[i], order[at]
	}
}
