// Package link links Lua scripts: it puts the functions and constants of preludes that a script uses, and those that
// these use in turn, in front of the script. It is used by "make lua" and by tests: the library contains scripts that
// are linked.
//
// Rules: a Lua file is either a prelude or a script. Dependencies are not listed anywhere: a name that a file uses and
// does not declare belongs to a prelude. The types of the keys of a script are those that its header names. Comment
// lines are not sent.
package link

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A Library has the Lua files, and knows which of them are preludes.
type Library struct {
	files    fs.FS
	preludes preludes
	long     bool // without short cuts
}

// New returns the library of files, each of which is called <name>.lua. names are the preludes, in the order in which
// they are put in front of a script: each uses only those in front of it. If two preludes define the same name, the
// last one counts, as in Lua. A prelude that is listed as "a beside b" is linked only with scripts that use b, too.
func New(files fs.FS, names ...string) *Library {
	l := &Library{files: files}
	for _, name := range names {
		name, beside, _ := strings.Cut(name, " beside ")
		l.preludes = append(l.preludes, newPrelude(name, beside, l.Source(name)))
	}
	return l
}

// Relock returns the library of relock's own scripts, which are in internal/lua/.
func Relock(lua fs.FS) *Library {
	return New(lua, "forms", "record", "announce", "clock", "counter", "token", "semaphore", "clients", "tombstones", "evicted", "grant",
		"standing", "permit beside permits", // in the scripts that pass on permits, permit.lua replaces grant.lua
		"line", "passing", "queue", "permits", "readers", "writer", "waiters", "seen",
		"renaming")
}

// Long returns a library of the same files whose scripts are linked without their common cases and short cuts. A short
// cut is the code between a line --[[short cut]] and the next line --[[end]]. It does in common cases what the code
// behind it does in all cases, so a script has the same effects without it. A common case, which begins with a line
// --[[common case]], is the shortest of them.
func (l *Library) Long() *Library { return &Library{l.files, l.preludes, true} }

