package chart

import (
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func draw(t *testing.T, c Chart) string {
	t.Helper()
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); err == io.EOF {
			return b.String()
		} else if err != nil {
			t.Fatalf("not XML: %v\n%s", err, b.String())
		}
	}
}

// lengths of the bars, in their order.
func lengths(t *testing.T, svg string) []float64 {
	t.Helper()
	var all []float64
	for _, m := range regexp.MustCompile(`class="(?:bar|ours)" x="\d+" y="\d+" width="([^"]+)"`).FindAllStringSubmatch(svg, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

func TestBarsAreAsLongAsTheirValues(t *testing.T) {
	svg := draw(t, Chart{Title: "a < b & c", Bars: []Bar{{Name: "one", Mid: 10, Ours: true}, {Name: "two", Low: 15, Mid: 20, High: 20}}})
	l := lengths(t, svg)
	if len(l) != 2 || l[0]*2 != l[1] || l[1] > width-left-right {
		t.Errorf("lengths %v", l)
	}
	if strings.Contains(svg, "logarithmic") || strings.Count(svg, `class="spread"`) != 1 {
		t.Error(svg)
	}
}

func TestFarApartIsLogarithmic(t *testing.T) {
	svg := draw(t, Chart{Bars: []Bar{{Mid: 1}, {Mid: 1000}, {Mid: 1e6, High: 1e7}, {Mid: 0}, {Mid: math.NaN()}}})
	l := lengths(t, svg)
	if len(l) != 5 || !(0 < l[0] && l[0] < l[1] && l[1] < l[2]) || l[3] != 0 || l[4] != 0 {
		t.Errorf("lengths %v", l)
	}
	if !strings.Contains(svg, "logarithmic") {
		t.Error("it does not say so")
	}
}

func TestLightAndDark(t *testing.T) {
	svg := draw(t, Chart{})
	if !strings.Contains(svg, "prefers-color-scheme:dark") || !strings.Contains(svg, `class="back"`) {
		t.Error(svg)
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error(svg)
	}
}
