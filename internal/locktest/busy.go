//go:build go1.25

package locktest

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock"
	"github.com/stretchr/testify/assert"
)

// Waiter has another goroutine wait for l, and then release it. The function that it returns waits for that.
func (v *Virtual) Waiter(l relock.Locker) (released func()) {
	ended := make(chan error)
	go func() {
		ctx := relock.ContextWithOwner(context.Background())
		ended <- errors.Join(l.Lock(ctx), l.Unlock(ctx))
	}()
	time.Sleep(time.Second)
	return func() { assert.NoError(v, <-ended) }
}
