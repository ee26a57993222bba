package relock

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/relock-go/relock/internal/send"
)

// allScripts are all that a lock may send.
func allScripts() []*luaScript {
	return append([]*luaScript{wholeBundle()}, slices.Collect(maps.Values(bound))...)
}

var writeScripts = flag.Bool("lua.write", false, "write the scripts to lua/testdata, instead of comparing them")

// The files of lua/testdata are the scripts as they are sent, so that a reviewer sees what runs, and that the line in an error of
// Redis can be looked up: the SHA-1 of the file is the digest of the script. After a change of lua/, "make lua" writes them
// anew. They are no part of the package: nothing reads them but this test.
func TestScriptsAreThoseOfTestdata(t *testing.T) {
	const dir = "lua/testdata"
	scripts := maps.Clone(bound)
	scripts["bundle"] = wholeBundle()
	if *writeScripts {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.Mkdir(dir, 0o755))
		for name, s := range scripts {
			require.NoError(t, os.WriteFile(dir+"/"+name+".lua", []byte(s.Source()), 0o644))
		}
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".lua"))
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(scripts)), names, "the files of %s: run make lua", dir)
	for name, s := range scripts {
		text, err := os.ReadFile(dir + "/" + name + ".lua")
		require.NoError(t, err, "run make lua")
		line, has, is := firstDifference(string(text), s.Source())
		assert.Equal(t, has, is, "line %d of %s/%s.lua is not that of the script: run make lua, and read what has changed", line, dir, name)
	}
	_, err = luaFiles.ReadDir(dir)
	assert.Error(t, err, "the files of %s are no part of the package", dir)
}

// firstDifference returns the first line in which two texts differ, and both lines; zero: they do not.
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

// isPrelude matches the first line of a file of lua/ that is no script, but is put in front of some.
var isPrelude = regexp.MustCompile(`^-- Prelude of `)

// The header of every script of lua/ says its purpose, its arguments and its result. The script uses exactly the
// arguments that it declares, and it is bound. Every prelude lists the functions that it defines.
func TestScriptHeaders(t *testing.T) {
	files, err := luaFiles.ReadDir("lua")
	require.NoError(t, err)
	for _, f := range files {
		text, err := luaFiles.ReadFile("lua/" + f.Name())
		require.NoError(t, err)
		name := strings.TrimSuffix(f.Name(), ".lua")
		if isPrelude.Match(text) {
			assert.Empty(t, checkPrelude(string(text)), f.Name())
			assert.True(t, slices.ContainsFunc(preludes, func(p prelude) bool { return p.name == name }), "%s is not linked", f.Name())
			continue
		}
		assert.Empty(t, checkHeader(string(text)), f.Name())
		if name != "bundle" { // see wholeBundle
			assert.Contains(t, bound, name, "%s is not bound", f.Name())
			keys := slices.Compact(slices.Sorted(slices.Values(usesKey.FindAllString(luaFile(name), -1))))
			assert.GreaterOrEqual(t, len(keyTypes(name)), len(keys), "the types of the keys of %s", f.Name())
		}
		verb := name[strings.LastIndex(name, "_")+1:]
		assert.Contains(t, []string{"acquire", "release", "undo", "renew", "force", "set", "inspect", "bundle"}, verb, "the verb of %s", f.Name())
	}
}

