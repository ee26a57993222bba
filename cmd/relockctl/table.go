package main

// Tables for a terminal, in which columns are aligned by the width that their texts have there, and colors.

import (
	"fmt"
	"os"
	"strings"

	"github.com/rivo/uniseg"
)

// The colors of cells, as sequences of a terminal.
const (
	plainText = ""
	bold      = "\x1b[1m"
	red       = "\x1b[31m"
	green     = "\x1b[32m"
	yellow    = "\x1b[33m"
	reset     = "\x1b[0m"
)

// hasColors reports whether what is written to f may have colors.
func hasColors(f *os.File) bool {
	_, terminal := size(f)
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// A cell is a text in a color.
type cell struct{ text, color string }

// painted returns text in a color, if colors are wanted.
func (p *program) painted(text, color string) string {
	if !p.colors || color == plainText {
		return text
	}
	return color + text + reset
}

// tabulate aligns cells in columns. A cell that is not of the type cell has no color.
func (p *program) tabulate(fill func(line func(cells ...any))) string {
	var rows [][]cell
	var widths []int
	fill(func(cells ...any) {
		row := make([]cell, len(cells))
		for i, c := range cells {
			var ok bool
			if row[i], ok = c.(cell); !ok {
				row[i] = cell{text: fmt.Sprint(c)}
			}
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], uniseg.StringWidth(row[i].text))
		}
		rows = append(rows, row)
	})
	var out strings.Builder
	for _, row := range rows {
		for i, c := range row {
			out.WriteString(p.painted(c.text, c.color))
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", widths[i]-uniseg.StringWidth(c.text)+2))
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// heads returns cells for the heads of columns.
func heads(texts ...string) (cells []any) {
	for _, text := range texts {
		cells = append(cells, cell{text, bold})
	}
	return cells
}

// short returns s without its end if it is wider than n.
func short(s string, n int) string { return cut(s, n, 0) }

// middle returns s without its middle if it is wider than n: names often differ at their ends.
func middle(s string, n int) string { return cut(s, n, (n-1)/2) }

// cut returns s if it is not wider than n, and otherwise its beginning and an end of at most the given width. What is
// one character for people is not cut.
func cut(s string, n, end int) string {
	if uniseg.StringWidth(s) <= n {
		return s
	}
	var letters []string
	for rest, state := s, -1; rest != ""; {
		var letter string
		letter, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		letters = append(letters, letter)
	}
	head, tail := "", ""
	for i, width := len(letters)-1, 0; i >= 0; i-- {
		if width += uniseg.StringWidth(letters[i]); width > end {
			break
		}
		tail = letters[i] + tail
	}
	width := n - 1 - uniseg.StringWidth(tail)
	for _, letter := range letters {
		if width -= uniseg.StringWidth(letter); width < 0 {
			break
		}
		head += letter
	}
	return head + "…" + tail
}
