package main

// The page: the matrix, and what follows from it.

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

const columnNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// print writes the page.
func (m *matrix) print(w io.Writer) {
	for i, s := range m.suites {
		fmt.Fprintf(w, "%c %-18s finds %d of %d, takes %v without a mistake\n", columnNames[i], s.name, m.findsOf(i),
			m.madeFor(i), m.took[i].Round(100*time.Millisecond))
	}
	fmt.Fprintf(w, "\nx: found; .: not found; ?: found by one of two runs; t: took too long\n\n%-32s", "")
	for i := range m.suites {
		fmt.Fprintf(w, " %c", columnNames[i])
	}
	fmt.Fprintln(w)
	only, nobody := make(map[string][]string), []string(nil)
	for i, r := range m.rows {
		fmt.Fprintf(w, "%-32s", r.name())
		var by []string
		tried := false // it is not, after an interrupt
		for j, s := range m.suites {
			mark := ' '
			if o, ok := m.cells[[2]int{i, j}]; ok {
				mark, tried = o.mark, true
			}
			fmt.Fprintf(w, " %c", mark)
			if mark == found {
				by = append(by, s.name)
			}
		}
		fmt.Fprintln(w)
		switch {
		case tried && len(by) == 0:
			nobody = append(nobody, r.name())
		case len(by) == 1:
			only[by[0]] = append(only[by[0]], r.name())
		}
	}
	fmt.Fprintf(w, "\nfound by nothing (%d): %s\n", len(nobody), strings.Join(nobody, " "))
	for _, name := range slices.Sorted(maps.Keys(only)) {
		fmt.Fprintf(w, "only %s finds (%d): %s\n", name, len(only[name]), strings.Join(only[name], " "))
	}
	if *each {
		m.printTests(w)
	}
}

// printTests writes which tests failed with each mistake.
func (m *matrix) printTests(w io.Writer) {
	for i, r := range m.rows {
		fmt.Fprintf(w, "\n%s\n", r.name())
		for j, s := range m.suites {
			if o := m.cells[[2]int{i, j}]; o.mark == found {
				fmt.Fprintf(w, "  %s: %s\n", s.name, strings.Join(o.tests, " "))
			}
		}
	}
}

// findsOf returns how many mistakes a suite has found.
func (m *matrix) findsOf(suite int) (n int) {
	for at, o := range m.cells {
		if at[1] == suite && o.mark == found {
			n++
		}
	}
	return n
}

// madeFor returns with how many mistakes a suite has run.
func (m *matrix) madeFor(suite int) (n int) {
	for at := range m.cells {
		if at[1] == suite {
			n++
		}
	}
	return n
}
