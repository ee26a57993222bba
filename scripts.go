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

// script binds lua/<name>.lua, whose KEYS are of these types. It puts the parts that the file needs before it. It
// runs at init, so that a wrong name fails every test.
func script(name, types string, parts ...string) *luaScript {
	var whole strings.Builder
	for _, part := range append([]string{"record"}, parts...) {
		whole.WriteString(luaFile(part))
	}
	fmt.Fprintf(&whole, "return answer(function()\n%s\nend, {'%s'})\n", luaFile(name), strings.ReplaceAll(types, " ", "', '"))
	s := send.NewScript(whole.String())
	bound = append(bound, s)
	return s
}

func luaFile(name string) string {
	source, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return luaComment.ReplaceAllString(string(source), "")
}

// luaComment is a comment line. Scripts are sent without them: miniredis parses a script again for every run.
var luaComment = regexp.MustCompile(`(?m)^ *--( .*)?\n`)
