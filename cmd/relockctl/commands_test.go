package main

// The command line: what may be written how, what is refused, the help and completion.

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// tree returns the commands.
func tree() *cobra.Command { return (&program{out: os.Stdout, err: os.Stderr}).commands() }

// Completion has the commands, the flags of each, and the words that a command takes; behind "--" are files.
func TestShellsComplete(t *testing.T) {
	for typed, want := range map[string]string{
		"un":                    "unlock\t",
		"--addr x un":           "unlock\t",
		"run --w":               "--wait\t",
		"list --json --w":       "--wide\t",
		"completion z":          "zsh\n",
		"run --wait 1s job -- ": ":0\n",
	} {
		args := append([]string{cobra.ShellCompRequestCmd}, strings.Split(typed, " ")...)
		out, _, status := ctl(t, "127.0.0.1:1", "", args...)
		assert.Contains(t, out, want, typed)
		assert.Zero(t, status, typed)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		assert.Contains(t, prints(t, "127.0.0.1:1", "completion", shell), cobra.ShellCompRequestCmd)
	}
}

// Where a name is expected, a shell gets those of the locks that there are.
func TestShellsCompleteNames(t *testing.T) {
	s := testredis.Start(t)
	c := newClient(t, s.Client())
	for _, name := range []string{"lock:a", "lock:b", "other", "lock:with blank", "l*ck"} {
		must(t, c.NewLock(name).Lock(t.Context()))
	}
	for typed, want := range map[string]string{
		"unlock lock:":       "lock:a\nlock:b\n:4\n",
		"--addr x:1 show lo": ":4\n",
		"show l*":            ":4\n",
		"unlock --yes ot":    "other\n:4\n",
		"show lock:a ":       ":0\n",
		"show --json lock":   "lock:a\nlock:b\n:4\n",
		"list lock:":         "lock:a\nlock:b\n:4\n",
		"watch lock:":        "lock:a\nlock:b\n:4\n",
		"serve ot":           "other\n:4\n",
		"run lock:":          "lock:a\nlock:b\n:4\n",
		"run --wait 1s ot":   "other\n:4\n",
		"run nothing":        ":4\n",
	} {
		args := append([]string{cobra.ShellCompRequestCmd}, strings.Split(typed, " ")...)
		out, _, _ := ctl(t, s.Addr(), "", args...)
		assert.Equal(t, want, out, typed)
	}
}

// A flag with a single dash is refused, and its value, which may be a password, is not repeated.
func TestFlagBeginsWithTwoDashes(t *testing.T) {
	s := testredis.Start(t)
	must(t, newClient(t, s.Client()).NewLock("a").Lock(t.Context()))
	for _, args := range []string{
		"-url=redis://:secret@x list", "-url redis://:secret@x", "list -url=redis://:secret@x", "unlock -yes a", "unlock a -yes",
		"run -wait 1s job -- echo started",
	} {
		out, errs, status := ctl(t, s.Addr(), "y\n", strings.Fields(args)...)
		assert.Empty(t, out, args)
		assert.Contains(t, errs, "relockctl: a flag begins with two dashes; see relockctl", args)
		assert.NotContains(t, errs, "secret", args)
		assert.Equal(t, statusUsage, status, args)
	}
	assert.True(t, isLocked(t, s, "a"))
}

// The program is small: it has the dependencies of relock, and those of its command line.
func TestDependenciesAreFew(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	require.NoError(t, err)
	got := strings.Fields(string(out))
	slices.Sort(got)
	assert.Subset(t, []string{
		"github.com/relock-go/relock", "github.com/relock-go/relock/cmd/relockctl",
		"github.com/redis/go-redis/v9", "github.com/google/uuid", "github.com/petermattis/goid",
		"github.com/cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys", // of go-redis
		"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/inconshreveable/mousetrap",
	}, slices.Compact(got))
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	assert.NotContains(t, string(mod), "replace", `"go install" would refuse it`)
}

// The page has the JSON fields of all commands.
func TestPageHasAllFieldsOfTheJSON(t *testing.T) {
	page, err := os.ReadFile("../../docs/relockctl.md")
	require.NoError(t, err)
	fields := 0
	for _, of := range []any{jsonLock{}, jsonContender{}, jsonHolder{}, jsonWaiter{}, jsonUnlock{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(of)) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
				assert.Contains(t, string(page), "`"+name+"`")
				fields++
			}
		}
	}
	assert.Greater(t, fields, 20)
}

// The pages, and the scripts of the examples, have two dashes, and only flags that there are.
func TestPagesCallWhatThereIs(t *testing.T) {
	root := tree()
	var names []string
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	single := regexp.MustCompile("(^|[ `\"])-(" + strings.Join(names, "|") + ")\\b")
	call := regexp.MustCompile(`relockctl(?: --\S+ \S+)? (list|show|watch|serve|unlock|run)` +
		`((?: --[a-z-]+(?: [^-\s]\S*)?)*)`)
	called := 0
	for _, pattern := range []string{"docs/*.md", "*.md", "examples/*.md", "examples/*/*.sh"} {
		files, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "relockctl") || strings.Contains(file, "relockctl") {
					assert.NotRegexp(t, single, line, file)
				}
				for _, m := range call.FindAllStringSubmatch(line, -1) {
					for flag := range strings.FieldsSeq(m[2]) {
						if name, is := strings.CutPrefix(flag, "--"); is {
							c, _, err := root.Find([]string{m[1]})
							must(t, err)
							c.InitDefaultHelpFlag()
							assert.NotNil(t, c.Flag(name), "%s: %s", file, m[0])
							called++
						}
					}
				}
			}
		}
	}
	assert.Greater(t, called, 10, "calls with flags")
}
