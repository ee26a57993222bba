package docs

// The pages agree with the code: their Go code compiles, their links have targets, and the code contains the texts that
// docs/troubleshooting.md explains.
//
// Importing relock is light: it requires go-redis, uuid, goid and their dependencies, and none of the dependencies of
// its tests, examples and tools.

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pagePrelude declares the functions that the code on the pages uses without declaring them.
const pagePrelude = `package pages

func charge(ctx context.Context) error { return nil }
func work(ctx context.Context) error { return nil }
func save(ctx context.Context, token int64) error { return nil }
`

const pageFunction = "func _(ctx context.Context, rdb *redis.Client, client *relock.Client, lock *relock.Lock, " +
	"db *sql.DB, token int64, t *testing.T) error {\n{\n%s\n}\nreturn nil\n}\n"

var pageImports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "slog": "log/slog", "os": "os",
	"signal": "os/signal", "http": "net/http",
	"sql": "database/sql", "syscall": "syscall", "testing": "testing", "time": "time",
	"miniredis": "github.com/alicebob/miniredis/v2", "redis": "github.com/redis/go-redis/v9",
	"fence":  "github.com/relock-go/relock/fence",
	"relock": "github.com/relock-go/relock", "relocktest": "github.com/relock-go/relock/relocktest",
}

// A block of Go on a page is a declaration, or the body of a function. A block that is not of this module begins with
// "```go other".
func TestDocsCodeCompiles(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	require.NoError(t, err)
	dir, source := t.TempDir(), filepath.Join(here, "internal", "pages") // does not exist
	overlay := make(map[string]string)
	add := func(name, code string) {
		var imports strings.Builder
		for name, path := range pageImports {
			if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(code) {
				fmt.Fprintf(&imports, "import %q\n", path)
			}
		}
		code = strings.Replace(code, "package pages\n", "package pages\n"+imports.String(), 1)
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
		overlay[filepath.Join(source, name)] = file
	}
	add("prelude.go", pagePrelude)
	blocks := 0
	for page, text := range locktest.Pages(t) {
		if page == "README.md" {
			continue // TestReadmeCodeIsCompiled
		}
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatchIndex(text, -1) {
			code, line := text[m[2]:m[3]], strings.Count(text[:m[2]], "\n")+1
			place := fmt.Sprintf("//line %s:%d\n", filepath.Join(here, page), line)
			if !regexp.MustCompile(`^(func|type|var|const) `).MatchString(code) {
				code = fmt.Sprintf(pageFunction, "\n"+place+code)
			} else {
				code = place + code
			}
			add(strings.NewReplacer("/", "_", ".md", "").Replace(page)+"_"+strconv.Itoa(line)+".go", "package pages\n"+code)
			blocks++
		}
	}
	assert.GreaterOrEqual(t, blocks, 10, "blocks of Go")
	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	require.NoError(t, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(list, replace, 0o600))
	said, err := exec.Command("go", "build", "-overlay", list, "./internal/pages").CombinedOutput()
	assert.NoError(t, err, string(said))
}

// Each recipe of the cookbook links to a program that "make examples" or "make gocron" runs. Code that
// TestDocsCodeCompiles does not compile is in a file that the recipe links to, and so are the recipes named here.
func TestCookbookRecipesArePrograms(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	page, _, _ := strings.Cut(locktest.Pages(t)["docs/cookbook.md"], "\n## Questions")
	recipes := strings.Split(page, "\n## ")[1:]
	require.GreaterOrEqual(t, len(recipes), 9, "recipes")
	for _, recipe := range recipes {
		title, _, _ := strings.Cut(recipe, "\n")
		programs, code := 0, ""
		for _, m := range regexp.MustCompile(`\]\(\.\./([a-z]+)/([a-z_]+)(\S*)\)`).FindAllStringSubmatch(recipe, -1) {
			run := `examples/` + m[2] + `\b|(?m)^EXAMPLES :=.*\b` + m[2] + `\b`
			if m[1] == "examples" && assert.Regexp(t, run, string(makefile), "%s: %s is not run", title, m[0]) {
				programs++
			}
			if m[1]+"/"+m[2] == "gocron/example" {
				programs++
			}
			file, err := os.ReadFile(filepath.Join(m[1], m[2]+m[3]))
			require.NoError(t, err, title)
			code += flatten(string(file)) + "\n"
		}
		assert.Positive(t, programs, "programs of the recipe %q", title)
		whole := []string{"A cron job on several replicas", "Refresh a cache", "Release in the background",
			"A lock that moves to another process"}
		for _, m := range regexp.MustCompile("(?s)```(go|go other|sh)\n(.*?)```").FindAllStringSubmatch(recipe, -1) {
			if m[1] != "go" || slices.Contains(whole, title) {
				assert.True(t, strings.Contains(code, flatten(m[2])), "%s: in no program:\n%s", title, m[2])
			}
		}
	}
}

