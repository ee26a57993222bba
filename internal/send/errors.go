package send

// The errors of this package, and how names appear in texts.
//
// Rules:
//   - The root exports most of these errors again, so their texts and comments are
//     written for its users.
//   - redis.Nil never leaves this package.
//   - A name is shortened before it goes into a text: a name can hold bytes that do
//     not belong in a log.

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

var (
	// ErrClosed says that the Client is closed.
	ErrClosed = errors.New("the client is closed")

	// ErrInvalid says that a name, lease, wait, option or set of locks makes no
	// sense; the text describes which and why. Nothing was sent to Redis.
	ErrInvalid = errors.New("invalid")

	// ErrNotSynced says that fewer replicas than WithSyncedReplicas asks for have
	// confirmed a lock in time. The lock is not held, and was released.
	ErrNotSynced = errors.New("not confirmed by enough replicas")

	// ErrNotALock says that Redis has something under the name that neither this package
	// nor Redisson has put there, or a value of another type under a key that
	// belongs to the name. The text names the key and what the key holds. The key is
	// left as it is, also by ForceUnlock, and never waited for: every method that asks
	// Redis returns this error at once. The keys beside a lock
	// (redisson_lock_queue:{name} and the like) are checked for their type alone. Give
	// locks names that no data have, such as "lock:orders:42".
	ErrNotALock = errors.New("not a lock")

	// ErrTimeUp ends a wait whose deadline has passed. The error itself is no failure:
	// TryLock answers false. An error that wraps ErrTimeUp has a reason to report.
	ErrTimeUp = errors.New("the time is up")

	// ErrSilent says that Redis has not answered a call for a long time.
	ErrSilent = errors.New("no answer from Redis")

	// ErrReply says that an answer has a form in which no script answers.
	ErrReply = errors.New("unexpected answer to a script")

	// ErrHookExited says that a hook of the Redis client has ended the goroutine of a call.
	ErrHookExited = errors.New("a hook of the Redis client ended the goroutine of the request")
)

// Invalid is ErrInvalid with its reason.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Unexpected is ErrReply with the answer, which can be anything and of any length.
func Unexpected(answer any) error {
	return fmt.Errorf("%w: %s", ErrReply, ShortName(fmt.Sprint(answer)))
}

// Silence is ErrSilent with the time for which nothing came, and the last error before that time.
func Silence(d time.Duration, tries int, last error) error {
	const tenth = 100 * time.Millisecond
	return WithLast(fmt.Errorf("%w within %v, or no connection to it (tries: %d, each over a connection of its own)",
		ErrSilent, d.Truncate(tenth), tries), last)
}

// WithLast is why, the reason of a caller who gives up, with the error of the last try, if there is one.
func WithLast(why, last error) error {
	if last == nil {
		return why
	}
	return fmt.Errorf("%w: the last try: %w", why, last)
}

// CtxError is the report of an ended ctx: its error, and its cause if it has one.
func CtxError(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// ShortName is the name as texts show it: quoted, and cut when it is long.
func ShortName(name string) string {
	short := cut(name)
	if short == name {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q… (%d bytes)", short, len(name))
}

// CutName is the name as an attribute of a log record, whose handler quotes it.
func CutName(name string) string {
	short := cut(name)
	if short == name {
		return name
	}
	return fmt.Sprintf("%s… (%d bytes)", short, len(name))
}

// cut returns as much of a name as a text has room for.
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
