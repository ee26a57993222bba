package trace

// The state of a lock, in the words of the specification.
//
// Rules: a field client:owner:0N is the wait N of its client, and clients are numbered in the order in which the notes
// name them.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A state has the record, as HGETALL returns it, and the line, which is the wait queue in Redis: clients and their places,
// in order.
type state struct {
	Record  []string
	Expires int64 // when the lease expires, in ms since the epoch; may be a moment later than TIME tells
	Line    []string
}

// An abstract is the same state in the words of the specification.
type abstract struct {
	record string
	line   []string
}

const nobody = `<<"none",0>>`

func (a abstract) equal(b abstract) bool {
	return a.record == b.record && slices.Equal(a.line, b.line)
}

// clients gives clients the names p1, p2 and so on.
type clients map[string]string

func (c clients) name(client string) string {
	if c[client] == "" {
		c[client] = "p" + strconv.Itoa(len(c)+1)
	}
	return c[client]
}

// field returns the wait that a field of the record belongs to.
func (c clients) field(field string) (string, error) {
	parts := strings.Split(field, ":")
	if len(parts) != 3 || len(parts[0]) != 36 {
		return "", fmt.Errorf("%q is no field of relock", field)
	}
	wait, err := strconv.Atoi(parts[2])
	return fmt.Sprintf("<<%q,%d>>", c.name(parts[0]), wait), err
}

// of returns the state in the words of the specification.
func (c clients) of(s state) (a abstract, err error) {
	a.record = nobody
	switch len(s.Record) {
	case 0:
	case 2:
		if a.record, err = c.field(s.Record[0]); err != nil {
			return a, err
		}
	default:
		return a, fmt.Errorf("a record of %d fields", len(s.Record)/2)
	}
	for i := 1; i < len(s.Line); i += 2 {
		words := strings.Fields(s.Line[i]) // see parse_place of internal/lua/line.lua
		if len(words) < 5 || words[0] != "push" {
			return a, fmt.Errorf("the specification has no place %q", s.Line[i])
		}
		field, err := c.field(words[4])
		if err != nil {
			return a, err
		}
		a.line = append(a.line, field)
	}
	return a, nil
}
