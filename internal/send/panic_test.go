//go:build go1.25

package send

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPanicIsAnErrorWithItsValue(t *testing.T) {
	assert.NoError(t, CatchPanic(func() error { return nil }))
	err := CatchPanic(func() error { panic(42) })
	require.NotNil(t, PanicOf(fmt.Errorf("wrapped: %w", err)))
	assert.Equal(t, 42, PanicOf(err).Value)
	assert.EqualError(t, err, "a hook of the Redis client panicked: 42")
	assert.True(t, OfHook(err))
	assert.True(t, OfHook(ErrHookExited))
	assert.False(t, OfHook(errors.New("x")))
	assert.Nil(t, PanicOf(nil))
}

// A panic becomes the error of the call and is logged with its stack, on whichever goroutine the call is sent. Only a
// caller that cleans up in the background continues.
func TestPanicOfAHookEndsACallOfAForegroundCaller(t *testing.T) {
	for name, change := range map[string]func(*Config){"inline": inline, "own goroutine": func(*Config) {}} {
		t.Run(name, func(t *testing.T) {
			in(t, func(b *bench) {
				fault := func() { panic("a hook") }
				var faults atomic.Int64
				b.fake.setRun(func(_ context.Context, c Call) (any, error) {
					if faults.Add(-1) >= 0 {
						fault()
					}
					return echo(c), nil
				})
				b.isFast()
				w := b.wait(context.Background())
				w.OnCaller = true
				faults.Store(1)
				a := b.Do(w, request("x"), time.Time{})
				require.NotNil(t, PanicOf(a.Err))
				assert.Equal(t, "a hook", PanicOf(a.Err).Value)
				assert.Equal(t, 1, a.Unknown, "the call may have run before")
				assert.Contains(t, b.log.String(), "panic_test.go")
				assert.False(t, b.unhealthy.Load())
				assert.Equal(t, 1, b.fake.tries())

				w.Background = true
				faults.Store(4)
				answers(t, "x", b.Do(w, request("x"), time.Now()))
				assert.Equal(t, 6, b.fake.tries())

				fault = runtime.Goexit
				w.OnCaller = false
				faults.Store(4)
				answers(t, "x", b.Do(w, request("x"), time.Now()))
			}, change)
		})
	}
}

// A client of the user that panics when it is asked for the server of a key, on the goroutine that begins probes, does not
// end the process.
func TestPanicOfTheProbeOfARenewalIsCaught(t *testing.T) {
	in(t, func(b *bench) {
		b.answered.Store(true)
		b.fake.setBefore(func(context.Context) error { time.Sleep(ResendTime); return nil })
		_, errs := b.All(context.Background(), []Call{request("x").Call})
		require.Len(t, errs, 1)
		assert.Nil(t, PanicOf(errs[0]), "it is not the answer of the renewal")
	}, func(c *Config) { c.Home = func(string) string { panic("the client of the user") } })
}
