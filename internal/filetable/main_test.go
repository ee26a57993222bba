package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A file is in the table with the first sentence of its head, and one without a head is an error.
func TestTableSaysWhatEachFileIsFor(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	write("doc.go", "// Package a is for this. And more.\npackage a\n")
	write("b.go", "package a\n\n// Bees: what they do. Rules: none.\n\nimport \"time\"\n\n// D is no head.\nvar D time.Duration\n")
	write("b_test.go", "package a\n")
	write("internal/engine/e.go", "// Package engine runs.\npackage engine\n")
	write("internal/engine/f.go", "package engine\n\n// Effects: what follows.\n\n// F is a function.\nfunc F() {}\n")
	write("internal/z/z.go", "// Command z sleeps.\npackage main\n")
	table, err := tableOf(dir)
	require.NoError(t, err)
	assert.Equal(t, `
| file | what it is for |
|---|---|
| **`+"`package relock`"+`** | |
| `+"`b.go`"+` | Bees: what they do. |
| `+"`doc.go`"+` | Package a is for this. |
| **`+"`internal/engine`"+`** | |
| `+"`e.go`"+` | Package engine runs. |
| `+"`f.go`"+` | Effects: what follows. |
| **other packages** | |
| `+"`internal/z`"+` | Command z sleeps. |

`, table)
	write("c.go", "package a\n\n// C is no head.\nfunc C() {}\n")
	_, err = tableOf(dir)
	assert.ErrorContains(t, err, "c.go does not say what it is for")
}
