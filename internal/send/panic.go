package send

// Hooks of the Redis client that panic, or that end the goroutine on which they run.
//
// Rules: the panic of a hook is treated as an error until the caller has rolled back everything that the call may
// have done. The caller then panics with the same value. The stack of the hook is logged, because the panic of the
// caller has a different one. A goroutine that a hook ends reports ErrHookExited. Neither of them says anything about
// the health of Redis.

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// A HookPanic is the panic of a hook of the Redis client during a call.
type HookPanic struct {
	Value any
	stack []byte
}

func (p *HookPanic) Error() string {
	return fmt.Sprintf("a hook of the Redis client panicked: %v", p.Value)
}

// PanicOf returns the HookPanic in err, or nil.
func PanicOf(err error) *HookPanic {
	if err == nil {
		return nil
	}
	var p *HookPanic // on the heap, because errors.As takes its address
	errors.As(err, &p)
	return p
}

// OfHook reports whether err is the panic of a hook, or reports that a hook ended the goroutine.
func OfHook(err error) bool { return PanicOf(err) != nil || errors.Is(err, ErrHookExited) }

// CatchPanic calls f, and returns a panic of f as an error.
func CatchPanic(f func() error) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = &HookPanic{why, debug.Stack()}
		}
	}()
	return f()
}

// LogPanic logs the stack if err is the panic of a hook.
func LogPanic(log *slog.Logger, err error) {
	if p := PanicOf(err); p != nil {
		log.Error("relock: a hook of the Redis client panicked", "panic", p.Value, "stack", string(p.stack))
	}
}
