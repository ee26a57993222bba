package lua

// How the stories in testdata call the scripts.

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The KEYS and the ARGV of the scripts that stories call, by the names that stories have for them.
var storyCalls = map[string][2]string{
	"lock_acquire":      {"lock line token", "field lease count delivery tokens asked channel how"},
	"lock_release":      {"lock line token", "field channel how window left late"},
	"lock_rename":       {"lock line", "from to lease until ends late"},
	"renew":             {"lock", "field lease exact"},
	"force":             {"lock line token", "channel how seen"},
	"inspect":           {"lock", "field"},
	"tombstone_remove":  {"line", "field"},
	"fair_acquire":      {fairKeys, "field lease count wait beat waits asked fenced turns how"},
	"fair_force":        {fairKeys, "wait beat turns how seen"},
	"fair_rename":       {"lock queue timeouts heartbeats line", "from to lease until ends late wait"},
	"fair_release":      {fairKeys, "field left wait beat late rollback turns how"},
	"read_acquire":      {"lock writers line", "field lease count prefix other rwchannel how"},
	"read_release":      {rwKeys, "field left prefix strict rwchannel how window late"},
	"write_acquire":     {rwKeys, "field lease count prefix other writing delivery asked tokens rwchannel how"},
	"write_release":     {rwKeys, "field left prefix rollback other rwchannel how window late"},
	"semaphore_acquire": {"lock taken line", "field lease count permits delivery asked permitted how"},
	"semaphore_release": {"lock taken line", "field left permitted how window late"},
	"semaphore_set":     {"lock taken line", "permits permitted how request"},
	"semaphore_force":   {"lock taken line", "permitted how seen"},
	"semaphore_rename":  {"lock taken line", "from to lease until ends late"},
	"semaphore_renew":   {"taken", "field lease exact"},
	"semaphore_inspect": {"lock taken", "field"},
	"read_rename":       {"lock", "from to lease until ends splits prefix late"},
	"read_renew":        {"lock", "field lease exact prefix"},
	"read_inspect":      {"lock", "field prefix"},
	"rw_force":          {rwKeys, "half prefix rwchannel how seen"},

	"semaphore_count_inspect": {"lock taken", "permits"},
}

const (
	fairKeys = "lock queue timeouts heartbeats line token"
	rwKeys   = "lock writers line token"
)

// storyDefaults has what a story need not say. An empty argument is left out, except field and other.
var storyDefaults = map[string]string{
	"field": "",
	"lock":  "lock", "line": "relock_line:{lock}", "token": "", "queue": "redisson_lock_queue:{lock}",
	"timeouts": "redisson_lock_timeout:{lock}", "heartbeats": "relock_lock_alive:{lock}",
	"writers": "relock_rwlock_writers:{lock}", "taken": "{lock}:timeout", "prefix": "{lock}:",
	"channel": "redisson_lock__channel:{lock}", "rwchannel": "redisson_rwlock:{lock}",
	"turns": "redisson_lock__channel:{lock}:", "permitted": "redisson_sc:{lock}", "how": "publish",
	"lease": "30s", "count": "1", "left": "0", "delivery": "push", "asked": "1", "waits": "1", "tokens": "0",
	"fenced": "0", "exact": "0", "other": "", "seen": "", "splits": "0", "request": "", "strict": "1", "late": "0",
	"rollback": "0", "until": "0", "ends": "0", "half": "write", "window": "20ms", "wait": "5m", "beat": "4s",
	"writing": "3s",
}

// The stories give each script the keys and the arguments that its header has.
func TestStoriesNameAllArguments(t *testing.T) {
	t.Parallel()
	for name, call := range storyCalls {
		for i, kind := range []string{"KEYS", "ARGV"} {
			header := regexp.MustCompile(`(?m)^-- `+kind+`(\[\d+\]|    ) `).FindAllString(library().Text(name), -1)
			assert.Len(t, strings.Fields(call[i]), len(header), "%s of %s", kind, name)
		}
	}
}
