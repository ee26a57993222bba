// Package chart draws bars as SVG, by hand.
package chart

// Rules: the picture brings its own background and colors for light and dark. It
// uses nothing that a browser showing an image would refuse to load. Every value
// is there as text, too. The same bars give the same bytes. The picture is as wide as
// the screen of a phone: the name and the text of a bar are above it, and long texts
// have several lines.

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// A Bar is one value with its spread.
type Bar struct {
	Name           string
	Low, Mid, High float64
	Text           string // the text above the end of the bar
	Ours           bool   // highlighted
}

// A Chart is a number of bars with their texts. The scale is logarithmic if the longest bar is more than thirty times
// the shortest.
type Chart struct {
	Title, Unit, Note string
	Bars              []Bar
}

const (
	width   = 375 // of a phone: on a wider picture the texts would be too small there
	edge    = 16
	room    = width - 2*edge // the length of the longest bar
	pitch   = 40
	height  = 12 // the height of a bar
	line    = 18 // the height of a line of the title, or of the note
	letters = 38 // in a line of the title
	small   = 50 // letters in a line of the note
)

const style = `<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-weight:600;font-size:14px}.value{font-weight:600}.dim{fill:#59636e;font-size:12px}
.back{fill:#ffffff}.bar{fill:#8c959f}.ours{fill:#0969da}.spread{stroke:#1f2328;stroke-width:1.2;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.back{fill:#0d1117}
.bar{fill:#656c76}.ours{fill:#4493f8}.spread{stroke:#e6edf3}}
</style>
`

// Write draws the chart.
func (c Chart) Write(w io.Writer) error {
	title, note := wrap(c.Title, letters), wrap(c.Note, small)
	top := 36 + line*len(title)
	end := top + pitch*len(c.Bars)
	total := end + 8 + line*len(note)
	scale, kind := c.scale()

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		width, total, width, total, escape(c.Title))
	b.WriteString(style)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d" rx="6"/>`+"\n", width, total)
	for i, text := range title {
		fmt.Fprintf(&b, `<text class="title" x="%d" y="%d">%s</text>`+"\n", edge, 26+line*i, escape(text))
	}
	fmt.Fprintf(&b, `<text class="dim" x="%d" y="%d">%s%s</text>`+"\n", edge, top-10, escape(c.Unit), kind)
	for i, bar := range c.Bars {
		bar.draw(&b, top+pitch*i, scale)
	}
	for i, text := range note {
		fmt.Fprintf(&b, `<text class="dim" x="%d" y="%d">%s</text>`+"\n", edge, end+line*(i+1)-4, escape(text))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// draw draws the bar below y.
func (bar Bar) draw(b *strings.Builder, y int, scale func(float64) float64) {
	class := "bar"
	if bar.Ours {
		class = "ours"
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`, edge, y+13, escape(bar.Name))
	fmt.Fprintf(b, `<text class="value" x="%d" y="%d" text-anchor="end">%s</text>`, width-edge, y+13, escape(bar.Text))
	y += 18
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`,
		class, edge, y, scale(bar.Mid), height)
	if bar.High > bar.Low {
		low, high := edge+scale(bar.Low), edge+scale(bar.High)
		middle := y + height/2
		fmt.Fprintf(b, `<path class="spread" d="M%.1f %dH%.1fM%.1f %dv8M%.1f %dv8"/>`,
			low, middle, high, low, middle-4, high, middle-4)
	}
	b.WriteString("\n")
}

// wrap returns text in lines of at most most letters, if its words are not longer.
func wrap(text string, most int) (lines []string) {
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= most {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// scale returns the length of the bar for a value.
func (c Chart) scale() (func(float64) float64, string) {
	least, greatest := math.Inf(1), 0.0
	for _, bar := range c.Bars {
		for _, v := range []float64{bar.Mid, bar.High} {
			if v > 0 { // neither zero nor NaN
				least, greatest = min(least, v), max(greatest, v)
			}
		}
	}
	if greatest > 30*least {
		bottom := math.Log10(least) - 0.5
		return func(v float64) float64 {
			if !(v > 0) {
				return 0
			}
			return max(0, room*(math.Log10(v)-bottom)/(math.Log10(greatest)-bottom))
		}, ", logarithmic"
	}
	return func(v float64) float64 {
		if !(v > 0) {
			return 0
		}
		return room * v / greatest
	}, ""
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never returns an error
	return b.String()
}
