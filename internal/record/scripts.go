package record

// The Lua scripts, which are in internal/lua, as values that can be sent.

import (
	"slices"

	"github.com/relock-go/relock/internal/lua"
	"github.com/relock-go/relock/internal/send"
)

// Scripts has all scripts, by the names of their files. It does not change.
var Scripts = load()

func load() map[string]*send.Script {
	all := make(map[string]*send.Script)
	for _, name := range lua.Names() {
		all[name] = send.NewScript(lua.Source(name))
	}
	return all
}

// Script returns the first script that there is with one of these names. It is called at init, so a wrong name fails every
// test.
func Script(names ...string) *send.Script {
	for _, name := range names {
		if s, ok := Scripts[name]; ok {
			return s
		}
	}
	panic("bug: no script " + names[0])
}

var freeInspect, anyInspect = Script("free_inspect"), Script("any_inspect")

// How scripts publish: see internal/lua/announce.lua.
var Publish, PublishInShard, InBothWays any = "publish", "spublish", "publish+spublish"

// Free is the call of the poller: it asks which of the locks called names are free, for the client with this id.
// The first closely locks are checked closely: see internal/poller.
func (c *Client) Free(names []string, closely int) send.Call {
	keys, args := slices.Clone(names), []any{closely, c.ID}
	for _, name := range names[:closely] {
		keys = append(keys, LineKeys(name)[0])
	}
	return send.Call{Script: freeInspect, Keys: keys, Args: args}
}

// Inspect asks for all data of the lock that users of c call name. Its first key is that of the record.
func Inspect(c *Client, name string) send.Call {
	key := c.Prefix + name
	keys := []string{
		key,
		PrefixName("redisson_lock_queue", key),
		PrefixName("redisson_lock_timeout", key),
		PlacesKey(key),
		PrefixName("relock_rwlock_writers", key),
		TokenKey(key),
		PermitsKey(key),
	}
	args := []any{SuffixName(key, ""), PrefixName("redisson_lock__channel", key), PrefixName("redisson_sc", key),
		PrefixName("redisson_rwlock", key), c.Verb()}
	return send.Call{Script: anyInspect, Keys: slices.Concat(keys, LineKeys(key), WritersLineKeys(key)), Args: args}
}

// upToDefaults returns args and more, without those at the end of more that have their defaults, which the script
// assumes: each argument takes time.
func upToDefaults(args, more []any, defaults ...any) []any {
	n := len(more)
	for n > 0 && more[n-1] == defaults[n-1] {
		n--
	}
	return append(args, more[:n]...)
}
