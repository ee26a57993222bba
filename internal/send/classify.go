package send

// How the error of a call is read.
//
// Rules: a call without an answer has an unknown outcome, and is never a refusal and
// never a success. Only errors that may pass by themselves are transient: a call that
// failed with another error is not sent again.

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// transientPrefixes begin the refusals of a server that starts, fails over, moves a slot or is busy.
var transientPrefixes = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY",
	"MOVED", "ASK", "max number of clients",
	// The errors of a script whose slot is half way to another server, or whose Cluster
	// goes down meanwhile. Redis has no code for them, and newer servers other words.
	"Script attempted to access a non local key", "Attempted to access a non local key", // the latter is of Valkey 9
	"Script attempted to access a slot not served",
	"Unable to execute command",     // "... because undeclared keys were accessed during rehashing of the slot"
	"Script attempted to execute a", // "... (write) command while the cluster is down"
}

// Transient reports whether the same call may succeed soon: the connection
// failed, or a server that starts, fails over or is busy refused the call.
func Transient(err error) bool {
	for _, final := range []error{redis.ErrClosed, ErrReply, ErrInvalid, ErrNotSynced, ErrNotALock} {
		if errors.Is(err, final) {
			return false
		}
	}
	if OfHook(err) {
		return false
	}
	if !Answered(err) {
		return true
	}
	for _, prefix := range transientPrefixes {
		if RefusedWith(err, prefix) {
			return true
		}
	}
	return false
}

// MayHaveRun reports whether Redis may have run, or may still run, the call that failed with err.
func MayHaveRun(err error) bool {
	if errors.Is(err, ErrNotSynced) {
		return true // the master has run the call, only the replicas are missing
	}
	if Answered(err) || errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, ErrInvalid) {
		return false
	}
	var op *net.OpError
	return !errors.As(err, &op) || op.Op != "dial"
}

// MayRunLater reports whether Redis may still run the call that ended with err. A call that was answered has run, or
// never runs.
func MayRunLater(err error) bool {
	return err != nil && MayHaveRun(err) && !Answered(err) && !errors.Is(err, ErrReply) && !errors.Is(err, ErrNotALock)
}

// ended reports whether the call failed with err because its connection had ended, or ended meanwhile.
func ended(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// Answered reports whether err is an answer of Redis.
func Answered(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrNotSynced)
}

// RefusedWith reports whether Redis answered with an error that begins with prefix.
// An embedded server may put its own words before the error of a script.
func RefusedWith(err error, prefix string) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return redis.HasErrorPrefix(err, prefix) ||
		Answered(err) && (strings.Contains(text, ": "+prefix+" ") || strings.Contains(text, ": ERR "+prefix+" "))
}
