package mistakes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relock-go/relock/internal/lua"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mistake changes texts. If a script has changed, a text may be in none of them. Storms and simulations change the
// scripts as they are sent, and "make kills" as they are written.
func TestMistakesFitTheScripts(t *testing.T) {
	t.Parallel()
	written, sent := textOf(t, "../../lua/*.lua"), ""
	for _, name := range lua.Names() {
		sent += lua.Source(name)
	}
	for _, m := range Scripts {
		assert.Empty(t, m.File, m.Name)
		for _, c := range m.Changes {
			assert.True(t, strings.Contains(written, c.From) && strings.Contains(sent, c.From),
				"the mistake %s: no script has %q; change the mistake as the script has changed", m.Name, c.From)
		}
	}
}

// A mistake in the Go code changes one place of its file.
func TestMistakesFitTheCode(t *testing.T) {
	t.Parallel()
	for _, m := range Code {
		code := textOf(t, filepath.Join("../../..", m.File))
		for _, c := range m.Changes {
			assert.Equal(t, 1, strings.Count(code, c.From), "the mistake %s: how often %s has %q", m.Name, m.File, c.From)
		}
	}
}

func TestMistakesAreDescribed(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range slices.Concat(Scripts, Code) {
		assert.False(t, names[m.Name], "two mistakes are called %s", m.Name)
		names[m.Name] = true
		assert.True(t, strings.HasSuffix(m.Omits, "."), "%s says which precaution it omits, in a sentence", m.Name)
		assert.NotEmpty(t, m.Changes, m.Name)
	}
}

// textOf returns the text of all these files.
func textOf(t *testing.T, pattern string) string {
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}
