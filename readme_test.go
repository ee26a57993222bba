package relock

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// flatten is code without its indentation.
func flatten(code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}
