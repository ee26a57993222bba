package main

// Tables, and the colors that a terminal shows them in.

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// The colors of lines, as sequences of a terminal.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

// hasColors reports whether what is written to f may have colors.
func hasColors(f *os.File) bool {
	_, _, terminal := size(f)
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// A row is a line of a table, in a color.
type row struct {
	color string
	cells []string
}

// aligned returns a table, and how many characters it is wide. A column without any text is left out.
func (p *program) aligned(heads []string, rows []row) (table string, width int) {
	used := make([]bool, len(heads))
	for _, r := range rows {
		for i, cell := range r.cells {
			used[i] = used[i] || cell != none
		}
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	rows = append([]row{{bold, heads}}, rows...)
	for _, r := range rows {
		tab := ""
		for i, cell := range r.cells {
			if used[i] {
				fmt.Fprint(w, tab, cell)
				tab = "\t"
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	lines := strings.Split(text.String(), "\n")
	for i, r := range rows {
		width = max(width, utf8.RuneCountInString(lines[i]))
		if p.colors && r.color != "" { // later than the alignment, which would count it
			lines[i] = r.color + lines[i] + reset
		}
	}
	return strings.Join(lines, "\n"), width
}

// short returns s without its middle if it has more than n characters: names often differ at their ends.
func short(s string, n int) string {
	letters, end := []rune(s), (n-1)/2
	if len(letters) <= n {
		return s
	}
	return string(letters[:n-1-end]) + "…" + string(letters[len(letters)-end:])
}
