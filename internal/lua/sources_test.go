package lua

// The scripts as they are sent: what they are put together from.

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gopher "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// A script has the preludes that it uses, each behind those that this one uses, and no others: without any of them it
// would use names without a definition.
func TestScriptsHaveWhatTheyUse(t *testing.T) {
	t.Parallel()
	with := regexp.MustCompile(`--\[\[with .*\]\]`)
	preludes := map[string]bool{}
	for _, name := range Names() {
		text := code()[name]
		assert.Subset(t, ofRedis, globals(t, join(text)), "names without a definition in %s", name)
		for _, at := range with.FindAllStringIndex(text, -1) {
			list := strings.Fields(text[at[0]+len("--[[with ") : at[1]-len("]]")])
			for i, prelude := range list {
				preludes[prelude] = true
				others := strings.Join(slices.Delete(slices.Clone(list), i, i+1), " ")
				without := text[:at[0]] + "--[[with " + others + "]]" + text[at[1]:]
				assert.NotSubset(t, ofRedis, globals(t, join(without)), "%s does not use %s", name, prelude)
			}
		}
	}
	assert.Len(t, preludes, len(code())-len(Names()), "preludes that are used: %v", preludes)
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
