//go:build go1.25

package send

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

type key struct{}

var withValue = context.WithValue(context.Background(), key{}, "v")

func TestLimitEndsAtMostAQuarterLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = time.Second
		l := limit{d: d}
		for range 10 {
			go func() {
				start := time.Now()
				ctx := l.begin(start)
				_, has := ctx.Deadline()
				assert.False(t, has, "a deadline that go-redis would take for that of the answer")
				<-ctx.Done()
				assert.GreaterOrEqual(t, time.Since(start), d)
				assert.LessOrEqual(t, time.Since(start), d+d/4)
			}()
			time.Sleep(d / 7)
		}
		time.Sleep(2 * d)
	})
}

func TestLimitsThatBeginTogetherShareATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit{d: time.Second}
		now := time.Now()
		first := l.begin(now)
		assert.Equal(t, first.Done(), l.begin(now.Add(time.Second/4)).Done())
		assert.NotEqual(t, first.Done(), l.begin(now.Add(time.Second/4+1)).Done())
	})
}
