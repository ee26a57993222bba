package send

// The error for a key that holds something other than a lock.
//
// Rules: the scripts distinguish locks from other data, and end with an error of their own (see
// internal/lua/record.lua), which is parsed only here. The text of the resulting error names the key, its type and at
// most one field, and contains no values.

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A foreignError is ErrNotALock with the key and a description of its content.
type foreignError struct {
	text   string
	answer error // the error from Redis, or nil
}

func (e *foreignError) Error() string { return ErrNotALock.Error() + ": " + e.text }

func (e *foreignError) Unwrap() []error {
	if e.answer == nil {
		return []error{ErrNotALock}
	}
	return []error{ErrNotALock, e.answer}
}

// orNotALock returns err, with which Redis answered c, or ErrNotALock if it reports that a key of c does not hold a
// lock.
func orNotALock(c Call, err error) error {
	if err == nil || !redis.HasErrorPrefix(err, "NOTALOCK") {
		return err
	}
	words := strings.Fields(err.Error())
	if len(words) < 3 {
		return Unexpected(err)
	}
	n, bad := strconv.Atoi(words[1]) // an index of KEYS, beginning with 1; 0: the script does not know it
	if bad != nil || n < 0 || n > len(c.Keys) {
		return Unexpected(err)
	}
	key := "one of the keys of the lock"
	if n > 0 {
		key = "the key " + ShortName(c.Keys[n-1])
	}
	return NotALock(c.Keys[max(n-1, 0)], key+" "+foreignValue(words), err)
}

// foreignValue describes what a script found under a key.
func foreignValue(words []string) string {
	switch {
	case words[2] == "type" && len(words) == 4 && words[3] != "?":
		return "holds a " + words[3] + " that does not belong to a lock of this type"
	case words[2] == "field" && len(words) > 3: // an empty field is not among the words
		return fmt.Sprintf("holds a hash that is not a lock (field %s)", shownField(words[3], strings.Join(words[4:], "")))
	case words[2] == "fields" && len(words) == 4:
		return "holds a hash that is not a lock (" + words[3] + " fields or more)"
	case words[2] == "number":
		return "holds a token counter that is not a number"
	case words[2] == "large":
		return "holds a token counter that is too large (2^53 or more)"
	}
	return "holds data that is not a lock"
}

// NotALock returns ErrNotALock for the content found under key. answer is the error from Redis, or nil.
func NotALock(key, found string, answer error) error {
	advice := "use a name that no other data has"
	if !strings.HasPrefix(key, "redisson_") && !strings.HasPrefix(key, "relock_") {
		advice += ", such as " + ShortName("lock:"+key)
	}
	return &foreignError{found + "; it was left unchanged: " + advice, answer}
}

// shownField returns a field of size bytes, whose beginning was quoted by the script.
func shownField(size, quoted string) string {
	field, err := strconv.Unquote(`"` + quoted + `"`)
	if err != nil {
		field = quoted
	}
	if n, err := strconv.Atoi(size); err == nil && n > len(field) {
		return fmt.Sprintf("%.64q… (%d bytes)", field, n)
	}
	return ShortName(field)
}
