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
// that it declares, and gives their types to answer. A prelude uses none.
func TestScriptHeaders(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		name := strings.TrimSuffix(filepath.Base(f), ".lua")
		if isPrelude.Match(text) {
			assert.Empty(t, usesInput.FindAllString(string(text), -1), "the script's, in %s", f)
			continue
		}
		assert.Empty(t, checkHeader(string(text)), f)
		keys := slices.Compact(slices.Sorted(slices.Values(usesKey.FindAllString(code()[name], -1))))
		assert.GreaterOrEqual(t, len(KeyTypes(name)), len(keys), "the types of the keys of %s", f)
		assert.Contains(t, string(text), "\nend, {'"+strings.Join(KeyTypes(name), "', '")+"'})\n", "the types of the keys of %s", f)
		verb := name[strings.LastIndex(name, "_")+1:]
		assert.Contains(
			t,
			[]string{"acquire", "release", "rename", "renew", "force", "set", "inspect"},
			verb,
			"the verb of %s",
			f,
		)
	}
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
