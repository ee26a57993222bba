// Package lua has the Lua scripts. Package internal/record has them as values that can be sent.
//
// Rules: every Lua file is either a prelude or a script. A script answers three integers, as its header says, in one
// text; in its common case it answers one integer n, which stands for {1, n, 0}. There are three exceptions. The
// script of the poller answers three integers for each lock that may be free. A script that releases a lock by force adds
// the IDs of clients. The script of Inspect answers the contents of all keys, in a list.
// KEYS holds data keys and nothing else.
//
// The line of the scripts is the wait queue in Redis: see line.lua. The stories in testdata show what the scripts do.
//
// A script is linked with the preludes that it uses: see package link. This package contains the linked scripts, not
// the linker, because linking takes 50 ms, which every program that imports relock would wait for when it starts. "make
// lua" links them after a change of a Lua file, and TestLinkedScripts fails if they are older.
package lua

import (
	"embed"
	"strings"
)

//go:embed linked/*.lua
var linked embed.FS

// Source returns the source of the script with this name, as it is sent. It panics if there is none.
func Source(name string) string {
	source, err := linked.ReadFile("linked/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(source)
}

// Names returns the names of all scripts.
func Names() (names []string) {
	files, err := linked.ReadDir("linked")
	if err != nil {
		panic("bug: " + err.Error())
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".lua"))
	}
	return names
}
