package main

// Running: a suite with a mistake.
//
// The tests of a package are built once for all mistakes in scripts, with an overlay of the go command by which package
// lua reads the scripts from a directory instead of containing them. For a mistake in the Go code, the tests are built
// anew, with an overlay of the file. So neither the library nor the working tree knows of mistakes.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	luaDir     = "internal/lua"
	scriptsDir = "RELOCK_KILLS_SCRIPTS" // the environment variable that names the directory of the scripts
)

// What a suite did with a mistake.
const (
	missed  = '.'
	found   = 'x'
	once    = '?' // found by the first of two runs alone
	tooLong = 't' // the run has taken too long
)

type outcome struct {
	mark  rune
	tests []string // that failed
}

// A builder builds the tests of packages, and copies of the working tree.
type builder struct {
	root string // of the repository
	dir  string // for what is built; removed at the end

	mu    sync.Mutex
	built map[string]func() (string, error) // what was built before, or is being built
}

func newBuilder() (*builder, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kills")
	return &builder{root: root, dir: dir, built: make(map[string]func() (string, error))}, err
}

func (b *builder) close() { _ = os.RemoveAll(b.dir) }

// once calls make, unless it was called with this name before, and returns its answer.
func (b *builder) once(name string, make func() (string, error)) (string, error) {
	b.mu.Lock()
	if b.built[name] == nil {
		b.built[name] = sync.OnceValues(make)
	}
	do := b.built[name]
	b.mu.Unlock()
	return do()
}

// tree returns a copy of the working tree with a mistake in the scripts. Its files are links to those of the working
// tree, except for the scripts.
func (b *builder) tree(r row) (string, error) {
	if r.kind == code { // tests write, too: rapid keeps what has failed
		return b.tree(row{})
	}
	return b.once("tree "+r.name(), func() (string, error) {
		to := filepath.Join(b.dir, "trees", r.name())
		err := filepath.WalkDir(b.root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(b.root, path)
			at := filepath.Join(to, rel)
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == ".git":
				return filepath.SkipDir
			case d.IsDir():
				return os.MkdirAll(at, 0o700)
			case filepath.Dir(rel) == luaDir && filepath.Ext(rel) == ".lua":
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.WriteFile(at, []byte(r.In(string(text))), 0o600)
			}
			return os.Symlink(path, at)
		})
		return to, err
	})
}

// embedded matches the scripts that package lua contains.
var embedded = regexp.MustCompile(`(?m)^//go:embed .*\nvar (\w+) embed\.FS$`)

// reader is the file of package lua that reads the scripts instead.
const reader = `package lua

import (
	"io/fs"
	"os"
)

func readScripts() fs.FS { return os.DirFS(os.Getenv("` + scriptsDir + `")) }
`

// scriptsOverlay returns the overlay by which package lua reads the scripts.
func (b *builder) scriptsOverlay() (string, error) {
	return b.once("overlay of scripts", func() (string, error) {
		files, err := filepath.Glob(filepath.Join(b.root, luaDir, "*.go"))
		if err != nil {
			return "", err
		}
		replaced := make(map[string]string)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			if embedded.Match(text) {
				replaced[file] = string(embedded.ReplaceAll(text, []byte("var $1 = readScripts()"))) + "\nvar _ embed.FS\n"
			}
		}
		if len(replaced) == 0 {
			return "", fmt.Errorf("package %s contains no scripts", luaDir)
		}
		replaced[filepath.Join(b.root, luaDir, "reader.go")] = reader
		return b.overlay("scripts", replaced)
	})
}

