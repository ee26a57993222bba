package relock

// What the calls of the scripts tell of a Client. The calls are in internal/record, and the scripts in internal/lua.

import (
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

type call = send.Call

// wire returns what the calls of a lock tell of c. A lock of a nil Client makes none.
func (c *Client) wire() *record.Client {
	if c == nil {
		return &record.Client{Verb: func() any { return nil }}
	}
	return &c.in().wire
}
