package lua

// How the stories in testdata call the scripts.

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The KEYS and the ARGV of the scripts that stories call, by the names that stories have for them. What stands behind a
// bar is left out from the end as far as a story does not name it.
var storyCalls = map[string][2]string{
	"lock_acquire":      {"lock order places token", "field lease count delivery tokens how asked channel whole"},
	"lock_release":      {"lock order places token", "field channel how window | left late"},
	"lock_rename":       {"lock places", "from to lease until ends late"},
	"renew":             {"lock", "field lease exact"},
	"force":             {"lock order places token", "channel how seen"},
	"inspect":           {"lock", "field mode | prefix"},
	"fair_acquire":      {fairKeys, "field lease wait turns how count waits asked whole"},
	"fair_force":        {fairKeys, "wait turns how seen"},
	"fair_release":      {fairKeys, "field wait turns how | left late rollback"},
	"read_acquire":      {"lock writers worder wplaces", "field lease prefix | count other"},
	"read_release":      {rwKeys, "field prefix rwchannel how window | left late"},
	"write_acquire":     {rwKeys, "field lease prefix writing rwchannel how count delivery other asked tokens whole"},
	"write_release":     {rwKeys, "field prefix rwchannel how window | left late rollback other"},
	"semaphore_acquire": {"lock taken order places", "field lease permits permitted how count delivery asked whole"},
	"semaphore_release": {"lock taken order places", "field permitted how window | left late"},
	"semaphore_set":     {"lock taken order places", "permits permitted how | seen"},
	"semaphore_force":   {"lock taken order places", "permitted how seen"},
	"semaphore_rename":  {"taken places", "from to lease until ends late"},
	"semaphore_renew":   {"taken", "field lease exact"},
	"semaphore_inspect": {"lock taken", "field | permits"},
	"read_rename":       {"lock wplaces", "from to lease until ends splits prefix late"},
	"read_renew":        {"lock", "field lease exact prefix"},
	"rw_force":          {rwKeys, "half prefix rwchannel how seen"},
}

const (
	fairKeys = "lock queue timeouts fair places token"
	rwKeys   = "lock writers worder wplaces token"
)

// storyDefaults has what a story need not say. An empty argument is left out, except field and other.
var storyDefaults = map[string]string{
	"field": "",
	"lock":  "lock", "order": "relock_line:{lock}:order", "places": "relock_line:{lock}:waits",
	"worder": "relock_line:{lock}:writers:order", "wplaces": "relock_line:{lock}:writers:waits",
	"fair": "relock_line:{lock}:fair", "token": "", "queue": "redisson_lock_queue:{lock}",
	"timeouts": "redisson_lock_timeout:{lock}",
	"writers":  "relock_rwlock_writers:{lock}", "taken": "{lock}:timeout", "prefix": "{lock}:",
	"channel": "redisson_lock__channel:{lock}", "rwchannel": "redisson_rwlock:{lock}",
	"turns": "redisson_lock__channel:{lock}:", "permitted": "redisson_sc:{lock}", "how": "publish",
	"lease": "30s", "count": "1", "left": "0", "delivery": "push", "asked": "1", "waits": "1", "tokens": "0",
	"fenced": "0", "exact": "0", "other": "", "seen": "", "splits": "0", "late": "0",
	"rollback": "0", "mode": "", "until": "0", "ends": "0", "half": "write", "whole": "", "window": "20ms", "wait": "5m",
	"writing": "3s",
}

// The stories give each script the keys and the arguments that its header has.
func TestStoriesNameAllArguments(t *testing.T) {
	t.Parallel()
	for name, call := range storyCalls {
		for i, kind := range []string{"KEYS", "ARGV"} {
			header := regexp.MustCompile(`(?m)^-- `+kind+`(\[\d+\]|    ) `).FindAllString(Text(name), -1)
			assert.Len(t, strings.Fields(strings.Replace(call[i], "|", "", 1)), len(header), "%s of %s", kind, name)
		}
	}
}
