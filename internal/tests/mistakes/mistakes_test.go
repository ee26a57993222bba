package mistakes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mistake changes texts. If a script has changed, a text may be in none of them.
func TestMistakesFit(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../lua/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var scripts strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		scripts.Write(text)
	}
	names := map[string]bool{}
	for _, m := range Scripts {
		assert.False(t, names[m.Name], "two mistakes are called %s", m.Name)
		names[m.Name] = true
		assert.True(t, strings.HasSuffix(m.Omits, "."), "%s says which precaution it omits, in a sentence", m.Name)
		assert.NotEmpty(t, m.Changes, m.Name)
		for _, c := range m.Changes {
			assert.True(t, strings.Contains(scripts.String(), c.From),
				"the mistake %s: no script has %q; change the mistake as the script has changed", m.Name, c.From)
		}
	}
}
