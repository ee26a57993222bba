package send

// Time limits that cost nothing.
//
// Rules: a timer for every call would cost a tenth of the call, because the timer
// wakes a thread that sleeps. So all limits that begin at about the same time share one
// timer, and may take a quarter longer than they say.

import (
	"context"
	"sync"
	"time"
)

// A limit hands out contexts that end after d, or up to a quarter of d later.
type limit struct {
	d time.Duration

	mu      sync.Mutex // guards below
	current context.Context
	cancel  context.CancelFunc // of current, and never called: current ends by its timer
	until   time.Time          // when the next one begins
}

// begin returns a ctx without values that ends after the limit.
func (l *limit) begin(now time.Time) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.After(l.until) {
		var timed context.Context
		timed, l.cancel = context.WithTimeout(context.Background(), l.d+l.d/4)
		l.current = undated{timed}
		l.until = now.Add(l.d / 4)
	}
	return l.current
}

// of returns a ctx with the values of ctx, which never ends, that ends after the limit.
func (l *limit) of(ctx context.Context, now time.Time) context.Context {
	if ctx == context.Background() { // has no values
		return l.begin(now)
	}
	return limited{l.begin(now), ctx}
}

// undated is a ctx that is canceled without a deadline that is known before. go-redis with
// ContextTimeoutEnabled would take the deadline for the time that an answer may take, and
// close a connection whose answer comes a little later. A call that waits for a connection
// still ends with the ctx.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// Undated returns ctx without its deadline: see undated.
func Undated(ctx context.Context) context.Context { return undated{ctx} }

// limited ends with one ctx and has the values of another one.
type limited struct {
	context.Context
	values context.Context
}

func (c limited) Value(key any) any { return c.values.Value(key) }