// checkPrelude returns the fault of a prelude, or "".
func checkPrelude(text string) string {
	list := func(expr string) (all []string) {
		for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	declared, defined := list(`(?m)^-- Defines  (\w+\(.*?\))  `), list(`(?m)^local function (\w+\(.*?\))`)
	if len(defined) == 0 || !slices.Equal(declared, defined) {
		return fmt.Sprintf("it declares %v and defines %v", declared, defined)
	}
	if used := usesInput.FindAllString(text, -1); len(used) > 0 {
		return fmt.Sprintf("it uses %v, which are the script's", used)
	}
	return ""
}

// A script has those functions and constants of preludes that it uses, and the ones that these use.
func TestScriptsHaveWhatTheyUse(t *testing.T) {
	t.Parallel()
	for name, s := range bound {
		for _, m := range regexp.MustCompile(`(?m)^local function (\w+)`).FindAllStringSubmatch(s.Source(), -1) {
			uses := regexp.MustCompile(`\b`+m[1]+`\b`).FindAllString(s.Source(), -1)
			assert.Greater(t, len(uses), 1, "%s is not used in %s", m[1], name)
		}
		assert.Subset(t, ofRedis, globals(t, s.Source()), "names that nobody defines in %s", name)
	}
	assert.Subset(t, ofRedis, globals(t, wholeBundle().Source()), "names that nobody defines in the bundle")
}

// ofRedis are the names that scripts have of Redis and of Lua.
var ofRedis = strings.Fields("KEYS ARGV redis string table math tonumber tostring type pcall error unpack ipairs pairs next")

// globals are the names that a script uses and does not define in front of their use.
func globals(t *testing.T, source string) (names []string) {
	chunk, err := parse.Parse(strings.NewReader(source), "")
	require.NoError(t, err, source)
	function, err := lua.Compile(chunk, "")
	require.NoError(t, err, source)
	all := []*lua.FunctionProto{function}
	for len(all) > 0 {
		f := all[0]
		all = append(all[1:], f.FunctionPrototypes...)
		for _, instruction := range f.Code {
			if op := int(instruction >> 26); op == lua.OP_GETGLOBAL || op == lua.OP_SETGLOBAL {
				names = append(names, f.Constants[instruction&0x3ffff].String())
			}
		}
	}
	return names
}

func TestLibraryLinks(t *testing.T) {
	t.Parallel()
	const one = "local a, b = 1, 2\n\nlocal function unused() return a end\n\nlocal function inner(x)\n    local c = x + b\n    return c\nend\n"
	const two = "local function outer() return inner(1) end\n"
	const instead = "local function outer() return 3 end\n"
	const more = "local function more() return outer() end\n"
	l := library{newPrelude("one", "", one), newPrelude("two", "", two), newPrelude("instead", "more", instead), newPrelude("more", "", more)}
	linked := func(source string) string { return l.link(source, l.of(source)) }
	for _, alone := range []string{
		"return 1", "return 'outer'", "return t.outer", "return t:outer()", "return 1 -- outer",
		"local outer = 1\nreturn outer", "local function f(x, outer) return outer end", "for outer, _ in pairs(t) do f(outer) end",
	} {
		assert.Equal(t, alone, linked(alone))
	}
	withInner := strings.Replace(one, "local function unused() return a end\n\n", "", 1)
	assert.Equal(t, withInner+"return inner(2)", linked("return inner(2)"))
	assert.Equal(t, withInner+two+"return outer()", linked("return outer()"), "what a prelude uses")
	assert.Equal(t, two+"return outer()", l.link("return outer()", l.of("return outer()"), map[string]bool{"one": true}), "what is there already")
	assert.Equal(t, instead+more+"return more()", linked("return more()"), "a prelude in the place of another one")
	assert.Equal(t, []string{"x", "b"}, globals(t, "local a = 1\nreturn x(a, b)"))

	const marked = "a()\nif x then\n    --[[preludes]]\n    b()\n\n    c()\nend\nd()\n"
	before, after, block, found := cutMark(marked, "preludes")
	assert.True(t, found)
	assert.Equal(t, []string{"a()\nif x then\n", "    b()\n\n    c()\nend\nd()\n", "    b()\n\n    c()\n"}, []string{before, after, block})
	before, _, _, found = cutMark(marked, "answer")
	assert.False(t, found)
	assert.Equal(t, marked, before)
}

var usesKey = regexp.MustCompile(`KEYS\[\d+\]`)

var usesInput = regexp.MustCompile(`(KEYS|ARGV)\[\d+\]`)

// checkHeader returns the fault of the header of a script, or "".
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
	const good = "-- Does something useful.\n--\n-- KEYS[1]  the lock\n-- ARGV[1]  the field\n-- Returns  {1}\n\nlocal a, b = KEYS[1], ARGV[1]\n"
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
	const good = "-- Prelude of some scripts.\n--\n-- Defines  twice(n)    n, two times.\n\nlocal function twice(n) return 2 * n end\n"
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

// ahead is a token counter that the clock has not reached.
const ahead = 9_000_000_000_000_000

// Each script keeps the contract of its header by itself, also when it runs again.
func TestScriptContracts(t *testing.T) {
	const minute = 60_000
	type step struct {
		script *luaScript
		tokens bool // a third key
		args   []any
		want   reply  // -7: any
		record string // afterwards: "field=levels" or ""
		pttl   int64  // afterwards: about
	}
	const any7 = -7
	acquire := func(field string, lease, level int, want reply, record string, pttl int64) step {
		return step{lockAcquire, false, []any{field, lease, level}, want, record, pttl}
	}
	release := func(field string, left int, want reply, record string, pttl int64) step {
		return step{lockRelease, false, []any{field, left, "channel", "publish"}, want, record, pttl}
	}
	renew := func(field string, lease int, want reply, record string, pttl int64) step {
		return step{renewScript, false, []any{field, lease}, want, record, pttl}
	}
	// Locks have only fields of a form of their own.
	fields := map[string]string{"a": javaThread + ":01", "b": javaThread + ":02"}
	onEachServer(t, func(t *testing.T, addr string) {
		for name, steps := range map[string][]step{
			"acquire, again, and by another": {
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				acquire("b", minute, 1, reply{0, any7, 0}, "a=1", minute),
				acquire("b", minute, 2, reply{-1, 0, 0}, "a=1", minute),
			},
			"levels are set and not added": {
				acquire("a", minute, 2, reply{-1, 0, 0}, "", -2),
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				acquire("a", minute, 2, reply{1, 0, 0}, "a=2", minute),
				acquire("a", minute, 2, reply{1, 0, 0}, "a=2", minute),
				release("a", 1, reply{1, 0, 0}, "a=1", minute),
				release("a", 1, reply{1, 0, 0}, "a=1", minute),
				release("a", 0, reply{1, 0, 0}, "", -2),
				release("a", 0, reply{-1, 0, 0}, "", -2),
				release("a", 1, reply{-1, 0, 0}, "", -2),
			},
			"a release is for its own hold": {
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				release("b", 0, reply{-1, 0, 0}, "a=1", minute),
				release("b", 1, reply{-1, 0, 0}, "a=1", minute),
			},
			"a lease is never shortened": {
				acquire("a", 2*minute, 1, reply{1, 0, 0}, "a=1", 2*minute),
				acquire("a", minute, 2, reply{1, 0, 0}, "a=2", 2*minute),
				renew("a", minute, reply{1, 0, 0}, "a=2", 2*minute),
				renew("a", 3*minute, reply{1, 0, 0}, "a=2", 3*minute),
				release("a", 1, reply{1, 0, 0}, "a=1", 3*minute),
			},
			"renewing makes nothing and is for its own hold": {
				renew("a", minute, reply{-1, 0, 0}, "", -2),
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				renew("b", 5*minute, reply{-1, 0, 0}, "a=1", minute),
			},
			"force": {
				{lockForce, false, []any{"channel", "publish"}, reply{0, 0, 0}, "", -2},
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				{lockForce, false, []any{"channel", "publish"}, reply{1, 0, 0}, "", -2},
			},
			"inspect": {
				{inspectScript, false, []any{""}, reply{0, 0, -2}, "", -2},
				acquire("a", minute, 1, reply{1, 0, 0}, "a=1", minute),
				acquire("a", minute, 2, reply{1, 0, 0}, "a=2", minute),
				{inspectScript, false, []any{"a"}, reply{1, 2, any7}, "a=2", minute},
				{inspectScript, false, []any{"b"}, reply{1, 0, any7}, "a=2", minute},
			},
			"a token is drawn by a fresh hold only": {
				{lockAcquire, true, []any{"a", minute, 1}, reply{1, 0, ahead + 1}, "a=1", minute},
				{lockAcquire, true, []any{"a", minute, 2}, reply{1, 0, 0}, "a=2", minute},
				{lockAcquire, true, []any{"b", minute, 1}, reply{0, any7, 0}, "a=2", minute},
				{lockAcquire, true, []any{"a", minute, 1}, reply{1, 0, ahead + 2}, "a=1", minute},
				release("a", 0, reply{1, 0, 0}, "", -2),
				{lockAcquire, true, []any{"b", minute, 1}, reply{1, 0, ahead + 3}, "b=1", minute},
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, addr)
				ctx := context.Background()
				line, tokens := "relock_line:{"+b.name+"}", "redisson_lock_token:{"+b.name+"}"
				b.must(b.rdb.Set(ctx, tokens, ahead, 0).Err())
				defer b.rdb.Del(ctx, b.name)
				for i, s := range steps {
					keys := []string{b.name, line}
					if s.tokens {
						keys = append(keys, tokens)
					}
					args := slices.Clone(s.args)
					for n, arg := range args {
						if field, ok := fields[fmt.Sprint(arg)]; ok {
							args[n] = field
						}
					}
					got, err := run(ctx, b.rdb, call{Script: s.script, Keys: keys, Args: args})
					for j := range got {
						if s.want[j] == any7 && got[j] > 0 {
							got[j] = any7
						}
					}
					assert.NoError(t, err, "step %d", i)
					assert.Equal(t, s.want, got, "step %d", i)
					record := ""
					for field, levels := range b.rdb.HGetAll(ctx, b.name).Val() {
						record += map[string]string{fields["a"]: "a", fields["b"]: "b"}[field] + "=" + levels
					}
					pttl, err := b.rdb.Do(ctx, "pttl", b.name).Int64()
					assert.NoError(t, err, "step %d", i)
					assert.Equal(t, s.record, record, "step %d", i)
					assert.LessOrEqual(t, pttl, s.pttl, "step %d", i)
					assert.GreaterOrEqual(t, pttl, s.pttl-10_000, "step %d", i)
				}
			})
		}
	})
}

func run(ctx context.Context, rdb redis.UniversalClient, c call) (reply, error) {
	return send.ParseReply(send.NewRedis(rdb, send.Synced{}).Run(ctx, c, false))
}
