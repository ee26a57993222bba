package send

// Scripts, calls of scripts, and the replies to them.
//
// Rules: a call is data. KEYS contains only keys. Every script returns three integers as one text; the script of the
// poller returns three for each lock that may be free. A script that releases a lock by force adds the IDs of clients.
// In its common case a script returns one integer n, which stands for 1, n, 0. Only the script of Inspect returns a
// list, of everything it found.
// go-redis never repeats a call by itself, as it would by default even after a read timeout, because the sender decides
// what a lost answer means.

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Script is a Lua script.
type Script struct {
	source, digest string
	byDigest       []any // the beginning of a command that sends the script by its digest
}

// NewScript returns the script with this source.
func NewScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	digest := hex.EncodeToString(sum[:])
	return &Script{source, digest, []any{"evalsha", digest}}
}

// Source returns the Lua source of the script.
func (s *Script) Source() string { return s.source }

// Digest returns the SHA-1 digest of the source, by which Redis knows the script.
func (s *Script) Digest() string { return s.digest }

// A Call is one run of a script.
type Call struct {
	Script *Script
	Keys   []string
	Words  []any // Words(Keys); nil: they are made for each command
	Args   []any

	// Run, in place of a script, carries the call out in this process. It is called once, and answers as a script does.
	Run func(w *Wait) (any, error)

	// Alone reports that Script can do its work with the first key alone, and the same arguments. It is sent so while
	// the slot of the keys moves, and they are not on the same server.
	Alone bool
}

// Words returns keys as they are in a command. A call that is made often has them, because each of them would be
// allocated anew for each command. They are copied into a command, because hooks of the user may change its arguments.
func Words(keys []string) []any {
	words := make([]any, len(keys))
	for i, key := range keys {
		words[i] = key
	}
	return words
}

// command returns the command for the call, by digest or with the whole source.
func (c *Call) command(ctx context.Context, whole bool) onceCmd {
	cmd := newOnceCmd(ctx, c.appendTo(make([]any, 0, 3+len(c.Keys)+len(c.Args)), whole)...)
	cmd.SetFirstKeyPos(3)
	cmd.SetStepCount(1) // go-redis would ask a Cluster for it
	return cmd
}

// appendTo appends the words of the command to args.
func (c *Call) appendTo(args []any, whole bool) []any {
	if whole {
		args = append(args, "eval", c.Script.source)
	} else {
		args = append(args, c.Script.byDigest...)
	}
	args = append(args, len(c.Keys))
	if c.Words != nil {
		args = append(args, c.Words...)
	} else {
		for _, key := range c.Keys {
			args = append(args, key)
		}
	}
	return append(args, c.Args...)
}

// A onceCmd is a command that go-redis sends once, whatever its result is. On a Cluster go-redis still follows
// redirections, because a redirected command was not run.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

func newOnceCmd(ctx context.Context, args ...any) onceCmd {
	return onceCmd{redis.NewCmd(ctx, args...)}
}

// A Reply is the answer of a script. The header of the script describes the meaning of each number.
type Reply [3]int64

// ParseReply reads the answer of a script that returns three integers.
func ParseReply(answer any, err error) (r Reply, _ error) {
	rest, err := r.parse(answer, err)
	if err == nil && rest != "" {
		err = Unexpected(answer)
	}
	return r, err
}

// ParseReplies reads the answer of a script that returns three integers for each lock.
func ParseReplies(answer any, err error) (replies []Reply, _ error) {
	for rest := answer; rest != ""; {
		var r Reply
		if rest, err = r.parse(rest, err); err != nil {
			return nil, err
		}
		replies = append(replies, r)
	}
	return replies, err
}

// ParseForced reads the answer of a script that releases a lock by force: three integers, and then the IDs of the
// clients that have lost a hold.
func ParseForced(answer any, err error) (r Reply, clients []string, _ error) {
	rest, err := r.parse(answer, err)
	return r, strings.Fields(rest), err
}

// parse reads the integers with which an answer begins, and returns the text behind them. It does not allocate.
func (r *Reply) parse(answer any, err error) (rest string, _ error) {
	if err != nil && err != redis.Nil {
		return "", err
	}
	if n, ok := answer.(int64); ok {
		*r = Reply{1, n}
		return "", nil
	}
	rest, ok := answer.(string)
	ok = ok && !strings.HasSuffix(rest, " ")
	for i := 0; ok && i < len(r); i++ {
		var number string
		number, rest, _ = strings.Cut(rest, " ")
		r[i], err = strconv.ParseInt(number, 10, 64)
		ok = err == nil
	}
	if !ok {
		*r = Reply{}
		return "", Unexpected(answer)
	}
	return rest, nil
}

// parseOutcomes reads the answers to calls that were sent together, also those that too few replicas have confirmed: such
// a call has run, and may only have looked for something.
func parseOutcomes(outcomes []Outcome) ([]Reply, []error) {
	replies, errs := make([]Reply, len(outcomes)), make([]error, len(outcomes))
	for i, o := range outcomes {
		replies[i], errs[i] = ParseReply(o.Answer, o.Err)
		if errors.Is(o.Err, ErrNotSynced) {
			replies[i], _ = ParseReply(o.Answer, nil)
		}
	}
	return replies, errs
}
