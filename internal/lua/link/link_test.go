package link

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func TestLibrary(t *testing.T) {
	t.Parallel()
	l := New(fstest.MapFS{
		"record.lua": {Data: []byte("-- Prelude of all scripts.\n\nlocal function answer(f, types) return f() end\n")},
		"first.lua":  {Data: []byte("local function first() return 1 end\n")},
		"busy.lua": {
			Data: []byte(
				"-- Says whether a lock is busy.\n--\n-- KEYS[1]  the lock: a hash.\n-- KEYS     the others: each a zset\n" +
					"return first()\n",
			),
		},
	}, "record", "first")
	assert.Equal(t, []string{"busy"}, l.Scripts())
	assert.Equal(t, []string{"record", "first"}, l.Preludes())
	assert.Equal(t, []string{"hash", "zset"}, l.KeyTypes("busy"))
	assert.Equal(t, "return first()\n", l.Source("busy"))
	assert.Contains(t, l.Text("busy"), "-- KEYS[1]")
	assert.Equal(
		t,
		"local function answer(f, types) return f() end\nlocal function first() return 1 end\nreturn answer(function()\n"+
			"return first()\n\nend, {'hash', 'zset'})\n",
		l.Link("busy"),
	)
	assert.Panics(t, func() { l.Link("missing") })
}

func TestLongScriptsHaveNoShortCuts(t *testing.T) {
	t.Parallel()
	l := New(fstest.MapFS{
		"record.lua": {Data: []byte("local function answer(f, types) return f() end\n")},
		"first.lua":  {Data: []byte("local function first() return 1 end\n")},
		"one.lua": {Data: []byte("-- KEYS[1]  the lock: a hash\nlocal a\n--[[short cut]]\nif first() then\n    return 2\nend\n" +
			"--[[end]]\nb()\n    --[[short cut]]\n    c()\n    --[[end]]\nd()\n")},
	}, "record", "first")
	assert.Equal(t, "local a\nif first() then\n    return 2\nend\nb()\n    c()\nd()\n", l.Source("one"))
	assert.Contains(t, l.Link("one"), "first()")
	long := l.Long()
	assert.Equal(t, "local a\nb()\nd()\n", long.Source("one"))
	assert.NotContains(t, long.Link("one"), "first")
	assert.Equal(t, l.Scripts(), long.Scripts())
}

func TestPreludesAreLinked(t *testing.T) {
	t.Parallel()
	const one = "local a, b = 1, 2\n\nlocal function unused() return a end\n\nlocal function inner(x)\n    local c = x " +
		"+ b\n    return c\nend\n"
	const two = "local function outer() return inner(1) end\n"
	const instead = "local function outer() return 3 end\n"
	const more = "local function more() return outer() end\n"
	l := preludes{
		newPrelude("one", "", one),
		newPrelude("two", "", two),
		newPrelude("instead", "more", instead),
		newPrelude("more", "", more),
	}
	linked := func(source string) string { return l.link(source, l.of(source)) }
	for _, alone := range []string{
		"return 1", "return 'outer'", "return t.outer", "return t:outer()", "return 1 -- outer",
		"local outer = 1\nreturn outer", "local function f(x, outer) return outer end",
		"for outer, _ in pairs(t) do f(outer) end",
	} {
		assert.Equal(t, alone, linked(alone))
	}
	withInner := strings.Replace(one, "local function unused() return a end\n\n", "", 1)
	assert.Equal(t, withInner+"return inner(2)", linked("return inner(2)"))
	assert.Equal(t, withInner+two+"return outer()", linked("return outer()"), "what a prelude uses")
	assert.Equal(
		t,
		two+"return outer()",
		l.link("return outer()", l.of("return outer()"), map[string]bool{"one": true}),
		"what is there already",
	)
	assert.Equal(t, instead+more+"return more()", linked("return more()"), "a prelude in the place of another one")
}

func TestMarkCutsASource(t *testing.T) {
	t.Parallel()
	const marked = "a()\nif x then\n    --[[preludes]]\n    b()\n\n    c()\nend\nd()\n"
	before, after, block, found := cutMark(marked, "preludes")
	assert.True(t, found)
	assert.Equal(
		t,
		[]string{"a()\nif x then\n", "    b()\n\n    c()\nend\nd()\n", "    b()\n\n    c()\n"},
		[]string{before, after, block},
	)
	before, _, _, found = cutMark(marked, "answer")
	assert.False(t, found)
	assert.Equal(t, marked, before)
}
