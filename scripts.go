package relock

// The Lua scripts.
//
// Rules: every file of lua/ is a prelude, or the function script binds it, once, at init. KEYS holds data
// keys and nothing else. Every script answers three integers (a bundle: three for each
// lock; that of the lookout: three for each lock that may be free; the script of Inspect: the contents of all keys).
//
// A script is linked: in front of it stand the functions and the constants of preludes that it uses, and those that these use. Nobody
// lists them: a name that a file uses and does not declare is of a prelude. The types of the keys are those of its header.
// lua/testdata has the scripts as they are sent.

import (
	"embed"
	"fmt"
	"maps"
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
	renewScript   = script("renew")
	inspectScript = script("inspect")
)

// bound are all scripts but the bundle, by the names of their files; they grow at init.
var bound = make(map[string]*luaScript)

// script binds lua/<name>.lua, with the preludes that it needs. It runs at init, so that a wrong name fails every test.
//
// The script is a function that answer runs, of record.lua. A line --[[answer]] says that the function begins there: the code in front
// of it runs without answer, and must not fail. A line --[[preludes]] says that what only the block behind it needs is to be there, and
// not in front of the script: most runs do not need it.
func script(name string) *luaScript {
	head, body := "", luaFile(name)
	if before, after, _, found := cutMark(body, "answer"); found {
		head, body = before, after
	}
	before, after, block, _ := cutMark(body, "preludes")
	front := preludes.of(head)
	behind := preludes.of(before + strings.TrimPrefix(after, block))
	behind["record"] = true
	body = before + preludes.link(after, preludes.of(block), front, behind)
	body = fmt.Sprintf("return answer(function()\n%s\nend, {'%s'})\n", body, strings.Join(keyTypes(name), "', '"))
	s := send.NewScript(preludes.link(head+preludes.link(body, behind, front), front))
	bound[name] = s
	return s
}

// cutMark cuts source at the line --[[mark]]. The block are those lines behind it that are indented as it is.
func cutMark(source, mark string) (before, after, block string, found bool) {
	line := regexp.MustCompile(`(?m)^( *)--\[\[` + mark + `\]\]\n`).FindStringSubmatchIndex(source)
	if line == nil {
		return source, "", "", false
	}
	before, after = source[:line[0]], source[line[1]:]
	indent := source[line[2]:line[3]]
	for text := range strings.Lines(after) {
		if text != "\n" && !strings.HasPrefix(text, indent) {
			break
		}
		block += text
	}
	return before, after, block, true
}

// keyTypes are the types of the keys that the header of a script names, as in "-- KEYS[1]  the lock: a hash".
func keyTypes(name string) (types []string) {
	for _, key := range luaKey.FindAllStringSubmatch(luaText(name), -1) {
		types = append(types, key[1])
	}
	return types
}

var luaKey = regexp.MustCompile(`(?m)^-- KEYS(?:\[\d+\]|   )  [^:]*: (?:each )?a (hash|list|zset|string)\b`)

// A prelude is a file of lua/ whose functions and constants scripts use.
type prelude struct {
	name       string
	beside     string // used only by scripts that use this prelude, too
	statements []statement
	uses       map[string]bool // the names that it uses and does not declare
}

// A statement is one of a prelude, with the names that it defines.
type statement struct {
	text    string
	defines []string
	words   map[string]bool
}

// A library are preludes in the order in which they stand in front of a script: each uses only those in front of it. Where two define
// a name, the last one counts, as in Lua.
type library []prelude

// preludes are all preludes. In the scripts that pass on permits, permit.lua takes the place of grant.lua.
var preludes = readPreludes("record", "announce", "clock", "token", "semaphore", "clients", "grant", "permit beside permits", "line",
	"places", "tombstones", "passing", "queue", "permits", "idle", "readers", "writer")

func readPreludes(names ...string) (l library) {
	for _, name := range names {
		name, beside, _ := strings.Cut(name, " beside ")
		l = append(l, newPrelude(name, beside, luaFile(name)))
	}
	return l
}

func newPrelude(name, beside, text string) prelude {
	p := prelude{name: name, beside: beside, uses: freeNames(text)}
	begins := luaStatement.FindAllStringSubmatchIndex(text, -1)
	for i, at := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1][0]
		}
		s := text[at[0]:end]
		p.statements = append(p.statements, statement{s, strings.Split(text[at[2]:at[3]], ", "), words(s)})
	}
	return p
}

// luaStatement is the beginning of a statement of a prelude, with the names that it defines. It ends before the next one.
var luaStatement = regexp.MustCompile(`(?m)^local (?:function )?(\w+(?:, \w+)*)`)

// of are the preludes that a text uses, with those that these use.
func (l library) of(text string) map[string]bool {
	found, used := make(map[string]bool), freeNames(text)
	for _, p := range slices.Backward(l) {
		if p.beside != "" && !found[p.beside] || !p.definesAny(used) {
			continue
		}
		found[p.name] = true
		for _, s := range p.statements {
			for _, name := range s.defines {
				delete(used, name)
			}
		}
		maps.Copy(used, p.uses)
	}
	return found
}

func (p *prelude) definesAny(used map[string]bool) bool {
	return slices.ContainsFunc(p.statements, func(s statement) bool { return s.definesAny(used) })
}

func (s *statement) definesAny(used map[string]bool) bool {
	return slices.ContainsFunc(s.defines, func(name string) bool { return used[name] })
}

// link is source behind those statements of these preludes that it uses, but for the preludes that are in front of it
// already. Every run of a script makes its functions anew, which takes a rested server longer than five commands.
func (l library) link(source string, these map[string]bool, already ...map[string]bool) string {
	used := words(source)
	for _, p := range slices.Backward(l) {
		if !these[p.name] || slices.ContainsFunc(already, func(there map[string]bool) bool { return there[p.name] }) {
			continue
		}
		for _, s := range slices.Backward(p.statements) {
			if s.definesAny(used) {
				source = s.text + source
				maps.Copy(used, s.words)
			}
		}
	}
	return source
}

// words are all words of a text.
func words(text string) map[string]bool {
	all := make(map[string]bool)
	for _, word := range luaWord.FindAllString(text, -1) {
		all[word] = true
	}
	return all
}

// freeNames are the names that a text uses and declares nowhere. Words in strings and comments are no names, nor are fields.
func freeNames(text string) map[string]bool {
	text = luaNoName.ReplaceAllString(text, "''")
	names := words(text)
	for _, declared := range luaDeclared.FindAllString(text, -1) {
		maps.DeleteFunc(names, func(name string, _ bool) bool { return words(declared)[name] })
	}
	return names
}

var (
	luaWord     = regexp.MustCompile(`\w+`)
	luaNoName   = regexp.MustCompile(`'[^'\n]*'|--.*|[.:]\w+`)
	luaDeclared = regexp.MustCompile(`\b(local )?function[ \w]*\([\w, ]*\)|\blocal \w+(, \w+)*|\bfor \w+(, \w+)*`)
)

// luaFile is a file of lua/ without its comment lines. Scripts are sent without them: miniredis parses a script again for every run.
func luaFile(name string) string { return luaComment.ReplaceAllString(luaText(name), "") }

var luaComment = regexp.MustCompile(`(?m)^ *--( .*)?\n`)

func luaText(name string) string {
	text, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(text)
}
