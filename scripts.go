package relock

// The Lua scripts.
//
// Rules: every file of lua/ is a prelude, or the function script binds it, once, at init. KEYS holds data
// keys and nothing else. Every script answers three integers (a bundle: three for each
// lock; that of the lookout: three for each lock that may be free; the script of Inspect: the contents of all keys).

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

// bound are all scripts but the bundle, by the names of their files; they grow at init.
var bound = make(map[string]*luaScript)

// script binds lua/<name>.lua, whose KEYS are of these types. It puts the preludes that the file needs before it: record,
// and parts. A file says by a mark where preludes are to be that most of its runs do not need: see luaMark. script runs at init,
// so that a wrong name fails every test.
func script(name, types string, parts ...string) *luaScript {
	first, rest := "", luaFile(name)
	front, behind := []string(nil), append([]string{"record"}, parts...) // preludes in front of first, and behind it
	if before, preludes, after := cutMark(rest); slices.Contains(preludes, "record") {
		first, rest, front, behind = before, after, parts, preludes
	}
	if before, preludes, after := cutMark(rest); preludes != nil {
		rest = before + withParts(after, preludes)
	}
	rest = fmt.Sprintf("return answer(function()\n%s\nend, {'%s'})\n", rest, strings.ReplaceAll(types, " ", "', '"))
	s := send.NewScript(withParts(first+withParts(rest, behind), front))
	bound[name] = s
	return s
}

// luaMark is a line of a script, as --[[clock line]]: these preludes are to be there, and not in front of the script. The code in
// front of a mark with record runs without the function answer, and must not fail.
var luaMark = regexp.MustCompile(`(?m)^ *--\[\[([\w ]+)\]\]\n`)

// cutMark cuts source at its first mark, and returns the preludes that the mark names; nil: there is none.
func cutMark(source string) (before string, preludes []string, after string) {
	mark := luaMark.FindStringSubmatchIndex(source)
	if mark == nil {
		return source, nil, ""
	}
	return source[:mark[0]], strings.Fields(source[mark[2]:mark[3]]), source[mark[1]:]
}

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
