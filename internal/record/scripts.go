package record

// The Lua scripts, which are in internal/lua, as values that can be sent.

import (
	"github.com/relock-go/relock/internal/lua"
	"github.com/relock-go/relock/internal/send"
)

// Scripts has all scripts, by the names of their files. It does not change after init.
var Scripts = make(map[string]*send.Script)

func init() {
	for _, name := range lua.Names() {
		Scripts[name] = send.NewScript(lua.Source(name))
	}
}

// Script returns the script with this name. Lock types call it at init, so a wrong name fails every test.
func Script(name string) *send.Script {
	s, ok := Scripts[name]
	if !ok {
		panic("bug: no script " + name)
	}
	return s
}
