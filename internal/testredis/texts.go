package testredis

// Errors: an answer of Redis that is one, and whether a text can be logged.

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// An AnswerError is an error reply of Redis.
type AnswerError string

func (e AnswerError) Error() string { return string(e) }

// RedisError marks it as one: see redis.Error.
func (AnswerError) RedisError() {}

// CheckText asserts that err fits into a line of a log. A MultiLock names itself and each of its locks that failed, and
// a name that cannot be printed takes four bytes for each of its own.
func CheckText(t *testing.T, err error) {
	t.Helper()
	s := strings.ReplaceAll(fmt.Sprint(err), "\nrelock: ", " ") // the separator of errors.Join
	assert.LessOrEqual(t, len(s), 1100, "bytes of %.1200q", s)
	assert.False(t, strings.ContainsAny(s, "\r\n\x00"), "%.700q", s)
}
