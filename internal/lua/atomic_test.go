package lua

// Scripts that are refused a command halfway. Every request of the stories runs once more for each command that it runs,
// as a user who may not run it. If it fails then, these hold:
//
//   - A user without an optional command has no errors.
//   - An attempt that has failed holds nothing that it did not hold before.
//   - No key of relock, and no record, is left without a lease.
//   - Available and taken permits add up to as many as before.
//   - A rename leaves as many holders as there were, except that of a reader that leaves others, or that is evicted.
//
// A request that fails although all commands are allowed has changed nothing, but a late one may leave a tombstone.

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lua/luatest"
)

// optional are the commands that scripts do without: see docs/security.md.
var optional = []string{"info", "publish", "pubsub", "spublish"}

// A savedKey is what a key holds.
type savedKey struct {
	key, dump string
	ms        int64 // its lease; 0: none
}

func (p *teller) save() (all []savedKey) {
	for _, key := range p.rdb.Keys(p.Context(), "*").Val() {
		ms := max(0, p.rdb.PTTL(p.Context(), key).Val().Milliseconds())
		all = append(all, savedKey{key, p.rdb.Dump(p.Context(), key).Val(), ms})
	}
	return all
}

// restore makes these keys the data of Redis, for a user who may not run the denied commands.
func (p *teller) restore(all []savedKey, denied ...string) {
	pipe := p.rdb.Pipeline()
	pipe.FlushDB(p.Context())
	for _, k := range all {
		pipe.Do(p.Context(), "restore", k.key, k.ms, k.dump)
	}
	for _, command := range denied {
		pipe.HSet(p.Context(), luatest.ClockKey, "denied", command)
	}
	_, err := pipe.Exec(p.Context())
	require.NoError(p, err)
}

// dataWithout returns the data that a script has left, by their keys, except token counters: a token may be drawn for
// nothing.
func dataWithout(e luatest.Effect) map[string]string {
	data := make(map[string]string)
	for line := range strings.Lines(e.Data) {
		key, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !strings.HasPrefix(key, "redisson_lock_token:") && key != "tokens" {
			data[key] = rest
		}
	}
	return data
}

// permitsIn returns the sum of available and taken permits.
func permitsIn(data map[string]string) int {
	_, free, _ := strings.Cut(data["lock"], ": ")
	n, _ := strconv.Atoi(free)
	return n + strings.Count(data["{lock}:timeout"], "=")
}

// lasts reports whether Redisson has this key without a lease.
func lasts(key, of string) bool {
	return strings.HasPrefix(of, "string ") || key == "{lock}:timeout"
}

// withoutLease returns a key that has no lease, and has had one or is new; "" if there is none. A user who may neither set
// a lease nor delete may leave another key than that of the lock.
func withoutLease(denied string, before, after map[string]string) string {
	for key, of := range after {
		if strings.Contains(denied, ",") && key != "lock" {
			continue
		}
		if strings.Contains(of, " -1: ") && !strings.Contains(before[key], " -1: ") && !lasts(key, of) {
			return key
		}
	}
	return ""
}

// wrong says what a request that has failed has changed, although it may not; "" if nothing.
func wrong(script, field string, before, after map[string]string) string {
	held := regexp.MustCompile(`(^|[ ,])` + regexp.QuoteMeta(field) + `(:write)?=`)
	for _, key := range []string{"lock", "{lock}:timeout"} {
		if strings.HasSuffix(script, "_acquire") && held.MatchString(after[key]) && !held.MatchString(before[key]) {
			return "the caller holds the lock"
		}
	}
	if strings.HasPrefix(script, "semaphore_") && script != "semaphore_set" && before["lock"] != "" &&
		permitsIn(before) != permitsIn(after) {
		return fmt.Sprintf("%d permits become %d", permitsIn(before), permitsIn(after))
	}
	return ""
}

func TestScriptsThatAreRefusedACommandLeaveNothing(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			p := newTeller(t)
			for line := range strings.Lines(string(text)) {
				words := strings.Fields(line)
				if strings.HasPrefix(line, " ") || len(words) == 0 || words[0] == "#" {
					continue
				}
				if _, is := storyCalls[words[0]]; is {
					p.refuses(words[0], words[1:])
				}
				p.play(words[0], words[1:])
			}
		})
	}
}

// refuses runs a request as users who may not run a command each, and leaves the data as they are.
func (p *teller) refuses(script string, words []string) {
	run := luatest.New(Source(script))
	keys, args := p.call(script, words)
	saved := p.save()
	before := dataWithout(p.effect(luatest.New("return {}"), nil, nil))
	if slices.ContainsFunc(saved, func(k savedKey) bool { return k.key == luatest.ClockKey }) &&
		p.rdb.HGet(p.Context(), luatest.ClockKey, "denied").Val() != "" {
		p.restore(saved)
		return // the story is about a user who may not
	}
	without := func(command string) (e luatest.Effect, failed bool, after map[string]string) {
		p.restore(saved, command)
		e = p.effect(run, keys, args)
		failed, after = len(e.Reply) > 0 && e.Reply[0] == "error", dataWithout(e)
		if key := withoutLease(command, before, after); key != "" {
			assert.Fail(p, "a key has no lease", "%s: %s", key, p.what(script, words, command, e.Reply, before, after))
		}
		return e, failed, after
	}
	e, fails, after := without("nothing")
	if fails && !slices.Contains(words, "late=1") {
		assert.Equal(p, before, after, p.what(script, words, "nothing", e.Reply, before, after))
	}
	commands := slices.Compact(slices.Sorted(slices.Values(e.Commands)))
	require.NotEmpty(p, commands, "the commands of %s", script)
	if slices.Contains(commands, "pexpire") { // a script that may not set a lease may delete
		commands = append(commands, "pexpire,hdel", "pexpire,del", "pexpire,pttl", "pexpire,hexists")
	}
	for _, command := range commands {
		e, failed, after := without(command)
		if !failed {
			continue
		}
		what := p.what(script, words, command, e.Reply, before, after)
		assert.False(p, !fails && slices.Contains(optional, command), what)
		assert.Empty(p, wrong(script, fmt.Sprint(args[0]), before, after), what)
		splits := script == "read_rename" && (slices.Contains(words, "splits=1") || slices.Contains(words, "late=1"))
		if strings.HasSuffix(script, "_rename") && !splits {
			assert.Equal(p, strings.Count(before["lock"], "="), strings.Count(after["lock"], "="), "holders: %s", what)
		}
	}
	p.restore(saved)
}

// what describes a request of a user who may not run a command.
func (p *teller) what(script string, words []string, command string, reply []any, before, after map[string]string) string {
	return fmt.Sprintf("%s %s without %s: %v\n%s\nbecomes\n%s", script, strings.Join(words, " "), command, reply,
		p.shown(fmt.Sprint(before)), p.shown(fmt.Sprint(after)))
}

func (p *teller) effect(script *redis.Script, keys []string, args []any) luatest.Effect {
	e, err := luatest.Run(p.Context(), p.rdb, script, p.now, keys, args...)
	require.NoError(p, err)
	return e
}
