//go:build go1.25

package virtual

import (
	"context"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// One Client of a MultiLock shuts down, whichever it is: a call that waits, and a new one, return ErrClosed. The caller's
// context was not canceled, and the error does not match that.
func TestMultiLockOfAClientThatShutsDownIsNotCanceled(t *testing.T) {
	for name, which := range map[string]int{"home": 0, "busy": 1, "other": 2} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				other, _ := v.Client(1)
				var c [3]*Client
				for i := range 3 {
					c[i], _ = v.Client(i)
				}
				busy := other.NewLock("y")
				require.NoError(v, busy.Lock(ctx))
				l := c[0].NewMultiLock(c[1].NewLock("y"), c[2].NewLock("x"))
				got := make(chan error)
				go func() { got <- l.Lock(ContextWithOwner(ctx)) }()
				time.Sleep(time.Second)
				go func() { _ = c[which].Shutdown(ctx) }()
				err := <-got
				assert.ErrorIs(v, err, ErrClosed)
				assert.NotErrorIs(v, err, context.Canceled)
				go func() { got <- l.Do(ctx, func(context.Context) error { return nil }) }()
				err = <-got
				assert.ErrorIs(v, err, ErrClosed)
				assert.NotErrorIs(v, err, context.Canceled)
				require.NoError(v, busy.Unlock(ctx))
				time.Sleep(time.Second)
				assert.Zero(v, has(v, "x")+has(v, "y"))
			})
		})
	}
}
