//go:build go1.25

package sim

// The names of scripts, for the list of the commands that Redis ran.
//
// Rules: a script of relock is recognized by the end of its file in internal/lua/, which follows its preludes. If these
// files are not available, as in a test binary that runs elsewhere, a script is shown with its digest.

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

var javaNames = map[string]*redis.Script{
	"java_lock": javaLock, "java_unlock": javaUnlock, "java_fair_lock": javaFairLock, "java_fair_unlock": javaFairUnlock,
	"java_read": javaRead, "java_read_unlock": javaReadUnlock, "java_write": javaWrite,
	"java_write_unlock": javaWriteUnlock,
	"java_set_permits":  javaSetPermits, "java_permit": javaPermit, "java_permit_release": javaPermitRelease,
}

// A scriptEnd is the end of the file of a script.
type scriptEnd struct{ name, end string }

// scriptEnds contains the ends of all scripts of relock, with the longest first.
var scriptEnds = sync.OnceValue(func() (all []scriptEnd) {
	notSent := regexp.MustCompile(`(?m)^ *--( .*)?\n`)
	mark := regexp.MustCompile(`(?m)^ *--\[\[[\w ]+\]\]\n`)
	files, _ := filepath.Glob("../lua/*.lua")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "--[[with ") { // it is a prelude
			continue
		}
		parts := mark.Split(notSent.ReplaceAllString(string(text), ""), -1)
		all = append(all, scriptEnd{strings.TrimSuffix(filepath.Base(file), ".lua"), strings.TrimSpace(parts[len(parts)-1])})
	}
	slices.SortFunc(all, func(a, b scriptEnd) int { return len(b.end) - len(a.end) })
	return all
})

// scriptName returns the name of the script with this source, or "" if it is not known.
func scriptName(source string) string {
	for name, script := range javaNames {
		if source != "" && redis.NewScript(source).Hash() == script.Hash() {
			return name
		}
	}
	for _, s := range scriptEnds() {
		if strings.Contains(source, s.end) {
			return s.name
		}
	}
	return ""
}

// named returns a command with the name of its script.
func named(args []string, sourceOf func(sha string) string) []string {
	if len(args) < 2 {
		return args
	}
	name := ""
	switch strings.ToLower(args[0]) {
	case "eval":
		name = scriptName(args[1])
	case "evalsha":
		name = scriptName(sourceOf(args[1]))
	}
	if name == "" {
		return args
	}
	return append([]string{args[0], name}, args[2:]...)
}
