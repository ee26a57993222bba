package each

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Each element has its call, in order, whatever an earlier call does; and a panic goes on to the caller.
func TestEveryElementHasItsCall(t *testing.T) {
	var called []int
	assert.PanicsWithValue(t, "user", func() {
		Do([]int{1, 2, 3}, func(i int) {
			if called = append(called, i); i == 1 {
				panic("user")
			}
		})
	})
	assert.Equal(t, []int{1, 2, 3}, called)

	called = nil
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Do([]int{1, 2, 3}, func(i int) {
			called = append(called, i)
			runtime.Goexit()
		})
	}()
	<-ended
	assert.Equal(t, []int{1, 2, 3}, called)
}
