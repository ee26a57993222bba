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

// A state has the record and the line, which is the wait queue in Redis, as HGETALL returns them.
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

// A place is a place of the line, with the words that Redis stores: see parse_place of internal/lua/line.lua.
type place struct {
	number          int
	delivery, field string
}

func parsePlace(text string) (p place, err error) {
	words := strings.Fields(text)
	if len(words) < 6 { // a seventh one is since when the place waits
		return p, fmt.Errorf("%q is no place", text)
	}
	p = place{delivery: words[1], field: words[5]}
	p.number, err = strconv.Atoi(words[0])
	return p, err
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
	fields := make(map[string]string)
	for i := 0; i+1 < len(s.Line); i += 2 {
		fields[s.Line[i]] = s.Line[i+1]
	}
	places, err := enqueuedPlaces(fields)
	if err != nil {
		return a, err
	}
	if err != nil {
		return a, err
	}
	slices.SortFunc(places, func(a, b place) int { return a.number - b.number })
	for _, p := range places {
		field, err := c.field(p.field)
		if err != nil {
			return a, err
		}
		a.line = append(a.line, field)
	}
	return a, nil
}

// enqueuedPlaces returns the places that are in the line.
func enqueuedPlaces(fields map[string]string) (all []place, err error) {
	first, _ := strconv.Atoi(fields["first"])
	last, _ := strconv.Atoi(fields["last"])
	for number := first; number <= last; number++ {
		client, there := fields[strconv.Itoa(number)]
		if !there || fields[client] == "" {
			continue
		}
		p, err := parsePlace(fields[client])
		if err != nil {
			return nil, err
		}
		if p.delivery != "push" {
			return nil, fmt.Errorf("the specification has no place %q", fields[client])
		}
		if p.number == number {
			all = append(all, p)
		}
	}
	return all, nil
}