// Scripts returns the names of the files that are not preludes.
func (l *Library) Scripts() (names []string) {
	files, err := fs.Glob(l.files, "*.lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	preludes := l.Preludes()
	for _, file := range files {
		if name := strings.TrimSuffix(file, ".lua"); !slices.Contains(preludes, name) {
			names = append(names, name)
		}
	}
	return names
}

// Preludes returns the names of the preludes.
func (l *Library) Preludes() (names []string) {
	for _, p := range l.preludes {
		names = append(names, p.name)
	}
	return names
}

// Link returns the script with this name as it is sent. The script becomes a function, which the function answer runs
// with the types of the keys; a prelude called record defines answer. The function begins at a line --[[answer]], if
// there is one: the code in front of that line runs without answer, and must not fail. A line --[[preludes]] is the
// place for those preludes that only the block behind it needs. They are not in front of the script, because most runs
// do not need them. A common case comes in front of all preludes but those of its own mark, because to create the
// functions of a script takes Redis as long as to run them.
func (l *Library) Link(name string) string {
	head, body := "", l.Source(name)
	common := ""
	if at := commonCase.FindStringSubmatchIndex(body); at != nil {
		common, body = body[:at[0]]+body[at[2]:at[3]], body[at[1]:]
		common = l.preludes.linkBlocks(common)
	}
	if before, after, _, found := cutMark(body, "answer"); found {
		head, body = before, after
	}
	before, after, block, _ := cutMark(body, "preludes")
	front := l.preludes.of(head)
	behind := l.preludes.of(before + strings.TrimPrefix(after, block))
	behind["record"] = true
	body = before + l.preludes.link(after, l.preludes.of(block), front, behind)
	body = fmt.Sprintf("return answer(function()\n%s\nend, {'%s'})\n", body, strings.Join(l.KeyTypes(name), "', '"))
	return common + l.preludes.link(head+l.preludes.link(body, behind, front), front)
}

// Source returns a file without its comment lines. Scripts are sent without them, because miniredis parses a script
// again for every run.
func (l *Library) Source(name string) string {
	text := comment.ReplaceAllString(l.Text(name), "")
	if l.long {
		return commonCase.ReplaceAllString(shortCut.ReplaceAllString(text, ""), "")
	}
	return shortCut.ReplaceAllString(text, "$1")
}

// Text returns a file as it is written.
func (l *Library) Text(name string) string {
	text, err := fs.ReadFile(l.files, name+".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(text)
}

// KeyTypes returns the types of the keys that the header of a script names, as in "-- KEYS[1]  the lock: a hash".
func (l *Library) KeyTypes(name string) (types []string) {
	for _, key := range keyType.FindAllStringSubmatch(l.Text(name), -1) {
		types = append(types, key[1])
	}
	return types
}

// cutMark cuts source at the line --[[mark]]. block has the lines behind it that are indented at least as far.
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

// A prelude is a file with functions and constants that scripts use.
type prelude struct {
	name       string
	beside     string // linked only with scripts that use this prelude, too; or ""
	statements []statement
	uses       map[string]bool // names that it uses and does not declare
}

// A statement is a statement of a prelude, with the names that it defines.
type statement struct {
	text    string
	defines []string
	words   map[string]bool
}

// preludes are the preludes of a Library, in its order.
type preludes []prelude

func newPrelude(name, beside, text string) prelude {
	p := prelude{name: name, beside: beside, uses: freeNames(text)}
	begins := statementOf.FindAllStringSubmatchIndex(text, -1)
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

// statementOf matches the beginning of a statement of a prelude, with the names that it defines. The statement ends
// where the next one begins.
var statementOf = regexp.MustCompile(`(?m)^local (?:function )?(\w+(?:, \w+)*)`)

// of returns the preludes that a text uses, and those that these use in turn.
func (l preludes) of(text string) map[string]bool {
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

// link puts those statements of these preludes that source uses in front of it, except for the preludes that are in
// front of it already. Unused statements are left out, because every run of a script creates its functions anew, which
// takes an idle server longer than five commands.
func (l preludes) link(source string, these map[string]bool, already ...map[string]bool) string {
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

// linkBlocks puts the preludes of each mark of source in front of the block behind it.
func (l preludes) linkBlocks(source string) string {
	before, after, block, found := cutMark(source, "preludes")
	if !found {
		return source
	}
	return before + l.link(block, l.of(block)) + l.linkBlocks(strings.TrimPrefix(after, block))
}

// words returns all words of a text.
func words(text string) map[string]bool {
	all := make(map[string]bool)
	for _, w := range word.FindAllString(text, -1) {
		all[w] = true
	}
	return all
}

// freeNames returns the names that a text uses and does not declare. Words in strings and comments, and the names of
// fields, do not count.
func freeNames(text string) map[string]bool {
	text = noName.ReplaceAllString(text, "''")
	names := words(text)
	for _, declared := range declaration.FindAllString(text, -1) {
		for name := range words(declared) {
			delete(names, name)
		}
	}
	return names
}

var (
	comment     = regexp.MustCompile(`(?m)^ *--( .*)?\n`)
	shortCut    = regexp.MustCompile(`(?ms)^ *--\[\[short cut\]\]\n(.*?)^ *--\[\[end\]\]\n`)
	commonCase  = regexp.MustCompile(`(?ms)^--\[\[common case\]\]\n(.*?)^--\[\[end\]\]\n`)
	keyType     = regexp.MustCompile(`(?m)^-- KEYS(?:\[\d+\]|   )  [^:]*: (?:each )?a (hash|list|zset|string)\b`)
	word        = regexp.MustCompile(`\w+`)
	noName      = regexp.MustCompile(`'[^'\n]*'|--.*|[.:]\w+`)
	declaration = regexp.MustCompile(`\b(local )?function[ \w]*\([\w, ]*\)|\blocal \w+(, \w+)*|\bfor \w+(, \w+)*`)
)