// So do those in Go files, scripts and alert rules, which name a page by its path from the root.
func TestDocsLinksLeadSomewhere(t *testing.T) {
	all := locktest.Pages(t)
	leads := func(from, link, target, anchor string) {
		_, err := os.Stat(target)
		if assert.NoError(t, err, "%s: %s leads nowhere", from, link) && anchor != "" {
			assert.Contains(t, anchors(all[target]), anchor, "%s: %s has no heading of that name", from, link)
		}
	}
	named := regexp.MustCompile(`\b((?:docs|bench|spec|tests/faults|internal/lua)/[\w-]+\.md)(?:#([\w-]+))?`)
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if slices.Contains([]string{".go", ".sh", ".yaml", ".lua", ".tla", ".work"}, filepath.Ext(path)) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range named.FindAllStringSubmatch(string(text), -1) {
				leads(path, m[0], m[1], m[2])
			}
		}
		return err
	}))
	for page, text := range all {
		text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			leads(page, m[1], target, anchor)
		}
	}
}

// A cell too many is not shown, and a missing one shifts the others.
func TestDocsTablesAreWhole(t *testing.T) {
	t.Parallel()
	for page, text := range locktest.Pages(t) {
		text = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`").ReplaceAllString(text, "")
		cells := 0 // of the table that this line is in
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			switch {
			case !strings.HasPrefix(line, "|"):
				cells = 0
			case cells == 0:
				cells = strings.Count(line, "|")
			default:
				assert.Equal(t, cells, strings.Count(line, "|"), "%s: %s", page, line)
			}
		}
	}
}

// On a phone a cell with much text is a column of single words.
func TestDocsTablesHaveNoLongCells(t *testing.T) {
	t.Parallel()
	for page, text := range locktest.Pages(t) {
		text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(strings.TrimSpace(line), "|") {
				continue
			}
			for cell := range strings.SplitSeq(strings.ReplaceAll(line, `\|`, ""), "|") {
				assert.Less(t, len(strings.Fields(cell)), 70, "%s: words in a cell: %s", page, cell)
			}
		}
	}
}

// anchors returns the names of the headings of a page in links.
func anchors(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		var a strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case r == ' ':
				a.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				a.WriteRune(r)
			}
		}
		all = append(all, a.String())
	}
	return all
}

// Each text that begins an entry is in the code. An ellipsis (…) stands for inserted values. The texts under the
// heading "Errors of Redis and of go-redis" are not texts of this package, and are not checked.
func TestTroubleshootingTextsAreInTheCode(t *testing.T) {
	page := locktest.Pages(t)["docs/troubleshooting.md"]
	ours, _, found := strings.Cut(page, "## Errors of Redis and of go-redis")
	require.True(t, found, "the heading is gone that ends the texts of this package")
	ours = strings.Join(strings.Fields(ours), " ") // lines break anywhere
	literals := stringLiterals(t)
	entries := regexp.MustCompile("\\*\\*`([^`]+)`\\*\\*").FindAllStringSubmatch(ours, -1)
	assert.GreaterOrEqual(t, len(entries), 30, "entries")
	for _, m := range entries {
		var parts []string
		for part := range strings.SplitSeq(m[1], "…") {
			parts = append(parts, regexp.QuoteMeta(part))
		}
		text := regexp.MustCompile(strings.Join(parts, ".*"))
		assert.True(t, slices.ContainsFunc(literals, text.MatchString), "no such text in the code: %s", m[1])
	}
}

// stringLiterals returns the string literals of the library without its tests. Literals that are concatenated count as
// one.
func stringLiterals(t *testing.T) (all []string) {
	fence, err := filepath.Glob("fence/*.go")
	require.NoError(t, err)
	for _, name := range append(locktest.LibraryFiles(t, "*.go"), fence...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if text, ok := literal(e); ok {
					all = append(all, text)
					return false
				}
			}
			return true
		})
	}
	return all
}

func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); e.Kind == token.STRING && err == nil {
			return text, true
		}
	case *ast.BinaryExpr:
		left, ok := literal(e.X)
		right, too := literal(e.Y)
		return left + right, ok && too && e.Op == token.ADD
	}
	return "", false
}

