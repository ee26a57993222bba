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
// A script names the preludes that it uses: a line --[[with NAME NAME]] stands for their texts. Every run creates the
// functions that it comes to, which takes Redis as long as to run them. So a common case and short cuts stand in front
// of most preludes, and a block that few runs need has preludes of its own. If a command fails in a common case or a
// short cut, the code behind it runs, and reports the error.
package lua

import (
	"embed"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua
var files embed.FS

// Text returns a file as it is written. It panics if there is none.
func Text(name string) string {
	text, err := fs.ReadFile(files, name+".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(text)
}

// code returns the files without comment lines, by their names: miniredis parses a script again for every run.
var code = sync.OnceValue(func() map[string]string {
	all := make(map[string]string)
	names, _ := fs.Glob(files, "*.lua")
	for _, file := range names {
		name := strings.TrimSuffix(file, ".lua")
		var code strings.Builder
		for line := range strings.Lines(Text(name)) {
			if text := strings.TrimLeft(line, " "); !strings.HasPrefix(text, "-- ") && text != "--\n" {
				code.WriteString(line)
			}
		}
		all[name] = code.String()
	}
	return all
})

// Names returns the names of all scripts.
func Names() []string {
	names := slices.Sorted(maps.Keys(code()))
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(Text(name), "-- Prelude ") })
}

// Source returns a script as it is sent: with its preludes.
func Source(name string) string { return join(code()[name]) }

func join(text string) string {
	var parts []string
	for found := true; found; {
		var part, list string
		part, text, found = strings.Cut(text, "--[[with ")
		list, text, _ = strings.Cut(text, "]]\n")
		parts = append(parts, part)
		for _, prelude := range strings.Fields(list) {
			parts = append(parts, code()[prelude])
		}
	}
	return strings.Join(parts, "")
}
