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
	"tombstone_remove":  {"line", "field"},
	"fair_acquire":      {fairKeys, "field lease count wait beat waits asked fenced turns how"},
	"fair_release":      {fairKeys, "field left wait beat late rollback turns how"},
	"read_acquire":      {"lock writers line", "field lease count prefix other rwchannel how"},
	"read_release":      {rwKeys, "field left prefix strict rwchannel how window late"},
	"write_acquire":     {rwKeys, "field lease count prefix other writing delivery asked tokens rwchannel how"},
	"write_release":     {rwKeys, "field left prefix rollback other rwchannel how window late"},
	"semaphore_acquire": {"lock taken line", "field lease count permits delivery asked permitted how"},
	"semaphore_release": {"lock taken line", "field left permitted how window late"},
	"semaphore_rename":  {"lock taken line", "from to lease until ends late"},
	"semaphore_set":     {"lock taken line", "permits permitted how request"},
}

const (
	fairKeys = "lock queue timeouts heartbeats line token"
	rwKeys   = "lock writers line token"
)

// storyDefaults has what a story need not say. An empty token and an empty seen are left out.
var storyDefaults = map[string]string{
	"lock": "lock", "line": "relock_line:{lock}", "token": "", "queue": "redisson_lock_queue:{lock}",
	"timeouts": "redisson_lock_timeout:{lock}", "heartbeats": "relock_lock_alive:{lock}",
	"writers": "relock_rwlock_writers:{lock}", "taken": "{lock}:timeout", "prefix": "{lock}:",
	"channel": "redisson_lock__channel:{lock}", "rwchannel": "redisson_rwlock:{lock}",
	"turns": "redisson_lock__channel:{lock}:", "permitted": "redisson_sc:{lock}", "how": "publish",
	"lease": "30s", "count": "1", "left": "0", "delivery": "push", "asked": "1", "waits": "1", "tokens": "0",
	"fenced": "0", "exact": "0", "other": "", "seen": "", "strict": "1", "late": "0", "rollback": "0", "until": "0",
	"ends": "0", "window": "20ms", "wait": "5m", "beat": "4s", "writing": "3s",
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
