package lua

// The form of the scripts and preludes: their headers, and their names.

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// isPrelude matches the first line of a Lua file that is not a script, but is put in front of some.
var isPrelude = regexp.MustCompile(`^-- Prelude of `)

// The header of every script describes its purpose, its arguments and its result. The script uses exactly the arguments
// that it declares, and gives their types to answer. Every prelude lists the functions that it defines, or the constants if it has no
// functions.
func TestScriptHeaders(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		name := strings.TrimSuffix(filepath.Base(f), ".lua")
		if isPrelude.Match(text) {
			assert.Empty(t, checkPrelude(string(text)), f)
			continue
		}
		assert.Empty(t, checkHeader(string(text)), f)
		keys := slices.Compact(slices.Sorted(slices.Values(usesKey.FindAllString(code()[name], -1))))
		assert.GreaterOrEqual(t, len(KeyTypes(name)), len(keys), "the types of the keys of %s", f)
		assert.Contains(t, string(text), "\nend, {'"+strings.Join(KeyTypes(name), "', '")+"'})\n", "the types of the keys of %s", f)
		verb := name[strings.LastIndex(name, "_")+1:]
		assert.Contains(
			t,
			[]string{"acquire", "release", "rename", "renew", "remove", "force", "set", "inspect"},
			verb,
			"the verb of %s",
			f,
		)
	}
}

// checkPrelude returns what is wrong with a prelude, or "".
func checkPrelude(text string) string {
	list := func(expr string) (all []string) {
		for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	declared, defined := list(`(?m)^-- Defines  (\w+\(.*?\))  `), list(`(?m)^local function (\w+\(.*?\))`)
	if len(defined) == 0 { // it has constants
		declared, defined = list(`(?m)^-- Defines  (\w+)  `), list(`(?m)^local (\w+) =`)
	}
	if len(defined) == 0 || !slices.Equal(declared, defined) {
		return fmt.Sprintf("it declares %v and defines %v", declared, defined)
	}
	if used := usesInput.FindAllString(text, -1); len(used) > 0 {
		return fmt.Sprintf("it uses %v, which are the script's", used)
	}
	return ""
}

// KeyTypes returns the types of the keys that the header of a script names, as in "-- KEYS[1]  the lock: a hash".
func KeyTypes(name string) (types []string) {
	for _, key := range keyType.FindAllStringSubmatch(Text(name), -1) {
		types = append(types, key[1])
	}
	return types
}

var keyType = regexp.MustCompile(`(?m)^-- KEYS(?:\[\d+\]|   )  [^:]*: (?:each )?a (hash|list|zset|string)\b`)

var usesKey = regexp.MustCompile(`KEYS\[\d+\]`)

var usesInput = regexp.MustCompile(`(KEYS|ARGV)\[\d+\]`)

// checkHeader returns what is wrong with the header of a script, or "".
func checkHeader(text string) string {
	var header, body []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--") && len(body) == 0 {
			header = append(header, line)
		} else {
			body = append(body, line)
		}
	}
	head, rest := strings.Join(header, ""), strings.Join(body, "")
	if len(header) == 0 || len(strings.TrimSpace(strings.TrimPrefix(header[0], "--"))) < 10 {
		return "the first line does not say what it is for"
	}
	if !regexp.MustCompile(`(?m)^-- Returns  \S`).MatchString(head) {
		return "it does not say what it returns"
	}
	var declared, used []string
	for _, m := range regexp.MustCompile(`(?m)^-- ((?:KEYS|ARGV)\[\d+\])  \S`).FindAllStringSubmatch(head, -1) {
		declared = append(declared, m[1])
	}
	used = append(used, usesInput.FindAllString(rest, -1)...)
	slices.Sort(declared)
	slices.Sort(used)
	used = slices.Compact(used)
	if !slices.Equal(declared, used) {
		return fmt.Sprintf("it declares %v and uses %v", declared, used)
	}
	return ""
}

func TestScriptHeadersAreChecked(t *testing.T) {
	const good = "-- Does something useful.\n--\n-- KEYS[1]  the lock\n-- ARGV[1]  the field\n-- Returns  {1}\n\nlocal " +
		"a, b = KEYS[1], ARGV[1]\n"
	assert.Empty(t, checkHeader(good), "a good header is refused")
	for name, text := range map[string]string{
		"undeclared":  good + "local c = ARGV[2]\n",
		"unused":      strings.Replace(good, ", ARGV[1]", ", 1", 1),
		"no returns":  strings.Replace(good, "-- Returns  {1}\n", "", 1),
		"no purpose":  strings.Replace(good, "Does something useful.", "", 1),
		"no header":   "return 1\n",
		"no key line": strings.Replace(good, "-- KEYS[1]  the lock\n", "", 1),
	} {
		assert.NotEmpty(t, checkHeader(text), "%s: a bad header is accepted", name)
	}
}

func TestPreludeHeadersAreChecked(t *testing.T) {
	const good = "-- Prelude of some scripts.\n--\n-- Defines  twice(n)    n, two times.\n\nlocal function twice(n) " +
		"return 2 * n end\n"
	assert.Empty(t, checkPrelude(good), "a good prelude is refused")
	for name, text := range map[string]string{
		"undeclared":      good + "local function thrice(n) return 3 * n end\n",
		"undefined":       strings.Replace(good, "local function twice(n)", "local function double(n)", 1),
		"other arguments": strings.Replace(good, "local function twice(n)", "local function twice(n, m)", 1),
		"no functions":    "-- Prelude of some scripts.\n",
		"input":           good + "local lock = KEYS[1]\n",
	} {
		assert.NotEmpty(t, checkPrelude(text), "%s: a bad prelude is accepted", name)
	}
}
