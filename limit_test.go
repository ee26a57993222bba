package relock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A limit ends what began under it after its time, and little later.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		const d = time.Second
		l := newLimit(d)
		parent, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
		defer cancel()
		ends := func(ctx context.Context) {
			start := time.Now()
			if ctx.Value(key{}) != "v" {
				t.Error("it has lost the values of the ctx")
			}
			<-ctx.Done()
			if took := time.Since(start); took < d || took > d+d/4 {
				t.Errorf("ended after %v", took)
			}
		}
		for range 10 {
			go ends(l.of(parent, time.Now()))
			within, done := l.within(parent, time.Now())
			go func() {
				ends(within)
				done()
			}()
			time.Sleep(d / 7)
		}
		time.Sleep(2 * d)

		within, done := l.within(parent, time.Now())
		defer done()
		cancel()
		<-within.Done()
		if !errors.Is(within.Err(), context.Canceled) {
			t.Error(within.Err())
		}
		first := l.begin(time.Now())
		if l.begin(time.Now()) != first {
			t.Error("two that begin at the same time have a timer each")
		}
		synctest.Wait()
	})
}
