// Package ticket has the tickets of detached holds: texts that processes pass to one another.
//
// Rules: a ticket is printable ASCII without spaces, of at most MaxSize bytes, so that it fits into a header, a URL or
// a message. It has a version, which a reader checks first, and a checksum, so that a damaged ticket is no other one.
// It is not signed: a process that has a ticket can attach the hold, and one that can write to Redis needs none.
package ticket

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// MaxSize is how many bytes a ticket has at most.
const MaxSize = 512

// LongestKey is how long the key of a hold may be, whatever else its ticket has.
const LongestKey = 262

// version begins every ticket of this version. The versions have the beginning in common.
const (
	version   = beginning + "1."
	beginning = "relock"
)

// The reasons why a text is not a ticket, or why there is none for a hold.
var (
	ErrDamaged = errors.New("the ticket is damaged")
	ErrVersion = errors.New("the ticket is of another version of relock")
	ErrTooLong = fmt.Errorf("the name is too long for a ticket, which has at most %d bytes", MaxSize)
)

// A Ticket is what a process has to know of a detached hold to attach it. The times are in milliseconds of the
// epoch, by the clock of Redis; 0 means that there is no such time.
type Ticket struct {
	Type    string // of the lock
	Key     string // of the lock, with the prefix of its Client
	ID      string // the holder ID
	Token   int64  // the fencing token; 0: none
	MaxEnd  int64  // the end of MaxHold
	MinEnd  int64  // the end of MinHold
	KeepEnd int64  // when the lease ends
}

// Encode returns the text of t.
func (t *Ticket) Encode() (string, error) {
	body := make([]byte, 4, MaxSize)
	for _, text := range []string{t.Type, t.Key, t.ID} {
		body = append(binary.AppendUvarint(body, uint64(len(text))), text...)
	}
	for _, n := range []int64{t.Token, t.MaxEnd, t.MinEnd, t.KeepEnd} {
		body = binary.AppendVarint(body, n)
	}
	binary.BigEndian.PutUint32(body, crc32.ChecksumIEEE(body[4:]))
	text := version + base64.RawURLEncoding.EncodeToString(body)
	if len(text) > MaxSize {
		return "", ErrTooLong
	}
	return text, nil
}

// Decode reads the text of a ticket.
func Decode(text string) (t Ticket, err error) {
	encoded, ok := strings.CutPrefix(text, version)
	switch {
	case len(text) > MaxSize, strings.ContainsAny(text, "\r\n"): // which the decoder would skip
		return t, ErrDamaged
	case !ok && strings.HasPrefix(text, beginning):
		return t, ErrVersion
	case !ok:
		return t, ErrDamaged
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(body) < 4 || binary.BigEndian.Uint32(body) != crc32.ChecksumIEEE(body[4:]) {
		return t, ErrDamaged
	}
	r := reader{rest: body[4:]}
	t = Ticket{
		Type: r.text(), Key: r.text(), ID: r.text(),
		Token: r.number(), MaxEnd: r.number(), MinEnd: r.number(), KeepEnd: r.number(),
	}
	if r.bad || len(r.rest) > 0 {
		return Ticket{}, ErrDamaged
	}
	return t, nil
}

// A reader reads the parts of a ticket. bad is set if they end too soon.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) text() string {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > uint64(len(r.rest)-size) {
		r.rest, r.bad = nil, true
		return ""
	}
	text := string(r.rest[size : size+int(n)])
	r.rest = r.rest[size+int(n):]
	return text
}

func (r *reader) number() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.rest, r.bad = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}
