package relock

// The Lua scripts, which are in internal/lua, as lock types call them.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

// The types of internal/send that lock types use.
type (
	luaScript = send.Script
	call      = send.Call
	reply     = send.Reply
)

// Scripts that serve several lock types.
var (
	inspectScript   = record.Script("inspect")
	tombstoneRemove = record.Script("tombstone_remove")
	freeInspect     = record.Script("free_inspect")
)

// freeCall is the call of the poller: it asks which of the locks called names are free, for the client with this id.
// The first len(fields) locks are checked closely: fields has the fields of the client's waiters for them. See
// internal/poller.
func freeCall(id string, names []string, fields [][]string) call {
	closely := len(fields)
	keys, args := slices.Clone(names), []any{closely, id}
	for i, name := range names[:closely] {
		keys = append(keys, record.LineKeys(name)[0])
		all := " "
		for _, field := range fields[i] {
			all += field + " "
		}
		args = append(args, all)
	}
	return call{Script: freeInspect, Keys: keys, Args: args}
}

// upToDefaults returns args and more, without those at the end of more that have their defaults, which the script
// assumes: each argument takes time.
func upToDefaults(args, more []any, defaults ...any) []any {
	n := len(more)
	for n > 0 && more[n-1] == defaults[n-1] {
		n--
	}
	return append(args, more[:n]...)
}

// forSeen returns c, which releases a lock by force, for the holders with the fields in seen only: see
// internal/lua/forced.lua. A field has suffix appended in Redis.
func forSeen(c call, seen []string, suffix string) call {
	c.Args = slices.Clip(c.Args)
	for _, field := range seen {
		c.Args = append(c.Args, field+suffix)
	}
	return c
}

func milliseconds(d time.Duration) int64 { return send.Milliseconds(d) }

func fromMilliseconds(ms int64) time.Duration { return send.FromMilliseconds(ms) }
