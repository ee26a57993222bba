package relock

// The Lua scripts and the one way in which they are sent.
//
// Rules: every file of lua/ is bound by script, once, at init; KEYS holds data
// keys and nothing else; every script answers three integers (a bundle: for each
// lock; Inspect's: all there is); go-redis never repeats a script by itself (it
// would, also after a read timeout), so that whoever sends one decides what a lost
// answer means.

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// Scripts that serve several lock types.
var (
	renewScript   = script("renew", "hash")
	forceScript   = script("force", "hash", "announce")
	inspectScript = script("inspect", "hash")
)

// A luaScript is one file of lua/.
type luaScript struct {
	source, digest string
	byDigest       []any // how a command begins that sends it by digest
}

// script binds lua/<name>.lua, whose KEYS are of these types, with the parts that it needs before it. It runs at
// init, so that a wrong name fails every test.
func script(name, types string, parts ...string) *luaScript {
	var whole strings.Builder
	for _, part := range append([]string{"record"}, parts...) {
		whole.WriteString(luaFile(part))
	}
	fmt.Fprintf(&whole, "return answer(function()\n%s\nend, {'%s'})\n", luaFile(name), strings.ReplaceAll(types, " ", "', '"))
	return newScript(whole.String())
}

func luaFile(name string) string {
	source, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return luaComment.ReplaceAllString(string(source), "")
}

// luaComment is a line that servers need not read; an embedded one reads scripts again for every run.
var luaComment = regexp.MustCompile(`(?m)^ *--( .*)?\n`)

func newScript(source string) *luaScript {
	digest := sha1.Sum([]byte(source))
	s := &luaScript{source: source, digest: hex.EncodeToString(digest[:])}
	s.byDigest = []any{"evalsha", s.digest}
	return s
}

// A bundledScript is one of those that a bundle can run: how a lock is taken, and
// how that is undone.
type bundledScript int

var bundled []string // what a bundle has of each; grows at init

// bundle makes take and undo part of every bundle.
func bundle(take, undo *luaScript) bundledScript {
	function := func(s *luaScript) string { return "function(KEYS, ARGV)\n" + s.source + "\nend" }
	bundled = append(bundled, "{take = "+function(take)+", undo = "+function(undo)+"}")
	return bundledScript(len(bundled)) // as Lua counts
}

// wholeBundle is the script that takes several locks.
var wholeBundle = sync.OnceValue(func() *luaScript {
	return newScript(strings.Replace(luaFile("bundle"), "--[[scripts]]", strings.Join(bundled, ",\n"), 1))
})

// A call is one run of a script.
type call struct {
	script *luaScript
	keys   []string
	args   []any
}

