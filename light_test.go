package relock

// relock is light: who imports it gets go-redis, uuid, goid and what these need,
// and nothing of its tests, examples and tools.

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ofGoRedis are the modules that go-redis needs.
var ofGoRedis = []string{"github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys"}

func TestImportingIsLight(t *testing.T) {
	light := append([]string{"github.com/redis/go-redis/v9", "github.com/google/uuid", "github.com/petermattis/goid"}, ofGoRedis...)
	for pkg, allowed := range map[string][]string{
		".":               light,
		"./cmd/relockctl": light,
		"./relocktest":    append([]string{"github.com/alicebob/miniredis/v2", "github.com/yuin/gopher-lua"}, light...),
	} {
		modules := strings.Fields(goTool(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", pkg))
		slices.Sort(modules)
		for _, module := range slices.Compact(modules) {
			assert.Contains(t, allowed, module, "%s brings in %s", pkg, module)
		}
		assert.Contains(t, modules, light[0], "%s brings in no go-redis", pkg)
	}
}

// libraryFiles are the files with such names of the package and of the internal packages that it is made of.
func libraryFiles(t *testing.T, pattern string) (files []string) {
	here, err := os.Getwd()
	require.NoError(t, err)
	dirs := strings.Fields(goTool(t, "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "."))
	for _, dir := range dirs {
		dir, err := filepath.Rel(here, dir)
		require.NoError(t, err)
		some, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		files = append(files, some...)
	}
	return files
}

// Whatever else go.mod requires, tests need.
func TestGoModRequiresNoMoreThanNeeded(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool, Replace []any
	}
	require.NoError(t, json.Unmarshal([]byte(goTool(t, "mod", "edit", "-json")), &mod))
	var direct []string
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	slices.Sort(direct)
	want := []string{
		"github.com/alicebob/miniredis/v2", // tests, examples, relocktest
		"github.com/anishathalye/porcupine",
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

func goTool(t *testing.T, args ...string) string {
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
