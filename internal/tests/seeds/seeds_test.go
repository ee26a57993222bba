package seeds

// The tests play a suite in processes of their own, in directories of their own.

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	inner = New("inner")
	fails = os.Getenv("SEEDS_FAIL") != ""
)

// TestInner is run by the other tests in a process of its own, whose directory they choose.
func TestInner(t *testing.T) {
	if os.Getenv("SEEDS_INNER") == "" {
		t.Skip("this is not the process of another test")
	}
	inner.Workers = 3
	inner.Play(t, 3, func(q *Sequence) {
		q.Note(q.Seed)
		q.Logf("plays seed %d, whose file has %q", q.Seed, q.File)
		q.Keep("what is left of it")
		assert.False(q, fails, "it is broken")
	})
}

// plays returns what TestInner logs in a directory.
func plays(t *testing.T, dir string, flags ...string) (string, error) {
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestInner$", "-test.v"}, flags...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SEEDS_INNER=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Without a flag, the known seeds are played, and those that have a file; a flag chooses one seed. The digest depends on no order.
func TestFilesArePlayed(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "digests")
	seeds := filepath.Join(dir, "testdata", "seeds", "inner")
	require.NoError(t, os.MkdirAll(filepath.Join(seeds, "a part"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(seeds, "77"), []byte("a plan"), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(seeds, "2"), nil, 0o666))
	t.Setenv("RELOCK_DIGESTS", file)
	for range 3 {
		out, err := plays(t, dir)
		require.NoError(t, err, out)
		for _, want := range []string{`seed 1, whose file has ""`, `seed 3, whose`, `seed 77, whose file has "a plan"`, "of 4 seeds"} {
			assert.Contains(t, out, want)
		}
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	digests := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, digests, 3)
	assert.Len(t, slices.Compact(digests), 1, "digests of three runs")
	out, err := plays(t, dir, "-inner.count=9")
	require.NoError(t, err, out)
	assert.Contains(t, out, "of 10 seeds")
	out, err = plays(t, dir, "-inner.seed=42")
	require.NoError(t, err, out)
	assert.Contains(t, out, "plays seed 42,")
	assert.Contains(t, out, "of 1 seeds")
}

// A new seed that fails gets a file, with which it is played from then on. A known one that fails leaves no file.
func TestFailureIsKept(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SEEDS_FAIL", "1")
	out, err := plays(t, dir)
	require.Error(t, err, out)
	assert.NoDirExists(t, filepath.Join(dir, "testdata"))
	out, err = plays(t, dir, "-inner.explore=1h")
	require.Error(t, err, out)
	kept, err := filepath.Glob(filepath.Join(dir, "testdata", "seeds", "inner", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, kept, out)
	text, err := os.ReadFile(kept[0])
	require.NoError(t, err)
	assert.Equal(t, "what is left of it", string(text))

	require.NoError(t, os.Unsetenv("SEEDS_FAIL"))
	out, err = plays(t, dir)
	require.NoError(t, err, out)
	assert.Contains(t, out, "plays seed "+filepath.Base(kept[0])+`, whose file has "what is left of it"`)
}
