package send

// How the error of a call is classified.
//
// Rules: a call without an answer has an unknown outcome; it counts neither as refused nor as successful. Only errors
// that may go away by themselves are transient. A call that failed with any other error is not sent again. The error is
// nil as a rule, and a nil error is classified without errors.As, which would allocate memory.

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// transientPrefixes are the beginnings of the errors with which a server refuses a call while it starts, fails over,
// moves a slot or is busy.
var transientPrefixes = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY",
	"MOVED", "ASK", "max number of clients",
	// Errors of a script whose slot is being moved to another server, or whose Cluster goes down while it runs. Redis
	// has no error codes for them, and newer servers use other words: the second one is from Valkey 9.
	"Script attempted to access a non local key", "Attempted to access a non local key",
	"Script attempted to access a slot not served",
	"Unable to execute command",     // "... because undeclared keys were accessed during rehashing of the slot"
	"Script attempted to execute a", // "... (write) command while the cluster is down"
}

// Transient reports whether the same call may succeed soon, because its connection failed, or because a server that
// starts, fails over or is busy refused it.
func Transient(err error) bool {
	final := isAny(err, redis.ErrClosed, ErrReply, ErrInvalid, ErrNotSynced, ErrNotALock) || OfHook(err)
	return !final && (!Answered(err) || refusedWithAny(err, transientPrefixes...))
}

// MayPass reports whether the same call may succeed later. Unlike Transient, it includes errors that may last: Redis
// does not admit the call, cannot save to disk, or is out of memory, or a hook of the Redis client fails.
func MayPass(err error) bool {
	return Transient(err) || OfHook(err) || NotAdmitted(err) || refusedWithAny(err, "MISCONF", "OOM")
}

// NotAdmitted reports whether Redis has run nothing of the call that failed with err, because of who has sent it: the
// password is wrong or missing, the server is in protected mode, or the user may not use the command or one of its keys.
// That ends if credentials are being rotated. A script that may not run one of its commands has been admitted, and may
// have written data: Redis adds the name of the script to such an error.
func NotAdmitted(err error) bool {
	return refusedWithAny(err, "WRONGPASS", "NOAUTH", "DENIED", unauthenticated) ||
		Forbidden(err) && !strings.Contains(err.Error(), " script: ")
}

// Forbidden reports whether Redis has answered that the user lacks a permission.
func Forbidden(err error) bool { return redis.HasErrorPrefix(err, "NOPERM") }

// MayHaveRun reports whether Redis may have run, or may still run, the call that failed with err.
func MayHaveRun(err error) bool {
	if err == nil || errors.Is(err, ErrNotSynced) { // the master has run the call, only the confirmations are missing
		return true
	}
	unsent := isAny(err, redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted, ErrInvalid) || ofDial(err)
	return !unsent && !Answered(err)
}

// MayHaveActed reports whether the call that failed with err may have changed anything. Half of a script may have run
// that Redis has answered with an error.
func MayHaveActed(err error) bool {
	return err != nil && (MayHaveRun(err) || Answered(err) && !NotAdmitted(err))
}

// MayRunLater reports whether Redis may still run the call that ended with err. A call that was answered has either
// run already or never will.
func MayRunLater(err error) bool {
	return err != nil && MayHaveRun(err) && !Answered(err) && !isAny(err, ErrReply, ErrNotALock)
}

// ended reports whether the call failed with err because its connection was closed before or during the call.
func ended(err error) bool {
	return isAny(err, io.EOF, syscall.EPIPE, syscall.ECONNRESET) && !ofDial(err)
}

// ofDial reports whether err is that of a connection that could not be made.
func ofDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// isAny reports whether err is one of these errors.
func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// timedOut reports whether the call failed with err because there was no answer in time.
func timedOut(err error) bool {
	if err == nil {
		return false
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() && MayRunLater(err)
}

// RedisClosed reports whether err says that the Redis client is closed: no request can be sent any more.
func RedisClosed(err error) bool { return errors.Is(err, redis.ErrClosed) }

// Answered reports whether err is an answer from Redis.
func Answered(err error) bool {
	if err == nil {
		return false
	}
	var answer redis.Error
	return errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrNotSynced)
}

// RefusedWith reports whether Redis answered with an error that begins with prefix. An embedded server may put its
// own words in front of the error of a script.
func RefusedWith(err error, prefix string) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return redis.HasErrorPrefix(err, prefix) ||
		Answered(err) && (strings.Contains(text, ": "+prefix+" ") || strings.Contains(text, ": ERR "+prefix+" "))
}

// refusedWithAny reports whether RefusedWith is true for one of these prefixes.
func refusedWithAny(err error, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return RefusedWith(err, prefix) })
}
