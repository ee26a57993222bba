package relock

// How values print. Texts quote names, as errors do, and attributes of log records do not, because handlers quote them.

import (
	"fmt"
	"log/slog"
)

// String returns "Client" and the ID.
func (c *Client) String() string {
	if c == nil {
		return "no Client"
	}
	return "Client " + c.ID()
}

// LogValue returns the text of String.
func (c *Client) LogValue() slog.Value { return slog.StringValue(c.String()) }

// String returns the type of the lock and its name, such as: fair "orders".
func (h *handle) String() string {
	kind := "lock"
	if h.lock != nil { // it is no MultiLock
		kind = h.lock.Traits().Type
	}
	return kind + " " + shortName(h.name)
}

// LogValue returns the name of the lock, cut if it is long.
func (h *handle) LogValue() slog.Value { return slog.StringValue(cutName(h.name)) }

// String returns the type of the lock and its name.
func (l *RWLock) String() string { return string(TypeReadWrite) + " " + shortName(l.read.name) }

// LogValue returns the name of the lock, cut if it is long.
func (l *RWLock) LogValue() slog.Value { return l.read.LogValue() }

// String returns the type of the lock and its name, after "hold of".
func (h *Hold) String() string {
	if h.none() {
		return "no hold"
	}
	return fmt.Sprint("hold of ", h.lock)
}

// LogValue returns the name of the lock, cut if it is long.
func (h *Hold) LogValue() slog.Value { return slog.StringValue(cutName(h.Name())) }

// String returns "election" and the name.
func (e *Election) String() string { return "election " + shortName(e.Name()) }

// LogValue returns the name of the election, cut if it is long.
func (e *Election) LogValue() slog.Value { return e.lock.LogValue() }

// String returns the token of the term and the name of the election, such as: term 7 of "cleaner".
func (t *Term) String() string {
	return fmt.Sprintf("term %d of %s", t.Token(), shortName(t.held().Name()))
}

// LogValue returns the name of the election, cut if it is long.
func (t *Term) LogValue() slog.Value { return t.held().LogValue() }
