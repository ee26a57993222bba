package relock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A limit ends what began under it after its time, and little later.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		const d = time.Second
		l := limit{d: d}
		parent := context.WithValue(context.Background(), key{}, "v")
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
			time.Sleep(d / 7)
		}
		time.Sleep(2 * d)

		first := l.begin(time.Now())
		if l.begin(time.Now()) != first {
			t.Error("two that begin at the same time have a timer each")
		}
		synctest.Wait()
	})
}

// unconnectedLock is a fakeLock whose attempts get no connection, as from an empty pool: they
// wait until their ctx ends.
type unconnectedLock struct {
	*fakeLock
	seen chan<- context.Context
}

func (l unconnectedLock) acquire(ctx context.Context, _ attempt) (grant, error) {
	l.seen <- ctx
	<-ctx.Done()
	return grant{}, ctx.Err()
}

// A request that has no connection ends as soon as its caller leaves; and with an error of its own
// when its caller has waited long enough for it.
func TestLeash(t *testing.T) {
	type key struct{}
	for _, test := range []struct {
		name string
		wait time.Duration // negative: until ctx is cancelled, after 3s
		want error
	}{
		{"cancelled", -1, context.Canceled},
		{"time up", 3 * time.Second, errNoAnswer},
		{"no connection", time.Minute, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBubbleEngine(t)
				ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "v"), time.Hour)
				defer cancel()
				if test.wait < 0 {
					time.AfterFunc(3*time.Second, cancel)
				}
				seen := make(chan context.Context, 10)
				start := time.Now()
				_, err := e.acquire(ctx, unconnectedLock{&fakeLock{e.redis, "x"}, seen}, 1, request{wait: test.wait})
				took, of := time.Since(start), <-seen
				if d, has := of.Deadline(); !has || d.Sub(start) > 2*unlockTime || of.Value(key{}) != "v" {
					t.Error("it has no deadline of its own, or has lost the values of the ctx")
				}
				synctest.Wait()
				if of.Err() == nil || e.asking.Load() != 0 {
					t.Error("the request goes on")
				}
				switch {
				case test.want != nil && !errors.Is(err, test.want):
					t.Errorf("%v, want %v", err, test.want)
				case test.want != nil && took != 3*time.Second:
					t.Errorf("it took %v", took)
				case test.want == nil && (took < quickTime || took > quickTime+2*resendTime || !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "no connection")):
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

// What a hook of the Redis client has bound to the ctx of a request ends with the request, and no
// deadline of the caller is lost.
func TestLeashEndsWithTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p := &patience{ctx: ctx, closed: e.closed}
		var seen context.Context
		_, err, why := answer(e.engine, p, func(ctx context.Context) (int, error) {
			seen = ctx
			return 0, ctx.Err()
		}, nil)
		if err != nil || why != nil || seen.Err() == nil {
			t.Errorf("%v, %v, and the ctx ends with %v", err, why, seen.Err())
		}
		if d, _ := seen.Deadline(); time.Until(d) != time.Second {
			t.Errorf("it ends in %v", time.Until(d))
		}
	})
}

// So many goroutines are kept for later requests, and no more.
func TestKeptGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		for range 3 {
			for range 3 * mostIdle {
				e.spawn(func() { time.Sleep(time.Second) })
			}
			time.Sleep(2 * time.Second)
			if n := e.working.Load(); n != mostIdle || e.idle.Load() != n {
				t.Fatalf("%d goroutines, of which %d wait", n, e.idle.Load())
			}
		}
	})
}
