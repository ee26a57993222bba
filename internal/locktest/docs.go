package locktest

// The pages, the files of the library and the names of its tests, for tests that compare them.

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Pages returns the texts for users and for developers, by path.
func Pages(t *testing.T) map[string]string {
	all := make(map[string]string)
	for _, dir := range []string{".", ".ci", "bench", "docs", "examples", "internal", "internal/lua", "spec", "tests/faults"} {
		files, err := filepath.Glob(dir + "/*.md")
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			all[f] = string(text)
		}
	}
	return all
}

// LibraryFiles returns the files that match pattern, of the package and of the internal packages that it imports.
func LibraryFiles(t *testing.T, pattern string) (files []string) {
	here, err := os.Getwd()
	require.NoError(t, err)
	dirs := strings.Fields(GoTool(t, "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "."))
	for _, dir := range dirs {
		dir, err := filepath.Rel(here, dir)
		require.NoError(t, err)
		some, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		files = append(files, some...)
	}
	return files
}

// TestFunctions returns the names of the tests in these packages, and those of the stories of the scripts.
func TestFunctions(t *testing.T) map[string]bool {
	all := map[string]bool{}
	tests, err := filepath.Glob("tests/*/*_test.go")
	require.NoError(t, err)
	for _, file := range append(LibraryFiles(t, "*_test.go"), tests...) {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(source, -1) {
			all[string(found[1])] = true
		}
	}
	stories, err := filepath.Glob("internal/lua/testdata/*.txt")
	require.NoError(t, err)
	for _, story := range stories {
		all["TestStories/"+strings.TrimSuffix(filepath.Base(story), ".txt")] = true
	}
	return all
}

func GoTool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		var text []byte
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			text = exit.Stderr
		}
		require.NoError(t, err, "go %v: %s", args, text)
	}
	return string(out)
}
