package send

// The errors of this package, and how names appear in their texts.
//
// Rules:
//   - The root package exports most of these errors again, so their texts and comments are written for its users.
//   - redis.Nil never leaves this package.
//   - A name is shortened before it becomes part of a text, and quoted, because it may contain bytes that do not
//     belong in a log.

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

var (
	// ErrClosed is returned when the Client is closed.
	ErrClosed = errors.New("the client is closed")

	// ErrInvalid is returned when a name, a lease, a wait, an option or a set of locks is not valid. The text
	// describes which of them, and why. Nothing was sent to Redis.
	ErrInvalid = errors.New("invalid")

	// ErrNotSynced is returned when fewer replicas than WithSyncedReplicas asks for confirmed a lock in time. The
	// lock is not held, and is released. After an Extend, the hold is as before.
	ErrNotSynced = errors.New("not confirmed by enough replicas")

	// ErrNotALock is returned when the key of a lock holds data that neither this package nor Redisson has written,
	// or when a key that belongs to the lock holds a value of another type. The text names the key and describes its
	// content. The key is left unchanged, also by ForceUnlock, and no call waits for it: every method that sends a
	// request to Redis returns this error immediately. Of the keys that accompany a lock, such as
	// redisson_lock_queue:{name}, only the type is checked. Give locks names that are not used for data, such as
	// "lock:orders:42".
	ErrNotALock = errors.New("not a lock")

	// ErrTimeUp ends a wait whose deadline has passed. The error itself is not a failure: TryLock returns false. An
	// error that wraps ErrTimeUp contains a reason that must be reported.
	ErrTimeUp = errors.New("the time is up")

	// ErrNoConnection is returned when a call has waited for a connection in vain, as far as the Redis client tells: a
	// hook of the user may have sent it.
	ErrNoConnection = errors.New("no connection to Redis")

	// ErrSilent is returned when Redis has not answered a call for a long time.
	ErrSilent = errors.New("no answer from Redis")

	// ErrPoolExhausted is added to the error of a request that was not answered while all connections were in use: see
	// Sender.Explain.
	ErrPoolExhausted = errors.New("the connection pool is exhausted: all of its connections are in use")

	// ErrReply is returned for an answer in a form that no script uses.
	ErrReply = errors.New("unexpected answer to a script")

	// ErrHookExited is returned when a hook of the Redis client ended the goroutine of a call.
	ErrHookExited = errors.New("a hook of the Redis client ended the goroutine of the request")
)

// Invalid returns ErrInvalid with the reason.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Unexpected returns ErrReply with the answer, which can be anything of any length.
func Unexpected(answer any) error {
	return fmt.Errorf("%w: %s", ErrReply, ShortName(fmt.Sprint(answer)))
}

// Silence returns ErrSilent with the time for which nothing arrived, and with the last error before that time.
func Silence(d time.Duration, tries int, last error) error {
	const tenth = 100 * time.Millisecond
	return WithLast(fmt.Errorf("%w within %v (requests that were sent, or still waited for a connection: %d)",
		ErrSilent, d.Truncate(tenth), tries), last)
}

// WithLast returns why, the reason why a caller gives up, together with the error of the last try, if there is one. It
// may be called with a mutex held: no method of the errors is called, which may be those of a hook or a context of the
// user.
func WithLast(why, last error) error {
	if last == nil {
		return why
	}
	return &lastError{why, last}
}

// A lastError is an error, and that of the last try.
type lastError struct{ why, last error }

func (e *lastError) Error() string   { return fmt.Sprintf("%v: the last attempt: %v", e.why, e.last) }
func (e *lastError) Unwrap() []error { return []error{e.why, e.last} }

// CtxError returns the error of a context that is done, together with its cause if that is a different error.
func CtxError(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// ShortName returns the name as it appears in texts: quoted, and shortened if it is long.
func ShortName(name string) string {
	short := cut(name)
	if short == name {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q… (%d bytes)", short, len(name))
}

// CutName returns the name as an attribute of a log record, which the handler quotes.
func CutName(name string) string {
	short := cut(name)
	if short == name {
		return name
	}
	return fmt.Sprintf("%s… (%d bytes)", short, len(name))
}

// cut returns as much of a name as fits into a text.
func cut(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	end := most
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end]
}
