// Package opaque has a pointer that reflection does not follow. Users print their structs, pass them to mocks and
// compare them in tests: fmt, go-spew and reflect.DeepEqual then read every field behind every pointer, without a mutex.
// What may change has to lie behind a Pointer, therefore, and so has what is too large to print.
package opaque

import "unsafe"

// A Pointer leads to a T, for its Get only. Pointers are equal if they lead to the same T.
type Pointer[T any] struct{ p unsafe.Pointer }

// To returns the Pointer to v.
func To[T any](v *T) Pointer[T] { return Pointer[T]{unsafe.Pointer(v)} }

// Get returns what p leads to. It is nil for the zero Pointer.
func (p Pointer[T]) Get() *T { return (*T)(p.p) }
