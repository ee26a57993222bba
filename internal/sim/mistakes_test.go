//go:build go1.25

package sim

// The simulator finds mistakes: each of those that trace_test.go makes in the scripts, and defects that relock had
// once.
//
// Rules: a mistake is a change of the text of a script on its way to Redis. The mistakes of trace_test.go are read from
// its source, so that they stay the same. One that is not found in so many seeds fails the test.

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var simMistakes = flag.Int("sim.mistakes", 0,
	"in how many seeds TestSimulationFindsMistakes looks for each of them; 0: not at all")

// A mistake is a change of scripts that leaves out one of their cares.
type mistake struct {
	name     string
	from, to string
	focus    Focus
}

// missed are the mistakes that this simulator does not find, and why.
var missed = map[string]string{
	"sameNumber": "a place that is lost like that belongs to a process that was slow: it asks again, later than " +
		"others, which a fault excuses",
	"noTombstone": "the answer of a late request gives back what it took; without its connection it lapses with its " +
		"lease, as a fault may do",
}

// defects are what relock once did wrong.
var defects = []mistake{
	{"deadTakenForJava", "elseif is_relocks(first) then", "elseif false then",
		Focus{[]Kind{Fair}, []string{"kill", "vanish", "outage"}}},
	{"heartbeatOfTheFuture", "if first and not last_run then", "if false then",
		Focus{[]Kind{Fair}, []string{"kill", "vanish", "clock back"}}},
	{"writerOfTheFuture", "tonumber(last[2]) > now + writer_life then", "false then",
		Focus{[]Kind{ReadWrite}, []string{"kill", "vanish", "clock back"}}},
	{"sliceOfTheFuture", " or line.shared > now", "",
		Focus{[]Kind{Multi}, []string{"clock back"}}},
	{"queueWithoutALease", "set_lease(q, tonumber(timeout))", "",
		Focus{[]Kind{Fair}, []string{"kill", "vanish", "outage"}}},
}

// cares are what a lock needs that trace_test.go knows nothing of: one for each promise that the witness learned later.
var cares = []mistake{
	{"setForgetsTaken", "available = permits - redis.call('zcard', taken)\n    redis.call('set'",
		"available = permits\n    redis.call('set'", Focus{[]Kind{Permits}, []string{"delete", "wipe"}}},
	{"numberForgetsTaken", "local available = permits - redis.call('zcard', taken)\nif before",
		"local available = permits\nif before", Focus{Locks: []Kind{Permits}}},
	{"readerWithoutALease", "redis.call('set', lease_key(prefix, field, 1), '1', 'PX', ms(longest))", "",
		Focus{Locks: []Kind{JavaReadWrite}}},
	{"permitForTwo", "redis.call('incrby', free, -1)", "", Focus{Locks: []Kind{JavaPermits}}},
}

// scriptMistakes reads the table of trace_test.go.
func scriptMistakes(t *testing.T) (all []mistake) {
	file, err := parser.ParseFile(gotoken.NewFileSet(), "../../trace_test.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "scriptMistakes" {
			return true
		}
		for _, row := range spec.Values[0].(*ast.CompositeLit).Elts {
			var text []string
			for _, e := range row.(*ast.CompositeLit).Elts {
				s, err := strconv.Unquote(e.(*ast.BasicLit).Value)
				require.NoError(t, err)
				text = append(text, s)
			}
			kind := map[string]Kind{"plain": Plain, "fenced": FencedOne}[text[1]]
			all = append(all, mistake{text[0], text[2], text[3], Focus{Locks: []Kind{kind, Multi}}})
		}
		return false
	})
	require.NotEmpty(t, all)
	return all
}

func TestSimulationFindsMistakes(t *testing.T) {
	if *simMistakes == 0 {
		t.Skip("-sim.mistakes says in how many seeds to look")
	}
	for _, m := range slices.Concat(scriptMistakes(t), defects, cares) {
		t.Run(m.name, func(t *testing.T) {
			if why, ok := missed[m.name]; ok {
				t.Skip(why)
			}
			var changed atomic.Bool
			rewrite := func(source string) string {
				if strings.Contains(source, m.from) {
					changed.Store(true)
				}
				return strings.ReplaceAll(source, m.from, m.to)
			}
			first := rand.Uint64N(1_000_000_000) + 1
			for i := range *simMistakes {
				if v := Play(t, Draw(first+uint64(i), m.focus), options{rewrite}); v.Found != nil {
					fmt.Printf("mistake %s: found with seed %d, the %d. of them: %v\n", m.name, first+uint64(i), i+1, v.Found)
					return
				}
			}
			assert.True(t, changed.Load(), "no script has the text that the mistake changes")
			assert.Fail(t, "not found", "%s in %d seeds from %d", m.name, *simMistakes, first)
		})
	}
}
