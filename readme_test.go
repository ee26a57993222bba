package relock

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The code in the README is part of an example that is compiled and run.
func TestReadmeCodeIsCompiled(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := flatten(string(examples))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) < 2 {
		t.Fatalf("%d blocks of Go", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(code, flatten(b[1])) {
			t.Errorf("not in example_test.go:\n%s", b[1])
		}
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
