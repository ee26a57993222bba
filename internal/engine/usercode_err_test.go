//go:build go1.25

package engine

import (
	"context"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// An errCtx is a context of the user whose Err ends the goroutine, unless that is the goroutine of the caller.
type errCtx struct {
	context.Context
	caller int64
	calls  *atomic.Int64
}

func (c errCtx) Err() error {
	if goid.Get() != c.caller {
		c.calls.Add(1)
		runtime.Goexit()
	}
	return c.Context.Err()
}

// No method of the context of the user is called on a goroutine of the Client, where its panic would end the process.
func TestErrOfTheUserIsNotCalledOnAGoroutineOfTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinSending(t, r, "client", send.Config{Transport: r})
		n := 0
		e.fail(func(verb string) (f fakeredis.Fault) {
			if n++; verb == "acquire" && n == 1 {
				f.Block = io.EOF
			}
			return f
		})
		calls := new(atomic.Int64)
		parent, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		began := time.Now()
		ok, err := e.lockWith(errCtx{parent, goid.Get(), calls}, 1, Request{Wait: forever})
		assert.NoError(t, err)
		assert.True(t, ok)
		assert.Less(t, time.Since(began), time.Second, "the outcome of the first try did not arrive")
		assert.Zero(t, calls.Load(), "Err was called on a goroutine of the Client")
		if ok {
			e.unlock(1)
		}
	})
}
