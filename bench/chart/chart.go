// Package chart draws bars as SVG, by hand.
package chart

// Rules: the picture brings its own background and colors for light and dark. It
// uses nothing that a browser showing an image would refuse to load. Every value
// is there as text, too. The same bars give the same bytes.

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// A Bar is one value with its spread.
type Bar struct {
	Name           string
	Low, Mid, High float64
	Text           string // the text beside the bar
	Ours           bool   // highlighted
}

// A Chart is a number of bars with their texts. The scale is logarithmic if the longest bar is more than thirty times
// the shortest.
type Chart struct {
	Title, Unit, Note string
	Bars              []Bar
}

const (
	width  = 760
	left   = 190 // the width of the names
	right  = 190 // the width of the texts
	top    = 58
	pitch  = 30
	height = 18 // the height of a bar
)

const style = `<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-weight:600;font-size:15px}.dim{fill:#59636e;font-size:12px}
.back{fill:#ffffff}.bar{fill:#8c959f}.ours{fill:#0969da}.spread{stroke:#1f2328;stroke-width:1.2;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.back{fill:#0d1117}
.bar{fill:#656c76}.ours{fill:#4493f8}.spread{stroke:#e6edf3}}
</style>
`

// Write draws the chart.
func (c Chart) Write(w io.Writer) error {
	var b strings.Builder
	total := top + pitch*len(c.Bars) + 34
	fmt.Fprintf(
		&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		width,
		total,
		width,
		total,
		escape(c.Title),
	)
	b.WriteString(style)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d" rx="6"/>`+"\n", width, total)
	fmt.Fprintf(&b, `<text class="title" x="16" y="26">%s</text>`+"\n", escape(c.Title))
	scale, kind := c.scale()
	fmt.Fprintf(&b, `<text class="dim" x="16" y="45">%s%s</text>`+"\n", escape(c.Unit), kind)
	for i, bar := range c.Bars {
		y := top + pitch*i
		class := "bar"
		if bar.Ours {
			class = "ours"
		}
		end := left + scale(bar.Mid)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-10, y+14, escape(bar.Name))
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, class, left, y, end-left, height)
		if bar.High > bar.Low {
			low, high := left+scale(bar.Low), left+scale(bar.High)
			middle := y + height/2
			fmt.Fprintf(&b, `<path class="spread" d="M%.1f %dH%.1fM%.1f %dv8M%.1f %dv8"/>`,
				low, middle, high, low, middle-4, high, middle-4)
			end = max(end, high)
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", end+8, y+14, escape(bar.Text))
	}
	fmt.Fprintf(&b, `<text class="dim" x="16" y="%d">%s</text>`+"\n</svg>\n", total-14, escape(c.Note))
	_, err := io.WriteString(w, b.String())
	return err
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
	const room = width - left - right
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
