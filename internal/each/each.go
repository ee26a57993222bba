// Package each calls a function for all elements of a list, whatever code of the user does that a call runs.
package each

// Do calls f for each element, in order, also if an earlier call panics, or ends the goroutine.
func Do[T any](all []T, f func(T)) {
	if len(all) > 0 {
		defer Do(all[1:], f)
		f(all[0])
	}
}
