package lua

// The bounds of the scripts. No script runs for long, whatever it finds in Redis: a script that runs stops all of
// Redis, and cannot be stopped once it has written.

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each loop of a script has a bound: it counts to a constant, or the comment in front of it says "At most", and names a
// number, a constant of a Lua file, or what the caller has sent. The same goes for a command that answers all that a
// key holds. The comment is only a claim, which TestHostileDataDoNotStopRedis puts to the test.
func TestEveryLoopOfAScriptHasABound(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all.Write(text)
	}
	loops := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		n, faults := checkLoops(string(text), all.String())
		loops += n
		assert.Empty(t, faults, f)
	}
	assert.Greater(t, loops, 40, "loops that were found")
}

var (
	luaString  = regexp.MustCompile(`'[^']*'`)
	luaLoop    = regexp.MustCompile(`\b(for|while|repeat)\b`)
	countsTo   = regexp.MustCompile(`\bfor \w+ = \d+, (\w+) do\b`)
	claimsMost = regexp.MustCompile(`^ *-- At most (#?\w+)`)
	readsAll   = regexp.MustCompile(
		`'(hgetall|hkeys|hvals|smembers|keys|hscan|sscan|zscan|scan)'|'lrange', .*, -1\)|'z(rev)?range', .*, ` +
			`-1\b|'hrandfield', [^,]*, [a-z]\w*\b`,
	)
	readsSome = regexp.MustCompile(`'(zrangebyscore|zrevrangebyscore)'`)
)

// checkLoops returns the number of loops, and of commands that answer all that a key holds, in the text of a script. It
// also returns the lines of those without a bound. The constants are defined in all.
func checkLoops(text, all string) (loops int, faults []string) {
	bound := func(name string) bool {
		return name == "#KEYS" || name == "#ARGV" || regexp.MustCompile(`^[1-9]\d*$`).MatchString(name) ||
			regexp.MustCompile(`(?m)^local `+name+` = [1-9]\d*\b`).MatchString(all)
	}
	before := ""
	for line := range strings.Lines(text) {
		code := luaString.ReplaceAllString(line, "''")
		code, _, _ = strings.Cut(code, "--")
		some := readsSome.MatchString(line) && !strings.Contains(line, "'limit'")
		if luaLoop.MatchString(code) || readsAll.MatchString(line) || some {
			loops++
			to, claim := countsTo.FindStringSubmatch(code), claimsMost.FindStringSubmatch(before)
			if !(to != nil && bound(to[1]) || claim != nil && bound(claim[1])) {
				faults = append(faults, strings.TrimSpace(line))
			}
		}
		before = line
	}
	return loops, faults
}
