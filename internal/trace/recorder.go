// Package trace records what the scripts of a lock did in Redis, and replays it as steps of the specification
// (spec/Trace.tla). The package is for tests.
package trace

// The recorder: a go-redis hook that replaces scripts by scripts which note their runs.
//
// Rules: the script itself makes the note, so the notes have the order in which Redis ran the scripts. A note has the
// record and the line before and after the run, and the messages that were received. Except for the note, the script
// has the same effect and the same answer.

import (
	"context"
	_ "embed" // recorder.lua
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/send"
)

// notes is the list in Redis that the scripts append their notes to.
const notes = "relock_trace"

//go:embed recorder.lua
var recorder string

// A Verb names what a script does to a lock.
type Verb string

// The verbs that the specification knows. A script with another verb must not change the state of the specification.
const (
	Ask Verb = "ask"
	End Verb = "end"
)

// A Recorder replaces scripts that are about to be sent.
type Recorder struct {
	scripts map[string]*send.Script // by digest and by source
}

// Record returns a Recorder of these scripts. Each script is changed by mend first.
func Record(scripts map[*send.Script]Verb, mend func(source string) string) *Recorder {
	r := &Recorder{make(map[string]*send.Script)}
	for script, verb := range scripts {
		source := strings.NewReplacer("VERB", string(verb), "--[[script]]", mend(script.Source())).Replace(recorder)
		noting := send.NewScript(source)
		r.scripts[script.Digest()], r.scripts[script.Source()] = noting, noting
	}
	return r
}

// Sent returns the script that is sent instead of script.
func (r *Recorder) Sent(script *send.Script) *send.Script {
	if noting := r.scripts[script.Digest()]; noting != nil {
		return noting
	}
	return script
}

// DialHook changes nothing.
func (r *Recorder) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook replaces the script of a command.
func (r *Recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.replace(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook replaces the scripts of a pipeline.
func (r *Recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			r.replace(cmd)
		}
		return next(ctx, cmds)
	}
}

func (r *Recorder) replace(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) < 2 {
		return
	}
	text, _ := args[1].(string)
	noting := r.scripts[text]
	switch {
	case noting == nil:
	case cmd.Name() == "evalsha":
		args[1] = noting.Digest()
	case cmd.Name() == "eval":
		args[1] = noting.Source()
	}
}