// overlay returns an overlay of the go command in which these files have other contents.
func (b *builder) overlay(name string, files map[string]string) (string, error) {
	dir := filepath.Join(b.dir, "overlays", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		changed := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(changed, []byte(files[file]), 0o600); err != nil {
			return "", err
		}
		replace[file] = changed
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// canFind reports whether a suite runs what a mistake changes.
func (b *builder) canFind(ctx context.Context, r row, s suite) (bool, error) {
	if s.of&r.kind == 0 || r.kind == scripts {
		return s.of&r.kind != 0, nil
	}
	dirs, err := b.once("packages of "+s.dir, func() (string, error) {
		list := exec.CommandContext(ctx, "go", "list", "-deps", "-test", "-f", "{{.Dir}}", "./"+s.dir)
		list.Dir = b.root
		out, err := list.Output()
		return string(out), err
	})
	return strings.Contains(dirs, filepath.Dir(filepath.Join(b.root, r.File))+"\n"), err
}

// program returns the tests of a package. They contain a mistake in the Go code, and read the scripts.
func (b *builder) program(ctx context.Context, r row, dir string) (string, error) {
	if r.kind == scripts {
		r = row{}
	}
	return b.once("program "+r.name()+" "+dir, func() (string, error) {
		overlay, err := b.overlayOf(r)
		if err != nil {
			return "", err
		}
		program := filepath.Join(b.dir, "programs", r.name(), dir, "test")
		build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", overlay, "-o", program, "./"+dir)
		build.Dir = b.root
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s with %s: %w\n%s", dir, r.name(), err, out)
		}
		return program, nil
	})
}

// overlayOf returns the overlay of a mistake in the Go code, or that by which package lua reads the scripts.
func (b *builder) overlayOf(r row) (string, error) {
	if r.kind != code {
		return b.scriptsOverlay()
	}
	return b.once("overlay of "+r.name(), func() (string, error) {
		file := filepath.Join(b.root, r.File)
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		return b.overlay(r.name(), map[string]string{file: r.In(string(text))})
	})
}

var testName = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// pattern returns the pattern of the tests of a suite.
func (b *builder) pattern(r row, s suite) (string, error) {
	if !strings.HasSuffix(s.tests, ".go") {
		return s.tests, nil
	}
	text, err := os.ReadFile(filepath.Join(b.root, s.dir, s.tests))
	if err != nil {
		return "", fmt.Errorf("suite %s: %w", s.name, err)
	}
	var names []string
	for _, name := range testName.FindAllStringSubmatch(string(text), -1) {
		names = append(names, name[1])
	}
	return all(names), nil
}

func all(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// try runs a suite with a mistake.
func (b *builder) try(ctx context.Context, r row, s suite) (outcome, error) {
	pattern, err := b.pattern(r, s)
	if err != nil {
		return outcome{}, err
	}
	program, err := b.program(ctx, r, s.dir)
	if err != nil {
		return outcome{}, err
	}
	tree, err := b.tree(r)
	if err != nil {
		return outcome{}, err
	}
	play := func(pattern string) (outcome, error) {
		return b.play(ctx, program, tree, pattern, r, s)
	}
	first, err := play(pattern)
	if err != nil || first.mark != found {
		return first, err
	}
	if len(first.tests) > 0 {
		pattern = all(first.tests)
	}
	again, err := play(pattern)
	if again.mark == missed {
		return outcome{once, first.tests}, err
	}
	return again, err
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (Test\w+)`)

// play runs tests once.
func (b *builder) play(ctx context.Context, program, tree, pattern string, r row, s suite) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, *longest+10*time.Second)
	defer cancel()
	args := append([]string{"-test.run=" + pattern, "-test.timeout=" + longest.String(), "-test.count=1"}, s.flags...)
	if !*each {
		args = append(args, "-test.failfast")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = filepath.Join(tree, s.dir)
	cmd.Env = append(os.Environ(), "CI=true", scriptsDir+"="+filepath.Join(tree, luaDir))
	out, err := cmd.CombinedOutput()
	if *logs != "" {
		if err := b.log(r, s, out); err != nil {
			return outcome{}, err
		}
	}
	exit := (*exec.ExitError)(nil)
	switch {
	case err != nil && !errors.As(err, &exit):
		return outcome{}, err
	case bytes.Contains(out, []byte("testing: warning: no tests to run")):
		return outcome{}, fmt.Errorf("suite %s: no test is called %s", s.name, pattern)
	case ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")):
		return outcome{tooLong, nil}, nil
	case err == nil:
		return outcome{missed, nil}, nil
	}
	o := outcome{mark: found}
	for _, name := range failedTest.FindAllSubmatch(out, -1) {
		o.tests = append(o.tests, string(name[1]))
	}
	return o, nil
}

// log keeps what a suite has printed.
func (b *builder) log(r row, s suite, out []byte) error {
	dir := filepath.Join(*logs, r.name())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, s.name+".txt"), out, 0o600)
}
