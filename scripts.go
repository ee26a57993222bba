package relock

// The Lua scripts.
//
// Rules: every file of lua/ is a prelude, or the function script binds it, once, at init. KEYS holds data
// keys and nothing else. Every script answers three integers (a bundle: three for each
// lock; that of the lookout: three for each lock that may be free; the script of Inspect: the contents of all keys).
//
// A script is linked with the preludes that it uses: see internal/lualink. lua/testdata has the scripts as they are
// sent.

import (
	"embed"
	"io/fs"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/lualink"
	"github.com/relock-go/relock/internal/send"
)

// The words of internal/send that lock types use.
type (
	luaScript = send.Script
	call      = send.Call
	reply     = send.Reply
)

//go:embed lua/*.lua
var luaFiles embed.FS

// Scripts that serve several lock types.
var (
	inspectScript = script("inspect")
	tombstoneRemove = script("tombstone_remove")
	freeInspect   = script("free_inspect")
)

// bound are all scripts but the bundle, by the names of their files; they grow at init.
var bound = make(map[string]*luaScript)

// library has the files of lua/. In the scripts that pass on permits, permit.lua takes the place of grant.lua.
var library = lualink.New(luaDir(), "record", "announce", "clock", "token", "semaphore", "clients", "grant", "standing",
	"permit beside permits", "line", "places", "tombstones", "passing", "queue", "permits", "idle", "readers", "writer")

func luaDir() fs.FS {
	dir, err := fs.Sub(luaFiles, "lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return dir
}

// script binds lua/<name>.lua, with the preludes that it needs. It runs at init, so that a wrong name fails every test.
func script(name string) *luaScript {
	s := send.NewScript(library.Link(name))
	bound[name] = s
	return s
}

// freeCall asks which of the locks called names are free, for the client with this id. Of the first ones it has the
// fields of the client's waiters, and looks closely: see internal/poller.
func freeCall(id string, names []string, fields [][]string) call {
	closely := len(fields)
	keys, optional, args := slices.Clone(names), make([]send.OptionalKey, closely), []any{closely, id}
	for i, name := range names[:closely] {
		optional[i].Key = len(keys)
		keys = append(keys, lineKey(name))
		all := " "
		for _, field := range fields[i] {
			all += field + " "
		}
		args = append(args, all)
	}
	return call{Script: freeInspect, Keys: keys, Optional: optional, Args: args}
}

func milliseconds(d time.Duration) int64 { return send.Milliseconds(d) }

func fromMilliseconds(ms int64) time.Duration { return send.FromMilliseconds(ms) }
