package relock

// The bundle: the script that acquires several locks on one Redis together. It contains the acquire script and the
// rollback script of every lock type that can be acquired like that.

import (
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

var bundleScript = record.Script("bundle")

// The pairs of scripts that the bundle contains, in the order of internal/lua/bundle.lua.
const (
	lockBundled contract.BundledScript = iota + 1 // as Lua counts
	readBundled
	writeBundled
)

// bundleOf returns the call that makes these calls together.
func bundleOf(calls []contract.BundledCall) call {
	c := call{Script: bundleScript, Args: []any{len(calls)}}
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
