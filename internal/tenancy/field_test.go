package tenancy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/permute"
)

// A field is deleted only when no hold has it, adopts it or has it split: in all orders of six events, the last of its
// users to leave is told so, and no other one.
func TestFieldIsDeletedOnlyWhenItsLastUserHasLeft(t *testing.T) {
	const users = 3
	permute.All(2*users, func(order []int) { // the events 0 to 2 begin a use, and 3 to 5 end one
		var f Field
		used, lasts := 0, 0
		for _, event := range order {
			if event < users {
				f.Use()
				used++
			} else if used > 0 { // an end without a beginning is impossible: it comes at the end instead
				used--
				if last := f.Leave(); last {
					lasts++
				}
				assert.Equal(t, used > 0, f.InUse(), "%v", order)
			}
		}
		for ; used > 0; used-- {
			last := f.Leave()
			assert.Equal(t, used == 1, last, "%v", order)
			if last {
				lasts++
			}
		}
		assert.False(t, f.InUse(), "%v", order)
		assert.Positive(t, lasts, "%v", order)
	})
}

// What has not begun cannot end: that panics in tests, and in a service it is ignored.
func TestImpossibleEndsPanic(t *testing.T) {
	defer func(before bool) { Strict = before }(Strict)
	var f Field
	Strict = true
	assert.Panics(t, func() { f.Leave() })
	Strict = false
	assert.False(t, f.Leave(), "nobody deletes it")
	assert.False(t, f.InUse())
}

// A lease ends when the latest of all requests that have set it, or may still do so, lets it end.
func TestLeaseEndsWithItsLatestRequest(t *testing.T) {
	for _, of := range []struct {
		name    string
		r       Reach
		end     time.Duration
		longest time.Duration
	}{
		{"nothing is known", Reach{}, 0, 0},
		{"it has expired", Reach{Rest: -5}, 0, 0},
		{"it lasts", Reach{Rest: 10 * time.Second}, 10 * time.Second, 10 * time.Second},
		{"it lasts longer", Reach{Rest: time.Minute}, time.Minute, time.Minute},
		{"it is renewed", Reach{Renewal: 30 * time.Second}, 30 * time.Second, 30 * time.Second},
		{"a request is late", Reach{Late: 1, LateBy: time.Minute}, time.Minute + 1, 1},
		{
			"all of it", Reach{Rest: 3 * time.Minute, Renewal: 9, Late: time.Minute, LateBy: time.Minute},
			3 * time.Minute, 3 * time.Minute,
		},
	} {
		assert.Equal(t, of.end, of.r.End(), of.name)
		assert.Equal(t, of.longest, of.r.Longest(), of.name)
	}
}
