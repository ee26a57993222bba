package send

// Time limits that cost almost nothing.
//
// Rules: a timer for every call would cost a tenth of the call, because it wakes a sleeping thread. All limits that
// start at about the same time therefore share one timer, and may last a quarter longer than they are set to.

import (
	"context"
	"sync"
	"time"
)

// A limit makes contexts that are canceled after d, or up to a quarter of d later.
type limit struct {
	d time.Duration

	mu      sync.Mutex // guards below
	current context.Context
	cancel  context.CancelFunc // cancels current; it is never called, because current ends with its timer
	until   time.Time          // when the next context is needed
}

// begin returns a context without values that is canceled after the limit.
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

// undated is a context that is canceled, but reports no deadline in advance. With ContextTimeoutEnabled, go-redis
// would take the deadline for the time that the answer may take, and close a connection whose answer arrives a little
// later. A call that waits for a connection still ends when the context is canceled.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// Undated returns ctx without its deadline. See undated.
func Undated(ctx context.Context) context.Context { return undated{ctx} }

// limited is canceled with one context and has the values of another.
type limited struct {
	context.Context
	values context.Context
}

func (c limited) Value(key any) any { return c.values.Value(key) }