// A file of the root and of the engine begins with what it is for.
func TestFilesSayWhatTheyAreFor(t *testing.T) {
	head := regexp.MustCompile(`(?m)^// Package |^package \w+\n\n(//.*\n)+\n`)
	for _, file := range locktest.LibraryFiles(t, "*.go") {
		if dir := filepath.Dir(file); strings.HasSuffix(file, "_test.go") || dir != "." && dir != "internal/engine" {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Regexp(t, head, string(source), file)
	}
}

// The code of docs/fencing.md that TestDocsCodeCompiles does not compile is part of programs that are run.
func TestFencingRecipesAreRun(t *testing.T) {
	files, err := filepath.Glob("examples/fencing/*.go")
	require.NoError(t, err)
	var code string
	for _, file := range append(files, "fence/databases/recipes_test.go") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		code += flatten(string(text)) + "\n"
	}
	blocks := regexp.MustCompile("(?s)```go other\n(.*?)```").FindAllStringSubmatch(locktest.Pages(t)["docs/fencing.md"], -1)
	require.Len(t, blocks, 4)
	for _, b := range blocks {
		assert.True(t, strings.Contains(code, flatten(b[1])), "in no program:\n%s", b[1])
	}
}

// The program in the README is examples/hello, and its other code is part of an example that is compiled and run.
func TestReadmeCodeIsCompiled(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var code string
	for _, path := range []string{"example_test.go", "examples/hello/main.go"} {
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		code += flatten(string(file))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.GreaterOrEqual(t, len(blocks), 2, "blocks of Go")
	for _, b := range blocks {
		assert.True(t, strings.Contains(code, flatten(b[1])), "not in example_test.go:\n%s", b[1])
	}
}

// A reader decides in three minutes.
func TestReadmeIsShort(t *testing.T) {
	text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(locktest.Pages(t)["README.md"], "")
	assert.LessOrEqual(t, len(strings.Fields(text)), 1000, "words outside code")
}

func TestDocsIndexNamesEveryPage(t *testing.T) {
	all := locktest.Pages(t)
	for page := range all {
		if path, found := strings.CutPrefix(page, "docs/"); found && path != "README.md" {
			assert.Contains(t, all["docs/README.md"], "]("+path+")", "the index")
		}
	}
}

// The program runs as it is written, except that the Redis of this test has another address.
func TestReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("examples/hello/main.go")
	require.NoError(t, err)
	moved := strings.ReplaceAll(string(program), "localhost:6379", testredis.Mini(t).Addr())
	require.NotEqual(t, string(program), moved)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(moved), 0o600))
	assert.Equal(t, "charging order 42\n", locktest.GoTool(t, "run", file))
}

// flatten returns code without its indentation.
func flatten(code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// ofGoRedis are the modules that go-redis needs.
var ofGoRedis = []string{"github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"}

func TestImportingIsLight(t *testing.T) {
	light := append(
		[]string{"github.com/redis/go-redis/v9", "github.com/google/uuid", "github.com/petermattis/goid"},
		ofGoRedis...)
	for pkg, allowed := range map[string][]string{
		".":            light,
		"./relockui":   light,
		"./relocktest": append([]string{"github.com/alicebob/miniredis/v2", "github.com/yuin/gopher-lua"}, light...),
	} {
		modules := strings.Fields(
			locktest.GoTool(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", pkg),
		)
		slices.Sort(modules)
		for _, module := range slices.Compact(modules) {
			assert.Contains(t, allowed, module, "%s brings in %s", pkg, module)
		}
		assert.Contains(t, modules, light[0], "%s brings in no go-redis", pkg)
	}
}

// Package fence is for programs with any database, and imports nothing but the standard library.
func TestFenceImportsTheStandardLibrary(t *testing.T) {
	assert.Empty(t, locktest.GoTool(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "./fence"))
	own := locktest.GoTool(t, "list", "-deps", "-f", "{{with .Module}}{{$.ImportPath}}{{end}}", "./fence")
	assert.Equal(t, "github.com/relock-go/relock/fence", strings.TrimSpace(own))
}

// All other modules in go.mod are needed by tests.
func TestGoModRequiresNoMoreThanNeeded(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool, Replace []any
	}
	require.NoError(t, json.Unmarshal([]byte(locktest.GoTool(t, "mod", "edit", "-json")), &mod))
	var direct []string
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	slices.Sort(direct)
	want := []string{
		"github.com/alicebob/miniredis/v2", // tests, examples, relocktest
		"github.com/google/uuid",
		"github.com/petermattis/goid",
		"github.com/redis/go-redis/v9",
		"github.com/stretchr/testify", // tests
		"github.com/yuin/gopher-lua",
		"go.uber.org/goleak",
		"pgregory.net/rapid",
	}
	assert.Equal(t, want, direct, "go.mod requires")
	assert.Nil(t, mod.Tool, "go.mod has tools")
	assert.Nil(t, mod.Replace, "go.mod replaces")
}
