package lua

// The stories in testdata: requests to Redis, one after the other, and beneath each what the script answered, which
// messages it sent, and what Redis has then. testdata/README.md tells how to read and how to change them.
//
// Rules: a story never depends on how long the test takes, because its scripts run by a clock that only the story
// moves: see luatest. Names of clients are letters, and times are counted from the beginning of the story.

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lua/luatest"
	"github.com/relock-go/relock/internal/testredis"
)

var update = flag.Bool("update", false, "writes what the scripts do into the stories of testdata")

var storyBegin = time.Unix(1_700_000_000, 0)

// A teller plays a story.
type teller struct {
	*testing.T
	rdb   *redis.Client
	ears  *redis.PubSub
	now   time.Time
	ids   map[string]string // of clients, by their letters
	names *strings.Replacer // the other way round
	costs bool              // whether it says how many commands a request runs
}

func newTeller(t *testing.T) *teller {
	rdb := testredis.Start(t).Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	p := &teller{T: t, rdb: rdb, ears: rdb.Subscribe(t.Context()), now: storyBegin, ids: make(map[string]string)}
	t.Cleanup(func() { assert.NoError(t, p.ears.Close()) })
	var names []string
	for letter := 'A'; letter <= 'Z'; letter++ {
		id := fmt.Sprintf("a%07x-0000-4000-8000-000000000000", letter)
		p.ids[string(letter)], names = id, append(names, id, string(letter))
	}
	p.names = strings.NewReplacer(names...)
	return p
}

// tell returns a story with what its requests do now.
func (p *teller) tell(story string) string {
	var out strings.Builder
	for line := range strings.Lines(story) {
		if strings.HasPrefix(line, " ") {
			continue // what they did before
		}
		out.WriteString(line)
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			out.WriteString(p.play(words[0], words[1:]))
		}
	}
	return out.String()
}

// play makes one request, and returns what it has done.
func (p *teller) play(command string, words []string) string {
	switch command {
	case "listen":
		return p.listen("subscribe", p.ears.Subscribe, words[0])
	case "leave":
		return p.listen("unsubscribe", p.ears.Unsubscribe, words[0])
	case "spy":
		return p.listen("psubscribe", p.ears.PSubscribe, words[0])
	case "nospy":
		return p.listen("punsubscribe", p.ears.PUnsubscribe, words[0])
	case "without":
		require.NoError(p, p.rdb.HSet(p.Context(), luatest.ClockKey, "denied", words[0]).Err())
		return ""
	case "pass":
		d, err := time.ParseDuration(words[0])
		require.NoError(p, err)
		p.now = p.now.Add(d)
		return p.run("return {}", nil, nil)
	case "costs":
		p.costs = true
		return ""
	case "redis":
		source, args := "return {", []any(nil)
		for command := range strings.SplitSeq(strings.Join(words, " "), " ; ") {
			first := len(args) + 1
			for _, word := range strings.Fields(command) {
				args = append(args, p.value(word))
			}
			source += fmt.Sprintf("redis.call(unpack(ARGV, %d, %d)), ", first, len(args))
		}
		return p.run(source+"}", nil, args)
	}
	keys, args := p.call(command, words)
	return p.run(Source(command), keys, args)
}

// call returns the KEYS and the ARGV of a script.
func (p *teller) call(command string, words []string) (keys []string, args []any) {
	require.Contains(p, storyCalls, command, "a command of a story")
	names, given, named := storyCalls[command], maps.Clone(storyDefaults), map[string]bool{}
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			name, value = "field", word
		}
		require.Contains(p, strings.Fields(names[0]+" "+names[1]), name, "an argument of %s", command)
		given[name], named[name] = value, true
	}
	for _, key := range p.arguments(names[0], given) {
		keys = append(keys, key.(string))
	}
	first, last, _ := strings.Cut(names[1], "|")
	rest := strings.Fields(last)
	for len(rest) > 0 && !named[rest[len(rest)-1]] {
		rest = rest[:len(rest)-1]
	}
	return keys, p.arguments(first+strings.Join(rest, " "), given)
}

