package relock

// The bundle: the script that acquires several locks on one Redis together. It contains the acquire script and the
// rollback script of every lock type that can be acquired like that.

import (
	"strings"
	"sync"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

var bundled []string // the Lua text of each pair in a bundle; filled at init

// bundle adds a pair of scripts to every bundle, and returns the number of the pair.
func bundle(acquire, rollBack *luaScript) engine.BundledScript {
	function := func(s *luaScript) string { return "function(KEYS, ARGV)\n" + s.Source() + "\nend" }
	bundled = append(bundled, "{acquire = "+function(acquire)+", roll_back = "+function(rollBack)+"}")
	return engine.BundledScript(len(bundled)) // as Lua counts
}

// wholeBundle is the script that acquires several locks.
var wholeBundle = sync.OnceValue(func() *luaScript {
	return send.NewScript(strings.Replace(library.Source("bundle"), "--[[scripts]]", strings.Join(bundled, ",\n"), 1))
})

// bundleOf returns the call that makes these calls together.
func bundleOf(calls []engine.BundledCall) call {
	c := call{Script: wholeBundle(), Args: []any{len(calls)}}
	for _, b := range calls {
		for _, s := range b.Acquire.Optional {
			c.Optional = append(c.Optional, send.OptionalKey{Key: len(c.Keys) + s.Key, Instead: len(c.Keys) + s.Instead})
		}
		c.Keys = append(c.Keys, b.Acquire.Keys...)
		c.Args = append(c.Args, int(b.Script), len(b.Acquire.Keys), len(b.Acquire.Args), len(b.RollBack.Args))
		c.Args = append(append(c.Args, b.Acquire.Args...), b.RollBack.Args...)
	}
	return c
}
