package engine

// Fields: a field is the holder ID of one acquire operation. The key of a lock in Redis has its hold under this ID.
//
// Rules: a field is client:owner:number. The number counts the fields of the Client, so no field is made twice. The
// field of several permits of a semaphore is client:owner:number+n; it stands for n consecutive numbers, which the
// permits have in Redis: see lua/semaphore.lua. If the Client uses the line, the number begins with usesLineMark: a
// waiter that finds such a holder knows that its release will grant the lock to a place in the line. The function
// uses_line of lua/record.lua reads the mark, too; TestMarkOfAFieldIsThatOfTheScripts compares the two.

import (
	"strconv"
	"strings"
)

// usesLineMark is a leading zero of the number of a field, which no number has otherwise.
const usesLineMark = '0'

// newField returns a new field of o, for one acquire operation that wants this number of permits; 1 for all locks
// except a semaphore.
func (e *Engine) newField(o Owner, permits int) string {
	var room [96]byte
	field := append(append(room[:0], e.ID...), ':')
	field = append(strconv.AppendInt(field, int64(o), 10), ':')
	if !e.sender.Degraded() {
		field = append(field, usesLineMark)
	}
	n := uint64(permits)
	field = strconv.AppendUint(field, e.acquisitions.Add(n)-n+1, 10)
	if n > 1 {
		field = strconv.AppendUint(append(field, '+'), n, 10)
	}
	return string(field)
}

// made reports whether this engine has made field. Of its own fields, the engine knows whether requests that name them
// may still run. It does not know that of other fields, which only a forged message can name.
func (e *Engine) made(field string) bool {
	text, _, _ := strings.Cut(field[strings.LastIndexByte(field, ':')+1:], "+")
	number, err := strconv.ParseUint(text, 10, 64)
	return err == nil && number <= e.acquisitions.Load() && strings.HasPrefix(field, e.ID+":")
}

// UsesLine reports whether the Client of field uses the line.
func UsesLine(field string) bool { return field[strings.LastIndexByte(field, ':')+1] == usesLineMark }
