package relock

// The error for a key that holds something else than a lock.
//
// Rules: the scripts tell locks from other data, and end with an error of their own (see lua/record.lua). The error
// is read here and nowhere else. The text names the key, its type and at most one field, and shows no values.

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A foreignError is ErrNotALock with the key and what it holds.
type foreignError struct {
	text   string
	answer error // of Redis, if that is one
}

func (e *foreignError) Error() string { return ErrNotALock.Error() + ": " + e.text }

func (e *foreignError) Unwrap() []error {
	if e.answer == nil {
		return []error{ErrNotALock}
	}
	return []error{ErrNotALock, e.answer}
}

// orNotALock is err, which Redis answered to what; or what it means, if a key of it is not a lock's.
func orNotALock(what call, err error) error {
	if err == nil || !redis.HasErrorPrefix(err, "NOTALOCK") {
		return err
	}
	words := strings.Fields(err.Error())
	if len(words) < 3 {
		return unexpected(err)
	}
	n, bad := strconv.Atoi(words[1])
	if bad != nil || n < 0 || n > len(what.keys) {
		return unexpected(err)
	}
	key := "one of the keys of the lock"
	if n > 0 {
		key = "the key " + shortName(what.keys[n-1])
	}
	var found string
	switch {
	case words[2] == "type" && len(words) == 4 && words[3] != "?":
		found = key + " holds a " + words[3] + " that no lock makes"
	case words[2] == "field" && len(words) == 5:
		found = fmt.Sprintf("%s holds a hash that no lock makes (field %s)", key, shownField(words[3], words[4]))
	case words[2] == "number":
		found = key + " holds a token counter that is no number"
	default:
		found = key + " holds something that no lock makes"
	}
	return notALock(what.keys[max(n-1, 0)], found, err)
}

// notALock is ErrNotALock for what was found in key, which Redis answered or its answer has shown.
func notALock(key, found string, answer error) error {
	advice := "use a name that no data have"
	if !strings.HasPrefix(key, "redisson_") && !strings.HasPrefix(key, "relock_") {
		advice += ", such as " + shortName("lock:"+key)
	}
	return &foreignError{found + "; it was left as it is: " + advice, answer}
}

// shownField is a field of that many bytes, quoted as the scripts do it.
func shownField(size, quoted string) string {
	field, err := strconv.Unquote(`"` + quoted + `"`)
	if err != nil {
		field = quoted
	}
	if n, err := strconv.Atoi(size); err == nil && n > len(field) {
		return fmt.Sprintf("%.64q… (%d bytes)", field, n)
	}
	return shortName(field)
}
