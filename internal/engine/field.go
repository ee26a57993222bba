package engine

// Fields: the name of one acquisition, which a record in Redis has for each hold.
//
// Rules: a field is client:owner:number, the number counts the acquisitions of the Client, and no field is made twice.
// The number begins with usesLineMark where the Client uses the line: who finds such a holder knows that its release
// passes the lock along the line. uses_line of lua/record.lua reads the mark, too, which
// TestMarkOfAFieldIsThatOfTheScripts checks.

import (
	"strconv"
	"strings"
)

const usesLineMark = '0'

// newField makes the field of an acquisition: client, owner and number.
func (e *Engine) newField(o Owner) string {
	var room [96]byte
	field := append(append(room[:0], e.ID...), ':')
	field = append(strconv.AppendInt(field, int64(o), 10), ':')
	if !e.sender.Degraded() {
		field = append(field, usesLineMark)
	}
	return string(strconv.AppendUint(field, e.acquisitions.Add(1), 10))
}

// made reports whether this engine has made field. It knows of each of its fields whether a request may still run that
// asks with it.
func (e *Engine) made(field string) bool {
	number, err := strconv.ParseUint(field[strings.LastIndexByte(field, ':')+1:], 10, 64)
	return err == nil && number <= e.acquisitions.Load() && strings.HasPrefix(field, e.ID+":")
}

// UsesLine reports whether the Client of field uses the line.
func UsesLine(field string) bool { return field[strings.LastIndexByte(field, ':')+1] == usesLineMark }
