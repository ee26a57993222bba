package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const before = `package p

const Size = 3

var Err error

type Locker interface{ Lock(name string) error }

type Option interface{ apply() }

type Info struct {
	Name string
	hidden
}

type hidden struct{ Age int }

func (hidden) Old() bool { return true }

type Client struct{ key []byte }

func (c *Client) Do(f func(n int) error, rest ...string) *made { return nil }

type made struct{}

func (*made) Undo() {}

type Way string
`

func apiOf(t *testing.T, source string) []string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "p.go", source, 0)
	require.NoError(t, err)
	pkg, err := new(types.Config).Check("p", files, []*ast.File{file}, nil)
	require.NoError(t, err)
	return list(pkg)
}

func TestListHasEverythingThatUsersSee(t *testing.T) {
	want := []string{
		"const Size untyped int = 3",
		"method (*Client) Do(func(int) error, ...string) *made",
		"method (*made) Undo()",
		"method (Info) Old() bool",
		"type Client struct",
		"type Info is comparable",
		"type Info struct",
		"type Info struct, field Age int",
		"type Info struct, field Name string",
		"type Locker interface",
		"type Locker interface, method Lock(string) error",
		"type Option interface",
		"type Option interface, sealed",
		"type Way string",
		"type made struct",
		"var Err error",
	}
	assert.Equal(t, want, apiOf(t, before))
}

func TestCompareFindsWhatBreaksUsers(t *testing.T) {
	for name, c := range map[string]struct {
		old, now string // a piece of the source, and its replacement
		broken   string // the beginning of the report, or "" for a change that breaks nothing
		added    string
	}{
		"removed func":            {"func (*made) Undo() {}", "", "removed: method (*made) Undo()", ""},
		"removed field":           {"Name string", "", "removed: type Info struct, field Name string", ""},
		"removed promoted method": {"func (hidden) Old() bool { return true }", "", "removed: method (Info) Old() bool", ""},
		"changed parameter": {"rest ...string", "rest ...int",
			"changed: method (*Client) Do(func(int) error, ...string) *made", ""},
		"changed result": {"Lock(name string) error", "Lock(name string)",
			"changed: type Locker interface, method Lock(string) error", ""},
		"changed constant":      {"Size = 3", "Size = 4", "changed: const Size untyped int = 3", ""},
		"changed type":          {"type Way string", "type Way int", "changed: type Way string", ""},
		"from value to pointer": {"func (hidden) Old", "func (*hidden) Old", "changed: method (Info) Old() bool", ""},
		"no longer comparable":  {"Age int", "Age int; f func()", "removed: type Info is comparable", ""},
		"method of an interface": {"Lock(name string) error", "Lock(name string) error; New()",
			"new in an interface that others may implement: type Locker interface, method New()", ""},
		"sealed interface": {"Lock(name string) error", "Lock(name string) error; no()",
			"new in an interface that others may implement: type Locker interface, sealed", ""},
		"method of a sealed one": {"apply()", "apply(); New()", "", "type Option interface, method New()"},
		"new interface": {"type Way string", "type Way string; type New interface{ X() }", "",
			"type New interface, type New interface, method X()"},
		"new func":            {"type Way string", "type Way string; func New() {}", "", "func New()"},
		"new field":           {"Name string", "Name string; New int", "", "type Info struct, field New int"},
		"names of parameters": {"f func(n int) error", "g func(m int) error", "", ""},
		"unexported field":    {"key []byte", "key, other []byte", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, before, c.old, "the case changes nothing")
			broken, added := compare(apiOf(t, before), apiOf(t, strings.Replace(before, c.old, c.now, 1)))
			if c.broken == "" {
				assert.Empty(t, broken)
			} else if assert.NotEmpty(t, broken) {
				assert.Equal(t, c.broken, broken[0])
			}
			assert.Equal(t, c.added, strings.Join(added, ", "), "added")
		})
	}
}
