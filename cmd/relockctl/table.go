package main

// Tables for a terminal, in which columns are aligned by the width that their texts have there, and colors.

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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
	_, _, terminal := size(f)
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// A cell is a text in a color.
type cell struct{ text, color string }

// An elastic is the text of a cell without a color, which may be shortened in its middle to the width least.
type elastic struct {
	text  string
	least int
}

// painted returns text in a color, if colors are wanted.
func (p *program) painted(text, color string) string {
	if !p.colors || color == plainText {
		return text
	}
	return color + text + reset
}

// tabulate aligns cells in columns. A cell that is neither of the type cell nor elastic has no color.
func (p *program) tabulate(fill func(line func(cells ...any))) string {
	var g grid
	fill(g.add)
	g.dropEmpty()
	return g.text(p)
}

// A grid is a table. If the cells of its first line are heads, it may have fewer columns than were added.
type grid struct {
	rows   [][]cell
	widths []int // of the columns
	leasts []int // the widths to which elastic columns may be shortened; 0 for others
}

func (g *grid) add(cells ...any) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		if i == len(g.widths) {
			g.widths, g.leasts = append(g.widths, 0), append(g.leasts, 0)
		}
		switch c := c.(type) {
		case cell:
			row[i] = c
		case elastic:
			row[i], g.leasts[i] = cell{text: c.text}, c.least
		default:
			row[i] = cell{text: fmt.Sprint(c)}
		}
		g.widths[i] = max(g.widths[i], uniseg.StringWidth(row[i].text))
	}
	g.rows = append(g.rows, row)
}

func (g *grid) text(p *program) string {
	var out strings.Builder
	for _, row := range g.rows {
		for i, c := range row {
			out.WriteString(p.painted(c.text, c.color))
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", g.widths[i]-uniseg.StringWidth(c.text)+gap))
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

const gap = 2 // columns of the terminal between two columns of a table

// drop removes column i.
func (g *grid) drop(i int) {
	for n := range g.rows {
		g.rows[n] = slices.Delete(g.rows[n], i, i+1)
	}
	g.widths, g.leasts = slices.Delete(g.widths, i, i+1), slices.Delete(g.leasts, i, i+1)
}

// dropEmpty removes the columns that have nothing below their heads.
func (g *grid) dropEmpty() {
	if len(g.rows) == 0 || g.rows[0][0].color != bold {
		return
	}
	for i := len(g.widths) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(g.rows[1:], func(row []cell) bool { return row[i].text != none }) {
			g.drop(i)
		}
	}
}

// fit makes the table as narrow as a terminal with that many columns. The columns with the heads expendable are removed
// in their order as long as elastic columns would be shorter than twice their least width. Then these are shortened,
// always the widest one. It returns the heads of what it has removed.
func (g *grid) fit(columns int, expendable ...string) (removed []string) {
	for _, head := range expendable {
		if g.width(2) <= columns {
			break
		}
		if i := slices.IndexFunc(g.rows[0], func(c cell) bool { return c.text == head }); i >= 0 {
			g.drop(i)
			removed = append(removed, head)
		}
	}
	for g.width(0) > columns {
		widest := -1
		for i, width := range g.widths {
			if g.leasts[i] > 0 && width > g.leasts[i] && (widest < 0 || width > g.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		g.widths[widest]--
	}
	for _, row := range g.rows {
		for i := range row {
			if g.leasts[i] > 0 {
				row[i].text = middle(row[i].text, g.widths[i])
			}
		}
	}
	return removed
}

// width returns how wide the table is, or would be if each elastic column had times its least width at most.
func (g *grid) width(times int) int {
	all := -gap
	for i, width := range g.widths {
		if most := times * g.leasts[i]; most > 0 {
			width = min(width, most)
		}
		all += width + gap
	}
	return all
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
// one character for people is not cut, and no word that is read from right to left, unless it is at the beginning or
// the end: what is left of it would change its place, and the forms of its letters.
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
	from := len(letters)
	for ; from > 0; from-- {
		if end -= uniseg.StringWidth(letters[from-1]); end < 0 {
			break
		}
	}
	inWord := func(i int) bool { return leftwards(letters[i-1]) && leftwards(letters[i]) }
	whole := from
	for whole > 0 && whole < len(letters) && inWord(whole) {
		whole++
	}
	if whole < len(letters) {
		from = whole
	}
	tail := strings.Join(letters[from:], "")
	to := 0
	for width := n - 1 - uniseg.StringWidth(tail); to < from; to++ {
		if width -= uniseg.StringWidth(letters[to]); width < 0 {
			break
		}
	}
	whole = to
	for whole > 0 && inWord(whole) {
		whole--
	}
	if whole > 0 {
		to = whole
	}
	return strings.Join(letters[:to], "") + "…" + tail
}

// leftwards reports whether a character belongs to a script that is written from right to left.
func leftwards(letter string) bool {
	r, _ := utf8.DecodeRuneInString(letter)
	return unicode.In(r, unicode.Hebrew, unicode.Arabic, unicode.Syriac, unicode.Thaana, unicode.Nko)
}
