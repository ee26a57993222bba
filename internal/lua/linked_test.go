package lua

// The scripts as they are sent: linked, and with what they use.

import (
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gopher "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/relock-go/relock/internal/lua/link"
)

// library has the Lua files.
var library = sync.OnceValue(func() *link.Library { return link.Relock(os.DirFS(".")) })

// The files of linked are the scripts, linked. They are sent as they are, so a reviewer sees what runs, and the line in
// an error of Redis can be looked up: the SHA-1 of the file is the digest of the script. After a change of a Lua file,
// "make lua" writes them again.
func TestLinkedScripts(t *testing.T) {
	t.Parallel()
	for _, name := range library().Scripts() {
		line, has, wants := firstDifference(Source(name), library().Link(name))
		assert.Equal(t, wants, has, "line %d of linked/%s.lua is not that of the script: run make lua, and read what changed",
			line, name)
	}
	files, err := os.ReadDir("linked")
	require.NoError(t, err)
	assert.Len(t, files, len(library().Scripts()), "run make lua: there are files in linked that are no scripts")
}

// firstDifference returns the number of the first line in which two texts differ, and both lines; 0 if they are equal.
func firstDifference(a, b string) (line int, inA, inB string) {
	as, bs := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	for i := range max(len(as), len(bs)) {
		var x, y string
		if i < len(as) {
			x = as[i]
		}
		if i < len(bs) {
			y = bs[i]
		}
		if x != y {
			return i + 1, x, y
		}
	}
	return 0, "", ""
}

// A script has those functions and constants of preludes that it uses, and those that these use in turn.
func TestScriptsHaveWhatTheyUse(t *testing.T) {
	t.Parallel()
	function := regexp.MustCompile(`(?m)^local function (\w+)`)
	for _, name := range library().Scripts() {
		source := Source(name)
		uses := map[string]int{}
		for _, word := range strings.FieldsFunc(source, func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}) {
			uses[word]++
		}
		for _, m := range function.FindAllStringSubmatch(source, -1) {
			assert.Greater(t, uses[m[1]], 1, "%s is not used in %s", m[1], name)
		}
		assert.Subset(t, ofRedis, globals(t, source), "names that nobody defines in %s", name)
	}
}

// ofRedis has the names that Redis and Lua define for scripts.
var ofRedis = strings.Fields(
	"KEYS ARGV redis string table math tonumber tostring type pcall error unpack ipairs pairs next",
)

// globals returns the names that a script uses and does not define in front of their use.
func globals(t *testing.T, source string) (names []string) {
	chunk, err := parse.Parse(strings.NewReader(source), "")
	require.NoError(t, err, source)
	function, err := gopher.Compile(chunk, "")
	require.NoError(t, err, source)
	all := []*gopher.FunctionProto{function}
	for len(all) > 0 {
		f := all[0]
		all = append(all[1:], f.FunctionPrototypes...)
		for _, instruction := range f.Code {
			if op := int(instruction >> 26); op == gopher.OP_GETGLOBAL || op == gopher.OP_SETGLOBAL {
				names = append(names, f.Constants[instruction&0x3ffff].String())
			}
		}
	}
	return names
}

func TestGlobalsAreFound(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"x", "b"}, globals(t, "local a = 1\nreturn x(a, b)"))
}

// These scripts have short cuts. The others are linked without any.
func TestShortCutsAreMarked(t *testing.T) {
	t.Parallel()
	var found []string
	for _, name := range library().Scripts() {
		require.NotContains(t, library().Link(name), "--[[", name)
		if library().Link(name) != library().Long().Link(name) {
			found = append(found, name)
		}
	}
	assert.Equal(t, []string{
		"fair_acquire", "fair_release", "lock_acquire", "lock_release", "read_acquire", "read_release",
		"semaphore_acquire", "semaphore_release", "write_acquire", "write_release",
	}, found)
}
