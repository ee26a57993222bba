package chart

import (
	"encoding/xml"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func draw(t *testing.T, c Chart) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, c.Write(&b))
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); err == io.EOF {
			return b.String()
		} else if err != nil {
			require.NoError(t, err, "not XML: %s", b.String())
		}
	}
}

// lengths of the bars, in their order.
func lengths(t *testing.T, svg string) []float64 {
	t.Helper()
	var all []float64
	widths := regexp.MustCompile(`class="(?:bar|ours)" x="\d+" y="\d+" width="([^"]+)"`)
	for _, m := range widths.FindAllStringSubmatch(svg, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		all = append(all, v)
	}
	return all
}

func TestBarsAreAsLongAsTheirValues(t *testing.T) {
	svg := draw(
		t,
		Chart{Title: "a < b & c", Bars: []Bar{{Name: "one", Mid: 10, Ours: true}, {Name: "two", Low: 15, Mid: 20, High: 20}}},
	)
	l := lengths(t, svg)
	require.Len(t, l, 2)
	assert.Equal(t, l[1], l[0]*2)
	assert.LessOrEqual(t, l[1], float64(room))
	assert.NotContains(t, svg, "logarithmic")
	assert.Equal(t, 1, strings.Count(svg, `class="spread"`))
}

// A phone is 375 pixels wide, and shows a picture of that width as it is: no text is smaller than 12 pixels, and none
// is wider than the picture.
func TestChartIsReadableOnAPhone(t *testing.T) {
	const long = "4 clients × 32 goroutines, one name, 1 ms section, 2 ms round trip; every 20 ms most of the waits are canceled at once"
	svg := draw(t, Chart{Title: long, Note: long, Bars: []Bar{{Name: "bare AutoPipeline", Mid: 1, Text: "12.3k, 99%: 45.6k"}}})
	assert.Contains(t, svg, `width="375"`)
	for _, m := range regexp.MustCompile(`(\d+)px`).FindAllStringSubmatch(svg, -1) {
		size, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		assert.GreaterOrEqual(t, size, 12)
	}
	for _, m := range regexp.MustCompile(`<text[^>]*>([^<]*)<`).FindAllStringSubmatch(svg, -1) {
		assert.LessOrEqual(t, len([]rune(m[1])), small)
	}
	assert.Equal(t, strings.Fields(long), strings.Fields(strings.Join(wrap(long, letters), " ")))
}
