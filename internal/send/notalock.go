package send

// The error for a key that holds something else than a lock.
//
// Rules: the scripts tell locks from other data, and end with an error of their own
// (see lua/record.lua). The error is read here and nowhere else. The text names the
// key, its type and at most one field, and shows no values.

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A foreignError is ErrNotALock with the key and what the key holds.
type foreignError struct {
	text   string
	answer error // of Redis; or nil
}

func (e *foreignError) Error() string { return ErrNotALock.Error() + ": " + e.text }

func (e *foreignError) Unwrap() []error {
	if e.answer == nil {
		return []error{ErrNotALock}
	}
	return []error{ErrNotALock, e.answer}
}

// orNotALock returns err, the answer of Redis to c; or ErrNotALock, if the answer says that a key of c is not a lock's.
func orNotALock(c Call, err error) error {
	if err == nil || !redis.HasErrorPrefix(err, "NOTALOCK") {
		return err
	}
	words := strings.Fields(err.Error())
	if len(words) < 3 {
		return Unexpected(err)
	}
	n, bad := strconv.Atoi(words[1]) // which of KEYS; 0: the script does not know
	if bad != nil || n < 0 || n > len(c.Keys) {
		return Unexpected(err)
	}
	key := "one of the keys of the lock"
	if n > 0 {
		key = "the key " + ShortName(c.Keys[n-1])
	}
	return NotALock(c.Keys[max(n-1, 0)], key+" "+foreignValue(words), err)
}

// foreignValue puts into words what a script has found under a key.
func foreignValue(words []string) string {
	switch {
	case words[2] == "type" && len(words) == 4 && words[3] != "?":
		return "holds a " + words[3] + " that no lock of this type makes"
	case words[2] == "field" && len(words) > 3: // an empty field is no word
		return fmt.Sprintf("holds a hash that no lock makes (field %s)", shownField(words[3], strings.Join(words[4:], "")))
	case words[2] == "fields" && len(words) == 4:
		return "holds a hash that no lock makes (" + words[3] + " fields or more)"
	case words[2] == "number":
		return "holds a token counter that is no number"
	}
	return "holds something that no lock makes"
}

// NotALock is ErrNotALock for what was found under key. The answer is the error of Redis that says so, or nil.
func NotALock(key, found string, answer error) error {
	advice := "use a name that no data have"
	if !strings.HasPrefix(key, "redisson_") && !strings.HasPrefix(key, "relock_") {
		advice += ", such as " + ShortName("lock:"+key)
	}
	return &foreignError{found + "; it was left as it is: " + advice, answer}
}

// shownField is a field of size bytes, whose beginning the script has quoted.
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
