package relock

// How the Logger and the Observer of the user are called, and how a warning describes a holder.
//
// Rules: neither is called with a mutex held. A call of the user reports its own events before it returns. The reporter
// (internal/report) reports the events that the Client notices by itself: renewals, and losses that no call has asked
// about. So no renewal, no guard and no other caller waits for a slow Logger or Observer. Calls of the Logger and the
// Observer are counted, on whichever goroutine they run, and Close does not wait longer than its time limit for a call
// that does not return. A panic of the Logger or the Observer is recovered.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

// A userCode guards calls of code of the user: it counts those that have not returned, and recovers their panics.
type userCode struct {
	calls    *atomic.Int64
	panicked atomic.Bool
	tell     func(panicked any, stack []byte) // is told of the first panic
}

// begin starts a call, which recovered ends.
func (u *userCode) begin() *userCode {
	u.calls.Add(1)
	return u
}

func (u *userCode) recovered() {
	u.calls.Add(-1)
	if what := recover(); what != nil && u.panicked.CompareAndSwap(false, true) {
		u.tell(what, debug.Stack())
	}
}

// A calmHandler wraps the handler of the user's Logger.
type calmHandler struct {
	slog.Handler
	*userCode
}

// lastResort is what the panic of a Logger is written to, because the Logger cannot be used for it. Only a test changes it.
var lastResort io.Writer = os.Stderr

// calmLogger returns a Logger that writes to the handler of l. The number of calls that have not returned is kept in
// calls.
func calmLogger(l *slog.Logger, calls *atomic.Int64) *slog.Logger {
	return slog.New(calmHandler{l.Handler(), &userCode{calls: calls, tell: func(panicked any, stack []byte) {
		_, _ = fmt.Fprintf(lastResort, "relock: the Logger has panicked: %v\n%s\n", panicked, stack)
	}}})
}

func (h calmHandler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer h.begin().recovered()
	return h.Handler.Enabled(ctx, level)
}

func (h calmHandler) Handle(ctx context.Context, r slog.Record) error {
	defer h.begin().recovered()
	return h.Handler.Handle(ctx, r)
}

func (h calmHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calmHandler{h.Handler.WithAttrs(attrs), h.userCode}
}

func (h calmHandler) WithGroup(name string) slog.Handler {
	return calmHandler{h.Handler.WithGroup(name), h.userCode}
}

// describeHolder asks Redis for the holder of the lock s, for a warning: see engine.Config.Holder. The text has only
// the beginning of the ID of the client, because the whole one, with the owner, would be a holder ID of Redisson.
func (c *Client) describeHolder(ctx context.Context, s engine.Subject) string {
	if LockType(s.Type) == TypeRed || c.in().lookupRefused.Load() {
		return "" // it has no record of its own, or another try would be another entry of the ACL log
	}
	var i Inspection
	err := send.CatchPanic(func() (err error) { // of a hook: this is no goroutine of the user
		i, err = c.Inspect(ctx, s.Name)
		return err
	})
	switch {
	case send.Forbidden(err):
		c.in().lookupRefused.Store(true)
		return ""
	case err != nil:
		return ""
	case len(i.Holders) == 0:
		return "nobody"
	}
	h, text := i.Holders[0], "an unknown client"
	switch {
	case h.Detached:
		text = fmt.Sprintf("a hold that client %.8s has detached", h.Client)
	case h.Client != "":
		text = fmt.Sprintf("%s of client %.8s", h.Owner, h.Client)
	}
	if h.Label != "" {
		text += fmt.Sprintf(" (%s on %s)", h.Label, h.Host)
	}
	if n := len(i.Holders) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}
