// Package mistakes has mistakes that tests have to find: each omits one precaution of the scripts or of the Go code.
// "make kills" shows which suites find which of them, and other tests look for them in storms and simulations.
//
// Rules: a mistake is a name and a change of texts, as they are written. A mistake whose text is nowhere any more fails
// a test of this package: a change of a script or a file moves its mistakes along, or removes those that have lost their
// meaning.
package mistakes

import "strings"

// A Mistake omits one precaution.
type Mistake struct {
	Name    string
	Omits   string // the precaution, as a sentence
	File    string // of the Go code, from the root of the repository; "": the text is changed in all scripts
	Changes []Change
}

// A Change is a text, and what it becomes.
type Change struct{ From, To string }

// In returns source with the mistake.
func (m Mistake) In(source string) string {
	for _, c := range m.Changes {
		source = strings.ReplaceAll(source, c.From, c.To)
	}
	return source
}

// Script returns the mistake in the scripts that has this name. It panics if there is none.
func Script(name string) Mistake {
	for _, m := range Scripts {
		if m.Name == name {
			return m
		}
	}
	panic("no mistake in the scripts is called " + name)
}