// listen changes a subscription, and waits until Redis has confirmed it. Messages may come before.
func (p *teller) listen(kind string, do func(ctx context.Context, channels ...string) error, channel string) string {
	require.NoError(p, do(p.Context(), p.value(channel)))
	for {
		m, err := p.ears.ReceiveTimeout(p.Context(), time.Minute)
		require.NoError(p, err)
		if s, ok := m.(*redis.Subscription); ok && s.Kind == kind {
			return ""
		}
	}
}

func (p *teller) arguments(names string, given map[string]string) (args []any) {
	for _, name := range strings.Fields(names) {
		value, known := given[name]
		require.True(p, known, "%s has no value", name)
		if value != "" || name == "other" || name == "field" {
			args = append(args, p.value(value))
		}
	}
	return args
}

var (
	letter    = regexp.MustCompile(`\b[A-Z]\b`)
	epoch     = regexp.MustCompile(`\b17000\d{5}(\d{3})?\b`) // in s or ms
	message   = regexp.MustCompile(`(?s)^\S+ (\S+) (.*) (\d+)$`)
	keyOfData = regexp.MustCompile(`^(\S+) (\w+) (-?\d+): (.*)`)
)

// value returns a word of a story as it is sent.
func (p *teller) value(word string) string {
	if after, is := strings.CutPrefix(word, "T+"); is {
		d, err := time.ParseDuration(after)
		require.NoError(p, err)
		return strconv.FormatInt(storyBegin.Add(d).UnixMilli(), 10)
	} else if d, err := time.ParseDuration(word); err == nil {
		return strconv.FormatInt(d.Milliseconds(), 10)
	} else if word != "" && letter.FindString(word) == word {
		word += ":1:1"
	}
	return letter.ReplaceAllStringFunc(word, func(name string) string { return p.ids[name] })
}

// shown returns a text of Redis as a story has it.
func (p *teller) shown(text string) string {
	return epoch.ReplaceAllStringFunc(p.names.Replace(text), func(at string) string {
		d, err := time.ParseDuration(at[:10] + "s" + cmp.Or(at[10:], "0") + "ms")
		require.NoError(p, err)
		return "T+" + (d - time.Duration(storyBegin.UnixNano())).String()
	})
}

// run runs a script, and returns what it has done.
func (p *teller) run(source string, keys []string, args []any) string {
	e, err := luatest.Run(p.Context(), p.rdb, luatest.New(source), p.now, keys, args...)
	require.NoError(p, err)
	var out strings.Builder
	if p.costs {
		fmt.Fprintf(&out, "  runs %d commands\n", len(e.Commands))
	}
	if len(e.Reply) > 0 {
		fmt.Fprintln(&out, "  answers", p.shown(strings.Trim(fmt.Sprint(e.Reply), "[]")))
	}
	for _, m := range e.Messages {
		parts := message.FindStringSubmatch(p.shown(m))
		fmt.Fprintf(&out, "  tells %s: %s (%s)\n", parts[1], parts[2], parts[3])
	}
	for line := range strings.Lines(e.Data) {
		parts := keyOfData.FindStringSubmatch(p.shown(line))
		left, err := time.ParseDuration(parts[3] + "ms")
		require.NoError(p, err)
		lease := strings.Replace(left.String(), "-1ms", "no lease", 1)
		fmt.Fprintf(&out, "  %s (%s, %s) %s\n", parts[1], parts[2], lease, parts[4])
	}
	if e.Data == "" {
		fmt.Fprintln(&out, "  Redis is empty")
	}
	return out.String()
}

func TestStories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 7)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			told := newTeller(t).tell(string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(told), 0o644))
			}
			line, has, does := firstDifference(string(text), told)
			assert.True(t, *update || line == 0, "%s:%d: the story has\n%sand the scripts do\n%s", file, line, has, does)
		})
	}
}

// firstDifference returns the number of the first line in which two texts differ, and both lines; 0 if they are equal.
func firstDifference(a, b string) (line int, inA, inB string) {
	as, bs := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	for i := range max(len(as), len(bs)) {
		var x, y string
		if i < len(as) {
			x = as[i]
		}
		if i < len(bs) {
			y = bs[i]
		}
		if x != y {
			return i + 1, x, y
		}
	}
	return 0, "", ""
}
