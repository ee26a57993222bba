package relock

// The Lua scripts.
//
// Rules: every file of lua/ is a prelude, or the function script binds it, once, at init. KEYS holds data
// keys and nothing else. Every script answers three integers (a bundle: three for each
// lock; the script of Inspect: the contents of all keys).

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

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
	renewScript   = script("renew", "hash")
	inspectScript = script("inspect", "hash")
)

// bound are all scripts but the bundle; they grow at init.
var bound []*luaScript

// script binds lua/<name>.lua, whose KEYS are of these types. It puts the parts that the file needs before it. A file
// that seldom needs some parts says where they are to be: see luaMark. script runs at init, so that a wrong name fails every
// test.
func script(name, types string, parts ...string) *luaScript {
	source := luaFile(name)
	if mark := luaMark.FindStringSubmatchIndex(source); mark != nil {
		source = source[:mark[0]] + withParts(source[mark[1]:], strings.Fields(source[mark[2]:mark[3]]))
	}
	source = fmt.Sprintf("return answer(function()\n%s\nend, {'%s'})\n", source, strings.ReplaceAll(types, " ", "', '"))
	source = withParts(source, append([]string{"record"}, parts...))
	s := send.NewScript(source)
	bound = append(bound, s)
	return s
}

// luaMark is a line of a script, as --[[clock line]], where these preludes are to be and not in front of the script.
var luaMark = regexp.MustCompile(`(?m)^ *--\[\[([\w ]+)\]\]\n`)

// withParts is source behind what it uses of these preludes.
func withParts(source string, parts []string) string {
	for _, part := range slices.Backward(parts) {
		source = withUsed(luaFile(part), source)
	}
	return source
}

// withUsed is source behind those functions and constants of prelude that it uses. Every run of a script makes its functions
// anew, which takes a rested server longer than five commands.
func withUsed(prelude, source string) string {
	for _, from := range slices.Backward(luaStatement.FindAllStringSubmatchIndex(prelude, -1)) {
		names := prelude[from[2]:from[3]]
		if regexp.MustCompile(`\b(` + strings.ReplaceAll(names, ", ", "|") + `)\b`).MatchString(source) {
			source = prelude[from[0]:] + source
		}
		prelude = prelude[:from[0]]
	}
	return source
}

// luaStatement is the beginning of a statement of a prelude, with the names that it defines. It ends before the next one.
var luaStatement = regexp.MustCompile(`(?m)^local (?:function )?(\w+(?:, \w+)*)`)

func luaFile(name string) string {
	source, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return luaComment.ReplaceAllString(string(source), "")
}

// luaComment is a comment line. Scripts are sent without them: miniredis parses a script again for every run.
var luaComment = regexp.MustCompile(`(?m)^ *--( .*)?\n`)
