package send

// Hooks of the Redis client that panic, or end the goroutine on which they run.
//
// Rules: a panic of a hook is an error until the caller has undone all that the call
// may have done; then the caller panics with the same value. The stack of the hook is
// logged, because the panic of the caller has another one. A goroutine that a hook ends
// hands in ErrHookExited. Neither says anything about the health of Redis.

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// A HookPanic is a panic of a hook of the Redis client while a call was sent.
type HookPanic struct {
	Value any
	stack []byte
}

func (p *HookPanic) Error() string {
	return fmt.Sprintf("a hook of the Redis client panicked: %v", p.Value)
}

// PanicOf returns the panic in err, or nil.
func PanicOf(err error) *HookPanic {
	if err == nil {
		return nil
	}
	var p *HookPanic // on the heap: errors.As takes its address
	errors.As(err, &p)
	return p
}

// OfHook reports whether err is a panic of a hook, or a hook has ended the goroutine.
func OfHook(err error) bool { return PanicOf(err) != nil || errors.Is(err, ErrHookExited) }

// CatchPanic calls f, and returns a panic of f as an error.
func CatchPanic(f func() error) (err error) {
	defer recovered(&err)
	return f()
}

// recovered is deferred: it puts a panic into err.
func recovered(err *error) {
	if why := recover(); why != nil {
		*err = &HookPanic{why, debug.Stack()}
	}
}

// LogPanic logs the stack of a hook that has panicked.
func LogPanic(log *slog.Logger, err error) {
	if p := PanicOf(err); p != nil {
		log.Error("relock: a hook of the Redis client panicked", "panic", p.Value, "stack", string(p.stack))
	}
}
