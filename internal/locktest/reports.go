//go:build go1.25

package locktest

// Observers and contexts that look at what is going on when they are called.

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/stretchr/testify/require"
)

// A HandlerFunc is a handler of a logger that consists of one function.
type HandlerFunc func(r slog.Record) error

func (h HandlerFunc) Enabled(context.Context, slog.Level) bool { return true }

func (h HandlerFunc) Handle(_ context.Context, r slog.Record) error { return h(r) }

func (h HandlerFunc) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h HandlerFunc) WithGroup(string) slog.Handler { return h }

// An ObserverFunc is an Observer that calls one function with the name of the event.
type ObserverFunc struct {
	relock.NopObserver
	Call func(event string)
}

func (o ObserverFunc) Waiting(context.Context, relock.WaitingEvent) { o.Call("waiting") }

func (o ObserverFunc) Acquired(context.Context, relock.AcquiredEvent) { o.Call("acquired") }

func (o ObserverFunc) GaveUp(context.Context, relock.GaveUpEvent) { o.Call("gave up") }

func (o ObserverFunc) Renewed(context.Context, relock.RenewedEvent) { o.Call("renewed") }

func (o ObserverFunc) RenewalFailed(context.Context, relock.RenewalFailedEvent) {
	o.Call("renewal failed")
}

func (o ObserverFunc) Released(context.Context, relock.ReleasedEvent) { o.Call("released") }

func (o ObserverFunc) Expired(context.Context, relock.ExpiredEvent) { o.Call("expired") }

func (o ObserverFunc) Lost(context.Context, relock.LostEvent) { o.Call("lost") }

// InReportedBubble runs f in a bubble, on an engine with a logger and an Observer.
func InReportedBubble(t *testing.T, log HandlerFunc, observe func(event string), f func(e *BubbleEngine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		redis := fakeredis.New()
		f(JoinBubbleEngine(t, redis, "client", relock.WithLogger(slog.New(log)), relock.WithObserver(ObserverFunc{Call: observe})))
	})
}

func (e *BubbleEngine) LockName(name string, o engine.Owner) {
	e.T.Helper()
	ok, err := e.acquire(ctx, NewFakeLock(e.Redis, name), o, engine.Request{Wait: Forever})
	require.NoError(e.T, err)
	require.True(e.T, ok)
}
