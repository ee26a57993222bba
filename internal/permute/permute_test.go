package permute

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAllOrdersComeOnce(t *testing.T) {
	times := map[string]int{}
	All(4, func(order []int) {
		assert.ElementsMatch(t, []int{0, 1, 2, 3}, order)
		times[fmt.Sprint(order)]++
	})
	assert.Len(t, times, 4*3*2)
	for order, n := range times {
		assert.Equal(t, 1, n, order)
	}
}