// command is the call as it is sent: by digest, or with the whole source.
func (c call) command(ctx context.Context, whole bool) onceCmd {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	if whole {
		args = append(args, "eval", c.script.source)
	} else {
		args = append(args, c.script.byDigest...)
	}
	args = append(args, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	cmd := newOnceCmd(ctx, append(args, c.args...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// onceCmd is a command that go-redis sends once, whatever becomes of it. On a
// Cluster it still follows redirections: those were not run.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

func newOnceCmd(ctx context.Context, args ...any) onceCmd {
	return onceCmd{redis.NewCmd(ctx, args...)}
}

// A reply is what a script answers; the script's header says what each number means.
type reply [3]int64

// errReply is the error of an answer that no script of ours gives.
var errReply = errors.New("unexpected answer to a script")

// unexpected is errReply with the answer, which may be anything and of any length.
func unexpected(answer any) error {
	return fmt.Errorf("%w: %s", errReply, shortName(fmt.Sprint(answer)))
}

// parseReply reads what every script but a bundle answers.
func parseReply(answer any, err error) (r reply, _ error) {
	list, err := parseList(answer, err)
	if err == nil && (len(list) != len(r) || !r.read(list)) {
		err = unexpected(answer)
	}
	return r, err
}

// parseReplies reads what a bundle answers.
func parseReplies(answer any, err error) ([]reply, error) {
	list, err := parseList(answer, err)
	if err != nil {
		return nil, err
	}
	if len(list)%len(reply{}) != 0 {
		return nil, unexpected(answer)
	}
	replies := make([]reply, len(list)/len(reply{}))
	for i := range replies {
		if !replies[i].read(list[i*len(reply{}):]) {
			return nil, unexpected(answer)
		}
	}
	return replies, nil
}

func oneReply(replies []reply, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	if len(replies) != 1 {
		return reply{}, fmt.Errorf("%w: %d answers", errReply, len(replies))
	}
	return replies[0], nil
}

func parseList(answer any, err error) ([]any, error) {
	if err == redis.Nil {
		return nil, unexpected(nil)
	}
	if err != nil {
		return nil, err
	}
	list, ok := answer.([]any)
	if !ok {
		return nil, unexpected(answer)
	}
	return list, nil
}

// read takes the first numbers of list, and says whether they are numbers.
func (r *reply) read(list []any) bool {
	for i := range r {
		n, ok := list[i].(int64)
		if !ok {
			return false
		}
		r[i] = n
	}
	return true
}

// A bundledCall takes one lock of several.
type bundledCall struct {
	script     bundledScript
	take, undo call
}

// bundleOf is the call that makes calls together.
func bundleOf(calls []bundledCall) call {
	c := call{script: wholeBundle(), args: []any{len(calls)}}
	for _, b := range calls {
		c.keys = append(c.keys, b.take.keys...)
		c.args = append(c.args, int(b.script), len(b.take.keys), len(b.take.args), len(b.undo.args))
		c.args = append(append(c.args, b.take.args...), b.undo.args...)
	}
	return c
}

// A processor is a client or one of its connections.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// send sends one call. A server that does not know the script yet is sent its source.
func send(ctx context.Context, rdb processor, c call) (any, error) {
	cmd := c.command(ctx, false)
	_ = rdb.Process(ctx, cmd) // Result has the error, also where Process returns early
	answer, err := cmd.Result()
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = c.command(ctx, true)
		_ = rdb.Process(ctx, cmd)
		answer, err = cmd.Result()
	}
	return answer, orNotALock(c, err)
}

// An outcome is what became of one of several calls.
type outcome struct {
	answer   any
	err      error
	unsynced error // too few replicas have confirmed it, whatever it is
}

// sendAll sends many calls in one pipeline, and those that the server did not
// know in a second one.
func sendAll(ctx context.Context, rdb redis.UniversalClient, calls []call, o pipelineOptions) []outcome {
	outcomes := make([]outcome, len(calls))
	send := func(which []int, whole bool) (unknown []int) {
		cmds := make([]onceCmd, len(which))
		pipe := rdb.Pipeline()
		for i, n := range which {
			if o.asking {
				_ = pipe.Process(ctx, newOnceCmd(ctx, "asking"))
			}
			cmds[i] = calls[n].command(ctx, whole)
			_ = pipe.Process(ctx, cmds[i])
		}
		var wait onceCmd
		if o.synced.replicas > 0 {
			wait = o.synced.wait(ctx)
			_ = pipe.Process(ctx, wait)
		}
		_, failed := pipe.Exec(ctx) // the error of the first command that has one
		var unsynced error
		if o.synced.replicas > 0 {
			unsynced = o.synced.verdict(wait.Result())
		}
		for i, n := range which {
			answer, err := cmds[i].Result()
			if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
				unknown = append(unknown, n)
			}
			if answer == nil && err == nil {
				err = failed // of a hook, which has sent nothing
			}
			outcomes[n] = outcome{answer, orNotALock(calls[n], err), unsynced}
		}
		return unknown
	}
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	if unknown := send(all, false); len(unknown) > 0 {
		send(unknown, true)
	}
	return outcomes
}

// pipelineOptions is what else goes into a pipeline.
type pipelineOptions struct {
	synced synced // a WAIT at the end
	asking bool   // an ASKING before each call: the slot is on its way to this server
}
